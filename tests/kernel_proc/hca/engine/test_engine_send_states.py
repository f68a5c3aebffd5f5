"""SQD and SQE of every kind of queue pair that sends: what starts, what waits, what is told."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from shared.cqe_layout import Cqe
from tests.kernel_proc.hca.engine.engine_bench import (
    SIGNALED,
    Region,
    User,
    pair,
    vector,
    wr,
    xrc_pair,
    xrc_queue,
)
from tests.kernel_proc.hca.hca_bench import Bench

RTS, SQD, SQE, ERR = table.RTS, table.SQD, table.SQE, table.ERR
LONG = 5 << 20
OK, BAD_STATE = op.CMD_STAT_OK, op.CMD_STAT_BAD_QPEE_STATE


class Kind(NamedTuple):
    """A kind of queue pair: how two are connected, and the state a failed send ends in."""

    name: str
    connect: Callable[[Bench], tuple[User, User]]
    failed: int
    is_reliable: bool


def datagrams(bench: Bench) -> tuple[User, User]:
    one, other = (User(bench, qpn, transport=abi.QPC_TRANSPORT_UD) for qpn in (2000, 2001))
    for user in (one, other):
        assert user.run(op.INIT2RTR_QPEE) == OK
        assert user.run(op.RTR2RTS_QPEE) == OK
    return one, other


RC = Kind("RC", pair, ERR, is_reliable=True)
UC = Kind("UC", lambda bench: pair(bench, transport=abi.QPC_TRANSPORT_UC), SQE, is_reliable=False)
UD = Kind("UD", datagrams, SQE, is_reliable=False)
XRC = Kind("XRC", xrc_pair, ERR, is_reliable=True)
KINDS = (RC, UC, UD, XRC)
CONNECTED = (RC, UC, XRC)
WITH_ERROR = (UC, UD)


class Scene:
    """Two ends of a kind; `far` can be sent to as long as there is an entry."""

    def __init__(self, bench: Bench, kind: Kind) -> None:
        self.bench = bench
        self.one, self.other = kind.connect(bench)
        self.queue = xrc_queue(bench) if kind is XRC else None
        self.near = Region(bench, LONG)
        bench.async_events()

    def post(self) -> None:
        if self.queue is not None:
            self.queue.post([self.near.at()])
        else:
            self.other.receive([self.near.at()])

    def put(self, length: int = 16, key: int | None = None) -> int:
        start, size, own = self.near.at(0, length)
        return self.one.put_send(
            wr("SEND"), [(start, size, own if key is None else key)], flags=SIGNALED,
            vector=vector(), qpn=self.other.qpn, srqn=70,
        )  # fmt: skip

    def send(self, length: int = 16, key: int | None = None) -> int:
        position = self.put(length, key)
        self.one.ring_send()
        return position

    def arrived(self) -> list[Cqe]:
        return self.queue.receives() if self.queue is not None else self.other.receives()

    def drain(self, notify: bool = True) -> int:
        modifier = self.one.qpn | (op.RTS2SQD_NOTIFY if notify else 0)
        return self.bench.run(op.RTS2SQD_QPEE, modifier=modifier)

    def half_send(self) -> None:
        """Have a long message in hand of which some is sent."""
        busy, peer = User(self.bench, 2010), User(self.bench, 2011)
        busy.connect(peer)
        peer.connect(busy)
        busy.send(wr("RDMA_WRITE"), [self.near.at()], remote=(self.near.start, self.near.key))
        self.post()
        self.send(LONG)
        for _ in range(3):
            self.bench.device.run_once()
        assert 0 < self.one.device_object.outgoing.done < LONG
        self.bench.events(1)

    @property
    def draining(self) -> int:
        assert self.bench.run(op.QUERY_QPEE, modifier=self.one.qpn) == OK
        data = self.bench.out(abi.QP_MAILBOX_HEAD.size + abi.QP_CONTEXT.size)
        values = abi.QP_CONTEXT.unpack_from(data, abi.QP_MAILBOX_HEAD.size)
        return abi.QpContext(*values).sq_draining


def each(kinds: tuple[Kind, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name)


def test_every_kind_that_sends_is_there():
    assert len(KINDS) == sum(1 for row in _sending() if row) == 4


def _sending() -> list[bool]:
    size = ops.OPCODES
    return [any(ops.ACTIONS[transport * size : (transport + 1) * size]) for transport in range(8)]


@pytest.mark.parametrize("notify", [False, True])
@each(KINDS)
def test_with_nothing_in_hand_it_is_drained_at_once(bench: Bench, kind: Kind, notify: bool):
    scene = Scene(bench, kind)
    assert scene.drain(notify) == OK
    assert (scene.one.state, scene.draining) == (SQD, 0)
    told = [(eqe.EVENT_SQ_DRAINED, scene.one.qpn)] if notify else []
    assert bench.async_events() == told


@each(KINDS)
def test_what_is_posted_in_sqd_starts_in_rts_in_order(bench: Bench, kind: Kind):
    scene = Scene(bench, kind)
    for _ in range(3):
        scene.post()
    scene.send()
    assert len(scene.one.sends()) == 1
    assert scene.drain() == OK
    posted = [scene.send(), scene.send(24)]
    assert scene.one.sends() == []
    assert [c.wqe_index for c in scene.arrived()] == [0]
    assert scene.one.run(op.SQD2RTS_QPEE) == OK
    assert [(c.wqe_index, c.status) for c in scene.one.sends()] == [(n, 0) for n in posted]
    assert [c.byte_len & 31 for c in scene.arrived()] == (
        [16, 24] if kind is not UD else [(16 + 40) & 31, (24 + 40) & 31]
    )


@each(CONNECTED)
def test_what_was_started_is_finished_first(bench: Bench, kind: Kind):
    scene = Scene(bench, kind)
    scene.post()
    scene.half_send()
    assert scene.drain() == OK
    later = scene.send()
    assert scene.draining == 1
    assert scene.one.run(op.SQD2RTS_QPEE) == BAD_STATE
    assert [(c.wqe_index, c.status) for c in scene.one.sends()] == [(0, 0)]
    assert (scene.one.state, scene.draining) == (SQD, 0)
    assert bench.async_events() == [(eqe.EVENT_SQ_DRAINED, scene.one.qpn)]
    assert scene.one.run(op.SQD2RTS_QPEE) == OK
    assert [c.wqe_index for c in scene.one.sends()] == [later]


@each((RC, UC, UD))
def test_the_receive_side_is_served_in_sqd(bench: Bench, kind: Kind):
    scene = Scene(bench, kind)
    assert scene.drain() == OK
    scene.one.receive([scene.near.at()])
    scene.other.send(wr("SEND"), [scene.near.at(0, 8)], vector=vector(), qpn=scene.one.qpn)
    assert [c.status for c in scene.one.receives()] == [0]


@each((RC, XRC))
def test_a_sender_that_is_not_answered_drains_when_it_is(bench: Bench, kind: Kind):
    scene = Scene(bench, kind)
    scene.send()  # no receive entry
    bench.settle()
    assert scene.drain() == OK
    assert scene.draining == 1
    assert scene.one.run(op.SQD2RTS_QPEE) == BAD_STATE
    assert bench.async_events() == []
    scene.post()
    due = bench.device.next_deadline_ns()
    assert due is not None
    bench.now = due
    assert [c.status for c in scene.one.sends()] == [0]
    assert bench.async_events() == [(eqe.EVENT_SQ_DRAINED, scene.one.qpn)]


@each(CONNECTED)
def test_a_failure_while_draining_tells_of_no_drained_queue(bench: Bench, kind: Kind):
    scene = Scene(bench, kind)
    scene.half_send()
    scene.one.device_object.outgoing.elements = [(scene.near.start, LONG, 0x7700)]
    assert scene.drain() == OK
    scene.send()
    assert [c.status for c in scene.one.sends()] == [ops.LOC_PROT_ERR, ops.WR_FLUSH_ERR]
    assert (scene.one.state, scene.draining) == (kind.failed, 0)
    assert bench.async_events() == []
    if kind.failed == SQE:
        assert scene.one.run(op.SQERR2RTS_QPEE) == OK
        scene.send()
        assert [c.status for c in scene.one.sends()] == [0]


@pytest.mark.parametrize("command", [op.TOERR_QPEE, op.ERR2RST_QPEE])
@each(CONNECTED)
def test_draining_can_be_given_up(bench: Bench, kind: Kind, command: int):
    scene = Scene(bench, kind)
    scene.half_send()
    assert scene.drain() == OK
    scene.put()
    assert scene.draining == 1
    assert scene.one.run(command) == OK
    scene.one.ring_send()
    flushed = [ops.WR_FLUSH_ERR] * 2 if command == op.TOERR_QPEE else []
    assert [c.status for c in scene.one.sends()] == flushed
    device = bench.tables.qps.find(scene.one.qpn)
    assert device is None or not device.draining
    assert (eqe.EVENT_SQ_DRAINED, scene.one.qpn) not in bench.async_events()


@each(WITH_ERROR)
def test_a_send_queue_in_error_goes_on_from_there(bench: Bench, kind: Kind):
    scene = Scene(bench, kind)
    scene.post()
    scene.put()
    scene.put(key=0x7700)
    scene.put()
    scene.one.ring_send()
    found = [c.status for c in scene.one.sends()]
    assert found == [0, ops.LOC_PROT_ERR, ops.WR_FLUSH_ERR]
    assert scene.one.state == SQE
    scene.one.receive([scene.near.at()])
    scene.other.send(wr("SEND"), [scene.near.at(0, 8)], vector=vector(), qpn=scene.one.qpn)
    assert [c.status for c in scene.one.receives()] == [0]
    scene.send()
    assert [c.status for c in scene.one.sends()] == [ops.WR_FLUSH_ERR]
    for refused in (op.RTS2SQD_QPEE, op.SQD2RTS_QPEE, op.RTS2RTS_QPEE):
        assert scene.one.run(refused) == BAD_STATE
    assert scene.one.run(op.SQERR2RTS_QPEE) == OK
    scene.post()
    scene.send()
    assert [c.status for c in scene.one.sends()] == [0]
    assert [c.status for c in scene.arrived()] == [0, 0]


@each((RC, XRC))
def test_a_reliable_one_is_never_in_sqe(bench: Bench, kind: Kind):
    scene = Scene(bench, kind)
    scene.send(key=0x7700)
    assert [c.status for c in scene.one.sends()] == [ops.LOC_PROT_ERR]
    assert scene.one.state == ERR
    assert scene.one.run(op.SQERR2RTS_QPEE) == BAD_STATE


@each((RC, XRC))
def test_what_is_changed_in_sqd_is_true_of_what_starts_then(bench: Bench, kind: Kind):
    scene = Scene(bench, kind)
    assert scene.drain(notify=False) == OK
    scene.send()  # no receive entry
    scene.one.context = scene.one.context._replace(rnr_retry=0)
    assert scene.one.run(op.SQD2SQD_QPEE, options=abi.OPT_RNR_RETRY) == OK
    assert scene.one.run(op.SQD2RTS_QPEE) == OK
    assert [c.status for c in scene.one.sends()] == [ops.RNR_RETRY_EXC_ERR]
