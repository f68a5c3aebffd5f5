"""The no-op device's hardware: it takes commands, finishes them later and raises its line.

Rules: knows tags, its registers and its line; no IRP, driver or thread. It acts in the
dispatcher, after the thread that commanded it has left the processor.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor


class NoopHardware:
    """Two registers: `command` is written with a tag, `take_finished` reads what is done."""

    __slots__ = ("_acting", "_commands", "_finished", "_processor", "_raise_line", "commands_done")

    def __init__(self, processor: "Processor", raise_line: Callable[[], None]) -> None:
        self._processor = processor
        self._raise_line = raise_line
        self._commands: list[int] = []
        self._finished: list[int] = []
        self._acting = False
        self.commands_done = 0

    def command(self, tag: int) -> None:
        """Begin a command; `tag` comes back when it is finished."""
        self._commands.append(tag)
        if not self._acting:
            self._acting = True
            self._processor.schedule_hardware(self._act)

    def take_finished(self) -> list[int]:
        """Read the tags finished since the last look; reading clears the cause of the line."""
        finished, self._finished = self._finished, []
        return finished

    def _act(self) -> None:
        self._acting = False
        self._finished += self._commands
        self.commands_done += len(self._commands)
        self._commands.clear()
        self._raise_line()
