"""UC: completions when sent, silence of the responder, entries that are used again.

The tables of failures are those of reliable connections: what is refused there is dropped here.
"""

import os

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from shared.verbs_enums import ibv_wr_opcode
from tests.kernel_proc.hca.engine.engine_bench import (
    INLINE,
    SIGNALED,
    SOLICITED,
    Region,
    SharedQueue,
    User,
    pair,
    wr,
)
from tests.kernel_proc.hca.engine.private_memory import Gate, PrivateRegion, step_until
from tests.kernel_proc.hca.engine.test_engine_failures import CASES, LOCAL, Local, Remote, Scene
from tests.kernel_proc.hca.hca_bench import Bench

UC = abi.QPC_TRANSPORT_UC
RTS, SQE, ERR = table.RTS, table.SQE, table.ERR
SENDS = ("SEND", "SEND_WITH_IMM")
WRITES = ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
REFUSED = (
    "RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "TSO", "FLUSH", "ATOMIC_WRITE",
)  # fmt: skip
WITH_ENTRY = (*SENDS, "RDMA_WRITE_WITH_IMM")
LENGTHS = (0, 1, 64, 1024, 1025, 5000, 3 << 20)
Ends = tuple[User, User]


@pytest.fixture
def ends(bench: Bench) -> Ends:
    return pair(bench, transport=UC)


def good_message(one: User, near: Region) -> None:
    one.send(wr("SEND"), [near.at(0, 32)])


# What goes well


def test_the_table_of_opcodes_is_whole():
    of_windows = {"LOCAL_INV", "BIND_MW", "SEND_WITH_INV"}
    named = {one.name.removeprefix("IBV_WR_") for one in ibv_wr_opcode}
    assert named == {*SENDS, *WRITES, *REFUSED, *of_windows}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", [*SENDS, *WRITES])
def test_each_message_arrives(bench: Bench, ends: Ends, name: str, length: int):
    one, other = ends
    near, far = Region(bench, max(length, 64)), Region(bench, max(length, 64))
    data = near.fill(length + 1)
    other.receive([far.at()])
    one.send(wr(name), [near.at(0, length)], remote=(far.start, far.key), imm=5)
    assert [(c.status, c.opcode) for c in one.sends()] == [(0, ops.COMPLETED_AS[wr(name)])]
    found = [(c.status, c.byte_len, c.src_qp) for c in other.receives()]
    assert found == ([(0, length, one.qpn)] if name in WITH_ENTRY else [])
    assert far.view[:length] == data[:length]
    assert one.device_object.send_psn == other.device_object.receive_psn


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_an_answer_is_refused(bench: Bench, ends: Ends, name: str):
    one, other = ends
    near = Region(bench, 4096)
    one.send(wr(name), [near.at(0, 8)], remote=(near.start, near.key))
    assert [c.status for c in one.sends()] == [ops.LOC_QP_OP_ERR]
    assert (one.state, other.state) == (SQE, RTS)


def test_inline_elements_solicited_unsignaled(bench: Bench, ends: Ends):
    one, other = ends
    near, far = Region(bench, 4096), Region(bench, 4096)
    data = near.fill(1)
    for number in range(3):
        other.receive([far.at(256 * number, 100), far.at(256 * number + 100, 100)])
    other.receive_cq.arm(solicited=True)
    one.send(wr("SEND"), flags=INLINE, inline=data[:150])
    one.send(wr("SEND"), [near.at(0, 30), near.at(30, 0), near.at(30, 90)], flags=0)
    assert bench.completions() == []
    one.send(wr("SEND"), [near.at(0, 7)], flags=SIGNALED | SOLICITED)
    assert bench.completions() == [other.receive_cq.cqn]
    assert [c.wqe_index for c in one.sends()] == [2]
    assert [c.byte_len for c in other.receives()] == [150, 120, 7]
    assert far.view[:150] == data[:150]
    assert far.view[256:376] == data[:120]


def test_nobody_need_be_there(bench: Bench):
    one, other = User(bench, 2000, transport=UC), User(bench, 2001, transport=UC)
    one.connect(other)  # which listens to nobody
    near = Region(bench, 3 << 20)
    for _ in range(3):
        one.send(wr("SEND"), [near.at()])
    assert [c.status for c in one.sends()] == [0, 0, 0]
    assert bench.device.next_deadline_ns() is None
    other.connect(one)
    other.receive([near.at()])
    good_message(one, near)
    assert [c.byte_len for c in other.receives()] == [32]  # whatever was lost before


