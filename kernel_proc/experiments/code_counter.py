"""Counts what code of driver and memory one thread runs: calls, functions, lines, steps.

What sends commands and what waits for them is left out: it is the same whatever is registered.

Rules: the thread that is counted makes the counter and calls `count`.
Spec: sys.setprofile.
"""

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from kernel_proc.scheduling.processor import Processor

_KERNEL_ROOM: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COUNTED: Final = tuple(_KERNEL_ROOM + room for room in ("driver", "memory", "experiments"))
_NOT_COUNTED: Final = tuple(
    _KERNEL_ROOM + start
    for start in (
        "driver/command_",
        "driver/interrupt_",
        "driver/event_",
        "experiments/one_path",
        "experiments/code_counter",
    )
)
#: The routines by which a step is known, and what they are called in the table.
STEPS: Final = {
    "allocate_mdl": "MDL",
    "probe_and_lock_pages": "lock",
    "_list_pages": "scatter/gather list",
    "mdl_bus_runs_by_pieces": "bus runs",
    "runs": "bus runs",
    "page_shift": "page size",
    "make_translations": "MTT",
    "allocate_key": "key",
    "give_to_hardware": "MPT",
}


class CodeCounter:
    """Counts the calls of one thread into driver and memory, and remembers what was called."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._thread = processor.current_thread
        self.calls = 0
        self.codes: dict[CodeType, None] = {}

    def count(self, routine: Callable[[], Any]) -> Any:
        """Call the routine; return its value."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            return routine()
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        path = code.co_filename
        if (
            event == "call"
            and self._processor.current_thread is self._thread
            and path.startswith(_COUNTED)
            and not path.startswith(_NOT_COUNTED)
        ):
            self.calls += 1
            self.codes[code] = None

    def lines(self) -> dict[str, int]:
        """Return how many lines each function has that was called, by file and name."""
        return {
            f"{code.co_filename[len(_KERNEL_ROOM) :]}:{code.co_qualname}": len(
                {line for _, _, line in code.co_lines() if line}
            )
            for code in self.codes
        }

    def steps(self) -> list[str]:
        """Return the steps that were taken, in order."""
        return list(
            dict.fromkeys(STEPS[code.co_name] for code in self.codes if code.co_name in STEPS)
        )
