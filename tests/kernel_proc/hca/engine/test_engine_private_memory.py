"""Private memory of a process at either end: by jobs, with faults, with threads that may stick."""

import ctypes
import mmap

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi import registers as reg
from tests.kernel_proc.hca.engine.engine_bench import ALL_RIGHTS, Region, User, pair, vector, wr
from tests.kernel_proc.hca.engine.private_memory import (
    LENGTH,
    SEGMENT,
    Gate,
    PrivateRegion,
    step_until,
)
from tests.kernel_proc.hca.hca_bench import PAGE, Bench

Ends = tuple[User, User]


WHERE = [(True, False), (False, True), (True, True)]
NAMES = ["SEND", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("near_is_private", "far_is_private"), WHERE)
@pytest.mark.parametrize("length", [1, 8, 5000, 390_000])
def test_messages_from_and_to_private_memory(
    private_bench: Bench, name: str, near_is_private: bool, far_is_private: bool, length: int
):
    bench = private_bench
    one, other = pair(bench)
    near = PrivateRegion(bench) if near_is_private else Region(bench, LENGTH)
    far = PrivateRegion(bench) if far_is_private else Region(bench, LENGTH)
    sent, was = near.fill(1), far.fill(2)
    other.receive([far.at(5, length)])
    one.send(wr(name), [near.at(3, length)], remote=(far.start + 5, far.key))
    assert [(c.status, c.wqe_index) for c in one.sends()] == [(0, 0)]
    if name == "RDMA_READ":
        assert near.view[3 : 3 + length] == was[5 : 5 + length]
        assert near.view[3 + length :] == sent[3 + length :]
    else:
        assert far.view[5 : 5 + length] == sent[3 : 3 + length]
        assert far.view[5 + length :] == was[5 + length :]
    takes_entry = name in ("SEND", "RDMA_WRITE_WITH_IMM")
    assert [c.byte_len for c in other.receives()] == ([length] if takes_entry else [])
    one.send(wr("RDMA_WRITE"))  # the connection is in step
    assert [c.status for c in one.sends()] == [0]
    assert bench.device.inspect()["private_copies"]["jobs"] >= 1


@pytest.mark.parametrize(("near_is_private", "far_is_private"), WHERE)
@pytest.mark.parametrize("name", ["ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP"])
def test_atomics_on_private_memory(
    private_bench: Bench, name: str, near_is_private: bool, far_is_private: bool
):
    one, _ = pair(private_bench)
    near = PrivateRegion(private_bench) if near_is_private else Region(private_bench, LENGTH)
    far = PrivateRegion(private_bench) if far_is_private else Region(private_bench, LENGTH)
    far.view[8:16] = (41).to_bytes(8, "little")
    one.send(wr(name), [near.at(16, 8)], remote=(far.start + 8, far.key), compare=41, swap=82)
    assert [(c.status, c.byte_len) for c in one.sends()] == [(0, 8)]
    assert int.from_bytes(near.view[16:24], "little") == 41
    assert int.from_bytes(far.view[8:16], "little") == 82


def test_datagrams_from_and_to_private_memory(private_bench: Bench):
    users = []
    for qpn in (2000, 2001):
        user = User(private_bench, qpn, transport=abi.QPC_TRANSPORT_UD)
        user.run(op.INIT2RTR_QPEE)
        user.run(op.RTR2RTS_QPEE)
        users.append(user)
    one, other = users
    near, far = PrivateRegion(private_bench), PrivateRegion(private_bench)
    data = near.fill(1)
    far.fill(2)
    gid = private_bench.tables.ports[0].gid(0)
    for number, way in enumerate((vector(), vector(is_global=1, dgid=gid))):
        other.receive([far.at(1000 * number, 30), far.at(1000 * number + 30, 300)])
        one.send(wr("SEND"), [near.at(0, 200)], vector=way, qpn=other.qpn)
        assert [c.status for c in one.sends()] == [0]
        assert [c.byte_len for c in other.receives()] == [240]
        start = 1000 * number + 40
        assert far.view[start : start + 200] == data[:200]
    assert far.view[1008:1024] == gid


