"""The tables of failures once more, with the responder in another process."""

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.end_to_end import test_engine_traffic as traffic
from tests.end_to_end.conftest import Kernel
from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.traffic_end import ALL_ACCESS, LENGTH, End
from tests.kernel_proc.hca.engine import test_engine_datagrams as datagrams
from tests.kernel_proc.hca.engine import test_engine_failures as failures
from tests.kernel_proc.hca.engine import test_engine_transfers as transfers
from user_proc.verbs.pd import PD

pytestmark = pytest.mark.processes

START, HALF = 4096, LENGTH // 2
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = 1, 2, 4, 8
OK, LENGTH_ERR, QP_OP_ERR, PROT_ERR, FLUSH, LOC_ACCESS = 0, 1, 2, 4, 5, 8
INVALID, ACCESS, OPERATION, NOT_READY = 9, 10, 11, 13
RESET, RTS, SQE, ERR = 0, 3, 5, 6
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


#: In the order in which a responder looks at them.
STEPS = ("QP right", "not ready", "no resources", "too long", "key", "receive")


def spoilt_twice() -> list[Case]:
    """Requests with two faults of different steps; the first one decides."""
    found = []
    faults = [(STEPS.index(step), case) for case in CASES for step in STEPS
              if case.name.startswith(step)]  # fmt: skip
    plain = Case("", "", OK)
    for (step, first), (later, second) in itertools.product(faults, faults):
        changes = {name: value for name, value in second._asdict().items()
                   if name in ("access", "rd_atomic", "receive", "key")
                   and value != getattr(plain, name)}  # fmt: skip
        undone = any(getattr(first, name) != getattr(plain, name) for name in changes)
        if first.opcode != second.opcode or step >= later or undone:
            continue
        both = first._replace(name=f"{first.name}, {second.name}", **changes)
        found.append(both._replace(entry=None) if both.receive == "none" else both)
    return found


PAIRS = spoilt_twice()
#: What needs a receive, from a shared queue.
FROM_SHARED = [case for case in CASES if case.opcode in (*SENDS, WRITES[1])]


def test_the_table_is_whole():
    by_opcode = collections.Counter(case.opcode for case in PAIRS)
    assert by_opcode == {
        "RDMA_WRITE": 5,
        WRITES[1]: 3,
        "RDMA_READ": 11,
        **dict.fromkeys(ATOMICS, 11),
    }
    assert len(FROM_SHARED) == 3 + 1 + 3 + 2 + 1 + 8 + 3
    assert len(CASES) == 3 + 4 + 2 + 1 + 2 + 3 + 3 + 2 + 20 + 1 + 8 + 15 + 3
    assert len(CASES) == len(set(CASES))