def test_the_first_message_in_rtr_is_told(bench: Bench):
    one, other = User(bench, 2000, transport=UC), User(bench, 2001, transport=UC)
    one.connect(other)
    other.connect(one, state=table.RTR)
    bench.async_events()
    for _ in range(2):
        one.send(wr("RDMA_WRITE"))
    assert bench.async_events() == [(eqe.EVENT_COMMUNICATION_ESTABLISHED, other.qpn)]


# What its responder refuses

OF_UC = [(case, name) for case, name in CASES if name in (*SENDS, *WRITES, "SEND_WITH_INV")]
OF_THE_ENTRY = (ops.LOC_PROT_ERR, ops.LOC_QP_OP_ERR)


def test_the_table_of_refusals_is_whole():
    # Right, entry, length, keys (six and one right, one with an entry), elements, form, window.
    assert len(OF_UC) == 2 + 3 + 2 + 7 + 1 + 8 + 2 + 1


class UnreliableScene(Scene):
    """The same over UC; with `shared` the receive entry is of a shared queue."""

    def __init__(self, bench: Bench, opcode: str, shared: bool) -> None:
        super().__init__(bench, opcode)
        self.queue = SharedQueue(bench) if shared else None

    def run(self) -> Ends:
        srqn = self.queue.srqn if self.queue is not None else 0
        one = User(self.bench, 2000, transport=UC)
        other = User(self.bench, 2001, transport=UC, access=self.access, srqn=srqn)
        one.connect(other)
        other.connect(one)
        self.bench.async_events()
        if self.receive is not None:
            self.post(other, self.receive, self.elements_in_entry)
        one.send(
            wr(self.opcode), [self.near.at(0, 64)], remote=(self.address, self.key), imm=self.imm
        )
        return one, other

    def post(
        self, other: User, elements: list[tuple[int, int, int]], count: int | None = None
    ) -> None:
        if self.queue is not None:
            self.queue.post(elements, count)
        else:
            other.receive(elements, count)


@pytest.mark.parametrize("shared", [False, True], ids=["own queue", "shared queue"])
@pytest.mark.parametrize(("case", "opcode"), OF_UC, ids=lambda v: getattr(v, "name", v))
def test_what_is_refused_is_dropped(bench: Bench, case: Remote, opcode: str, shared: bool):
    scene = UnreliableScene(bench, opcode, shared)
    case.change(scene)
    before = bytes(scene.far.view)
    one, other = scene.run()
    assert [c.status for c in one.sends()] == [0]
    assert one.state == RTS
    if case.name != "cannot invalidate":
        assert scene.far.view == before
    found = [c.status for c in other.receives()]
    if case.entry in OF_THE_ENTRY:  # the responder's own fault ends it
        assert (found, other.state) == ([case.entry], ERR)
        return
    assert other.state == RTS
    assert found == ([case.entry] if shared and case.entry is not None else [])
    assert sum(other.device_object.counters.drops.values()) == 1
    assert bench.async_events() == []
    # The next message goes well, with the entry that was not used up.
    used_up = shared and case.entry is not None
    if scene.receive is None or used_up:
        scene.post(other, [scene.far.at(0, 64)])
    good_message(one, scene.near)
    assert [(c.wqe_index, c.status) for c in other.receives()] == [(int(used_up), 0)]


# What its own side refuses

LOCALLY = [case for case in LOCAL if case.opcode in (*SENDS, *WRITES, "LOCAL_INV")]


def test_the_table_of_own_refusals_is_whole():
    assert len(LOCALLY) == 12 + 1 + 1 + 1 + 2


@pytest.mark.parametrize("case", LOCALLY, ids=lambda case: case.name)
def test_an_entry_its_own_side_refuses_ends_in_sqe(bench: Bench, ends: Ends, case: Local):
    one, other = ends
    near, far = Region(bench, 4096), Region(bench, 4096)
    before = far.fill(1)
    arguments = {"remote": (far.start, far.key), "flags": 0, **case.make(near, bench)}
    one.put_send(wr(case.opcode), **arguments)  # type: ignore[arg-type]  # by name
    one.put_send(wr("RDMA_WRITE"), flags=0)
    one.receive([far.at(100, 32)])
    one.ring_send()
    assert [c.status for c in one.sends()] == [case.status, ops.WR_FLUSH_ERR]
    assert (one.state, other.state) == (SQE, RTS)
    assert one.receives() == []  # the receive side goes on
    good_message(other, near)
    assert [c.byte_len for c in one.receives()] == [32]
    one.send(wr("RDMA_WRITE"), flags=0)
    assert [c.status for c in one.sends()] == [ops.WR_FLUSH_ERR]
    assert one.run(op.SQERR2RTS_QPEE) == op.CMD_STAT_OK
    one.send(wr("RDMA_WRITE"), [near.at(0, 8)], remote=(far.start, far.key))
    assert [c.status for c in one.sends()] == [0]
    assert far.view[8:100] == before[8:100]