def test_datagrams_that_come_together_all_arrive(private_bench: Bench):
    one, other = (User(private_bench, n, transport=abi.QPC_TRANSPORT_UD) for n in (2000, 2001))
    for user in (one, other):
        user.run(op.INIT2RTR_QPEE)
        user.run(op.RTR2RTS_QPEE)
    near, far = Region(private_bench, 4096), PrivateRegion(private_bench)
    data = near.fill(1)
    for number in range(10):
        other.receive([far.at(100 * number, 100)])
        one.put_send(wr("SEND"), [near.at(number, 60)], vector=vector(), qpn=other.qpn)
    one.ring_send()
    assert len(one.sends()) == 10
    assert [c.wqe_index for c in other.receives()] == list(range(10))
    for number in range(10):
        start = 100 * number + 40
        assert far.view[start : start + 60] == data[number : number + 60]


@pytest.mark.parametrize(
    ("name", "gone_is_near", "status", "entry"),
    [
        ("SEND", True, ops.LOC_PROT_ERR, None),
        ("RDMA_WRITE", True, ops.LOC_PROT_ERR, None),
        ("RDMA_READ", True, ops.LOC_PROT_ERR, None),
        ("ATOMIC_FETCH_AND_ADD", True, ops.LOC_PROT_ERR, None),
        ("SEND", False, ops.REM_OP_ERR, ops.LOC_PROT_ERR),
        ("RDMA_WRITE", False, ops.REM_ACCESS_ERR, ops.WR_FLUSH_ERR),
        ("RDMA_WRITE_WITH_IMM", False, ops.REM_ACCESS_ERR, ops.LOC_ACCESS_ERR),
        ("RDMA_READ", False, ops.REM_ACCESS_ERR, ops.WR_FLUSH_ERR),
        ("ATOMIC_FETCH_AND_ADD", False, ops.REM_ACCESS_ERR, ops.WR_FLUSH_ERR),
    ],
)
def test_a_page_that_is_not_there_any_more_is_a_fault_of_its_owner(
    private_bench: Bench, name: str, gone_is_near: bool, status: int, entry: int | None
):
    one, other = pair(private_bench)
    there = Region(private_bench, LENGTH)
    gone = PrivateRegion(private_bench)
    near, far = (gone, there) if gone_is_near else (there, gone)
    where = gone.start
    assert ctypes.CDLL(None).munmap(ctypes.c_void_p(where), ctypes.c_size_t(PAGE)) == 0
    try:
        other.receive([far.at(0, 8)])
        one.send(wr(name), [near.at(0, 8)], remote=(far.start, far.key))
        assert [c.status for c in one.sends()] == [status]
        assert [c.status for c in other.receives()] == ([entry] if entry is not None else [])
        assert one.state == table.ERR
        assert other.state == (table.RTS if gone_is_near else table.ERR)
        assert not private_bench.device.dead
    finally:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED: as it was
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long,
        ]  # fmt: skip
        assert libc.mmap(where, PAGE, 3, flags, -1, 0) == where


def test_what_a_key_may_write_is_what_was_pinned_for_writing(private_bench: Bench):
    one, _ = pair(private_bench)
    near = Region(private_bench, LENGTH)
    far = PrivateRegion(private_bench, flags=ALL_RIGHTS & ~abi.MPT_FLAG_REMOTE_WRITE)
    before = far.fill(1)
    one.send(wr("RDMA_WRITE"), [near.at(0, 8)], remote=(far.start, far.key))
    assert [c.status for c in one.sends()] == [ops.REM_ACCESS_ERR]
    assert far.view == before


def test_others_go_on_while_one_waits_for_a_page(private_bench: Bench, gate: Gate):
    bench = private_bench
    one, other = pair(bench, ack_timeout=0)
    near, far = Region(bench, 4096), PrivateRegion(bench)
    data = near.fill(1)
    one.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    bench.settle()
    assert gate.entered.wait(10)
    quick, _ = User(bench, 2010), None
    peer = User(bench, 2011)
    quick.connect(peer)
    peer.connect(quick)
    quick.send(wr("RDMA_WRITE"))
    assert [c.status for c in quick.sends()] == [0]
    assert one.sends() == []
    gate.open.set()
    step_until(bench, lambda: one.send_cq.entry(0) is not None)
    assert [c.status for c in one.sends()] == [0]
    assert far.view[:64] == data[:64]
    assert other.state == table.RTS


