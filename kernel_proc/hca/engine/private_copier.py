"""Copies from and to the private memory of processes: by an OS thread for each, which may stick.

A page of somebody's private memory may take as long as it pleases. So whoever needs one waits, by
a job, and nobody else does: each process has a thread of its own, made when first needed, that
does its jobs in order. A thread touches private memory and bytes of the job only, never shared
memory, so a segment may be unmapped under it. A job that takes longer than the bound is given up:
it counts as a fault, later jobs of that process fail at once until the thread is back, and what
it may still write goes into its own process's pages.

An HCA that is stepped does the jobs where they are given; only one that runs has threads.

Rules: everything but `_Lane` belongs to the device's thread.
Spec: docs/engine.md.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kernel_proc.hca.device_memory import Piece, PrivateRun, PrivateSegment

STUCK_NS: Final = 2_000_000_000


class Copied(Protocol):
    """A key or a queue pair: commands that end it wait until no copy is under way for it."""

    copies: int


class _Fault(Exception):
    """Private memory did not answer in full."""


#: One step: read (`data` is filled) or write a range of an address space.
_Step = tuple[bool, int, int, memoryview]
Change = Callable[[int], int]


class CopyJob:
    """Bytes on their way from or to private memory; `done` is called with whether it worked.

    With `change` it is one word: read, changed, written back; `original` is what it was.
    """

    __slots__ = (
        "buffer",
        "change",
        "done",
        "failed",
        "original",
        "over",
        "segments",
        "since_ns",
        "steps",
        "users",
    )

    def __init__(self, buffer: memoryview, done: "Callable[[CopyJob], None]") -> None:
        self.buffer = buffer
        self.done = done
        self.change: Change | None = None
        self.original = 0
        self.failed = False
        self.over = False
        self.since_ns = 0
        self.steps: list[_Step] = []
        self.segments: list[PrivateSegment] = []
        self.users: Sequence[Copied] = ()

    def run(self) -> None:
        """Do the steps; any thread."""
        try:
            for is_write, descriptor, address, data in self.steps:
                if is_write:
                    _write(descriptor, address, data)
                else:
                    _read(descriptor, address, data)
            if self.change is not None:
                self._change_word(self.change)
        except (_Fault, OSError, OverflowError):
            self.failed = True

    def _change_word(self, change: Change) -> None:
        _, descriptor, address, data = self.steps[0]
        self.original = int.from_bytes(data, "little")
        changed = change(self.original)
        if changed != self.original:
            _write(descriptor, address, memoryview(changed.to_bytes(8, "little")))


def _read(descriptor: int, address: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        count = os.preadv(descriptor, [data[done:]], address + done)
        if not count:
            raise _Fault
        done += count


def _write(descriptor: int, address: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        count = os.pwrite(descriptor, data[done:], address + done)
        if not count:
            raise _Fault
        done += count


class _Lane:
    """The thread of one process's private memory."""

    def __init__(self, number: int, finished: "Callable[[CopyJob], None]") -> None:
        self.jobs: Final[queue.SimpleQueue[CopyJob | None]] = queue.SimpleQueue()
        self.under_way: Final[deque[CopyJob]] = deque()
        self._finished: Final = finished
        self._thread = threading.Thread(target=self._run, name=f"private-{number}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            if not job.over:
                job.run()
            self._finished(job)


class PrivateCopier:
    """The lanes, and the jobs that have ended."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns: Final = clock_ns
        self._lanes: Final[dict[int, _Lane]] = {}
        self._ended: Final[deque[CopyJob]] = deque()
        self._wake: Callable[[], None] | None = None
        self.jobs = 0
        self.outstanding = 0  # not handed back yet, those given up among them
        self.given_up = 0

    def use_threads(self, wake: Callable[[], None]) -> None:
        """Do jobs beside the rounds from now on; `wake` is called when one has ended."""
        self._wake = wake

    def read(
        self,
        pieces: list[Piece],
        done: Callable[[CopyJob], None],
        users: Sequence[Copied],
    ) -> CopyJob:
        """Copy memory, private or not, into a buffer of its own."""
        job = CopyJob(memoryview(bytearray(_length(pieces))), done)
        place = 0
        for piece in pieces:
            part = job.buffer[place : place + _size(piece)]
            if isinstance(piece, PrivateRun):
                self._step(job, False, piece, part)
            else:
                part[:] = piece
            place += len(part)
        return self._start(job, users)

    def write(
        self, pieces: list[Piece], data: bytes, done: Callable[[CopyJob], None],
        users: Sequence[Copied],
    ) -> CopyJob:  # fmt: skip
        """Copy bytes into memory, private or not; the shared part at once."""
        job = CopyJob(memoryview(data), done)
        place = 0
        for piece in pieces:
            part = job.buffer[place : place + _size(piece)]
            if isinstance(piece, PrivateRun):
                self._step(job, True, piece, part)
            else:
                piece[:] = part
            place += len(part)
        return self._start(job, users)

    def change_word(
        self, run: PrivateRun, change: Change, done: Callable[[CopyJob], None],
        users: Sequence[Copied],
    ) -> CopyJob:  # fmt: skip
        """Change 8 bytes; among the jobs of one process nothing comes between."""
        job = CopyJob(memoryview(bytearray(8)), done)
        job.change = change
        self._step(job, False, run, job.buffer)
        return self._start(job, users)

    def finish(self) -> bool:
        """Hand ended jobs to who waits for them, and give up those that stick."""
        busy = bool(self._ended)
        while self._ended:
            self._end(self._ended.popleft())
        if self._lanes:
            busy |= self._give_up_stuck()
        return busy

    def next_deadline_ns(self) -> int | None:
        """Return when a job must be looked at."""
        if self._ended:
            return self._clock_ns()
        oldest = [lane.under_way[0] for lane in self._lanes.values() if lane.under_way]
        waits = [job.since_ns for job in oldest if not job.over]
        return min(waits) + STUCK_NS if waits else None

    def segment_gone(self, number: int) -> None:
        """End the thread of a process that is gone, once it has done what it was given."""
        lane = self._lanes.pop(number, None)
        if lane is not None:
            lane.jobs.put(None)
            for job in lane.under_way:
                self._end_failed(job)

    def close(self) -> None:
        """End every thread; one that sticks ends with the process."""
        for number in list(self._lanes):
            self.segment_gone(number)

    def inspect(self) -> dict[str, object]:
        """Return jobs done and under way."""
        return {
            "jobs": self.jobs,
            "given_up": self.given_up,
            "under_way": {number: len(lane.under_way) for number, lane in self._lanes.items()},
        }

    def _step(self, job: CopyJob, is_write: bool, run: PrivateRun, data: memoryview) -> None:
        job.steps.append((is_write, run.segment.fd, run.address, data))
        job.segments.append(run.segment)
        run.segment.copies += 1

    def _start(self, job: CopyJob, users: Sequence[Copied]) -> CopyJob:
        self.jobs += 1
        self.outstanding += 1
        job.since_ns = self._clock_ns()
        job.users = users
        for user in users:
            user.copies += 1
        if self._wake is None:
            job.run()
            self._ended.append(job)
            return job
        number = job.segments[0].number
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane(number, self._job_ended)
        if lane.under_way and lane.under_way[0].over:  # the thread sticks
            job.failed = True
            self._ended.append(job)
            return job
        lane.under_way.append(job)
        lane.jobs.put(job)
        return job

    def _job_ended(self, job: CopyJob) -> None:
        """In the lane's thread: hand the job back and wake the device's."""
        self._ended.append(job)
        if self._wake is not None:
            self._wake()

    def _end(self, job: CopyJob) -> None:
        self.outstanding -= 1
        lane = self._lanes.get(job.segments[0].number)
        if lane is not None and job in lane.under_way:
            lane.under_way.remove(job)
        for segment in job.segments:
            segment.copies -= 1
            segment.close_if_idle()
        if not job.over:
            self._tell(job)

    def _tell(self, job: CopyJob) -> None:
        for user in job.users:
            user.copies -= 1
        job.done(job)

    def _end_failed(self, job: CopyJob) -> None:
        if not job.over:
            job.over = job.failed = True
            self.given_up += 1
            self._tell(job)

    def _give_up_stuck(self) -> bool:
        limit = self._clock_ns() - STUCK_NS
        busy = False
        for lane in self._lanes.values():
            if lane.under_way and lane.under_way[0].since_ns < limit:
                for job in list(lane.under_way):
                    busy |= not job.over
                    self._end_failed(job)
        return busy


def _size(piece: Piece) -> int:
    return piece.length if isinstance(piece, PrivateRun) else len(piece)


def _length(pieces: list[Piece]) -> int:
    return sum(map(_size, pieces))
