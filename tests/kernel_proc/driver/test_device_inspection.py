"""Asking the HCA's process for its state: answered, late, stopped, dead; nothing is left over."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.driver.device_inspection import NO_ANSWER
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from tests.kernel_proc.driver.test_process_link import SECOND, SETTINGS, Rig

pytestmark = pytest.mark.processes
SILENT = {"error": NO_ANSWER}


class Asking(Rig):
    """A rig that asks, and counts."""

    def ask(self, queue_pair: int = 0) -> dict[str, Any]:
        told: dict[str, Any] = self.processor.run_thread(
            self.link.inspect_device, 5 * SECOND, queue_pair
        )
        return told

    def stop_child(self) -> None:
        """Stop the process, and wait until it has."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGSTOP)
        os.waitid(os.P_PIDFD, self.pidfd, os.WSTOPPED | os.WNOWAIT)

    def continue_child(self) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGCONT)

    def elapsed_ns(self, call: Callable[[], object]) -> int:
        began = self.processor.clock.now_ns()
        call()
        return self.processor.clock.now_ns() - began


@pytest.fixture
def rig() -> Iterator[Asking]:
    rig = Asking(SETTINGS)
    rig.wait_until(rig.served)
    yield rig
    rig.close()


def papers(folder: str = "self") -> int:
    """How many files of questions a process has open."""
    links = []
    for name in os.listdir(f"/proc/{folder}/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself
            links.append(os.readlink(f"/proc/{folder}/fd/{name}"))
    return sum("softhca-inspection" in link for link in links)


def test_it_tells_its_state_and_counts_the_packet(rig: Asking):
    rig.add_page()
    served = rig.link.inspect()["packets_served"]
    told = rig.ask()
    assert (told["dead"], told["firmware"]) == (False, "stopped")
    assert told["memory"] == {"1": {"kind": "shared", "length": 4096}}
    assert set(told["ports"]) == {"1", "2"}
    assert rig.ask(queue_pair=77) == {}
    assert rig.link.inspect()["packets_served"] >= served + 2
    assert papers() == papers(str(rig.link.pid)) == 0


def test_many_questions_at_once_are_answered_one_after_the_other(rig: Asking):
    told: list[dict[str, Any]] = []

    def ask() -> None:
        told.append(rig.link.inspect_device(5 * SECOND))

    def begin() -> None:
        for _ in range(20):
            create_system_thread(rig.processor, ask, name="ask")

    rig.processor.run_thread(begin)
    rig.wait_until(lambda: len(told) == 20)
    assert all(one["firmware"] == "stopped" for one in told)


def test_one_that_is_stopped_is_waited_for_once_and_answers_later(rig: Asking):
    rig.stop_child()
    sent = rig.link.inspect()["packets_sent"]
    told: list[dict[str, Any]] = []
    assert rig.elapsed_ns(lambda: told.append(rig.ask())) < 2 * SECOND
    assert told == [SILENT]
    for _ in range(5):  # it gets no more mail, and takes next to no time
        assert rig.ask() == SILENT
    assert rig.link.inspect()["packets_sent"] == sent + 1
    assert papers() == 1
    rig.continue_child()
    rig.wait_until(rig.served)
    assert rig.ask()["dead"] is False
    assert papers() == 0
    assert rig.deaths == []


def test_the_rest_of_the_kernel_runs_while_it_is_waited_for(rig: Asking):
    rig.stop_child()
    told: list[dict[str, Any]] = []

    def ask() -> None:
        told.append(rig.link.inspect_device(SECOND))

    def begin() -> None:
        create_system_thread(rig.processor, ask, name="ask")

    rig.processor.run_thread(begin)
    for _ in range(100):
        rig.processor.run_thread(lambda: None)
    assert told == []
    rig.wait_until(lambda: bool(told))
    assert told == [SILENT]


def test_one_that_ends_meanwhile_lets_the_asker_go_at_once(rig: Asking):
    rig.stop_child()
    told: list[dict[str, Any]] = []

    def ask() -> None:
        told.append(rig.link.inspect_device(3600 * SECOND))

    def begin() -> None:
        create_system_thread(rig.processor, ask, name="ask")

    rig.processor.run_thread(begin)
    signal.pidfd_send_signal(rig.pidfd, signal.SIGKILL)
    rig.wait_until(lambda: bool(told))
    assert told == [SILENT]
    assert rig.deaths == ["signal 9"]
    assert rig.ask() == SILENT
    rig.processor.run_thread(rig.link.restart)
    rig.wait_until(rig.served)
    assert rig.ask()["dead"] is False
    assert rig.link.inspect()["packets_sent"] == rig.link.inspect()["packets_served"] == 2


def test_one_whose_socket_is_full_is_not_asked(rig: Asking):
    page = rig.add_page()
    rig.stop_child()

    def fill() -> None:
        for number in range(1000, 3000):
            rig.link.add_segment(number, page.view, page.descriptor)

    def begin() -> KThread:
        return create_system_thread(rig.processor, fill, name="fill")

    thread = rig.processor.run_thread(begin)
    rig.wait_until(lambda: thread.is_waiting)
    sent = rig.link.inspect()["packets_sent"]
    assert rig.ask() == SILENT
    assert rig.link.inspect()["packets_sent"] == sent
    rig.continue_child()
    rig.wait_until(lambda: bool(thread.ended) and rig.served())
    assert len(rig.ask()["memory"]) == 2001
