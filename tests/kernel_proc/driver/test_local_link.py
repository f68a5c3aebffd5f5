"""The HCA as an object: when it is stepped, what it is told, its death and its reset."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.driver.doorbell_segments import Doorbells, DoorbellTable
from kernel_proc.driver.local_link import LocalLink
from kernel_proc.hca_abi.registers import EQ_CONSUMER_OFFSET, LINE_OFFSET
from kernel_proc.memory.bus import Bus
from kernel_proc.memory.page_frames import FrameRun, PageFrameAllocator
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.os_lane import InlineLane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer
from shared.doorbell_layout import SEGMENT_LENGTH, STATUS_FATAL_WORD, STATUS_PAGE_LENGTH
from shared.live_words import words64
from shared.nt_status import (
    STATUS_CONNECTION_DISCONNECTED,
    STATUS_PROCESS_IS_TERMINATING,
    STATUS_SUCCESS,
)


class FakeDevice:
    """Raises its line for each word of work it finds in the first EQ's register."""

    def __init__(
        self, registers: memoryview, status: memoryview, raise_interrupt: Callable[[], None]
    ) -> None:
        self.words = words64(registers)
        self.status = status
        self.seen = 0
        self.deadline_ns: int | None = None
        self.segments: dict[int, tuple[Any, int]] = {}
        self.doorbells: dict[int, memoryview] = {}

    def add_segment(self, number: int, view: memoryview | None, memory_fd: int = -1) -> None:
        self.segments[number] = (view, memory_fd)

    def remove_segment(self, number: int) -> None:
        _, descriptor = self.segments.pop(number)
        if descriptor >= 0:
            os.close(descriptor)

    def add_doorbells(self, number: int, view: memoryview) -> None:
        self.doorbells[number] = view

    def remove_doorbells(self, number: int) -> None:
        del self.doorbells[number]

    def run_once(self) -> bool:
        if self.words[EQ_CONSUMER_OFFSET // 8] == self.seen:
            return False
        self.seen += 1
        self.words[LINE_OFFSET // 8] += 1
        return True

    def next_deadline_ns(self) -> int | None:
        return self.deadline_ns

    def inspect(self) -> dict[str, Any]:
        return {"seen": self.seen}


class Rig:
    def __init__(self) -> None:
        self.processor = Processor(VirtualClock())
        self.devices: list[FakeDevice] = []
        self.link = LocalLink(self.processor, self.make)
        self.interrupts = 0
        self.interrupt = Interrupt(self.processor, self.service)
        self.interrupt.connect()
        self.link.line.connect(self.interrupt)

    def make(self, *arguments: Any) -> FakeDevice:
        self.devices.append(FakeDevice(*arguments))
        return self.devices[-1]

    def service(self, interrupt: Interrupt, context: Any) -> bool:
        self.interrupts += 1
        return True

    def post(self, amount: int) -> None:
        words64(self.link.registers)[EQ_CONSUMER_OFFSET // 8] += amount


@pytest.fixture
def rig() -> Any:
    rig = Rig()
    yield rig
    rig.link.close()


def test_a_poke_has_the_device_work_after_the_thread_left(rig: Rig):
    def ask() -> int:
        rig.post(1)
        rig.link.poke()
        return rig.devices[0].seen

    assert rig.processor.run_thread(ask) == 0
    rig.processor.run_until(lambda: rig.interrupts == 1)
    assert rig.devices[0].seen == 1


def test_an_idle_processor_steps_the_device_without_a_poke(rig: Rig):
    rig.post(3)
    timer = Timer(rig.processor)
    timer.set(10)
    rig.processor.run_until(lambda: bool(timer.signal_state))
    assert (rig.devices[0].seen, rig.interrupts) == (3, 3)


def test_the_clock_stops_at_the_devices_deadline(rig: Rig):
    rig.devices[0].deadline_ns = 700
    timer = Timer(rig.processor)
    timer.set(1000)
    rig.processor.run_until(lambda: rig.processor.clock.now_ns() > 0)
    assert rig.processor.clock.now_ns() == 700
    rig.devices[0].deadline_ns = None
    rig.processor.run_until(lambda: bool(timer.signal_state))


def test_death_is_told_once_and_a_reset_knows_the_memory_again(rig: Rig):
    told: list[str] = []
    rig.link.on_death = told.append
    bus = Bus(PageFrameAllocator())
    bus.attach(rig.link)
    view = memoryview(bytearray(4096))
    shared = bus.add_shared(view, -1, [FrameRun(0, 1)], "shared")
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    private = bus.add_private(memory)
    assert shared is not None
    assert private is not None
    old_status = words64(rig.link.status_page)
    rig.post(4)
    rig.link.kill("it was hit by lightning")
    rig.link.kill("again")
    assert told == ["it was hit by lightning"]
    assert (rig.link.dead, old_status[STATUS_FATAL_WORD]) == (True, 1)
    rig.link.poke()
    late = bus.add_shared(view, -1, [FrameRun(1, 1)], "while dead")
    assert late is not None
    rig.link.restart()
    assert (rig.link.dead, rig.link.generation, len(rig.devices)) == (False, 1, 2)
    assert not any(rig.link.registers)
    assert words64(rig.link.status_page)[STATUS_FATAL_WORD] == 0
    assert old_status[STATUS_FATAL_WORD] == 1
    new = rig.devices[1]
    assert {n: v for n, (v, _) in new.segments.items()} == {1: view, 2: None, 3: view}
    handed = new.segments[2][1]
    assert handed != memory
    assert os.fstat(handed).st_ino == os.fstat(memory).st_ino
    for segment in (shared, private, late):
        bus.remove(segment)
    os.close(memory)
    assert new.segments == {}
    rig.post(1)
    rig.link.poke()
    rig.processor.run_until(lambda: new.seen == 1)


class Tenant:
    """A process that asks for doorbells."""

    def __init__(self, rig: Rig, table: DoorbellTable) -> None:
        self.rig = rig
        self.table = table
        self.process = KProcess(rig.processor, "tenant")
        self.lane = InlineLane(rig.processor)

    def open(self) -> Any:
        grant = self.rig.processor.run_thread(self.table.open, self.process, self.lane)
        for descriptor in grant.descriptors:
            os.close(descriptor)
        return grant

    def close(self) -> None:
        self.rig.processor.run_thread(self.table.close, self.process)


def test_doorbells_are_granted_again_and_end_with_the_process(rig: Rig):
    descriptors = len(os.listdir("/proc/self/fd"))
    table = DoorbellTable(rig.link)
    first, second = Tenant(rig, table), Tenant(rig, table)
    grant = first.open()
    assert (grant.status, grant.number) == (STATUS_SUCCESS, 1)
    assert (grant.length, grant.status_length) == (SEGMENT_LENGTH, STATUS_PAGE_LENGTH)
    assert len(grant.descriptors) == 3
    assert first.process.doorbells.number == 1
    assert first.open().number == 1
    assert second.open().number == 2
    assert sorted(rig.devices[0].doorbells) == [1, 2]
    first.close()
    first.close()
    assert sorted(rig.devices[0].doorbells) == [2]
    assert first.open().status == STATUS_PROCESS_IS_TERMINATING
    assert Tenant(rig, table).open().number == 3  # fresh numbers before used ones
    second.close()
    assert table.inspect() == {"segments": [3]}
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 4


def test_a_reset_gives_another_segment_and_leaves_the_old_one_dead(rig: Rig):
    table = DoorbellTable(rig.link)
    tenant = Tenant(rig, table)
    assert tenant.open().number == 1
    rig.link.kill("a test")
    assert tenant.open().status == STATUS_CONNECTION_DISCONNECTED
    rig.link.restart()
    before = tenant.process.doorbells
    assert isinstance(before, Doorbells)
    assert tenant.open().number == 2
    assert sorted(rig.devices[1].doorbells) == [2]
    tenant.close()
    assert rig.devices[1].doorbells == {}
