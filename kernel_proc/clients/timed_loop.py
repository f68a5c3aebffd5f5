"""Times operations one by one, or batches of them, as little disturbed as an interpreter allows.

Rules: a kernel thread at PASSIVE_LEVEL. Samples go to an array made beforehand; between two
operations, never inside one, the thread lets others run now and then.
"""

import struct
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from shared.clock import now_ns

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

_BREATHE_EVERY: Final = 32
_BREATHE_MASK: Final = _BREATHE_EVERY - 1
_TIME: Final = struct.Struct("=Q")


class Batch(Protocol):
    """Requests given together; each is timed from its own beginning to its own end."""

    depth: int

    def __call__(self, samples: "array[int]", first: int, count: int) -> None:
        """Give `count` requests, wait for all, and store their times from `first` on."""


class Stopped(Exception):
    """The run was cancelled: its requester is gone or wants no more."""


class TimedLoop:
    """One run: `warmup` operations nobody sees, then one sample for each of the others.

    It ends early when `stopped` is set, or the thread that asked for it is to end. `elapsed_ns`
    is the time of all timed operations, what lies between them left out.
    """

    __slots__ = ("_processor", "_requester", "elapsed_ns", "samples", "stopped", "warmup")

    def __init__(
        self, processor: "Processor", requester: "KThread | None", count: int, warmup: int
    ) -> None:
        self._processor = processor
        self._requester = requester
        self.samples = array("Q", bytes(8 * count))
        self.warmup = warmup
        self.elapsed_ns = 0
        self.stopped = False

    def run(self, operation: Callable[[], object]) -> None:
        """Perform and time the operations; raise Stopped if it is to end early."""
        for index in range(self.warmup):
            operation()
            if not index & _BREATHE_MASK:
                self.breathe()
        samples = self.samples
        now = now_ns
        for index in range(len(samples)):
            begin = now()
            operation()
            samples[index] = now() - begin
            if not index & _BREATHE_MASK:
                self.breathe()
        self.elapsed_ns = sum(samples)

    def run_batches(self, batch: Batch) -> None:
        """Perform and time the operations in batches; the last one may be smaller."""
        depth = batch.depth
        discarded = array("Q", bytes(8 * depth))
        for first in range(0, self.warmup, depth):
            batch(discarded, 0, min(depth, self.warmup - first))
            self.breathe()
        samples = self.samples
        count = len(samples)
        now = now_ns
        for first in range(0, count, depth):
            begin = now()
            batch(samples, first, min(depth, count - first))
            self.elapsed_ns += now() - begin
            self.breathe()

    def answer(self) -> bytes:
        """Return what the requester is told: the samples, and the time of all."""
        return self.samples.tobytes() + _TIME.pack(self.elapsed_ns)

    def breathe(self) -> None:
        """Let other threads and sockets have their turn: nothing pre-empts who never waits."""
        self._processor.dispatcher.yield_execution()
        if self.stopped or (self._requester is not None and self._requester.terminating):
            raise Stopped
