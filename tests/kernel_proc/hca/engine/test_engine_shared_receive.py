"""Shared receive queues under traffic: order, limit, errors, and entries given back."""

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from shared import doorbell_layout as bells
from tests.kernel_proc.hca.engine.engine_bench import (
    Region,
    SharedQueue,
    User,
    vector,
    wr,
)
from tests.kernel_proc.hca.hca_bench import PD, Bench


@pytest.fixture
def shared(bench: Bench) -> SharedQueue:
    return SharedQueue(bench)


def senders(bench: Bench, shared: SharedQueue, count: int) -> list[tuple[User, User]]:
    """Pairs whose second end takes from the shared queue."""
    made = []
    for number in range(count):
        one = User(bench, 2000 + 2 * number)
        other = User(bench, 2001 + 2 * number, srqn=shared.srqn)
        one.connect(other)
        other.connect(one)
        made.append((one, other))
    return made


def test_entries_go_out_in_order_to_whoever_has_a_message(bench: Bench, shared: SharedQueue):
    ends = senders(bench, shared, 3)
    near, far = Region(bench, 4096), Region(bench, 4096)
    data = near.fill(1)
    for number in range(6):
        shared.post([far.at(number * 100, 100)])
    order = [2, 0, 1, 1, 0, 2]
    for number, index in enumerate(order):
        ends[index][0].send(wr("SEND"), [near.at(number, 10)])
        bench.settle()
    for index, (one, other) in enumerate(ends):
        assert [c.status for c in one.sends()] == [0, 0]
        taken = [c.wqe_index for c in other.receives()]
        assert taken == [number for number, who in enumerate(order) if who == index]
    for number in range(6):
        assert far.view[number * 100 : number * 100 + 10] == data[number : number + 10]


def test_completions_name_queue_pair_and_shared_queue(bench: Bench, shared: SharedQueue):
    ((one, other),) = senders(bench, shared, 1)
    shared.post()
    one.send(wr("RDMA_WRITE_WITH_IMM"), imm=3)
    (arrived,) = other.receives()
    assert (arrived.qpn, arrived.srqn, arrived.imm_data) == (other.qpn, shared.srqn, 3)


def test_an_empty_one_is_not_ready(bench: Bench, shared: SharedQueue):
    ((one, other),) = senders(bench, shared, 1)
    one.send(wr("SEND"))
    assert one.sends() == []
    shared.post()
    due = bench.device.next_deadline_ns()
    assert due is not None
    bench.now = due
    assert [c.status for c in one.sends()] == [0]
    assert [c.wqe_index for c in other.receives()] == [0]


def test_the_limit_is_told_once(bench: Bench, shared: SharedQueue):
    ((one, _),) = senders(bench, shared, 1)
    for _ in range(5):
        shared.post()
    shared.arm(3)
    bench.async_events()
    told = []
    for _ in range(4):
        one.send(wr("SEND"))
        told.append(bench.async_events())
    # After the third 2 remain: fewer than 3.
    assert told == [[], [], [(eqe.EVENT_SRQ_LIMIT, shared.srqn)], []]
    assert len(one.sends()) == 4


def test_memory_is_looked_for_in_the_domain_of_the_shared_queue(bench: Bench):
    shared = SharedQueue(bench, pd=PD + 1)
    ((one, other),) = senders(bench, shared, 1)
    mine, theirs = Region(bench, 4096), Region(bench, 4096, pd=PD + 1)
    shared.post([theirs.at(0, 64)])
    one.send(wr("SEND"), [mine.at(0, 64)])
    assert [c.status for c in one.sends()] == [0]
    shared.post([mine.at(0, 64)])
    one.send(wr("SEND"), [mine.at(0, 64)])
    assert [c.status for c in one.sends()] == [ops.REM_OP_ERR]
    assert [c.status for c in other.receives()] == [0, ops.LOC_PROT_ERR]
    assert other.state == table.ERR


