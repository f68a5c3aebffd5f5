"""A kernel and its HCA's process: up together, gone together, and who survives whose death."""

import os
import select
import signal
from collections.abc import Callable
from typing import Any

import pytest

from shared.doorbell_layout import SEGMENT_LENGTH, STATUS_FATAL_WORD, STATUS_PAGE_LENGTH
from shared.live_words import words64
from shared.nt_status import STATUS_CONNECTION_DISCONNECTED, STATUS_NO_SUCH_DEVICE
from tests.end_to_end.conftest import END_SECONDS, wait_until
from user_proc.errors import KernelRefused
from user_proc.process import UserProcess

pytestmark = pytest.mark.processes

Start = Callable[..., Any]


def watch_hca(kernel: Any) -> tuple[int, int]:
    """Return the HCA's process id and a pidfd of it."""
    pid = kernel.state()["hca"]["link"]["process"]
    return pid, os.pidfd_open(pid)


def has_ended(pidfd: int) -> bool:
    ended, _, _ = select.select([pidfd], [], [], END_SECONDS)
    os.close(pidfd)
    return bool(ended)


def test_the_hca_comes_and_goes_with_its_kernel(start: Start):
    kernel = start()
    assert kernel.first_words == "ready\n"
    assert "the HCA is up after" in kernel.log
    state = kernel.state()["hca"]
    assert state["link"]["packets_sent"] == state["link"]["packets_served"] >= 2
    assert state["driver"]["up"] is True
    _, pidfd = watch_hca(kernel)
    assert kernel.stop() == 0
    assert has_ended(pidfd)


def test_the_death_of_the_kernel_is_that_of_its_hca(start: Start):
    kernel = start()
    _, pidfd = watch_hca(kernel)
    kernel.process.kill()
    assert kernel.end() == -signal.SIGKILL
    assert has_ended(pidfd)


def test_the_death_of_the_hca_is_not_the_kernels(start: Start):
    kernel = start()
    with UserProcess.connect(kernel.name) as process:
        doorbells = process.open_doorbells()
        status = words64(doorbells.status_page)
        pid, pidfd = watch_hca(kernel)
        os.kill(pid, signal.SIGKILL)
        assert has_ended(pidfd)
        wait_until(lambda: status[STATUS_FATAL_WORD] != 0)
        assert process.echo(b"still there") == b"still there"
        with pytest.raises(KernelRefused, match="the HCA is dead") as caught:
            process.open_doorbells()
        assert caught.value.status == STATUS_CONNECTION_DISCONNECTED
        assert kernel.state()["hca"]["link"]["dead"] is True
        doorbells.close()
    assert kernel.stop() == 0
    assert f"the HCA's process {pid} has ended: signal 9" in kernel.log


def test_doorbells_are_one_segment_a_session_and_go_with_it(start: Start):
    kernel = start()
    with UserProcess.connect(kernel.name) as process:
        first, second = process.open_doorbells(), process.open_doorbells()
        assert first.number == second.number
        first.segment[100] = 7
        assert second.segment[100] == 7
        assert (len(first.segment), len(first.status_page)) == (SEGMENT_LENGTH, STATUS_PAGE_LENGTH)
        with pytest.raises(TypeError):
            first.status_page[0] = 1
        with UserProcess.connect(kernel.name) as other:
            third = other.open_doorbells()
            assert third.number != first.number
            assert third.segment[100] == 0
            assert len(kernel.state()["hca"]["doorbells"]["segments"]) == 2
            third.close()
        first.close()
        second.close()
        first.close()
    assert kernel.wait_for_sessions(0)["hca"]["doorbells"]["segments"] == []
    assert kernel.stop() == 0


def test_what_a_session_had_on_the_bus_goes_with_it(start: Start):
    kernel = start("--fragmentation", "1")
    before = kernel.state()["hca"]["bus"]
    with UserProcess.connect(kernel.name) as process:
        process.allocate(100_000)
        state = kernel.state()["hca"]["bus"]
        assert len(state["segments"]) == len(before["segments"]) + 1
        assert state["segments"][-1]["runs"] == state["segments"][-1]["length"] // 4096
    after = kernel.wait_for_sessions(0)["hca"]
    assert after["bus"] == before
    wait_until(
        lambda: (link := kernel.state()["hca"]["link"])["packets_sent"] == link["packets_served"]
    )
    assert kernel.stop() == 0


def test_a_kernel_without_an_hca_says_so(start: Start):
    kernel = start("--no-hca")
    assert kernel.first_words == "ready\n"
    assert kernel.state()["hca"] == {}
    with (
        UserProcess.connect(kernel.name) as process,
        pytest.raises(KernelRefused, match="this kernel runs without an HCA") as caught,
    ):
        process.open_doorbells()
    assert caught.value.status == STATUS_NO_SUCH_DEVICE
    assert kernel.stop() == 0


@pytest.mark.parametrize("model", ["no/such-model", "/nowhere/model.toml"])
def test_an_hca_that_cannot_begin_is_a_kernel_that_does_not_start(start: Start, model: str):
    kernel = start("--latency-model", model)
    assert kernel.first_words.startswith("error: the HCA did not come up:")
    assert kernel.first_words.count("\n") == 1
    assert kernel.end() == 1


def test_a_kernel_that_is_refused_leaves_no_hca(start: Start):
    kernel = start(name="taken")
    children = f"/proc/{kernel.process.pid}/task/{kernel.process.pid}/children"
    second = start(name="taken")
    assert "is running already" in second.first_words
    assert second.end() == 1
    with open(children) as file:
        assert len(file.read().split()) == 1
    assert kernel.stop() == 0
