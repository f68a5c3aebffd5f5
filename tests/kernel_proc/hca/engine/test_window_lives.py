"""How windows end, and in which order: invalidation from both sides, resets, commands, copies."""

from typing import NamedTuple

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi import registers as reg
from tests.kernel_proc.hca.engine.engine_bench import FENCE, SIGNALED, Region, User, wr
from tests.kernel_proc.hca.engine.private_memory import Gate, PrivateRegion, step_until
from tests.kernel_proc.hca.engine.window_bench import (
    BINDABLE,
    TYPES,
    WRITE,
    ZERO_BASED,
    Party,
    Window,
)
from tests.kernel_proc.hca.hca_bench import PD, Bench

GOOD, REFUSED = ops.SUCCESS, ops.REM_ACCESS_ERR
ROLES = ("owner", "owner's other", "peer", "peer of the other")


class End(NamedTuple):
    """Who asks for an invalidation of what, and whether it is done, by type."""

    state: str
    role: str
    done: tuple[bool, bool]


#: A window in one of these states; type 1 is never invalidated so.
STATES = ("bound", "free", "another variant", "a region", "of another domain")
ENDS = [
    End(
        state, role,
        (False, state == "free" or (state == "bound" and role in ("owner", "peer"))),
    )
    for state in STATES
    for role in ROLES
]  # fmt: skip
CASES = [(kind, end) for kind in TYPES for end in ENDS]


def test_the_matrix_is_whole():
    print(f"invalidation: {len(CASES)} cases of {len(STATES)} states, {len(ROLES)} roles, 2 types")
    assert len(CASES) == 40


@pytest.mark.parametrize(("kind", "end"), CASES, ids=lambda value: "-".join(map(str, value[:2]))
                         if isinstance(value, End) else str(value))  # fmt: skip
def test_an_invalidation(bench: Bench, kind: int, end: End):
    party = Party(bench)
    window = Window(bench, kind, PD + (end.state == "of another domain"))
    if end.state not in ("free", "of another domain"):
        assert party.bind(window) == GOOD
    key = {"another variant": window.key ^ 1, "a region": party.region.key}.get(
        end.state, window.key
    )
    was_bound = window.device_object.region is not None
    owner, peer = (party.owner, party.peer) if end.role in ("owner", "peer") else party.others
    expected = end.done[kind - 1]
    if end.role.startswith("peer"):
        owner.receive([party.region.at(0, 64)])
        peer.send(wr("SEND_WITH_INV"), [party.near.at(0, 8)], imm=key)
        sent, received = peer.sends(), owner.receives()
        assert [one.status for one in sent] == [GOOD if expected else REFUSED]
        assert [one.status for one in received] == [GOOD if expected else ops.REM_INV_REQ_ERR]
        if expected:
            assert (received[0].wc_flags, received[0].imm_data) == (8, key)
    else:
        owner.send(wr("LOCAL_INV"), imm=key)
        (done,) = owner.sends()
        assert done.status == (GOOD if expected else ops.LOC_QP_OP_ERR)
        if expected:
            assert done.opcode == 6  # IBV_WC_LOCAL_INV
    assert owner.state == (table.RTS if expected else table.ERR)
    is_bound = window.device_object.region is not None
    assert is_bound == (was_bound and not expected)


# Order


def test_what_is_posted_after_a_bind_finds_it_bound(bench: Bench):
    party, window = Party(bench), Window(bench, 2)
    party.peer.receive([party.near.at(64, 64)])
    key = party.put_bind(window, flags=0)
    party.owner.put_send(wr("SEND"), [party.region.at(0, 8)])
    party.owner.ring_send()
    assert [one.status for one in party.owner.sends()] == [GOOD]
    assert party.access("RDMA_WRITE", key) == GOOD


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("flags", [0, FENCE])
def test_a_chain_goes_in_its_order(bench: Bench, kind: int, flags: int):
    """Read by a window of the peer's, unbind it, bind it anew, tell of it: all in one post."""
    party, window = Party(bench), Window(bench, kind)
    assert party.bind(window) == GOOD
    reader, far = party.owner, party.near
    party.peer.receive([far.at(64, 64)])
    reader.put_send(wr("RDMA_READ"), [party.region.at(0, 64)], remote=(far.start, far.key))
    if kind == 2:
        reader.put_send(wr("LOCAL_INV"), imm=window.key, flags=flags | SIGNALED)
    else:
        party.put_bind(window, length=0, flags=flags | SIGNALED)
        window.key = window.next_key
    party.put_bind(window, flags=flags | SIGNALED)
    reader.put_send(wr("SEND"), [party.region.at(0, 8)], flags=flags | SIGNALED)
    reader.ring_send()
    done = reader.sends()
    assert [one.status for one in done] == [GOOD] * 4
    assert [one.wqe_index for one in done] == [1, 2, 3, 4]
    assert party.access("RDMA_READ", window.next_key) == GOOD
    assert party.access("RDMA_READ", window.key) == REFUSED


