"""Memory windows between two processes: regions that have them, and deaths of their owners."""

import json
import signal
from collections.abc import Iterator

import pytest

from tests.end_to_end.conftest import END_SECONDS, Kernel, wait_until
from tests.end_to_end.test_engine_traffic import START, Peer
from tests.end_to_end.window_end import WindowEnd
from user_proc.transport.kernel_control import kernel_state

pytestmark = pytest.mark.processes

REM_ACCESS_ERR = 10
TYPES = (1, 2)
Joined = tuple[WindowEnd, Peer]


@pytest.fixture(params=["shared", "private"])
def ends(shared_kernel: Kernel, request: pytest.FixtureRequest) -> Iterator[Joined]:
    """This process, and one that owns the windows."""
    end, peer = join(shared_kernel.name, request.param)
    yield end, peer
    end.context.close()
    peer.end()


def join(kernel: str, memory: str) -> Joined:
    end = WindowEnd(kernel)
    peer = Peer(kernel, *(["private"] if memory == "private" else []), module="window_end")
    meet(end, peer, peer.qpn)
    return end, peer


def meet(end: WindowEnd, peer: Peer, number: int) -> None:
    end.connect(number)
    peer.ask("connect", end.qp.qp_num)


def begin_anew(end: WindowEnd, peer: Peer) -> None:
    """Have fresh queue pairs after an error."""
    number = peer.ask("renew")
    end.renew()
    meet(end, peer, number)


def test_a_region_of_another_process_goes_when_its_windows_have_gone(ends: Joined):
    end, peer = ends
    key, address = peer.ask("prepare", 1, "at its begin", 2)
    assert peer.ask("close_bindable") == 16
    end.send("RDMA_WRITE", START, 8, (address, key))
    assert end.statuses() == [0]
    key, address = peer.ask("prepare", 2, "at its begin", 2)
    assert peer.ask("close_bindable") == 16
    peer.ask("renew")  # its queue pair goes, and with it the binding
    assert peer.ask("close_bindable") == 0


def test_a_region_is_changed_while_it_is_written(ends: Joined):
    """A write finds the region as it was or as it is, or finds it gone; its key stays."""
    end, peer = ends
    for round_number in range(5):
        peer.tell("change_region", 20)
        for _ in range(60):
            end.send("RDMA_WRITE", START, 4096, (peer.buf, peer.rkey))
        found = end.statuses(60)
        assert peer.answer() == [peer.rkey, peer.rkey]
        failed = [status for status in found if status]
        assert failed == [REM_ACCESS_ERR, *[5] * (len(failed) - 1)][: len(failed)]
        if failed:
            begin_anew(end, peer)
        end.fill(round_number, START, 64)
        end.send("RDMA_WRITE", START, 64, (peer.buf, peer.rkey))
        assert end.statuses() == [0]
        assert peer.ask("read", 0, 64) == end.read(START, 64).hex()


def held(name: str) -> list[int]:
    """Objects of each context of a kernel, and what the HCA holds of windows."""
    driver = kernel_state(name)["hca"]
    contexts = driver["driver"]["hca"]["contexts"]
    return [len(context["objects"]) for context in contexts] + [len(driver["device"]["windows"])]


def test_the_owner_is_killed_with_its_windows_bound(shared_kernel: Kernel):
    for kind, memory in zip(TYPES, ("shared", "private"), strict=True):
        end, peer = join(shared_kernel.name, memory)
        key, address = peer.ask("prepare", kind, "at its begin", 2)
        for _ in range(20):
            end.send("RDMA_WRITE", START, 8, (address, key))
        peer.process.send_signal(signal.SIGKILL)
        peer.process.wait(END_SECONDS)
        found = end.statuses(20)
        while found[-1] == 0:
            end.send("RDMA_WRITE", START, 8, (address, key))
            found += end.statuses()
        assert next(status for status in found if status) in (REM_ACCESS_ERR, 12)
        wait_until(lambda: held(shared_kernel.name)[1:] == [0])
        peer.end()
        end.context.close()


@pytest.mark.stress
@pytest.mark.parametrize("memory", ["shared", "private"])
def test_owners_are_killed_while_they_bind_and_are_written_to(shared_kernel: Kernel, memory: str):
    """One owner after the other binds, unbinds and dies at any time; nothing of it is left."""
    rounds = 40
    nothing = held(shared_kernel.name)
    for number in range(rounds):
        end, peer = join(shared_kernel.name, memory)
        key, address = peer.ask("prepare", 1 + number % 2, "at its begin", 2)
        for turn in range(30):
            peer.tell("prepare", 1 + turn % 2, "unbound", 2)
        for _ in range(1 + number * 3):
            end.send("RDMA_WRITE", START, 64, (address, key))
        peer.process.send_signal(signal.SIGKILL)
        peer.process.wait(END_SECONDS)
        end.context.close()
        peer.end()
        wait_until(lambda: held(shared_kernel.name) == nothing)
    print(json.dumps({"rounds": rounds, "memory": memory}))