def test_a_late_answer_counts_for_the_run_that_was_sent(private_bench: Bench, gate: Gate):
    bench = private_bench
    one, _ = pair(bench, ack_timeout=1, retry_count=0)
    beside, peer = User(bench, 2010), User(bench, 2011)
    beside.connect(peer)
    peer.connect(beside)
    near, far = Region(bench, LENGTH), PrivateRegion(bench)
    data = near.fill(1)
    one.send(wr("RDMA_WRITE"), [near.at(3, 390_001)], remote=(far.start, far.key))
    bench.settle()
    assert gate.entered.wait(10)
    for _ in range(2):  # the timer runs out while others are busy too, so turns are shorter
        for _ in range(20):
            beside.send(wr("RDMA_WRITE"))
        due = bench.device.next_deadline_ns()
        assert due is not None
        bench.now = due
        bench.settle()
        assert len(beside.sends()) == 20
    assert one.device_object.counters.timeouts == 0  # it is being worked at
    gate.open.set()
    step_until(bench, lambda: one.send_cq.entry(0) is not None)
    assert [c.status for c in one.sends()] == [0]
    assert far.view[:390_001] == data[3:390_004]
    one.send(wr("RDMA_WRITE"))
    assert [c.status for c in one.sends()] == [0]


@pytest.mark.parametrize("command", ["HW2SW_MPT", "ERR2RST_QPEE"])
def test_a_command_waits_for_the_copy_that_uses_its_object(
    private_bench: Bench, gate: Gate, command: str
):
    bench = private_bench
    one, other = pair(bench, ack_timeout=0)
    near, far = Region(bench, 4096), PrivateRegion(bench)
    one.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    bench.settle()
    assert gate.entered.wait(10)
    if command == "HW2SW_MPT":
        bench.post(op.HW2SW_MPT, modifier=bench.tables.translation.index_of(far.key), opmod=1)
    else:
        bench.post(op.ERR2RST_QPEE, modifier=other.qpn, opmod=op.ERR2RST_NO_OUTBOX)
    for _ in range(20):
        bench.device.run_once()
    assert bench.control & reg.HCR_GO_BIT
    gate.open.set()
    step_until(bench, lambda: not bench.control & reg.HCR_GO_BIT)
    assert bench.control >> reg.HCR_STATUS_SHIFT == op.CMD_STAT_OK
    assert bench.device.commands.held > 0


def test_a_page_that_sticks_is_given_up(private_bench: Bench, gate: Gate):
    bench = private_bench
    one, other = pair(bench, ack_timeout=0)
    near, far = Region(bench, 4096), PrivateRegion(bench)
    other.receive([far.at()])
    one.send(wr("SEND"), [near.at(0, 64)])
    bench.settle()
    assert gate.entered.wait(10)
    due = bench.device.next_deadline_ns()
    assert due is not None
    bench.now = due + 1
    assert [c.status for c in one.sends()] == [ops.REM_OP_ERR]
    assert [c.status for c in other.receives()] == [ops.LOC_PROT_ERR]
    assert bench.device.next_deadline_ns() is None
    again, peer = User(bench, 2010), User(bench, 2011)
    again.connect(peer)
    peer.connect(again)
    again.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    assert [c.status for c in again.sends()] == [ops.REM_ACCESS_ERR]  # at once
    assert bench.device.inspect()["private_copies"]["given_up"] == 1
    bench.device.remove_segment(SEGMENT)  # and the process may go
    gate.open.set()


def test_the_end_of_a_process_ends_its_copies(private_bench: Bench, gate: Gate):
    bench = private_bench
    one, other = pair(bench, ack_timeout=0)
    near, far = Region(bench, 4096), PrivateRegion(bench)
    one.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    bench.settle()
    assert gate.entered.wait(10)
    bench.device.remove_segment(SEGMENT)
    assert [c.status for c in one.sends()] == [ops.REM_ACCESS_ERR]
    assert other.state == table.ERR
    one.run(op.ERR2RST_QPEE)
    gate.open.set()