@pytest.mark.parametrize(
    ("count", "length", "status", "entry"),
    [
        (None, 65, ops.REM_INV_REQ_ERR, ops.LOC_LEN_ERR),
        (1000, 8, ops.REM_OP_ERR, ops.LOC_QP_OP_ERR),
    ],
)
def test_an_error_ends_the_entry_and_leaves_the_others(
    bench: Bench, shared: SharedQueue, count: int | None, length: int, status: int, entry: int
):
    (first, second) = senders(bench, shared, 2)
    near = Region(bench, 4096)
    shared.post([near.at(0, 64)], count)
    shared.post([near.at(0, 64)])
    bench.async_events()
    first[0].send(wr("SEND"), [near.at(0, length)])
    assert [c.status for c in first[0].sends()] == [status]
    done = first[1].receives()
    assert [(c.wqe_index, c.status, c.srqn) for c in done] == [(0, entry, shared.srqn)]
    assert bench.async_events() == [(eqe.EVENT_LAST_WQE_REACHED, first[1].qpn)]
    second[0].send(wr("SEND"), [near.at(0, 8)])
    assert [c.wqe_index for c in second[1].receives()] == [1]


@pytest.mark.parametrize("command", [op.TOERR_QPEE, op.ERR2RST_QPEE])
def test_an_entry_of_a_message_cut_short_is_not_lost(
    bench: Bench, shared: SharedQueue, command: int
):
    ((one, other),) = senders(bench, shared, 1)
    busy, _ = pair_beside(bench)
    near = Region(bench, 4 << 20)
    shared.post([near.at()])
    busy.send(wr("RDMA_WRITE"), [near.at()], remote=(near.start, near.key))
    one.send(wr("SEND"), [near.at()])
    for _ in range(3):
        bench.device.run_once()
    assert other.device_object.incoming.srq_position == 0  # it has begun
    other.run(command)
    (done,) = [c for c in other.receive_cq.poll()]
    if command == op.TOERR_QPEE:
        assert (done.qpn, done.status) == (other.qpn, ops.WR_FLUSH_ERR)
    else:
        assert done.qpn == 0  # swept
    assert (done.wqe_index, done.srqn) == (0, shared.srqn)


def pair_beside(bench: Bench) -> tuple[User, User]:
    one, other = User(bench, 2010), User(bench, 2011)
    one.connect(other)
    other.connect(one)
    return one, other


def test_datagrams_share_too(bench: Bench, shared: SharedQueue):
    users = []
    for qpn in (2000, 2001, 2002):
        user = User(bench, qpn, transport=abi.QPC_TRANSPORT_UD, srqn=shared.srqn)
        user.run(op.INIT2RTR_QPEE)
        user.run(op.RTR2RTS_QPEE)
        users.append(user)
    far = Region(bench, 4096)
    for number in range(2):
        shared.post([far.at(100 * number, 100)])
    for target in users[1:]:
        users[0].send(wr("SEND"), vector=vector(), qpn=target.qpn)
    users[0].send(wr("SEND"), vector=vector(), qpn=2001)  # none left
    assert len(users[0].sends()) == 3
    assert [[c.wqe_index for c in u.receives()] for u in users] == [[], [0], [1]]
    assert users[1].device_object.counters.drops == {"no receive entry": 1}


def test_a_broken_one_takes_its_queue_pairs_with_it(bench: Bench, shared: SharedQueue):
    ((_, other),) = senders(bench, shared, 1)
    beside, _ = pair_beside(bench)
    bench.async_events()
    bench.ring(bells.RING_SRQ, shared.slot, shared.entries + 1)
    bench.settle()
    assert (other.state, beside.state) == (table.ERR, table.RTS)
    events = bench.async_events()
    assert events[0] == (eqe.EVENT_SRQ_CATASTROPHIC, shared.srqn)
    assert (eqe.EVENT_LAST_WQE_REACHED, other.qpn) in events