def registered(extra: Callable[..., Any], good: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Return address and key of every kind of memory, at one end."""
    address, key = good
    return {
        "good": (address, key),
        "unknown": (address, key ^ 0x0100_0000),  # beyond the keys there are
        "stale": (address, key ^ 1),
        "beyond": (address + LENGTH, key),
        "foreign": tuple(extra(ALL_ACCESS, True)),
        "read-only": tuple(extra(0)),
        "without RDMA_WRITE": tuple(extra(ALL_ACCESS & ~REMOTE_WRITE)),
        "without RDMA_READ": tuple(extra(ALL_ACCESS & ~REMOTE_READ)),
        "without ATOMIC": tuple(extra(ALL_ACCESS & ~REMOTE_ATOMIC)),
    }


@pytest.fixture
def ends(shared_kernel: Kernel) -> Iterator[tuple[End, Peer]]:
    end, peer = End(shared_kernel.name), Peer(shared_kernel.name)
    yield end, peer
    end.context.close()
    peer.end()


@pytest.mark.parametrize("kind", ["RC", "two faults", "SRQ"])
def test_every_case_between_two_processes(ends: tuple[End, Peer], kind: str):
    end, peer = ends
    shared = kind == "SRQ"
    near = registered(end.extra, (end.mr.buf, end.mr.lkey))
    far = registered(lambda *a: peer.ask("extra", *a), (peer.buf, peer.rkey))
    for case in {"RC": CASES, "two faults": PAIRS, "SRQ": FROM_SHARED}[kind]:
        number = peer.ask("renew", "RC", shared)
        own = end.renew()
        peer.ask("connect", own, 0, case.access, case.rd_atomic)
        end.connect(number, 0)
        if case.receive != "none":
            memory = "good" if case.receive == "short" else case.receive
            address, key = far[memory]
            peer.ask("receive_at", address, 63 if case.receive == "short" else 64, key)
        memory = case.key if case.key != "without" else f"without {case.opcode}"
        address, key = far[memory if not memory.startswith("without A") else "without ATOMIC"]
        length = 8 if case.opcode in ATOMICS else 64
        start, lkey = near[case.near]
        end.send(
            case.opcode, start - end.mr.buf, length, (address, key),
            operands=(1, 2), lkey=lkey,
        )  # fmt: skip
        assert end.statuses() == [case.status], case
        own_fault = case.near != "good"
        if case.entry is None or own_fault or (shared and case.entry == FLUSH):
            assert peer.ask("nothing_came"), case  # nobody flushes a shared queue
        else:
            assert peer.ask("statuses") == [case.entry], case
        assert end.state() == (RTS if case.status == OK else ERR), case
        untouched = case.status in (OK, NOT_READY) or own_fault
        assert peer.ask("state") == (RTS if untouched else ERR), case


class Datagram(NamedTuple):
    """A datagram, and what its receiver must see: status, length and flags, or nothing.

    `near` and `receive` are the memory at both ends; `opens` says that the receiver is in RTS,
    `own_domain` that the address handle is of the queue pair's protection domain.
    """

    length: int
    arrives: bool
    qkey: int = 0x1234
    dlid: int = 1
    is_global: bool = False
    room: int = 4200
    other_qpn: bool = False
    name: str = "SEND"
    near: str = "good"
    receive: str = "good"
    opens: bool = True
    own_domain: bool = True

    @property
    def status(self) -> int:
        """What its sender is told."""
        if not self.own_domain:
            return QP_OP_ERR
        return OK if self.near == "good" else PROT_ERR


LENGTHS = (0, 1, 1024, 4096)
DATAGRAMS = [
    *(Datagram(length, True, is_global=bool(way), name=name)
      for name in SENDS for length in LENGTHS for way in (0, 1)),
    Datagram(4097, False),
    Datagram(64, False, qkey=0x4321),
    Datagram(64, False, dlid=2),
    Datagram(64, False, dlid=40),
    Datagram(64, False, room=103),
    Datagram(64, True, room=104),
    Datagram(64, False, room=0),
    Datagram(64, False, other_qpn=True),
    Datagram(64, False, opens=False),
    Datagram(64, False, own_domain=False),
    *(Datagram(64, False, near=kind) for kind in ("unknown", "stale", "foreign", "beyond")),
    *(Datagram(64, False, receive=kind)
      for kind in ("unknown", "stale", "foreign", "beyond", "read-only")),
]  # fmt: skip


def test_every_datagram_between_two_processes(ends: tuple[End, Peer]):
    end, peer = ends
    assert len(DATAGRAMS) == 35
    stranger = PD(end.context)
    near = registered(end.extra, (end.mr.buf, end.mr.lkey))
    far = registered(lambda *a: peer.ask("extra", *a), (peer.buf, peer.rkey))
    for case in DATAGRAMS:
        number = peer.ask("renew", "UD")
        if case.opens:
            peer.ask("open_datagrams")
        end.renew("UD")
        end.open_datagrams()
        if case.receive != "good":
            peer.ask("receive_at", far[case.receive][0], case.room, far[case.receive][1])
        elif case.room and case.opens:
            peer.ask("receive", HALF, case.room)
        end.fill(case.length, START, case.length)
        own, lkey = near[case.near]
        end.send_datagram(
            START if case.near == "good" else own - end.mr.buf, case.length,
            number + 4096 * case.other_qpn, qkey=case.qkey, dlid=case.dlid,
            is_global=case.is_global, name=case.name, lkey=lkey,
            pd=end.pd if case.own_domain else stranger,
        )  # fmt: skip
        assert end.statuses() == [case.status], case
        if case.arrives:
            flags = case.is_global + 2 * case.name.endswith("IMM")
            assert peer.ask("lengths") == [[OK, case.length + 40, flags]], case
            data = bytes.fromhex(peer.ask("read", HALF + 40, case.length))
            assert data == end.read(START, case.length), case
        elif case.receive != "good":
            assert peer.ask("statuses") == [PROT_ERR], case
        else:
            assert peer.ask("nothing_came"), case
        receives = RTS if case.opens else RESET
        there = receives if case.receive == "good" else ERR
        assert (end.state(), peer.ask("state")) == (RTS if case.status == OK else SQE, there), case


def test_a_third_of_the_generated_cases_is_between_processes():
    inside = {
        "RC": len(failures.LOCAL) + len(failures.CASES) + len(failures.PAIRS)
        + len(transfers.MESSAGES),
        "UD": len(datagrams.MESSAGES) + len(datagrams.DROPS) + len(datagrams.BAD_VECTORS)
        + len(datagrams.OTHER_OPCODES),
    }  # fmt: skip
    across = {
        "RC": len(CASES) + len(PAIRS) + len(FROM_SHARED) + len(traffic.MESSAGES),
        "UD": len(DATAGRAMS),
    }
    print(f"between processes {across}, in one {inside}")
    for kind, number in across.items():
        assert number > (number + inside[kind]) / 3, kind
