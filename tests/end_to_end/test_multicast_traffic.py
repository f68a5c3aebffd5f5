"""Multicast between processes: who gets a copy of what a member, or somebody else, sends."""

import errno
import itertools
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.end_to_end.conftest import END_SECONDS, Kernel, wait_until
from tests.end_to_end.multicast_end import QKEY, MulticastEnd
from tests.end_to_end.test_engine_traffic import START, Peer
from user_proc.transport.kernel_control import kernel_state

pytestmark = pytest.mark.processes

OK, GRH, LENGTH, BACK = 0, 1, 100, 1 << 21
Ends = tuple[MulticastEnd, Peer]


class Case(NamedTuple):
    """What sender and peer are, and so who gets a copy."""

    sender_attached: bool
    sender_blocked: bool
    sender_entry: bool
    peer_attached: bool
    peer_entry: bool
    peer_qkey: int

    @property
    def to_sender(self) -> bool:
        return self.sender_attached and not self.sender_blocked and self.sender_entry

    @property
    def to_peer(self) -> bool:
        """That it does not get its own copies is nothing to those of others."""
        return self.peer_attached and self.peer_entry and self.peer_qkey == QKEY


BOTH = (False, True)
CASES = [Case(*row) for row in itertools.product(*[BOTH] * 5, (QKEY, QKEY + 1))]


@pytest.fixture(scope="module", params=["shared", "private"])
def ends(shared_kernel: Kernel, request: pytest.FixtureRequest) -> Iterator[Ends]:
    options = ["private"] if request.param == "private" else []
    end = MulticastEnd(shared_kernel.name, bool(options))
    peer = Peer(shared_kernel.name, *options, module="multicast_end")
    yield end, peer
    end.leave()
    end.context.close()
    peer.end()


def test_every_member_gets_a_copy_that_may(ends: Ends, request: pytest.FixtureRequest):
    end, peer = ends
    half = CASES[request.node.callspec.params["ends"] == "private" :: 2]
    print(f"{len(half)} of {len(CASES)} cases")
    assert len(CASES) == 2**6
    for number, case in enumerate(half):
        own = end.become(case.sender_attached, case.sender_blocked)
        peer.ask("become", case.peer_attached, True, case.peer_qkey)
        if case.sender_entry:
            end.receive(BACK, 200)
        if case.peer_entry:
            peer.ask("receive", BACK, 200)
        end.fill(number, START, LENGTH)
        end.send_to_group(START, LENGTH)
        copy = [OK, LENGTH + 40, GRH, own]
        found = end.came(1 + case.to_sender)
        assert [one[0] for one in found] == [OK] * len(found), case
        assert (copy in found) == case.to_sender, case
        sent = end.read(START, LENGTH)
        if case.to_sender:
            assert end.read(BACK + 40, LENGTH) == sent, case
        if case.to_peer:
            assert peer.ask("came", 1) == [copy], case
            assert bytes.fromhex(peer.ask("read", BACK + 40, LENGTH)) == sent, case
        assert end.nothing_came(), case
        assert peer.ask("nothing_came"), case


def test_attached_twice_is_one_copy_and_detached_twice_is_refused(ends: Ends):
    end, peer = ends
    end.become(False, False)
    peer.ask("become", True, False)
    peer.ask("join")
    for _ in range(2):
        peer.ask("receive", BACK, 200)
    end.send_to_group(START, LENGTH)
    assert end.statuses() == [OK]
    assert len(peer.ask("came", 1)) == 1
    assert peer.ask("nothing_came")
    assert [peer.ask("leave") for _ in range(2)] == [0, errno.EINVAL]
    end.send_to_group(START, LENGTH)
    assert end.statuses() == [OK]
    assert peer.ask("nothing_came")


def groups(kernel: Kernel) -> Any:
    return kernel_state(kernel.name)["hca"]["device"]["multicast"]["used"]


def test_a_member_that_is_killed_leaves_the_group(shared_kernel: Kernel):
    end, peer = (
        MulticastEnd(shared_kernel.name), Peer(shared_kernel.name, module="multicast_end"),
    )  # fmt: skip
    end.become(True, False)
    peer.ask("become", True, False)
    peer.process.send_signal(signal.SIGKILL)
    for _ in range(20):
        end.receive(BACK, 200)
        end.send_to_group(START, LENGTH)
        assert end.statuses(2) == [OK, OK]  # its own copies come on
    peer.process.wait(END_SECONDS)
    peer.end()
    end.leave()
    wait_until(lambda: groups(shared_kernel) == 0)
    end.context.close()
