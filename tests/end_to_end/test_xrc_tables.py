"""The engine's tables of XRC once more, with the shared queue and the target in another process.

Requests that are wrong in two ways, of which the first check decides; shared queues that a sender
must not reach.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_proc.hca_abi import event_entries as eqe
from shared.verbs_enums import ibv_event_type
from tests.end_to_end.conftest import Kernel
from tests.end_to_end.test_engine_cases import LENGTH, registered
from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.traffic_end import ALL_ACCESS
from tests.end_to_end.xrc_pair import XrcPair, xrc_pair
from tests.kernel_proc.hca.engine import test_engine_failures as failures
from tests.kernel_proc.hca.engine import test_engine_xrc as engine

pytestmark = pytest.mark.processes

START, HALF = 4096, 1 << 21
INVALID, ERR = 9, 6
ANOTHER_GENERATION, ANOTHER_PLACE = 1 << 16, 1 << 9
EVENTS = {
    eqe.EVENT_INVALID_REQUEST: int(ibv_event_type.IBV_EVENT_QP_REQ_ERR),
    eqe.EVENT_ACCESS_ERROR: int(ibv_event_type.IBV_EVENT_QP_ACCESS_ERR),
}


@pytest.fixture(scope="module")
def xrc(shared_kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[XrcPair]:
    with xrc_pair(shared_kernel.name, tmp_path_factory.mktemp("xrc")) as pair:
        yield pair


class Request:
    """A request that is about to be made; what spoils it changes it."""

    def __init__(self, far: dict[str, tuple[int, int]]) -> None:
        self.far = far
        self.access, self.rd_atomic = ALL_ACCESS, 4
        self.address, self.key = far["good"]
        self.receive = "good"
        self.imm = 0

    def name_memory(self, kind: str) -> None:
        """Have the key of another kind of memory."""
        self.address += self.far[kind][0] - self.far["good"][0]
        self.key = self.far[kind][1]

    def post(self, peer: Peer) -> None:
        """Post what it is to be received in."""
        if self.receive == "malformed":
            peer.ask("post_srq_malformed")
        elif self.receive != "none":
            address, key = self.far["good" if self.receive == "short" else self.receive]
            peer.ask("post_srq_at", address, 63 if self.receive == "short" else 64, key)


def value(name: str, what: object) -> Callable[[Request], None]:
    return lambda request: setattr(request, name, what)


def without(right: int) -> Callable[[Request], None]:
    return lambda request: setattr(request, "access", request.access & ~right)


def moved(offset: int) -> Callable[[Request], None]:
    return lambda request: setattr(request, "address", request.address + offset)


def memory(kind: str) -> Callable[[Request], None]:
    return lambda request: request.name_memory(kind)


#: What each way to be refused of the engine's table is here.
SPOILS: dict[str, Callable[[Request], None]] = {
    "QP without write": without(2),
    "QP without read": without(4),
    "QP without atomic": without(8),
    "no receive entry": value("receive", "none"),
    "no responder resources": value("rd_atomic", 0),
    "longer than the entry": value("receive", "short"),
    "key unknown": memory("unknown"),
    "key of another generation": memory("stale"),
    "key of another PD": memory("foreign"),
    "key range below": moved(-HALF - 8),
    "key range beyond": moved(LENGTH),
    "key range wrapped": value("address", 2**64 - 8),
    "key without RDMA_WRITE": memory("without RDMA_WRITE"),
    "key without RDMA_READ": memory("without RDMA_READ"),
    "key without atomic": memory("without ATOMIC"),
    "misaligned": moved(4),
    **{
        f"receive element {kind}": value("receive", name)
        for kind, name in {
            "unknown": "unknown", "beyond": "beyond", "of another PD": "foreign",
            "read-only": "read-only",
        }.items()
    },
    "malformed receive entry": value("receive", "malformed"),
    "cannot invalidate": lambda request: setattr(request, "imm", request.key),
}  # fmt: skip


def test_the_tables_are_whole():
    print(f"{len(failures.PAIRS)} pairs of {len(SPOILS)} ways, {len(engine.NOT_TARGETS)} targets")
    assert set(SPOILS) == {case.name for case in failures.REMOTE}
    assert set(TARGETS) == {target.__name__ for target in engine.WRONG_TARGETS}


def test_the_first_check_that_fails_decides_between_two_processes(xrc: XrcPair):
    end, peer = xrc
    far = registered(lambda *a: peer.ask("extra", *a), (peer.buf + HALF, peer.rkey))
    far["unknown"] = (far["good"][0], peer.rkey ^ 0x0100_0000)
    for first, second, name in failures.PAIRS:
        case = (first.name, second.name, name)
        request = Request(far)
        SPOILS[second.name](request)
        SPOILS[first.name](request)
        target, srqn, sender = peer.ask("make_target"), peer.ask("make_srq"), end.make_sender()
        peer.ask("join_target", sender, request.access, request.rd_atomic)
        end.join_sender(target, 0)
        request.post(peer)
        end.send_unchecked(
            name, START, engine.length_of(name), srqn, (request.address, request.key),
            imm=request.imm,
        )  # fmt: skip
        assert end.statuses() == [first.status], case
        if first.event is not None:
            assert peer.ask("event") == [EVENTS[first.event]], case


TARGETS: dict[str, Callable[[Peer, Peer], int]] = {
    "unknown": lambda peer, other: peer.ask("make_srq") ^ ANOTHER_PLACE,
    "of_another_domain": lambda peer, other: other.ask("make_srq"),
    "of_no_domain": lambda peer, other: peer.ask("make_plain_srq"),
    "of_another_generation": lambda peer, other: peer.ask("make_srq") ^ ANOTHER_GENERATION,
    "taken_back": lambda peer, other: (peer.ask("make_srq"), peer.ask("drop_srq"))[0],
    "beyond_all_numbers": lambda peer, other: 0xFFFF_FFFF,
}


def test_a_queue_outside_the_domain_between_processes(
    xrc: XrcPair, shared_kernel: Kernel, tmp_path: Path
):
    end, peer = xrc
    (tmp_path / "elsewhere").touch()
    other = Peer(shared_kernel.name, module="xrc_end")
    try:
        other.ask("open_domain", str(tmp_path / "elsewhere"))
        for wrong, name in engine.NOT_TARGETS:
            case = (wrong.__name__, name)
            srqn = TARGETS[wrong.__name__](peer, other)
            target, sender = peer.ask("make_target"), end.make_sender()
            peer.ask("join_target", sender)
            end.join_sender(target)
            if wrong.__name__ == "of_another_domain":
                other.ask("post_srq", HALF, 64)
            end.send_xrc(
                name, START, engine.length_of(name), srqn, (peer.buf + HALF, peer.rkey),
            )  # fmt: skip
            assert end.statuses() == [INVALID], case
            assert peer.ask("states")[1] == ERR, case
            assert peer.ask("event") == [EVENTS[eqe.EVENT_INVALID_REQUEST]], case
        assert other.ask("srq_is_silent")
    finally:
        other.end()
