"""XRC: which shared queue takes a message, where it completes, whose memory it may name.

The tables of failures are those of reliable connections, with a target instead of a responder:
the order of checks is one, and only the look-up of the shared queue is added to it.
"""

from collections.abc import Callable

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from shared.verbs_enums import ibv_wr_opcode
from tests.kernel_proc.hca.engine.engine_bench import (
    DOMAIN,
    INLINE,
    SIGNALED,
    SOLICITED,
    Region,
    SharedQueue,
    User,
    wr,
    xrc_pair,
    xrc_queue,
)
from tests.kernel_proc.hca.engine.private_memory import Gate, PrivateRegion, step_until
from tests.kernel_proc.hca.engine.test_engine_failures import CASES, PAIRS, Remote, Scene
from tests.kernel_proc.hca.hca_bench import PD, Bench

RTS, ERR = table.RTS, table.ERR
SENDS = ("SEND", "SEND_WITH_IMM")
WRITES = ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
ATOMICS = ("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
REQUESTS = (*SENDS, *WRITES, "RDMA_READ", *ATOMICS)
NOT_OF_XRC = ("TSO", "FLUSH", "ATOMIC_WRITE")
WITH_ENTRY = (*SENDS, "RDMA_WRITE_WITH_IMM")
INVALID, ACCESS = ops.REM_INV_REQ_ERR, ops.REM_ACCESS_ERR


def length_of(name: str) -> int:
    return 8 if name.startswith("ATOMIC") else 64


def request(one: User, name: str, near: Region, far: Region, srqn: int, **more: object) -> None:
    one.send(
        wr(name), [near.at(0, length_of(name))], remote=(far.start, far.key), srqn=srqn,
        **more,
    )  # fmt: skip


def run_out(bench: Bench) -> None:
    """Let time pass until nothing waits for it."""
    bench.settle()
    while (due := bench.device.next_deadline_ns()) is not None:
        bench.now = max(bench.now, due)
        bench.settle()


# Every opcode


def test_the_table_of_opcodes_is_whole():
    others = {"LOCAL_INV", "BIND_MW", "SEND_WITH_INV"}  # of memory windows
    named = {one.name.removeprefix("IBV_WR_") for one in ibv_wr_opcode}
    assert named == {*REQUESTS, *NOT_OF_XRC, *others}


@pytest.mark.parametrize("name", REQUESTS)
def test_each_request_reaches_the_queue_it_names(bench: Bench, name: str):
    one, other = xrc_pair(bench)
    queues = [xrc_queue(bench, 0), xrc_queue(bench, 1)]
    near, far = Region(bench, 4096), Region(bench, 4096)
    data, there = near.fill(1), far.fill(2)
    for queue in queues:
        queue.post([far.at(0, 64)])
    request(one, name, near, far, queues[1].srqn, imm=7)
    (sent,) = one.sends()
    assert (sent.status, sent.qpn) == (0, one.qpn)
    assert queues[0].receives() == []
    arrived = queues[1].receives()
    if name in WITH_ENTRY:
        (done,) = arrived
        assert (done.qpn, done.src_qp, done.srqn) == (other.qpn, one.qpn, queues[1].srqn)
        assert (done.status, done.wqe_index, done.byte_len) == (0, 0, 64)
        assert done.imm_data == (0 if name == "SEND" else 7)
    else:
        assert arrived == []
    if name in (*SENDS, *WRITES):
        assert far.view[:64] == data[:64]
    elif name == "RDMA_READ":
        assert near.view[:64] == there[:64]
    else:
        assert near.view[:8] == there[:8]
    assert (one.state, other.state) == (RTS, RTS)
    assert other.receives() == []


@pytest.mark.parametrize("name", NOT_OF_XRC)
def test_other_opcodes_are_refused(bench: Bench, name: str):
    one, other = xrc_pair(bench)
    one.send(wr(name), srqn=xrc_queue(bench).srqn)
    assert [c.status for c in one.sends()] == [ops.LOC_QP_OP_ERR]
    assert (one.state, other.state) == (ERR, RTS)


# Failures: the tables of reliable connections


class XrcScene(Scene):
    """The same with a target: its receive entry is the shared queue's."""

    def __init__(self, bench: Bench, opcode: str) -> None:
        super().__init__(bench, opcode)
        self.queue = xrc_queue(bench)
        self.srqn = self.queue.srqn

    def run(self) -> tuple[User, User]:
        one, other = xrc_pair(self.bench, access=self.access, rra_max=self.rra_max, rnr_retry=0)
        self.bench.async_events()
        if self.receive is not None:
            self.queue.post(self.receive, count=self.elements_in_entry)
        one.send(
            wr(self.opcode), [self.near.at(0, length_of(self.opcode))],
            remote=(self.address, self.key), imm=self.imm, srqn=self.srqn,
        )  # fmt: skip
        return one, other


@pytest.mark.parametrize(("case", "opcode"), CASES, ids=lambda v: getattr(v, "name", v))
def test_a_request_its_target_refuses(bench: Bench, case: Remote, opcode: str):
    scene = XrcScene(bench, opcode)
    case.change(scene)
    before = bytes(scene.far.view)
    one, other = scene.run()
    assert [c.status for c in one.sends()] == [case.status]
    not_ready = case.status == ops.RNR_RETRY_EXC_ERR
    assert (one.state, other.state) == (ERR, RTS if not_ready else ERR)
    # The queue's other entries are nobody's: none is flushed.
    found = [(c.status, c.qpn, c.srqn) for c in scene.queue.receives()]
    assert found == ([(case.entry, other.qpn, scene.srqn)] if case.entry is not None else [])
    events = [(case.event, other.qpn)] if case.event is not None else []
    assert bench.async_events() == events
    if case.name != "cannot invalidate":
        assert scene.far.view == before


@pytest.mark.parametrize(("first", "second", "opcode"), PAIRS, ids=lambda v: getattr(v, "name", v))
def test_the_first_check_that_fails_decides_at_a_target(
    bench: Bench, first: Remote, second: Remote, opcode: str
):
    scene = XrcScene(bench, opcode)
    second.change(scene)
    first.change(scene)
    one, other = scene.run()
    assert [c.status for c in one.sends()] == [first.status]
    events = [(first.event, other.qpn)] if first.event is not None else []
    assert bench.async_events() == events


# Which shared queue


def unknown(bench: Bench) -> int:
    return 90


def of_another_domain(bench: Bench) -> int:
    return xrc_queue(bench, 1, xrcd=DOMAIN + 1).srqn


def of_no_domain(bench: Bench) -> int:
    return SharedQueue(bench, 80).srqn


def of_another_generation(bench: Bench) -> int:
    return xrc_queue(bench, 1).srqn | 1 << 12


def taken_back(bench: Bench) -> int:
    queue = xrc_queue(bench, 1)
    bench.ok(op.HW2SW_SRQ, modifier=queue.srqn)
    return queue.srqn


def beyond_all_numbers(bench: Bench) -> int:
    return 0xFFFF_FFFF


WRONG_TARGETS = (
    unknown, of_another_domain, of_no_domain, of_another_generation, taken_back, beyond_all_numbers,
)  # fmt: skip
NOT_TARGETS = [(target, name) for target in WRONG_TARGETS for name in REQUESTS]


def test_the_table_of_wrong_targets_is_whole():
    assert len(NOT_TARGETS) == 6 * 7


@pytest.mark.parametrize(("target", "name"), NOT_TARGETS, ids=lambda v: getattr(v, "__name__", v))
def test_a_queue_outside_the_domain_is_an_invalid_request(
    bench: Bench, target: Callable[[Bench], int], name: str
):
    one, other = xrc_pair(bench)
    queue = xrc_queue(bench)
    near, far = Region(bench, 4096), Region(bench, 4096)
    before = far.fill(3)
    queue.post([far.at()])
    srqn = target(bench)
    bench.async_events()
    request(one, name, near, far, srqn)
    assert [c.status for c in one.sends()] == [INVALID]
    assert (one.state, other.state) == (ERR, ERR)
    assert bench.async_events() == [(eqe.EVENT_INVALID_REQUEST, other.qpn)]
    assert queue.receives() == []
    assert far.view == before


@pytest.mark.parametrize("name", REQUESTS)
def test_the_right_of_the_target_comes_before_its_queue(bench: Bench, name: str):
    one, _ = xrc_pair(bench, access=0, rnr_retry=0)
    near = Region(bench, 4096)
    request(one, name, near, near, 90)
    assert [c.status for c in one.sends()] == [INVALID]


@pytest.mark.parametrize("name", ["RDMA_WRITE", "RDMA_READ", *ATOMICS])
@pytest.mark.parametrize("pd", [PD, PD + 1])
def test_keys_are_looked_for_in_the_domain_of_the_queue(bench: Bench, name: str, pd: int):
    one, other = xrc_pair(bench)
    queue = xrc_queue(bench, pd=PD + 1)
    near, far = Region(bench, 4096), Region(bench, 4096, pd=pd)
    request(one, name, near, far, queue.srqn)
    fits = pd == PD + 1
    assert [c.status for c in one.sends()] == [0 if fits else ACCESS]
    assert other.state == (RTS if fits else ERR)


def test_entries_are_of_the_domain_of_the_queue(bench: Bench):
    one, other = xrc_pair(bench)
    queue = xrc_queue(bench, pd=PD + 1)
    mine, theirs = Region(bench, 4096), Region(bench, 4096, pd=PD + 1)
    queue.post([theirs.at()])
    queue.post([mine.at()])
    request(one, "SEND", mine, theirs, queue.srqn)
    request(one, "SEND", mine, theirs, queue.srqn)
    assert [c.status for c in one.sends()] == [0, ops.REM_OP_ERR]
    assert [c.status for c in queue.receives()] == [0, ops.LOC_PROT_ERR]
    assert other.state == ERR


def test_two_targets_and_a_connection_beside(bench: Bench):
    ends = [xrc_pair(bench, number) for number in range(2)]
    queue = xrc_queue(bench)
    near, far = Region(bench, 4096), Region(bench, 4096)
    for number in range(6):
        queue.post([far.at(64 * number, 64)])
    order = [0, 1, 1, 0, 1, 0]
    for index in order:
        request(ends[index][0], "SEND", near, far, queue.srqn)
        bench.settle()
    found = [(c.wqe_index, c.qpn) for c in queue.receives()]
    assert found == [(number, ends[index][1].qpn) for number, index in enumerate(order)]


@pytest.mark.parametrize("flags", [SIGNALED, SIGNALED | INLINE])
def test_several_elements_inline_and_long(bench: Bench, flags: int):
    one, _ = xrc_pair(bench)
    queue = xrc_queue(bench)
    near, far = Region(bench, 3 << 20), Region(bench, 3 << 20)
    data = near.fill(1)
    queue.post([far.at(0, 100), far.at(100)])
    if flags & INLINE:
        one.send(wr("SEND"), flags=flags, inline=data[:200], srqn=queue.srqn)
        size = 200
    else:
        one.send(wr("SEND"), [near.at(0, 70), near.at(70)], flags=flags, srqn=queue.srqn)
        size = len(data)
    assert [c.status for c in one.sends()] == [0]
    assert [c.byte_len for c in queue.receives()] == [size]
    assert far.view[:size] == data[:size]


# The queue is empty, or low


def test_an_empty_queue_is_not_ready(bench: Bench):
    one, other = xrc_pair(bench)
    queue = xrc_queue(bench)
    near = Region(bench, 4096)
    request(one, "SEND", near, near, queue.srqn)
    assert one.sends() == []
    queue.post([near.at()])
    due = bench.device.next_deadline_ns()
    assert due is not None
    bench.now = due
    assert [c.status for c in one.sends()] == [0]
    assert [c.wqe_index for c in queue.receives()] == [0]
    assert other.device_object.counters.rnr_naks_sent == 1


def test_the_limit_of_the_queue_is_told_once(bench: Bench):
    one, _ = xrc_pair(bench)
    queue = xrc_queue(bench)
    near = Region(bench, 4096)
    for _ in range(5):
        queue.post([near.at()])
    queue.arm(3)
    bench.async_events()
    told = []
    for _ in range(4):
        request(one, "RDMA_WRITE_WITH_IMM", near, near, queue.srqn)
        told.append(bench.async_events())
    assert told == [[], [], [(eqe.EVENT_SRQ_LIMIT, queue.srqn)], []]


def test_a_broken_queue_is_not_ready_and_harms_no_target(bench: Bench):
    one, other = xrc_pair(bench, rnr_retry=0)
    queue = xrc_queue(bench)
    near = Region(bench, 4096)
    bench.async_events()
    queue.posted = queue.entries + 1
    queue.post()
    request(one, "SEND", near, near, queue.srqn)
    assert [c.status for c in one.sends()] == [ops.RNR_RETRY_EXC_ERR]
    assert bench.async_events() == [(eqe.EVENT_SRQ_CATASTROPHIC, queue.srqn)]
    assert other.state == RTS


def test_an_event_for_a_solicited_message_is_of_the_queues_cq(bench: Bench):
    one, _ = xrc_pair(bench)
    queue = xrc_queue(bench)
    near = Region(bench, 4096)
    assert queue.cq is not None
    for _ in range(2):
        queue.post([near.at()])
    queue.cq.arm(solicited=True)
    request(one, "SEND", near, near, queue.srqn)
    assert bench.completions() == []
    request(one, "SEND", near, near, queue.srqn, flags=SIGNALED | SOLICITED)
    assert bench.completions() == [queue.cq.cqn]


def test_an_overrun_of_the_queues_cq_ends_the_target(bench: Bench):
    one, other = xrc_pair(bench, ack_timeout=1, retry_count=0)
    cq = bench.make_cq(cqn=420, log_size=1)
    queue = SharedQueue(bench, 75, cq=cq)
    near = Region(bench, 4096)
    for _ in range(2):
        queue.post([near.at()])
        request(one, "SEND", near, near, queue.srqn)
    bench.settle()
    assert other.state == ERR
    run_out(bench)
    assert [c.status for c in one.sends()] == [0, ops.RETRY_EXC_ERR]
    assert (eqe.EVENT_CQ_ERROR, cq.cqn) in bench.async_events()


# In the middle of a message


LONG = 5 << 20


def half_sent(bench: Bench) -> tuple[User, User, SharedQueue, Region]:
    """A long SEND of which some runs have arrived."""
    one, other = xrc_pair(bench)
    busy, _ = pair_beside(bench)
    queue = xrc_queue(bench)
    near = Region(bench, LONG)
    queue.post([near.at()])
    queue.post([near.at()])
    busy.send(wr("RDMA_WRITE"), [near.at()], remote=(near.start, near.key))
    one.send(wr("SEND"), [near.at()], srqn=queue.srqn)
    for _ in range(3):
        bench.device.run_once()
    incoming = other.device_object.incoming
    assert (incoming.srq_position, incoming.opcode) == (0, ops.SEND)
    return one, other, queue, near


def pair_beside(bench: Bench) -> tuple[User, User]:
    one, other = User(bench, 2010), User(bench, 2011)
    one.connect(other)
    other.connect(one)
    return one, other


def test_the_queue_goes_in_the_middle_of_a_message(bench: Bench):
    one, other, queue, _ = half_sent(bench)
    bench.ok(op.HW2SW_SRQ, modifier=queue.srqn)
    assert other.device_object.incoming.srq is None
    assert [c.status for c in one.sends()] == [INVALID]
    assert (one.state, other.state) == (ERR, ERR)
    assert queue.receives() == []
    assert queue.cq is not None
    bench.ok(op.HW2SW_CQ, modifier=queue.cq.cqn)  # nothing holds it any more


@pytest.mark.parametrize("command", [op.TOERR_QPEE, op.ERR2RST_QPEE])
def test_the_target_goes_in_the_middle_of_a_message(bench: Bench, command: int):
    one, other, queue, near = half_sent(bench)
    other.run(command)
    found = [(c.wqe_index, c.status, c.qpn, c.srqn) for c in queue.receives()]
    assert found == [(0, ops.WR_FLUSH_ERR, other.qpn, queue.srqn)]  # to the queue's owner
    run_out(bench)
    assert [c.status for c in one.sends()] == [ops.RETRY_EXC_ERR]
    after, target = xrc_pair(bench, 3)
    request(after, "SEND", near, near, queue.srqn)
    assert [(c.wqe_index, c.qpn) for c in queue.receives()] == [(1, target.qpn)]


def test_the_sender_goes_in_the_middle_of_a_message(bench: Bench):
    one, other, queue, _ = half_sent(bench)
    one.run(op.ERR2RST_QPEE)
    bench.settle()
    assert other.state == RTS
    assert queue.receives() == []  # the target waits for the rest
    other.run(op.ERR2RST_QPEE)
    assert [c.status for c in queue.receives()] == [ops.WR_FLUSH_ERR]
    bench.ok(op.HW2SW_SRQ, modifier=queue.srqn)


def test_another_queue_in_the_middle_of_a_message_is_invalid(bench: Bench):
    one, other, queue, _ = half_sent(bench)
    beside = xrc_queue(bench, 5)
    one.device_object.outgoing.srqn = beside.srqn
    assert [c.status for c in one.sends()] == [INVALID]
    # The entry that was in hand completes, where it belongs.
    assert [(c.wqe_index, c.status) for c in queue.receives()] == [(0, ops.WR_FLUSH_ERR)]
    assert other.state == ERR


@pytest.mark.parametrize("name", ["RDMA_READ", *ATOMICS])
def test_what_was_asked_twice_is_of_the_queues_domain_too(bench: Bench, name: str):
    one, other = xrc_pair(bench)
    queue = xrc_queue(bench, pd=PD + 1)
    near, far = Region(bench, 4096), Region(bench, 4096, pd=PD + 1)
    there = far.fill(4)
    request(one, name, near, far, queue.srqn)
    assert len(one.sends()) == 1
    found = one.device_object
    found.send_psn = (found.send_psn - 1) & ops.PSN_MASK  # as if the answer had been lost
    near.view[:64] = bytes(64)
    request(one, name, near, far, queue.srqn)
    assert [c.status for c in one.sends()] == [0]
    assert near.view[:8] == there[:8]
    found.send_psn = (found.send_psn - 1) & ops.PSN_MASK
    bench.ok(op.HW2SW_SRQ, modifier=queue.srqn)
    request(one, name, near, far, queue.srqn)
    assert [c.status for c in one.sends()] == [INVALID]
    assert other.state == ERR


# Who may send to whom


def test_kinds_do_not_mix(bench: Bench):
    sender, target = xrc_pair(bench, ack_timeout=1, retry_count=0)
    one, other = User(bench, 2010, ack_timeout=1, retry_count=0), User(bench, 2011)
    one.connect(other)
    other.connect(one)
    for user, peer in ((one, target), (sender, other)):
        device = user.device_object
        device.context = device.context._replace(remote_qpn=peer.qpn)
        user.send(wr("SEND"), srqn=70)
        run_out(bench)
        assert [c.status for c in user.sends()] == [ops.RETRY_EXC_ERR]
        assert peer.state == RTS
        assert peer.device_object.counters.drops["not listening"]


# Private memory


@pytest.mark.parametrize("name", REQUESTS)
def test_private_memory_of_the_owner_of_the_queue(private_bench: Bench, name: str):
    one, _ = xrc_pair(private_bench)
    queue = xrc_queue(private_bench)
    near, far = Region(private_bench, 4096), PrivateRegion(private_bench)
    data, there = near.fill(1), far.fill(2)
    queue.post([far.at(0, 64)])
    size = length_of(name)
    one.send(wr(name), [near.at(0, size)], remote=(far.start, far.key), srqn=queue.srqn)
    assert [c.status for c in one.sends()] == [0]
    assert [c.status for c in queue.receives()] == ([0] if name in WITH_ENTRY else [])
    if name in (*SENDS, *WRITES):
        assert far.view[:64] == data[:64]
    else:
        assert near.view[:size] == there[:size]


def test_the_queue_goes_while_its_owners_memory_is_written(private_bench: Bench, gate: Gate):
    bench = private_bench
    one, other = xrc_pair(bench)
    queue = xrc_queue(bench)
    near, far = Region(bench, 4096), PrivateRegion(bench)
    queue.post([far.at(0, 64)])
    one.send(wr("SEND"), [near.at(0, 64)], srqn=queue.srqn)
    bench.settle()
    assert gate.entered.wait(10)
    bench.ok(op.HW2SW_SRQ, modifier=queue.srqn)
    due = bench.device.next_deadline_ns()
    assert due is not None
    bench.now = max(bench.now, due)  # it asks again, and there is no such queue
    assert [c.status for c in one.sends()] == [INVALID]
    gate.open.set()
    step_until(bench, lambda: not other.device_object.copies)
    assert queue.receives() == []
    assert queue.cq is not None
    bench.ok(op.HW2SW_CQ, modifier=queue.cq.cqn)
