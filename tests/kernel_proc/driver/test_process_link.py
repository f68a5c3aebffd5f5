"""The HCA's process: told of memory, watched, reset, stopped; and nothing is ever left of it."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_proc.driver.process_link import ProcessLink
from kernel_proc.hca_abi.device_settings import HcaSettings, encode_settings
from kernel_proc.hca_abi.registers import KERNEL_MOVED_OFFSET, LINE_OFFSET, SENT_OFFSET
from kernel_proc.memory.bus import Bus, BusSegment
from kernel_proc.memory.page_frames import FrameRun, PageFrameAllocator
from kernel_proc.scheduling.kernel_clock import RealClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer
from shared.doorbell_layout import STATUS_FATAL_WORD
from shared.live_words import words64
from shared.segment import create_segment, map_segment

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
SECOND = 1_000_000_000
SETTINGS = encode_settings(HcaSettings())


class Rig:
    """A kernel that is nothing but its processor, its bus and its link."""

    def __init__(self, settings: bytes = SETTINGS) -> None:
        self.processor = Processor(RealClock())
        self.trouble: list[str] = []
        self.deaths: list[str] = []
        self.link = ProcessLink(self.processor, settings, self.trouble.append)
        self.link.on_death = self.deaths.append
        self.bus = Bus(PageFrameAllocator())
        self.bus.attach(self.link)
        self.pidfd = os.pidfd_open(self.link.pid)

    def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Run the processor, which looks every millisecond, for 20 s at most."""
        deadline = self.processor.clock.now_ns() + 20 * SECOND
        timer = Timer(self.processor)
        timer.set(1_000_000, period_ns=1_000_000)
        self.processor.run_until(lambda: predicate() or self.processor.clock.now_ns() > deadline)
        timer.cancel()
        assert predicate()

    def served(self) -> bool:
        state = self.link.inspect()
        return bool(state["packets_served"] == state["packets_sent"])

    def add_page(self) -> BusSegment:
        descriptor = create_segment("page", 4096)
        view = memoryview(map_segment(descriptor, 4096))
        segment = self.bus.add_shared(view, descriptor, [FrameRun(0, 1)], "page")
        assert segment is not None
        return segment

    def child_has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.link.close()
        self.processor.dispatcher.idle.close()
        assert self.child_has_ended()
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)
        for segment in self.bus.segments.values():
            os.close(segment.descriptor)


@pytest.fixture
def new_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(settings: bytes = SETTINGS) -> Rig:
        rigs.append(Rig(settings))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def test_it_takes_memory_and_gives_it_back(new_rig: Callable[..., Rig]):
    rig = new_rig()
    pages = [rig.add_page() for _ in range(3)]
    memory = os.open("/proc/self/mem", os.O_RDWR)
    private = rig.bus.add_private(memory)
    assert private is not None
    poke = os.eventfd(0)
    doorbells = create_segment("doorbells", 1 << 20)
    rig.link.add_doorbells(1, doorbells, poke)
    rig.wait_until(rig.served)
    held = os.listdir(f"/proc/{rig.link.pid}/map_files") if os.geteuid() == 0 else []
    rig.link.remove_doorbells(1)
    for segment in pages[:2]:
        rig.bus.remove(segment)
        os.close(segment.descriptor)
    rig.bus.remove(private)
    rig.wait_until(rig.served)
    assert rig.link.inspect()["packets_sent"] == 1 + 3 + 1 + 1 + 1 + 2 + 1
    if held:
        left = os.listdir(f"/proc/{rig.link.pid}/map_files")
        assert len(left) <= len(held) - 3
    for descriptor in (memory, poke, doorbells):
        os.close(descriptor)
    assert rig.deaths == []


def test_it_has_none_of_the_kernels_descriptors(new_rig: Callable[..., Rig]):
    inherited = os.eventfd(0, 0)  # not close-on-exec
    rig = new_rig()
    rig.wait_until(rig.served)
    names = [
        os.readlink(f"/proc/{rig.link.pid}/fd/{number}")
        for number in os.listdir(f"/proc/{rig.link.pid}/fd")
    ]
    os.close(inherited)
    assert sum("eventfd" in name for name in names) == 2
    assert sum("socket" in name for name in names) == 1
    assert len(names) <= 12


