"""The line in shared memory: no raise is lost, awake or asleep, and nothing is looked at twice."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.scheduling.dispatcher import Deadlock
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.interrupt_line import InterruptLine
from kernel_proc.scheduling.kernel_clock import RealClock, VirtualClock
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer
from shared.live_words import full_fence, words64
from shared.segment import create_segment, map_segment

LINE, SLEEPS, DONE = 0, 64, 128
ROOT = Path(__file__).resolve().parents[3]


class Rig:
    """A processor with a line, and an interrupt that counts its services."""

    def __init__(self, processor: Processor, page: memoryview) -> None:
        self.processor = processor
        self.words = words64(page)
        self.line = InterruptLine(processor, page, LINE, SLEEPS)
        self.line.attach()
        self.levels: list[int] = []
        self.interrupt = Interrupt(processor, self.service)
        self.interrupt.connect()
        self.line.connect(self.interrupt)

    def service(self, interrupt: Interrupt, context: Any) -> bool:
        self.levels.append(self.processor.irql)
        return True

    def raise_line(self) -> None:
        self.words[LINE // 8] += 1

    def services(self) -> int:
        return len(self.levels)


@pytest.fixture
def rig() -> Rig:
    return Rig(Processor(VirtualClock()), memoryview(bytearray(4096)))


@pytest.fixture
def real() -> Iterator[Processor]:
    processor = Processor(RealClock())
    yield processor
    processor.dispatcher.idle.close()


def settle(rig: Rig) -> None:
    """Let the dispatcher make passes until nothing is left to do."""
    timer = Timer(rig.processor)
    timer.set(1)
    rig.processor.run_until(lambda: bool(timer.signal_state))


def test_a_raise_interrupts_at_device_level_and_once(rig: Rig):
    rig.raise_line()
    settle(rig)
    assert rig.levels == [rig.interrupt.irql]
    settle(rig)
    assert rig.services() == 1


def test_raises_between_two_looks_interrupt_once(rig: Rig):
    for _ in range(5):
        rig.raise_line()
    settle(rig)
    assert (rig.services(), rig.line.raises) == (1, 1)


def test_a_raise_by_the_service_routine_itself_interrupts_again(rig: Rig):
    def service(interrupt: Interrupt, context: Any) -> bool:
        rig.levels.append(rig.processor.irql)
        if rig.services() < 3:
            rig.raise_line()
        return True

    rig.interrupt.service_routine = service
    rig.raise_line()
    settle(rig)
    assert rig.services() == 3


def test_what_was_raised_while_masked_interrupts_when_connected(rig: Rig):
    rig.line.disconnect()
    rig.raise_line()
    settle(rig)
    assert rig.services() == 0
    rig.line.connect(rig.interrupt)
    assert rig.services() == 1
    rig.line.disconnect()
    rig.line.connect(rig.interrupt)
    assert rig.services() == 1


def test_nothing_of_before_a_reset_interrupts(rig: Rig):
    rig.line.disconnect()
    rig.raise_line()
    settle(rig)
    rig.words[LINE // 8] = 0
    rig.line.reset()
    rig.line.connect(rig.interrupt)
    settle(rig)
    assert rig.services() == 0
    rig.raise_line()
    settle(rig)
    assert rig.services() == 1


def test_a_detached_line_is_not_looked_at(rig: Rig):
    rig.line.detach()
    rig.raise_line()
    settle(rig)
    assert rig.services() == 0


class SteppedCounter:
    """A device that acts `work` times when stepped, then at a deadline."""

    def __init__(self, rig: Rig, work: int, deadline_ns: int | None = None) -> None:
        self.rig = rig
        self.work = work
        self.deadline_ns = deadline_ns

    def step(self) -> bool:
        due = self.deadline_ns
        if due is not None and self.rig.processor.clock.now_ns() >= due:
            self.deadline_ns = None
            self.rig.raise_line()
            return True
        if not self.work:
            return False
        self.work -= 1
        self.rig.raise_line()
        return True

    def next_deadline_ns(self) -> int | None:
        return self.deadline_ns


def test_an_idle_processor_steps_the_device_then_goes_to_its_deadline(rig: Rig):
    device = SteppedCounter(rig, 3, 5_000)
    rig.processor.dispatcher.device = device
    rig.processor.run_until(lambda: rig.services() == 4)
    assert rig.processor.clock.now_ns() == 5_000
    with pytest.raises(Deadlock):
        rig.processor.run_until(lambda: rig.services() == 5)


def test_a_deadline_long_past_does_not_hold_the_clock(rig: Rig):
    class Late(SteppedCounter):
        def step(self) -> bool:
            return False

    settle(rig)
    rig.processor.dispatcher.device = Late(rig, 0, 0)
    settle(rig)
    assert rig.processor.clock.now_ns() > 1


def test_a_hundred_thousand_raises_of_a_thread_are_all_seen(real: Processor):
    # The writer goes on when what it raised was serviced, so a raise that is lost is a hang.
    page = memoryview(bytearray(4096))
    rig = Rig(real, page)
    woken = os.eventfd(0, os.EFD_NONBLOCK)
    real.add_source(woken, lambda: os.eventfd_read(woken))
    rounds, burst = 1000, 100
    serviced = threading.Event()

    def service(interrupt: Interrupt, context: Any) -> bool:
        rig.levels.append(rig.words[LINE // 8])
        serviced.set()
        return True

    rig.interrupt.service_routine = service

    def raise_all() -> None:
        words = words64(page)
        for number in range(rounds):
            for _ in range(burst):
                words[LINE // 8] += 1
                full_fence()
                if words[SLEEPS // 8]:
                    os.eventfd_write(woken, 1)
            while not (rig.levels and rig.levels[-1] == (number + 1) * burst):
                if not serviced.wait(10):
                    return
                serviced.clear()

    writer = threading.Thread(target=raise_all)
    writer.start()
    real.run_until(lambda: bool(rig.levels) and rig.levels[-1] == rounds * burst)
    writer.join(10)
    assert not writer.is_alive()
    real.remove_source(woken)
    os.close(woken)


WRITER = """
import os, sys
from shared.live_words import full_fence, words64
from shared.segment import map_segment

segment, event, count = map(int, sys.argv[1:])
words = words64(memoryview(map_segment(segment, 4096)))
poked = 0
for number in range(1, count + 1):
    words[0] = number
    full_fence()
    if words[8]:
        os.eventfd_write(event, 1)
        poked += 1
    if not number % 50:
        while words[16] < number:
            os.sched_yield()
print(poked)
"""


@pytest.mark.processes
def test_raises_of_another_process_are_all_seen_whether_it_sleeps_or_not(real: Processor):
    count = 20_000
    segment = create_segment("line", 4096)
    page = memoryview(map_segment(segment, 4096))
    rig = Rig(real, page)
    woken = os.eventfd(0, os.EFD_NONBLOCK)

    def drain() -> None:
        os.eventfd_read(woken)

    def service(interrupt: Interrupt, context: Any) -> bool:
        rig.words[DONE // 8] = rig.words[LINE // 8]
        return True

    rig.interrupt.service_routine = service
    real.add_source(woken, drain)
    arguments = [sys.executable, "-P", "-c", WRITER, str(segment), str(woken), str(count)]
    writer = subprocess.Popen(
        arguments,
        pass_fds=[segment, woken],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        real.run_until(lambda: rig.words[DONE // 8] == count)
        said, _ = writer.communicate(timeout=20)
    finally:
        writer.kill()
        writer.wait()
    assert rig.interrupt.spurious == 0
    assert int(said) <= count
    real.remove_source(woken)
    os.close(woken)
    os.close(segment)