def test_what_is_behind_a_failed_bind_is_flushed_and_not_done(bench: Bench):
    party, window = Party(bench), Window(bench, 1)
    party.put_bind(window, lkey=0x7700)
    party.put_bind(window)
    party.owner.put_send(wr("LOCAL_INV"), imm=window.key)
    party.owner.ring_send()
    statuses = [one.status for one in party.owner.sends()]
    assert statuses == [ops.MW_BIND_ERR, ops.WR_FLUSH_ERR, ops.WR_FLUSH_ERR]
    assert window.device_object.region is None


def test_a_message_stops_where_its_window_goes(bench: Bench):
    """The window is taken between two runs of one message; no byte comes after that."""
    party, window = Party(bench), Window(bench, 1)
    length = 5 << 20
    near = Region(bench, length)
    far = Region(bench, length, flags=BINDABLE)
    assert party.bind(window, lkey=far.key, address=far.start, length=length) == GOOD
    near.view[:] = b"\x55" * length
    party.peer.send(wr("RDMA_WRITE"), [near.at()], remote=(far.start, window.key))
    while not far.view[0]:
        bench.device.run_once()
    arrived = party.peer.device_object.outgoing.done
    assert 0 < arrived < length
    assert window.give_back() == op.CMD_STAT_OK
    assert [one.status for one in party.peer.sends()] == [REFUSED]
    assert bytes(far.view[:arrived]).count(0x55) == arrived
    assert not any(far.view[arrived:])


# What else ends it


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("state", ["error", "reset"])
def test_the_end_of_the_queue_pair(bench: Bench, kind: int, state: str):
    """In the error state nothing changes; a queue pair that is reset leaves no type 2 window."""
    party, window = Party(bench), Window(bench, kind)
    assert party.bind(window) == GOOD
    assert party.owner.run(op.TOERR_QPEE) == op.CMD_STAT_OK
    assert window.device_object.region is not None
    if state == "reset":
        assert party.owner.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
    stays = kind == 1 or state == "error"
    assert (window.device_object.region is not None) == stays
    region = bench.tables.translation.named(party.region.key)
    assert region is not None
    assert region.windows == int(stays)
    if kind == 1:
        assert party.access("RDMA_WRITE", window.key, by=party.others[1]) == GOOD
    elif state == "reset":
        assert party.bind(window, by=party.others[0], new_rkey=window.next_key) == GOOD
        assert party.access("RDMA_WRITE", window.key, by=party.others[1]) == GOOD


@pytest.mark.parametrize("kind", TYPES)
def test_a_region_is_not_given_back_while_windows_are_bound(bench: Bench, kind: int):
    party = Party(bench)
    windows = [Window(bench, kind) for _ in range(3)]
    for window in windows:
        assert party.bind(window) == GOOD
    index = bench.tables.translation.index_of(party.region.key)

    def give_back() -> int:
        return bench.run(op.HW2SW_MPT, modifier=index, opmod=1)

    bench.ok(op.QUERY_MPT, modifier=index)
    assert abi.MptEntry(*abi.MPT_ENTRY.unpack(bench.out(64))).window_count == 3
    assert give_back() == op.CMD_STAT_REG_BOUND
    assert windows[0].give_back() == op.CMD_STAT_OK
    assert give_back() == op.CMD_STAT_REG_BOUND
    if kind == 1:
        assert party.bind(windows[1], length=0) == GOOD
    else:
        party.owner.send(wr("LOCAL_INV"), imm=windows[1].key)
        assert [one.status for one in party.owner.sends()] == [GOOD]
    assert give_back() == op.CMD_STAT_REG_BOUND
    assert windows[2].give_back() == op.CMD_STAT_OK
    assert give_back() == op.CMD_STAT_OK
    assert bench.device.inspect()["windows"].keys() == {str(windows[1].index)}


