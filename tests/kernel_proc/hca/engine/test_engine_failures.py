"""Every failure of a reliable connection: what both sides see, and which of two comes first.

The table is that of the verbs semantics: sections 6 (statuses) and 7 (responder, order of checks).
"""

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from tests.kernel_proc.hca.engine.engine_bench import (
    ALL_ACCESS,
    INLINE,
    SIGNALED,
    Region,
    User,
    pair,
    wr,
)
from tests.kernel_proc.hca.hca_bench import PD, Bench

Ends = tuple[User, User]
READ, WRITE = abi.MPT_FLAG_LOCAL_READ, abi.MPT_FLAG_LOCAL_WRITE
REGION = abi.MPT_FLAG_REGION | READ
REMOTE_WRITE, REMOTE_READ = 2, 4
REMOTE_ATOMIC = 8
ERR, RTS = table.ERR, table.RTS
NO_ENTRY = None

# The requester's own end.


class Local(NamedTuple):
    """A send entry that its own side refuses."""

    name: str
    opcode: str
    make: Callable[[Region, Bench], dict[str, object]]
    status: int
    attributes: Mapping[str, int] = MappingProxyType({})


def bad(element: Callable[[Region, Bench], tuple[int, int, int]]):
    return lambda near, bench: {"elements": [element(near, bench)]}


def region_without(flag: int, **changes: int):
    return lambda near, bench: Region(bench, 4096, flags=ALL_FLAGS & ~flag, **changes).at(0, 8)


