"""The tables of failures once more, with the responder in another process."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.traffic_end import ALL_ACCESS, LENGTH, End

pytestmark = pytest.mark.processes

START, HALF = 4096, LENGTH // 2
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = 1, 2, 4, 8
OK, LENGTH_ERR, PROT_ERR, FLUSH, LOC_ACCESS = 0, 1, 4, 5, 8
INVALID, ACCESS, OPERATION, NOT_READY = 9, 10, 11, 13
RTS, ERR = 3, 6
SENDS = ("SEND", "SEND_WITH_IMM")
WRITES = ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
ATOMICS = ("ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP")
KEYED = ("RDMA_WRITE", "RDMA_READ", *ATOMICS)


class Case(NamedTuple):
    """What is changed from a request that would go well, and what both sides must see.

    `entry` is what becomes of the receive entry that was posted; None if none was.
    """

    name: str
    opcode: str
    status: int
    entry: int | None = FLUSH
    access: int = ALL_ACCESS
    rd_atomic: int = 4
    receive: str = "good"
    key: str = "good"
    near: str = "good"


def each(name: str, opcodes: tuple[str, ...], status: int, **changes: Any) -> list[Case]:
    return [Case(name, opcode, status, **changes) for opcode in opcodes]


CASES = [
    *each("well", (*SENDS, "RDMA_WRITE_WITH_IMM"), OK, entry=OK),
    *each("well, no entry", KEYED, OK, entry=None, receive="none"),
    *each("QP right", WRITES, INVALID, access=ALL_ACCESS & ~REMOTE_WRITE),
    *each("QP right", ("RDMA_READ",), INVALID, access=ALL_ACCESS & ~REMOTE_READ),
    *each("QP right", ATOMICS, INVALID, access=ALL_ACCESS & ~REMOTE_ATOMIC),
    *each("not ready", (*SENDS, WRITES[1]), NOT_READY, entry=None, receive="none"),
    *each("no resources", ("RDMA_READ", *ATOMICS), INVALID, rd_atomic=0),
    *each("too long", SENDS, INVALID, entry=LENGTH_ERR, receive="short"),
    *[case for key in ("unknown", "stale", "foreign", "beyond", "without")
      for case in each(f"key {key}", KEYED, ACCESS, key=key)],
    *each("key unknown", ("RDMA_WRITE_WITH_IMM",), ACCESS, entry=LOC_ACCESS, key="unknown"),
    *[case for kind in ("unknown", "foreign", "read-only", "beyond")
      for case in each(f"receive {kind}", SENDS, OPERATION, entry=PROT_ERR, receive=kind)],
    *[case for kind in ("unknown", "foreign", "beyond")
      for case in each(f"own {kind}", ("SEND", *KEYED), PROT_ERR, entry=None, near=kind)],
    *each("own read-only", ("RDMA_READ", *ATOMICS), PROT_ERR, entry=None, near="read-only"),
]  # fmt: skip


def test_the_table_is_whole():
    assert len(CASES) == 3 + 4 + 2 + 1 + 2 + 3 + 3 + 2 + 20 + 1 + 8 + 15 + 3
    assert len(CASES) == len(set(CASES))


def registered(extra: Callable[..., Any], good: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Return address and key of every kind of memory, at one end."""
    address, key = good
    return {
        "good": (address, key),
        "unknown": (address, 0x7700),
        "stale": (address, key ^ 1),
        "beyond": (address + LENGTH, key),
        "foreign": tuple(extra(ALL_ACCESS, True)),
        "read-only": tuple(extra(0)),
        "without RDMA_WRITE": tuple(extra(ALL_ACCESS & ~REMOTE_WRITE)),
        "without RDMA_READ": tuple(extra(ALL_ACCESS & ~REMOTE_READ)),
        "without ATOMIC": tuple(extra(ALL_ACCESS & ~REMOTE_ATOMIC)),
    }


@pytest.fixture
def ends(start: Callable[..., Any]) -> Iterator[tuple[End, Peer]]:
    kernel = start()
    end, peer = End(kernel.name), Peer(kernel.name)
    yield end, peer
    end.context.close()
    peer.end()


def test_every_case_between_two_processes(ends: tuple[End, Peer]):
    end, peer = ends
    near = registered(end.extra, (end.mr.buf, end.mr.lkey))
    far = registered(lambda *a: peer.ask("extra", *a), (peer.buf, peer.rkey))
    for case in CASES:
        number = peer.ask("renew")
        own = end.renew()
        peer.ask("connect", own, 0, case.access, case.rd_atomic)
        end.connect(number, 0)
        if case.receive != "none":
            kind = "good" if case.receive == "short" else case.receive
            address, key = far[kind]
            peer.ask("receive_at", address, 63 if case.receive == "short" else 64, key)
        kind = case.key if case.key != "without" else f"without {case.opcode}"
        address, key = far[kind if not kind.startswith("without A") else "without ATOMIC"]
        length = 8 if case.opcode in ATOMICS else 64
        start, lkey = near[case.near]
        end.send(
            case.opcode, start - end.mr.buf, length, (address, key),
            operands=(1, 2), lkey=lkey,
        )  # fmt: skip
        assert end.statuses() == [case.status], case
        own_fault = case.near != "good"
        if case.entry is None or own_fault:
            assert peer.ask("nothing_came"), case
        else:
            assert peer.ask("statuses") == [case.entry], case
        assert end.state() == (RTS if case.status == OK else ERR), case
        untouched = case.status in (OK, NOT_READY) or own_fault
        assert peer.ask("state") == (RTS if untouched else ERR), case


class Datagram(NamedTuple):
    """A datagram, and what its receiver must see: status, length and flags, or nothing."""

    length: int
    arrives: bool
    qkey: int = 0x1234
    dlid: int = 1
    is_global: bool = False
    room: int = 4200
    other_qpn: bool = False


DATAGRAMS = [
    *(Datagram(length, True, is_global=way) for length in (0, 1, 1024, 4096) for way in (0, 1)),
    Datagram(4097, False),
    Datagram(64, False, qkey=0x4321),
    Datagram(64, False, dlid=2),
    Datagram(64, False, dlid=40),
    Datagram(64, False, room=103),
    Datagram(64, True, room=104),
    Datagram(64, False, room=0),
    Datagram(64, False, other_qpn=True),
]


def test_every_datagram_between_two_processes(ends: tuple[End, Peer]):
    end, peer = ends
    assert len(DATAGRAMS) == 16
    for case in DATAGRAMS:
        number = peer.ask("renew", "UD")
        peer.ask("open_datagrams")
        end.renew("UD")
        end.open_datagrams()
        if case.room:
            peer.ask("receive", HALF, case.room)
        end.fill(case.length, START, case.length)
        end.send_datagram(
            START, case.length, number + 4096 * case.other_qpn, qkey=case.qkey, dlid=case.dlid,
            is_global=case.is_global,
        )  # fmt: skip
        assert end.statuses() == [OK], case
        if case.arrives:
            flags = 1 if case.is_global else 0
            assert peer.ask("lengths") == [[OK, case.length + 40, flags]], case
            data = bytes.fromhex(peer.ask("read", HALF + 40, case.length))
            assert data == end.read(START, case.length), case
        else:
            assert peer.ask("nothing_came"), case
        assert (end.state(), peer.ask("state")) == (RTS, RTS), case