def test_its_death_is_told_once_and_a_restart_begins_anew(new_rig: Callable[..., Rig]):
    rig = new_rig()
    rig.add_page()
    rig.wait_until(rig.served)
    status = words64(rig.link.status_page)
    first = rig.link.pid
    os.kill(first, signal.SIGKILL)
    rig.wait_until(lambda: bool(rig.deaths))
    assert rig.deaths == ["signal 9"]
    assert rig.link.dead
    assert status[STATUS_FATAL_WORD] != 0
    assert any(f"process {first} has ended: signal 9" in line for line in rig.trouble)
    rig.link.poke()
    rig.add_page()
    rig.processor.run_thread(rig.link.restart)
    assert (rig.link.dead, rig.link.generation) == (False, 1)
    assert rig.link.pid != first
    rig.wait_until(rig.served)
    assert words64(rig.link.registers)[SENT_OFFSET // 8] == 3
    assert words64(rig.link.registers)[LINE_OFFSET // 8] == 0
    assert len(rig.deaths) == 1
    second = os.pidfd_open(rig.link.pid)
    rig.processor.run_thread(rig.link.restart)  # of one that lives
    assert select.select([second], [], [], 0)[0]
    os.close(second)
    rig.wait_until(rig.served)
    assert (len(rig.deaths), rig.link.generation) == (1, 2)


@pytest.mark.parametrize("moved", [True, False])
def test_a_death_while_it_woke_the_kernel_elsewhere_ties_the_kernel_to_no_processor(
    new_rig: Callable[..., Rig], moved: bool
):
    allowed = os.sched_getaffinity(0)
    rig = new_rig()
    rig.wait_until(rig.served)
    try:
        os.sched_setaffinity(0, {max(allowed)})
        words64(rig.link.registers)[KERNEL_MOVED_OFFSET // 8] = int(moved)
        os.kill(rig.link.pid, signal.SIGKILL)
        rig.wait_until(lambda: bool(rig.deaths))
        assert os.sched_getaffinity(0) == (allowed if moved else {max(allowed)})
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_death_before_anybody_listens_is_told_to_the_first_who_does(
    new_rig: Callable[..., Rig],
):
    rig = new_rig()
    rig.link.on_death = None
    os.kill(rig.link.pid, signal.SIGKILL)
    rig.wait_until(lambda: rig.link.dead)
    rig.link.on_death = rig.deaths.append
    rig.link.on_death = rig.deaths.append
    assert rig.deaths == ["signal 9"]


def test_it_stops_in_order(new_rig: Callable[..., Rig]):
    rig = new_rig()
    rig.wait_until(rig.served)
    assert rig.processor.run_thread(rig.link.stop, 10 * SECOND)
    assert rig.child_has_ended()
    assert (rig.deaths, rig.trouble) == ([], [])
    assert rig.processor.run_thread(rig.link.stop, SECOND)


def test_one_that_does_not_stop_is_killed(new_rig: Callable[..., Rig]):
    rig = new_rig()
    rig.wait_until(rig.served)
    os.kill(rig.link.pid, signal.SIGSTOP)
    assert not rig.processor.run_thread(rig.link.stop, SECOND // 50)
    assert rig.child_has_ended()
    assert rig.deaths == []


def test_one_that_never_began_is_ended_too(new_rig: Callable[..., Rig]):
    new_rig()


def test_mail_waits_without_holding_the_processor(new_rig: Callable[..., Rig]):
    rig = new_rig()
    rig.wait_until(rig.served)
    pid = rig.link.pid
    page = rig.add_page()
    os.kill(pid, signal.SIGSTOP)
    sent: list[int] = []

    def fill() -> None:
        for number in range(1000, 4000):
            rig.link.add_segment(number, page.view, page.descriptor)
            sent.append(number)

    def begin() -> KThread:
        return create_system_thread(rig.processor, fill, name="fill")

    thread = rig.processor.run_thread(begin)
    rig.wait_until(lambda: thread.is_waiting)
    held = len(sent)
    assert 0 < held < 3000
    rig.processor.run_thread(lambda: None)  # the processor goes on
    assert len(sent) == held
    os.kill(pid, signal.SIGCONT)
    rig.wait_until(lambda: bool(thread.ended) and rig.served())
    assert rig.link.inspect()["packets_served"] == 2 + 3000
    assert rig.deaths == []


def test_what_it_says_at_its_end_is_the_reason(new_rig: Callable[..., Rig]):
    rig = new_rig(b'{"latency_factor": "fast"}')
    rig.wait_until(lambda: bool(rig.deaths))
    assert rig.deaths[0].startswith("latency_factor")
    assert any(line.startswith("HCA: the HCA cannot go on") for line in rig.trouble)


KERNEL = """
import sys
from kernel_proc.driver.process_link import ProcessLink
from kernel_proc.hca_abi.device_settings import HcaSettings, encode_settings
from kernel_proc.scheduling.kernel_clock import RealClock
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer

processor = Processor(RealClock())
link = ProcessLink(processor, encode_settings(HcaSettings()), print)
timer = Timer(processor)
timer.set(1_000_000, period_ns=1_000_000)
processor.run_until(lambda: link.inspect()["packets_served"] == 1)
print(link.pid, flush=True)
processor.run()
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_the_kernels_death_is_its_end(stopped: bool):
    kernel = subprocess.Popen(
        [sys.executable, "-P", "-c", KERNEL],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert kernel.stdout is not None
    pid = int(kernel.stdout.readline())
    pidfd = os.pidfd_open(pid)
    if stopped:  # it cannot see the end of its socket; the system ends it with its parent
        os.kill(pid, signal.SIGSTOP)
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    ended, _, _ = select.select([pidfd], [], [], 20)
    os.close(pidfd)
    assert ended