# Messages whose rest does not come


def half_sent(
    bench: Bench, name: str, srqn: int = 0, queue: SharedQueue | None = None
) -> tuple[User, User, Region]:
    """A long message of which some runs have arrived."""
    one, other = User(bench, 2000, transport=UC), User(bench, 2001, transport=UC, srqn=srqn)
    one.connect(other)
    other.connect(one)
    busy, peer = User(bench, 2010), User(bench, 2011)
    busy.connect(peer)
    peer.connect(busy)
    near = Region(bench, 5 << 20)
    for _ in range(2):
        if queue is not None:
            queue.post([near.at()])
        else:
            other.receive([near.at()])
    busy.send(wr("RDMA_WRITE"), [near.at()], remote=(near.start, near.key))
    one.send(wr(name), [near.at()], remote=(near.start, near.key))
    for _ in range(3):
        bench.device.run_once()
    assert other.device_object.incoming.opcode == wr(name)
    return one, other, near


@pytest.mark.parametrize("shared", [False, True], ids=["own queue", "shared queue"])
@pytest.mark.parametrize("name", ["SEND", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM"])
def test_the_rest_of_a_broken_message_is_dropped(bench: Bench, name: str, shared: bool):
    queue = SharedQueue(bench) if shared else None
    one, other, near = half_sent(bench, name, 70 if shared else 0, queue)
    device = other.device_object
    device.receive_psn = (device.receive_psn - 1) & ops.PSN_MASK  # a packet was lost
    assert [c.status for c in one.sends()] == [0]
    ended = [(0, ops.REM_INV_REQ_ERR)] if shared and name == "SEND" else []
    assert [(c.wqe_index, c.status) for c in other.receives()] == ended
    assert device.counters.drops["cut short"] == 1
    assert device.counters.drops["out of sequence"] > 1
    assert other.state == RTS
    good_message(one, near)
    assert [(c.wqe_index, c.status) for c in other.receives()] == [(len(ended), 0)]
    assert one.device_object.send_psn == device.receive_psn


def test_a_new_message_ends_one_that_was_not_finished(bench: Bench):
    one, other, near = half_sent(bench, "SEND")
    one.device_object.outgoing.elements = [(near.start, near.length, 0x7700)]
    assert [c.status for c in one.sends()] == [ops.LOC_PROT_ERR]  # in the middle of it
    assert (one.state, other.state) == (SQE, RTS)
    assert one.run(op.SQERR2RTS_QPEE) == op.CMD_STAT_OK
    good_message(one, near)
    assert [(c.wqe_index, c.status, c.byte_len) for c in other.receives()] == [(0, 0, 32)]
    assert other.device_object.counters.drops == {"cut short": 1}


@pytest.mark.parametrize("behind", [1, 77, 1 << 22])
def test_the_psn_of_a_new_message_counts(bench: Bench, ends: Ends, behind: int):
    one, other = ends
    near = Region(bench, 4096)
    for _ in range(2):
        other.receive([near.at()])
    good_message(one, near)
    one.device_object.send_psn = (one.device_object.send_psn - behind) & ops.PSN_MASK
    good_message(one, near)  # behind or not, it is no duplicate
    assert [c.wqe_index for c in other.receives()] == [0, 1]
    assert one.device_object.send_psn == other.device_object.receive_psn


def test_an_overrun_of_its_cq_ends_the_responder_alone(bench: Bench):
    one = User(bench, 2000, transport=UC)
    other = User(bench, 2001, transport=UC, cq_log=1)
    one.connect(other)
    other.connect(one)
    for _ in range(3):
        other.receive()
        one.send(wr("SEND"))
    assert [c.status for c in one.sends()] == [0, 0, 0]
    assert (one.state, other.state) == (RTS, ERR)


# Private memory


@pytest.mark.parametrize("name", [*SENDS, *WRITES])
@pytest.mark.parametrize("length", [64, 5000, 400 * 1024])
def test_private_memory_at_both_ends(private_bench: Bench, name: str, length: int):
    one, other = pair(private_bench, transport=UC)
    near, far = PrivateRegion(private_bench), PrivateRegion(private_bench)
    data = near.fill(length)
    for _ in range(2):
        other.receive([far.at()])
        one.send(wr(name), [near.at(0, length)], remote=(far.start, far.key))
    assert [c.status for c in one.sends()] == [0, 0]
    assert [c.status for c in other.receives()] == ([0, 0] if name in WITH_ENTRY else [])
    assert far.view[:length] == data[:length]


@pytest.mark.parametrize("length", [64, 390_001])
def test_a_sender_waits_while_the_link_is_busy(private_bench: Bench, gate: Gate, length: int):
    bench = private_bench
    one, other = pair(bench, transport=UC)
    near, far = Region(bench, far_length := 400 * 1024), PrivateRegion(bench)
    data = near.fill(2)
    assert far_length == far.length
    for _ in range(2):
        one.send(wr("RDMA_WRITE"), [near.at(0, length)], remote=(far.start, far.key))
    bench.settle()
    assert gate.entered.wait(10)
    for _ in range(3):  # it looks again, and again it is in hand
        due = bench.device.next_deadline_ns()
        assert due is not None
        bench.now = max(bench.now, due)
        bench.settle()
    assert one.sends() == []
    gate.open.set()
    step_until(bench, lambda: one.send_cq.entry(1) is not None)
    assert [c.status for c in one.sends()] == [0, 0]
    assert far.view[:length] == data[:length]
    counters = other.device_object.counters
    assert (counters.received_messages, counters.drops) == (2, {})


@pytest.mark.parametrize("name", WITH_ENTRY)
def test_an_answer_that_comes_before_the_next_look_is_heard(
    private_bench: Bench, gate: Gate, name: str
):
    """Else the message would be sent again, and, being unreliable, be taken for a new one."""
    bench = private_bench
    one, other = pair(bench, transport=UC)
    near, far = Region(bench, 4096), PrivateRegion(bench)
    for _ in range(3):
        other.receive([far.at(0, 64)])
    one.send(wr(name), [near.at(0, 64)], remote=(far.start, far.key))
    bench.settle()
    assert gate.entered.wait(10)
    engine = bench.tables.engine
    due = bench.device.next_deadline_ns()
    assert due is not None
    bench.now = max(bench.now, due)
    assert engine.run_due()  # it is to be sent again when its turn comes, which is after
    gate.open.set()
    while not engine.copier.finish():
        os.sched_yield()
    one.send(wr(name), [near.at(0, 32)], remote=(far.start, far.key))
    step_until(bench, lambda: one.send_cq.entry(1) is not None)
    assert [c.status for c in one.sends()] == [0, 0]
    bench.settle()
    assert [c.byte_len for c in other.receives()] == [64, 32]
    assert other.device_object.counters.received_messages == 2


def test_a_busy_responder_that_goes_lets_its_sender_go_on(private_bench: Bench, gate: Gate):
    bench = private_bench
    one, other = pair(bench, transport=UC)
    near, far = Region(bench, 4096), PrivateRegion(bench)
    one.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    bench.settle()
    assert gate.entered.wait(10)
    assert other.run(op.TOERR_QPEE) == op.CMD_STAT_OK
    while one.send_cq.entry(0) is None:
        due = bench.device.next_deadline_ns()
        assert due is not None
        bench.now = max(bench.now, due)
        bench.settle()
    assert [c.status for c in one.sends()] == [0]
    assert one.state == RTS


@pytest.mark.parametrize("name", ["SEND", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM"])
def test_private_memory_that_does_not_answer(
    private_bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
):
    def refused(*arguments: object) -> int:
        raise OSError

    one, other = pair(private_bench, transport=UC)
    near, far = Region(private_bench, 4096), PrivateRegion(private_bench)
    other.receive([far.at()])
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", refused)
        one.send(wr(name), [near.at(0, 64)], remote=(far.start, far.key))
        assert [c.status for c in one.sends()] == [0]
    # Of a SEND the entry is at fault, of a write the key.
    assert other.state == (ERR if name == "SEND" else RTS)
    assert [c.status for c in other.receives()] == ([ops.LOC_PROT_ERR] if name == "SEND" else [])
    if name != "SEND":
        assert other.device_object.counters.drops == {"key": 1}
        good_message(one, near)
        assert [c.wqe_index for c in other.receives()] == [0]
