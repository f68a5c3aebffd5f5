"""The HCA as one object: registers, status page, segments and doorbells in; rounds out.

A round serves what is due of the commands, gives each session a turn at its doorbells, and a few
turns to ready queues. What no rule foresees is a catastrophic error: it is written where the kernel
looks, the line is raised, and the device answers nothing any more.

Rules: one thread calls everything; no call waits.
Spec: docs/hca-process.md; kernel_proc/hca_abi/registers.py.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.hca.command_interface import CommandInterface
from kernel_proc.hca.hca_tables import HcaTables
from kernel_proc.hca.latency_model import LatencyModel
from kernel_proc.hca.loop_times import LoopTimes
from kernel_proc.hca.posted_requests import posted_requests
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.device_settings import HcaSettings
from kernel_proc.hca_abi.inspection_text import Part, tree_of
from shared.doorbell_layout import (
    STATUS_FATAL_WORD,
    STATUS_PAGE_LENGTH,
    STATUS_PROCESSOR_WORD,
    STATUS_SLEEPS_WORD,
    STATUS_SPIN_HINT_WORD,
)
from shared.live_words import full_fence, publish_fence, words64
from shared.processor_number import current_processor

if TYPE_CHECKING:
    from kernel_proc.hca.injection.device_faults import DeviceFaults

CATASTROPHIC_INTERNAL: Final = 1  # first word of the catastrophic buffer
_TURNS_A_ROUND: Final = 4
_RETRY_NS: Final = 1_000_000  # how soon a full event queue is looked at again
_LINE: Final = reg.LINE_OFFSET // 8
_KERNEL_SLEEPS: Final = reg.KERNEL_SLEEPS_OFFSET // 8
_HCA_SLEEPS: Final = reg.HCA_SLEEPS_OFFSET // 8
_KERNEL_MOVED: Final = reg.KERNEL_MOVED_OFFSET // 8
_CATASTROPHIC: Final = reg.CATASTROPHIC_OFFSET // 8


class HcaDevice:
    """One emulated HCA, stepped by `run_once`."""

    def __init__(
        self,
        registers: memoryview,
        status_page: memoryview,
        settings: HcaSettings,
        clock_ns: Callable[[], int],
        raise_interrupt: Callable[[], None],
    ) -> None:
        """Take the pages; raise LatencyModelError if the settings name no latency model."""
        if len(registers.cast("B")) < reg.REGISTER_PAGE_SIZE:
            raise ValueError("the register page is too short")
        if len(status_page.cast("B")) < STATUS_PAGE_LENGTH:
            raise ValueError("the status page is too short")
        model = LatencyModel(settings.latency_model, settings.latency_factor, settings.seed)
        self.settings: Final = settings
        self.failure = ""
        self._faults: DeviceFaults | None = None
        self.times: Final = LoopTimes()
        self._clock_ns: Final = clock_ns
        self._raise: Final = raise_interrupt
        self._words: Final = words64(registers)
        self._status: Final = words64(status_page)
        self.tables: Final = HcaTables(settings, self._words, clock_ns)
        self._heap: Final = self.tables.engine.deadlines.heap
        self._copier: Final = self.tables.engine.copier
        self._rounds: Final = self.tables.rounds
        self._events: Final = self.tables.events
        self._serve_doorbells: Final = self.tables.doorbells.serve
        self.commands: Final = CommandInterface(self.tables, registers.cast("B"), model)
        self._status[STATUS_SPIN_HINT_WORD] = settings.spin_hint
        self.set_sleeping(True)  # until somebody runs it who does not

    @property
    def dead(self) -> bool:
        """Whether there was a catastrophic error."""
        return bool(self.failure)

    def set_sleeping(self, sleeps: bool) -> None:
        """Say whether whoever rings must also poke; look once more after saying so."""
        self._words[_HCA_SLEEPS] = int(sleeps)
        self._status[STATUS_SLEEPS_WORD] = int(sleeps)
        full_fence()

    def tell_processor(self) -> None:
        """Say where the calling thread runs, so that pollers may go elsewhere."""
        self._status[STATUS_PROCESSOR_WORD] = current_processor() + 1

    def add_segment(self, number: int, view: memoryview | None, memory_fd: int = -1) -> None:
        """Take shared memory, or with `memory_fd` (owned from now on) a process's private one."""
        self.tables.memory.add(number, view, memory_fd)

    def remove_segment(self, number: int) -> None:
        """Forget a segment: nothing touches it after this call."""
        self.tables.memory.remove(number)
        self.tables.engine.copier.segment_gone(number)

    def add_doorbells(self, number: int, view: memoryview) -> None:
        """Take the doorbell segment of a session."""
        self.tables.doorbells.add(number, view)

    def remove_doorbells(self, number: int) -> None:
        """Forget the doorbell segment of a session."""
        self.tables.doorbells.remove(number)

    def run_once(self) -> bool:
        """Do one round; False when there was nothing to do, or the device is dead."""
        if self.failure:
            return False
        try:
            busy = self.commands.run_once()
            if self._serve_doorbells():
                busy = True
            if self._heap or self._copier.outstanding:
                busy |= self.tables.engine.run_due()
            rounds, events = self._rounds, self._events
            if rounds.circle:
                busy = True
                for _ in range(_TURNS_A_ROUND):
                    if not rounds.turn() or rounds.long_turn or not rounds.circle:
                        break
            if events.stuck:
                busy |= events.retry()
            if events.raised:
                events.raised = False
                self._raise_line()
            return busy
        except Exception as error:
            self.fail(error)
            return False

    @property
    def is_copying(self) -> bool:
        """Whether threads copy from or to private memory."""
        return self._copier.outstanding > 0

    def next_deadline_ns(self) -> int | None:
        """Return when `run_once` must be called although nobody rings; None: no need."""
        if self.failure:
            return None
        due = self.commands.next_deadline_ns()
        if self.tables.engine.waits:
            engine_due = self.tables.engine.next_deadline_ns()
            if engine_due is not None:
                due = engine_due if due is None else min(due, engine_due)
        if self.tables.events.stuck:
            retry = self._clock_ns() + _RETRY_NS
            due = retry if due is None else min(due, retry)
        return due

    def inspect(self) -> dict[str, Any]:
        """Return the state of everything as plain values."""
        return tree_of(self.parts())

    def parts(self) -> Iterator[Part]:
        """Give the same in parts, between which there may be rounds.

        Each object is told once, as it is then; a port's figures hold what its QPs told.
        """
        yield ("dead",), self.dead
        yield ("failure",), self.failure
        yield ("line_raised",), self._words[_LINE]
        yield ("times",), self.times.inspect(self._clock_ns())
        yield ("command_interface",), self.commands.inspect()
        yield from self.tables.parts()

    def inspect_queue_pair(self, number: int) -> dict[str, Any]:
        """Return what a QP was last asked to do; empty if there is none of this number."""
        return tree_of(self.queue_pair_parts(number))

    def queue_pair_parts(self, number: int) -> Iterator[Part]:
        """Give the same in parts."""
        qp = self.tables.qps.find(number)
        if qp is not None:
            yield from posted_requests(qp, self._clock_ns())

    def set_fault(self, number: int, fault: bytes) -> None:
        """Have a fault at work, a message of `fault_messages` that the kernel has judged."""
        from kernel_proc.hca.injection import device_faults
        from shared.fault_messages import Fault
        from shared.message_codec import decode_as

        if self._faults is None:
            self._faults = device_faults.DeviceFaults(self, self._clock_ns)
        self._faults.set(number, decode_as(Fault, fault))

    def clear_fault(self, number: int) -> None:
        """Take a fault back, 0: every one."""
        if self._faults is not None:
            self._faults.clear(number)

    def close(self) -> None:
        """Drop every view and descriptor."""
        self.tables.stop()
        self.tables.doorbells.close()
        self.tables.memory.close()
        self.tables.engine.copier.close()

    def _raise_line(self) -> None:
        self._words[_LINE] = (self._words[_LINE] + 1) & ((1 << 64) - 1)
        full_fence()
        if self._words[_KERNEL_SLEEPS]:
            self._raise()

    @property
    def kernel_sleeps(self) -> bool:
        """Whether the kernel's processor has announced sleep."""
        return self._words[_KERNEL_SLEEPS] != 0

    def wake_kernel(self) -> None:
        """Wake the kernel's processor, without an interrupt."""
        self._raise()

    def set_kernel_moved(self, moved: bool) -> None:
        """Tell the kernel what to undo if this process ends before it does so itself."""
        self._words[_KERNEL_MOVED] = int(moved)

    def fail(self, error: Exception) -> None:
        """Be dead: write the catastrophic buffer, its first word last, and tell everybody."""
        import traceback  # only a device that fails needs it

        self.failure = "".join(traceback.format_exception(error))
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = self._words
        words[_CATASTROPHIC + 1] = zlib.crc32(place.filename.encode())
        words[_CATASTROPHIC + 2] = place.lineno or 0
        words[_CATASTROPHIC + 3] = zlib.crc32(type(error).__name__.encode())
        words[_CATASTROPHIC + 4] = self._clock_ns() & ((1 << 64) - 1)
        publish_fence()
        words[_CATASTROPHIC] = CATASTROPHIC_INTERNAL
        self._status[STATUS_FATAL_WORD] = 1
        try:
            self.tables.events.catastrophic()
        except Exception as second:
            self.failure += f"and no event could tell it: {second!r}\n"
        self._raise_line()
