"""Watches that the processor goes on: an OS thread that looks at the dispatcher's pass count.

A processor held for longer than the limit is reported with its stack. In a DPC or an interrupt
service routine that is bug check 0x133; the OS thread cannot raise it in the stuck thread, so
the owner of the machine ends the process when told.

It also tells of threads that wait for longer than the limit for what can never come.

Spec: WDK, Bug Check 0x133 DPC_WATCHDOG_VIOLATION.
"""

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kernel_proc.scheduling.bugcheck import DPC_WATCHDOG_VIOLATION, BugCheck
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, irql_name
from kernel_proc.scheduling.stuck_threads import StuckWatch

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

DEFAULT_LIMIT_NS: Final = 1_000_000_000


class Watchdog:
    """Reports a held processor once per hold, and a thread that can never wake once per wait.

    `on_held(text)` gets a readable report; `on_violation(bug_check)` gets bug check 0x133. Both
    are called in the watchdog's own OS thread.
    """

    def __init__(
        self,
        processor: "Processor",
        on_held: Callable[[str], object],
        on_violation: Callable[[BugCheck], object],
        limit_ns: int = DEFAULT_LIMIT_NS,
    ) -> None:
        self._processor = processor
        self._on_held = on_held
        self._on_violation = on_violation
        self._limit_s = limit_ns / 1e9
        self._stop = threading.Event()
        self._watched = 0
        self._stuck = StuckWatch()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start watching the calling OS thread, which runs the dispatcher."""
        self._watched = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        dispatcher = self._processor.dispatcher
        idle = dispatcher.idle
        seen = reported = (-1, -1)
        while not self._stop.wait(self._limit_s):
            progress = (dispatcher.passes, idle.sleeps)
            held = progress == seen and dispatcher.looping and not idle.asleep
            if held and reported != progress:
                reported = progress
                self._report()
            seen = progress
            self._report_stuck()

    def _report_stuck(self) -> None:
        threads = list(self._processor.dispatcher.threads)
        try:
            texts = self._stuck.look(threads)
        except RuntimeError:  # the processor goes on meanwhile; the next look will do
            return
        for text in texts:
            self._on_held(text)

    def _report(self) -> None:
        import traceback  # nobody needs it until something is wrong

        processor = self._processor
        frame = sys._current_frames().get(self._watched)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
        text = (
            f"processor held for over {self._limit_s:g} s at {irql_name(processor.irql)} "
            f"by {processor.current_thread or 'the dispatcher'}\n{stack}"
        )
        if processor.irql >= DISPATCH_LEVEL:
            report = {"detail": text, "irql": irql_name(processor.irql)}
            self._on_violation(BugCheck(DPC_WATCHDOG_VIOLATION, (0, 0, 0, 0), report))
        else:
            self._on_held(text)