def test_query_mpt_tells_what_a_window_is_bound_to(bench: Bench):
    party, window = Party(bench), Window(bench, 2)
    assert party.bind(window, access=WRITE | ZERO_BASED, length=100) == GOOD
    bench.ok(op.QUERY_MPT, modifier=window.index)
    entry = abi.MptEntry(*abi.MPT_ENTRY.unpack(bench.out(64)))
    assert (entry.key, entry.lkey, entry.length) == (window.key, party.region.key, 100)
    wanted = abi.MPT_FLAG_TYPE_2 | abi.MPT_FLAG_REMOTE_WRITE | abi.MPT_FLAG_ZERO_BASED
    assert entry.flags == wanted


@pytest.mark.parametrize(
    "changes",
    [
        {"length": 1}, {"flags": abi.MPT_FLAG_REMOTE_READ}, {"flags": abi.MPT_FLAG_ZERO_BASED},
        {"flags": abi.MPT_FLAG_LOCAL_WRITE}, {"pd": 1 << 24},
    ],
    ids=str,
)  # fmt: skip
def test_a_window_is_given_to_the_hca_unbound(bench: Bench, changes: dict[str, int]):
    entry = abi.MptEntry(0, 0, 77 << 8, PD, 0, 0)._replace(**changes)
    inbox = abi.MPT_ENTRY.pack(*entry)
    assert bench.run(op.SW2HW_MPT, modifier=77, inbox=inbox) == op.CMD_STAT_BAD_PARAM
    assert bench.tables.translation.entry(77) is None


def test_closing_the_hca_forgets_windows(bench: Bench):
    party, window = Party(bench), Window(bench, 2)
    assert party.bind(window) == GOOD
    bench.ok(op.CLOSE_HCA)
    assert bench.device.inspect()["windows"] == {}


# Private memory


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["RDMA_WRITE", "RDMA_READ", "ATOMIC_FETCH_AND_ADD"])
def test_a_window_of_private_memory(private_bench: Bench, kind: int, name: str):
    party, window = Party(private_bench), Window(private_bench, kind)
    far = PrivateRegion(private_bench, flags=BINDABLE)
    before, sent = far.fill(1), party.near.fill(2)
    bounds = {"lkey": far.key, "address": far.start + 4000, "length": 5000}
    assert party.bind(window, **bounds) == GOOD
    assert party.access(name, window.key, far.start + 4096) == GOOD
    if name == "RDMA_WRITE":
        assert far.view[4096:4104] == sent[:8]
    else:
        assert party.near.view[:8] == before[4096:4104]
    assert party.access(name, window.key, far.start + 9000) == REFUSED


@pytest.mark.parametrize("how", ["LOCAL_INV", "rebind", "no bytes", "HW2SW_MPT"])
def test_taking_a_window_waits_for_the_copies_it_granted(
    private_bench: Bench, gate: Gate, how: str
):
    bench = private_bench
    party = Party(bench, ack_timeout=0)
    window = Window(bench, 2 if how == "LOCAL_INV" else 1)
    far = PrivateRegion(bench, flags=BINDABLE)
    region = {"lkey": far.key, "address": far.start}
    assert party.bind(window, **region, length=4096) == GOOD
    sent = party.near.fill(2)
    party.peer.send(wr("RDMA_WRITE"), [party.near.at(0, 64)], remote=(far.start, window.key))
    bench.settle()
    assert gate.entered.wait(10)
    taker: User = party.owner
    if how == "LOCAL_INV":
        taker.send(wr("LOCAL_INV"), imm=window.key)
    elif how == "HW2SW_MPT":
        bench.post(op.HW2SW_MPT, modifier=window.index, opmod=1)
    else:
        party.put_bind(window, **region, length=64 if how == "rebind" else 0)
        taker.ring_send()
    for _ in range(20):
        bench.device.run_once()
    assert window.device_object.region is not None
    assert taker.sends() == []
    gate.open.set()
    if how == "HW2SW_MPT":
        step_until(bench, lambda: not bench.control & reg.HCR_GO_BIT)
    else:
        step_until(bench, lambda: taker.send_cq.entry(1) is not None)
        assert [one.status for one in taker.sends()] == [GOOD]
    assert [one.status for one in party.peer.sends()] == [GOOD]
    assert far.view[:64] == sent[:64]
