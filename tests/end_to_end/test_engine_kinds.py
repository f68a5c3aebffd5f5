"""UC and XRC between two processes: the tables of failures, and what each kind sees of them."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_engine_cases import (
    ATOMICS,
    CASES,
    ERR,
    FLUSH,
    NOT_READY,
    OK,
    PROT_ERR,
    RTS,
    SENDS,
    START,
    WRITES,
    Case,
    registered,
)
from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.traffic_end import End
from tests.end_to_end.xrc_end import XrcEnd
from tests.end_to_end.xrc_pair import XrcPair, xrc_pair
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes

SQE = 5
HALF = 1 << 21
Memory = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def kernel_name() -> Iterator[str]:
    with start_kernel(f"kinds-{uuid.uuid4().hex[:8]}") as started:
        yield started.name


@pytest.fixture
def uc(kernel_name: str) -> Iterator[tuple[End, Peer]]:
    end, peer = End(kernel_name), Peer(kernel_name)
    yield end, peer
    end.context.close()
    peer.end()


@pytest.fixture
def xrc(kernel_name: str, tmp_path: Path) -> Iterator[XrcPair]:
    with xrc_pair(kernel_name, tmp_path) as pair:
        yield pair


def memories(end: End, peer: Peer) -> tuple[Memory, Memory]:
    near = registered(end.extra, (end.mr.buf, end.mr.lkey))
    far = registered(lambda *a: peer.ask("extra", *a), (peer.buf, peer.rkey))
    return near, far


def target_of(case: Case, far: Memory) -> tuple[int, int]:
    kind = case.key
    if kind == "without":
        kind = "without ATOMIC" if case.opcode in ATOMICS else f"without {case.opcode}"
    return far[kind]


MEMORY = ("shared", "private")
MESSAGES = [(length, name) for length in (0, 1, 64, 5000, 1_300_000) for name in (*SENDS, *WRITES)]
OVER_UC = [case for case in CASES if case.opcode in (*SENDS, *WRITES) and case.rd_atomic]


def test_the_tables_are_whole():
    # Well, without entry, rights, entry, length, keys, elements, and its own.
    assert len(OVER_UC) == 3 + 1 + 2 + 3 + 2 + 5 + 1 + 8 + 6
    assert len(CASES) == 67


def test_every_case_over_uc(uc: tuple[End, Peer]):
    end, peer = uc
    near, far = memories(end, peer)
    for case in OVER_UC:
        number = peer.ask("renew", "UC")
        own = end.renew("UC")
        peer.ask("connect", own, 7, case.access)
        end.connect(number)
        if case.receive != "none":
            kind = "good" if case.receive == "short" else case.receive
            peer.ask(
                "receive_at", far[kind][0], 63 if case.receive == "short" else 64, far[kind][1]
            )
        start, lkey = near[case.near]
        end.send(case.opcode, start - end.mr.buf, 64, target_of(case, far), lkey=lkey)
        own_fault = case.near != "good"
        assert end.statuses() == [PROT_ERR if own_fault else OK], case
        assert end.state() == (SQE if own_fault else RTS), case
        if own_fault:
            continue
        if case.entry in (OK, PROT_ERR):
            assert peer.ask("statuses") == [case.entry], case
        else:
            assert peer.ask("nothing_came"), case
        assert peer.ask("state") == (ERR if case.entry == PROT_ERR else RTS), case


@pytest.mark.parametrize("kinds", MEMORY)
def test_every_message_over_uc(kernel_name: str, kinds: str):
    private = kinds == "private"
    end, peer = End(kernel_name, private), Peer(kernel_name, *[kinds] * private)
    try:
        number, own = peer.ask("renew", "UC"), end.renew("UC")
        peer.ask("connect", own)
        end.connect(number)
        for length, name in MESSAGES:
            end.fill(length + len(name), START, length)
            if name != "RDMA_WRITE":
                peer.ask("receive", HALF, length)
            end.send(name, START, length, (peer.buf + HALF, peer.rkey))
            assert end.statuses() == [OK], (name, length)
            if name != "RDMA_WRITE":
                assert peer.ask("statuses") == [OK]
            assert bytes.fromhex(peer.ask("read", HALF, length)) == end.read(START, length)
    finally:
        end.context.close()
        peer.end()


def join(end: XrcEnd, peer: Peer, case: Case) -> tuple[int, int, int]:
    """Connect a new sender here with a new target there; return the numbers."""
    target, srqn, sender = peer.ask("make_target"), peer.ask("make_srq"), end.make_sender()
    peer.ask("join_target", sender, case.access, case.rd_atomic)
    end.join_sender(target, 0)
    return sender, target, srqn


def test_every_case_over_xrc(xrc: XrcPair):
    end, peer = xrc
    near, far = memories(end, peer)
    for case in CASES:
        sender, target, srqn = join(end, peer, case)
        if case.receive != "none":
            kind = "good" if case.receive == "short" else case.receive
            peer.ask(
                "post_srq_at", far[kind][0], 63 if case.receive == "short" else 64, far[kind][1]
            )
        start, lkey = near[case.near]
        length = 8 if case.opcode in ATOMICS else 64
        end.send_xrc(
            case.opcode, start - end.mr.buf, length, srqn, target_of(case, far), operands=(1, 2),
            lkey=lkey,
        )  # fmt: skip
        assert end.statuses() == [case.status], case
        own_fault = case.near != "good"
        if case.entry in (None, FLUSH) or own_fault:  # nobody flushes a shared queue
            assert peer.ask("srq_is_silent"), case
        else:
            ((status, size, *ends),) = peer.ask("srq_completions")
            assert (status, ends[0]) == (case.entry, target), case
            if status == OK:
                assert (size, ends[1]) == (64, sender), case
        untouched = case.status in (OK, NOT_READY) or own_fault
        assert end.states()[0] == (RTS if case.status == OK else ERR), case
        assert peer.ask("states")[1] == (RTS if untouched else ERR), case