ALL_FLAGS = REGION | WRITE | abi.MPT_FLAG_REMOTE_READ | abi.MPT_FLAG_REMOTE_WRITE
LOCAL = [
    *(
        Local(f"{opcode} {what}", opcode, bad(element), ops.LOC_PROT_ERR)
        for opcode in ("SEND", "RDMA_WRITE", "RDMA_READ", "ATOMIC_FETCH_AND_ADD")
        for what, element in {
            "unknown key": lambda near, bench: (near.start, 8, 0x7700),
            "stale generation": lambda near, bench: (near.start, 8, near.key | 1),
            "below": lambda near, bench: (near.start - 1, 8, near.key),
            "beyond": lambda near, bench: (near.start + near.length - 7, 8, near.key),
            "wrapped": lambda near, bench: (2**64 - 4, 8, near.key),
            "foreign PD": region_without(0, pd=PD + 1),
        }.items()
    ),
    Local("read without local write", "RDMA_READ", bad(region_without(WRITE)), ops.LOC_PROT_ERR),
    Local(
        "atomic without local write", "ATOMIC_CMP_AND_SWP", bad(region_without(WRITE)),
        ops.LOC_PROT_ERR,
    ),
    *(
        Local(
            f"atomic of {length}", "ATOMIC_FETCH_AND_ADD",
            lambda near, bench, length=length: {"elements": [near.at(0, length)]},
            ops.LOC_LEN_ERR,
        )
        for length in (0, 4, 7, 9, 16)
    ),
    Local(
        "more than a message", "RDMA_WRITE",
        lambda near, bench: {"elements": [near.at(0, 1 << 31), near.at(0, 1)]}, ops.LOC_LEN_ERR,
    ),
    *(
        Local(f"opcode {name}", name, lambda near, bench: {}, ops.LOC_QP_OP_ERR)
        for name in ("TSO", "FLUSH", "ATOMIC_WRITE")
    ),
    Local("bind of nothing", "BIND_MW", lambda near, bench: {}, ops.MW_BIND_ERR),
    *(
        Local(
            f"inline {name}", name,
            lambda near, bench: {"inline": bytes(8), "flags": INLINE | SIGNALED},
            ops.LOC_QP_OP_ERR,
        )
        for name in ("RDMA_READ", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV")
    ),
    Local(
        "more elements than fit", "SEND", lambda near, bench: {"count": 1000}, ops.LOC_QP_OP_ERR
    ),
    Local("local invalidate of a region", "LOCAL_INV",
          lambda near, bench: {"imm": near.key}, ops.LOC_QP_OP_ERR),
    Local("local invalidate of nothing", "LOCAL_INV",
          lambda near, bench: {"imm": 0x7700}, ops.LOC_QP_OP_ERR),
    *(
        Local(
            f"{name} with none outstanding", name,
            lambda near, bench: {"elements": [near.at(0, 8)], "remote": (near.start, near.key)},
            ops.LOC_QP_OP_ERR, {"sra_max": 0},
        )
        for name in ("RDMA_READ", "ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP")
    ),
]  # fmt: skip


def test_the_local_table_is_whole():
    assert len(LOCAL) == 24 + 2 + 5 + 1 + 4 + 3 + 1 + 2 + 3
    assert len({one.name for one in LOCAL}) == len(LOCAL)


@pytest.mark.parametrize("case", LOCAL, ids=lambda case: case.name)
def test_an_entry_its_own_side_refuses(bench: Bench, case: Local):
    one, other = pair(bench, **case.attributes)
    near, far = Region(bench, 4096), Region(bench, 4096)
    other.receive([far.at()])
    before = far.fill(1)
    one.put_send(wr("RDMA_WRITE"), flags=0)  # completes silently
    arguments = {"remote": (far.start, far.key), "flags": 0, **case.make(near, bench)}
    one.put_send(wr(case.opcode), **arguments)  # type: ignore[arg-type]  # by name
    one.put_send(wr("RDMA_WRITE"), flags=0)
    one.receive()
    one.ring_send()
    done = one.sends()
    assert [(c.wqe_index, c.status) for c in done] == [(1, case.status), (2, ops.WR_FLUSH_ERR)]
    assert [c.status for c in one.receives()] == [ops.WR_FLUSH_ERR]
    assert (one.state, other.state) == (ERR, RTS)
    assert other.receives() == []
    assert far.view == before


# The responder's end.


class Remote(NamedTuple):
    """A request its responder refuses; `entry` is the status of the receive entry, if one ends."""

    name: str
    step: int
    opcodes: tuple[str, ...]
    status: int
    entry: int | None
    event: int | None
    change: Callable[["Scene"], None]


class Scene:
    """What a request is about to be made of; steps spoil it."""

    def __init__(self, bench: Bench, opcode: str) -> None:
        self.bench = bench
        self.opcode = opcode
        self.near = Region(bench, 4096)
        self.far = Region(bench, 4096)
        self.access = ALL_ACCESS
        self.rra_max = 4
        self.key = self.far.key
        self.address = self.far.start
        self.receive: list[tuple[int, int, int]] | None = [self.far.at(0, 64)]
        self.imm = 0
        self.elements_in_entry: int | None = None

    def run(self) -> Ends:
        one, other = pair(self.bench, access=self.access, rra_max=self.rra_max, rnr_retry=0)
        self.bench.async_events()
        if self.receive is not None:
            other.receive(self.receive, count=self.elements_in_entry)
        length = 8 if self.opcode.startswith("ATOMIC") else 64
        one.send(
            wr(self.opcode), [self.near.at(0, length)], remote=(self.address, self.key),
            imm=self.imm,
        )  # fmt: skip
        return one, other


def set_access(missing: int):
    def change(scene: Scene) -> None:
        scene.access &= ~missing

    return change


def set_key(**arguments: int):
    def change(scene: Scene) -> None:
        scene.key = Region(scene.bench, 4096, **arguments).key

    return change


def set_value(name: str, value: object):
    def change(scene: Scene) -> None:
        setattr(scene, name, value)

    return change


def no_atomic_right(scene: Scene) -> None:
    scene.key = Region(scene.bench, 4096, flags=ALL_FLAGS).key


SENDS = ("SEND", "SEND_WITH_IMM")
WRITES = ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
ATOMICS = ("ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP")
INVALID, ACCESS, OPERATION = ops.REM_INV_REQ_ERR, ops.REM_ACCESS_ERR, ops.REM_OP_ERR
REQ_EVENT, ACCESS_EVENT = eqe.EVENT_INVALID_REQUEST, eqe.EVENT_ACCESS_ERROR
RIGHTS = {
    "RDMA_WRITE": abi.MPT_FLAG_REMOTE_WRITE,
    "RDMA_READ": abi.MPT_FLAG_REMOTE_READ,
}
WITH_KEY = ("RDMA_WRITE", "RDMA_READ", *ATOMICS)
REMOTE = [
    Remote("QP without write", 3, WRITES, INVALID, None, REQ_EVENT, set_access(REMOTE_WRITE)),
    Remote("QP without read", 3, ("RDMA_READ",), INVALID, None, REQ_EVENT, set_access(REMOTE_READ)),
    Remote("QP without atomic", 3, ATOMICS, INVALID, None, REQ_EVENT, set_access(REMOTE_ATOMIC)),
    Remote(
        "no receive entry", 4, (*SENDS, "RDMA_WRITE_WITH_IMM"), ops.RNR_RETRY_EXC_ERR, None, None,
        set_value("receive", None),
    ),
    Remote(
        "no responder resources", 4, ("RDMA_READ", *ATOMICS), INVALID, None, REQ_EVENT,
        set_value("rra_max", 0),
    ),
    Remote(
        "longer than the entry", 5, SENDS, INVALID, ops.LOC_LEN_ERR, None,
        lambda scene: setattr(scene, "receive", [scene.far.at(0, 63)]),
    ),
    *(
        Remote(f"key {what}", 6, WITH_KEY, ACCESS, None, ACCESS_EVENT, change)
        for what, change in {
            "unknown": set_value("key", 0x7700),
            "of another generation": lambda scene: setattr(scene, "key", scene.key | 1),
            "of another PD": set_key(pd=PD + 1),
            "range below": lambda scene: setattr(scene, "address", scene.address - 8),
            "range beyond": lambda scene: setattr(scene, "address", scene.address + 4096),
            "range wrapped": set_value("address", 2**64 - 8),
        }.items()
    ),
    *(
        Remote(
            f"key without {name}", 6, (name,), ACCESS, None, ACCESS_EVENT,
            lambda scene, flag=flag: setattr(
                scene, "key", Region(scene.bench, 4096, flags=ALL_FLAGS & ~flag).key
            ),
        )
        for name, flag in RIGHTS.items()
    ),
    Remote("key without atomic", 6, ATOMICS, ACCESS, None, ACCESS_EVENT, no_atomic_right),
    Remote(
        "key unknown", 6, ("RDMA_WRITE_WITH_IMM",), ACCESS, ops.LOC_ACCESS_ERR, None,
        set_value("key", 0x7700),
    ),
    Remote(
        "misaligned", 7, ATOMICS, INVALID, None, REQ_EVENT,
        lambda scene: setattr(scene, "address", scene.address + 4),
    ),
    *(
        Remote(f"receive element {what}", 7, SENDS, OPERATION, ops.LOC_PROT_ERR, None, change)
        for what, change in {
            "unknown": lambda scene: setattr(scene, "receive", [(scene.far.start, 64, 0x7700)]),
            "beyond": lambda scene: setattr(scene, "receive", [scene.far.at(4090, 64)]),
            "of another PD": lambda scene: setattr(
                scene, "receive", [Region(scene.bench, 4096, pd=PD + 1).at(0, 64)]
            ),
            "read-only": lambda scene: setattr(
                scene, "receive", [Region(scene.bench, 4096, flags=ALL_FLAGS & ~WRITE).at(0, 64)]
            ),
        }.items()
    ),
    Remote(
        "malformed receive entry", 4, SENDS, OPERATION, ops.LOC_QP_OP_ERR, None,
        set_value("elements_in_entry", 1000),
    ),
    Remote(
        "cannot invalidate", 7, ("SEND_WITH_INV",), ACCESS, ops.REM_INV_REQ_ERR, None,
        lambda scene: setattr(scene, "imm", scene.far.key),
    ),
]  # fmt: skip
CASES = [(case, opcode) for case in REMOTE for opcode in case.opcodes]


def test_the_remote_table_is_whole():
    assert len(CASES) == 2 + 1 + 2 + 3 + 3 + 2 + 24 + 2 + 2 + 1 + 2 + 8 + 2 + 1


@pytest.mark.parametrize(("case", "opcode"), CASES, ids=lambda v: getattr(v, "name", v))
def test_a_request_its_responder_refuses(bench: Bench, case: Remote, opcode: str):
    scene = Scene(bench, opcode)
    case.change(scene)
    before = bytes(scene.far.view)
    one, other = scene.run()
    assert [c.status for c in one.sends()] == [case.status]
    assert one.state == ERR
    not_ready = case.status == ops.RNR_RETRY_EXC_ERR
    assert other.state == (RTS if not_ready else ERR)
    flushed = [ops.WR_FLUSH_ERR] if scene.receive is not None and case.entry is None else []
    expected = [case.entry] if case.entry is not None else flushed
    assert [c.status for c in other.receives()] == expected
    events = [(case.event, other.qpn)] if case.event is not None else []
    assert bench.async_events() == events
    if case.name != "cannot invalidate":
        assert scene.far.view == before


def spoilt_twice() -> list[tuple[Remote, Remote, str]]:
    """Two cases of different steps that one opcode can have, and that can be together."""
    found = []
    for first, second in itertools.combinations(REMOTE, 2):
        if first.step == second.step:
            continue
        by_step = sorted((first, second), key=lambda case: case.step)
        both = (opcode for opcode in first.opcodes if opcode in second.opcodes)
        found += [(by_step[0], by_step[1], opcode) for opcode in both]
    return found


def collide(first: Remote, second: Remote) -> bool:
    """Say whether the second undoes the first: both set the same thing."""
    receives = ("receive", "entry")
    return any(word in first.name for word in receives) and any(
        word in second.name for word in receives
    )


PAIRS = [case for case in spoilt_twice() if not collide(*case[:2])]


def test_the_table_of_pairs_is_whole():
    # Writes: right before each key. Reads and atomics: right, resources, key, alignment.
    by_opcode = {name: sum(1 for *_, opcode in PAIRS if opcode == name) for name in
                 ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ", *ATOMICS)}  # fmt: skip
    assert by_opcode == {
        "RDMA_WRITE": 7,
        "RDMA_WRITE_WITH_IMM": 3,
        "RDMA_READ": 15,
        "ATOMIC_FETCH_AND_ADD": 24,
        "ATOMIC_CMP_AND_SWP": 24,
    }


@pytest.mark.parametrize(("first", "second", "opcode"), PAIRS, ids=lambda v: getattr(v, "name", v))
def test_the_first_check_that_fails_decides(
    bench: Bench, first: Remote, second: Remote, opcode: str
):
    scene = Scene(bench, opcode)
    second.change(scene)
    first.change(scene)
    one, other = scene.run()
    assert [c.status for c in one.sends()] == [first.status]
    events = [(first.event, other.qpn)] if first.event is not None else []
    assert bench.async_events() == events


def test_an_oversized_send_without_an_entry_is_not_ready(bench: Bench):
    one, other = pair(bench, rnr_retry=0)
    near = Region(bench, 4096)
    one.send(wr("SEND"), [near.at()])
    assert [c.status for c in one.sends()] == [ops.RNR_RETRY_EXC_ERR]
    assert other.state == RTS


@pytest.mark.parametrize("name", ["RDMA_WRITE", "RDMA_READ"])
def test_nothing_of_length_zero_has_its_key_checked(bench: Bench, ends: Ends, name: str):
    one, _ = ends
    one.send(wr(name), remote=(2**64 - 1, 0xDEADBEEF))
    assert [c.status for c in one.sends()] == [0]


@pytest.mark.parametrize("name", ["RDMA_WRITE", "RDMA_READ"])
def test_of_length_zero_the_right_is_checked(bench: Bench, name: str):
    one, _ = pair(bench, access=0)
    one.send(wr(name))
    assert [c.status for c in one.sends()] == [ops.REM_INV_REQ_ERR]


def test_the_whole_range_is_checked_before_the_first_byte(bench: Bench, ends: Ends):
    one, _ = ends
    near, far = Region(bench, 3 << 20), Region(bench, (3 << 20) - 1)
    near.fill(1)
    one.send(wr("RDMA_WRITE"), [near.at()], remote=(far.start, far.key))
    assert [c.status for c in one.sends()] == [ops.REM_ACCESS_ERR]
    assert not any(far.view)


def test_the_own_elements_are_checked_before_the_first_byte(bench: Bench, ends: Ends):
    one, other = ends
    near, far = Region(bench, 2 << 20), Region(bench, 3 << 20)
    near.fill(1)
    one.send(wr("RDMA_WRITE"), [near.at(), (near.start, 64, 0x7700)], remote=(far.start, far.key))
    assert [c.status for c in one.sends()] == [ops.LOC_PROT_ERR]
    assert not any(far.view)
    assert other.state == RTS


def test_a_completion_that_is_lost_is_not_acknowledged(bench: Bench):
    one = User(bench, 2000, ack_timeout=1, retry_count=1)
    other = User(bench, 2001, cq_log=1)  # room for one
    one.connect(other)
    other.connect(one)
    for _ in range(3):
        other.receive()
    one.send(wr("SEND"))
    one.send(wr("SEND"))
    bench.settle()
    assert other.state == ERR
    while (due := bench.device.next_deadline_ns()) is not None:
        bench.now = max(bench.now, due)
        bench.settle()
    assert [c.status for c in one.sends()] == [0, ops.RETRY_EXC_ERR]
    assert (eqe.EVENT_CQ_ERROR, other.receive_cq.cqn) in bench.async_events()
