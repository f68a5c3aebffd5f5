"""Times operations one by one, as little disturbed as an interpreter allows.

Rules: a kernel thread at PASSIVE_LEVEL. Samples go to an array made beforehand; between two
operations, never inside one, the thread lets others run now and then.
"""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from shared.clock import now_ns

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

_BREATHE_EVERY: Final = 32
_BREATHE_MASK: Final = _BREATHE_EVERY - 1


class Stopped(Exception):
    """The run was cancelled: its requester is gone or wants no more."""


class TimedLoop:
    """One run: `warmup` operations nobody sees, then one sample for each of the others.

    It ends early when `stopped` is set, or the thread that asked for it is to end.
    """

    __slots__ = ("_processor", "_requester", "samples", "stopped", "warmup")

    def __init__(
        self, processor: "Processor", requester: "KThread | None", count: int, warmup: int
    ) -> None:
        self._processor = processor
        self._requester = requester
        self.samples = array("Q", bytes(8 * count))
        self.warmup = warmup
        self.stopped = False

    def run(self, operation: Callable[[], object]) -> None:
        """Perform and time the operations; raise Stopped if it is to end early."""
        for index in range(self.warmup):
            operation()
            if not index & _BREATHE_MASK:
                self._breathe()
        samples = self.samples
        now = now_ns
        for index in range(len(samples)):
            begin = now()
            operation()
            samples[index] = now() - begin
            if not index & _BREATHE_MASK:
                self._breathe()

    def _breathe(self) -> None:
        # Nothing pre-empts kernel code that never waits: other threads and sockets need their turn.
        self._processor.dispatcher.yield_execution()
        if self.stopped or (self._requester is not None and self._requester.terminating):
            raise Stopped
