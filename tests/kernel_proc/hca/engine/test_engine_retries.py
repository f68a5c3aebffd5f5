"""Time: RNR delays, transport timeouts, their counts, what resets them, and draining."""

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from tests.kernel_proc.hca.engine.engine_bench import Region, User, pair, wr
from tests.kernel_proc.hca.hca_bench import Bench

MILLISECONDS = [
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
    1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84,
    245.76, 327.68, 491.52,
]  # fmt: skip


def wait(bench: Bench) -> int:
    """Let the next deadline come; return how long that took."""
    bench.settle()
    due = bench.device.next_deadline_ns()
    assert due is not None
    took = due - bench.now
    bench.now = due
    bench.settle()
    return took


@pytest.mark.parametrize("code", range(32))
def test_a_receiver_that_is_not_ready_is_tried_after_its_delay(bench: Bench, code: int):
    one, other = User(bench, 2000), User(bench, 2001, min_rnr_timer=code)
    one.connect(other)
    other.connect(one)
    one.send(wr("SEND"))
    assert one.sends() == []
    other.receive()
    bench.settle()
    bench.now += round(MILLISECONDS[code] * 1e6) - 1
    assert one.sends() == []
    bench.now += 1
    assert [c.status for c in one.sends()] == [0]
    assert len(other.receives()) == 1
    assert one.device_object.counters.rnr_naks_received == 1
    assert other.device_object.counters.rnr_naks_sent == 1


@pytest.mark.parametrize("retries", range(7))
def test_rnr_retries_are_counted(bench: Bench, retries: int):
    one, other = pair(bench, rnr_retry=retries)
    one.send(wr("SEND"))
    for _ in range(retries):
        assert one.sends() == []
        wait(bench)
    assert [c.status for c in one.sends()] == [ops.RNR_RETRY_EXC_ERR]
    assert one.state == table.ERR
    assert other.state == table.RTS
    assert bench.device.next_deadline_ns() is None


def test_seven_rnr_retries_are_for_ever(bench: Bench):
    one, other = pair(bench, rnr_retry=7)
    one.send(wr("SEND"))
    for _ in range(50):
        wait(bench)
    other.receive()
    wait(bench)
    assert [c.status for c in one.sends()] == [0]


def test_rnr_retries_start_over_with_each_message(bench: Bench):
    one, other = pair(bench, rnr_retry=2)
    for _ in range(4):
        one.send(wr("SEND"))
    for _ in range(4):
        wait(bench)
        other.receive()
        wait(bench)
    assert [c.status for c in one.sends()] == [0] * 4


@pytest.mark.parametrize("retries", range(8))
@pytest.mark.parametrize("code", [1, 14, 31])
def test_nobody_answers(bench: Bench, retries: int, code: int):
    one, other = User(bench, 2000, retry_count=retries, ack_timeout=code), User(bench, 2001)
    one.connect(other, remote_qpn=3000)
    one.send(wr("RDMA_WRITE"), flags=0)
    one.put_send(wr("RDMA_WRITE"), flags=0)
    one.ring_send()
    begun = bench.now
    for _ in range(retries + 1):
        assert one.sends() == []
        assert wait(bench) == 4096 << code
    done = one.sends()
    assert [c.status for c in done] == [ops.RETRY_EXC_ERR, ops.WR_FLUSH_ERR]
    assert bench.now - begun == (retries + 1) * (4096 << code)
    counters = one.device_object.counters
    assert (counters.timeouts, counters.retries) == (retries + 1, retries)
    assert one.state == table.ERR


def test_timeout_zero_waits_for_ever(bench: Bench):
    one, other = User(bench, 2000, ack_timeout=0), User(bench, 2001)
    one.connect(other)
    one.send(wr("RDMA_WRITE"))
    assert one.sends() == []
    assert bench.device.next_deadline_ns() is None
    assert one.run(op.TOERR_QPEE) == op.CMD_STAT_OK
    assert [c.status for c in one.sends()] == [ops.WR_FLUSH_ERR]


SILENT = {
    "peer in INIT": lambda bench, one, other: None,
    "peer in ERR": lambda bench, one, other: (other.connect(one), other.run(op.TOERR_QPEE)),
    "peer of another": lambda bench, one, other: other.connect(one, remote_qpn=4000),
    "peer expects another LID": lambda bench, one, other: other.connect(one, path_dlid=2),
    "peer in another partition": lambda bench, one, other: (
        bench.tables.ports[0].set_pkeys(1, [0x8123]),
        other.connect(one),
    ),
    "port down": lambda bench, one, other: (
        other.connect(one),
        bench.ok(op.CLOSE_IB, modifier=1),
    ),
    "a transport of another kind": None,
}


@pytest.mark.parametrize("name", SILENT)
def test_who_does_not_listen_does_not_answer(bench: Bench, name: str):
    one = User(bench, 2000, retry_count=0)
    make = SILENT[name]
    transport = abi.QPC_TRANSPORT_UD if make is None else abi.QPC_TRANSPORT_RC
    pkey_index = 1 if "partition" in name else 0
    other = User(bench, 2001, transport=transport, pkey_index=pkey_index)
    if make is None:
        other.connect(one)
    else:
        make(bench, one, other)
    one.connect(other)
    other.receive()
    one.send(wr("SEND"))
    assert one.sends() == []
    wait(bench)
    assert [c.status for c in one.sends()] == [ops.RETRY_EXC_ERR]
    assert all(c.status == ops.WR_FLUSH_ERR for c in other.receives())
    shown = bench.device.inspect()
    drops = [*shown["ports"]["1"]["drops"].values()]
    qp = shown["qps"].get(str(other.qpn))
    drops += qp["counters"]["drops"].values() if qp else []
    assert sum(drops) == 1


def test_a_lid_that_nobody_has(bench: Bench):
    one, other = User(bench, 2000, retry_count=0), User(bench, 2001)
    one.connect(other, path_dlid=77)
    one.send(wr("SEND"))
    wait(bench)
    assert [c.status for c in one.sends()] == [ops.RETRY_EXC_ERR]
    assert bench.tables.ports[0].drops == {"nobody has the LID": 1}


def test_an_answer_in_time_goes_on(bench: Bench):
    one, other = User(bench, 2000), User(bench, 2001)
    one.connect(other)
    near = Region(bench, 4096)
    data = near.fill(1)
    one.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(near.start + 1024, near.key))
    assert one.sends() == []
    wait(bench)
    other.connect(one)  # RTR: it listens from now on
    wait(bench)
    assert [c.status for c in one.sends()] == [0]
    assert near.view[1024:1088] == data[:64]


def test_a_psn_ahead_is_asked_back_once(bench: Bench):
    one, other = User(bench, 2000, retry_count=2), User(bench, 2001)
    one.connect(other)
    other.connect(one, next_receive_psn=one.context.next_send_psn - 5)
    one.send(wr("RDMA_WRITE"))
    assert one.sends() == []
    assert one.device_object.counters.retries == 1  # the one NAK
    while not (done := one.sends()):
        wait(bench)
    assert [c.status for c in done] == [ops.RETRY_EXC_ERR]
    assert other.state == table.RTS
    assert other.device_object.counters.drops == {"PSN ahead": 2}


def test_a_duplicate_is_acknowledged_and_not_executed(bench: Bench):
    one, other = User(bench, 2000), User(bench, 2001)
    one.connect(other)
    other.connect(one, next_receive_psn=one.context.next_send_psn + 2)
    far = Region(bench, 4096)
    far.fill(1)
    before = bytes(far.view)
    near = Region(bench, 4096)
    other.receive([far.at()])
    one.send(wr("SEND"), [near.at(0, 64)])
    one.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    assert [c.status for c in one.sends()] == [0, 0]
    assert far.view == before
    assert other.receives() == []


def test_reads_and_atomics_asked_again(bench: Bench):
    one, other = pair(bench)
    near, far = Region(bench, 4096), Region(bench, 4096)
    data = far.fill(1)
    sends = [("ATOMIC_FETCH_AND_ADD", 8), ("RDMA_READ", 64)]
    psn = one.device_object.send_psn
    for attempt in range(2):
        one.device_object.send_psn = psn  # as if no answer had come
        for name, length in sends:
            one.send(wr(name), [near.at(length, length)], remote=(far.start, far.key), compare=1)
        assert [c.status for c in one.sends()] == [0, 0], attempt
        word = int.from_bytes(data[:8], "little")
        assert int.from_bytes(near.view[8:16], "little") == word
        assert int.from_bytes(far.view[:8], "little") == (word + 1) % 2**64
        assert near.view[64:128] == far.view[:64]
    assert len(other.device_object.incoming.executed) == 2


def test_only_so_many_are_remembered(bench: Bench):
    one, other = pair(bench, rra_max=2, ack_timeout=0)
    near = Region(bench, 4096)
    psn = one.device_object.send_psn
    for _ in range(3):
        one.send(wr("RDMA_READ"), [near.at(0, 8)], remote=(near.start, near.key))
    assert len(one.sends()) == 3
    one.device_object.send_psn = psn
    one.send(wr("RDMA_READ"), [near.at(0, 8)], remote=(near.start, near.key))
    assert one.sends() == []
    assert other.device_object.counters.drops == {"duplicate unknown": 1}


def test_draining_waits_for_what_was_started(bench: Bench):
    one, other = pair(bench)
    one.send(wr("SEND"))
    one.send(wr("SEND"))
    bench.async_events()
    one.sends()
    assert bench.run(op.RTS2SQD_QPEE, modifier=one.qpn | op.RTS2SQD_NOTIFY) == op.CMD_STAT_OK
    assert one.device_object.live_context().sq_draining == 1
    assert one.run(op.SQD2RTS_QPEE) == op.CMD_STAT_BAD_QPEE_STATE
    assert bench.async_events() == []
    other.receive()
    other.receive()
    wait(bench)
    assert [c.wqe_index for c in one.sends()] == [0]
    assert (
        bench.async_events()
        == [
            (eqe.EVENT_COMMUNICATION_ESTABLISHED, other.qpn),
            (eqe.EVENT_SQ_DRAINED, one.qpn),
        ][1:]
    )
    assert one.device_object.live_context().sq_draining == 0
    assert one.run(op.SQD2RTS_QPEE) == op.CMD_STAT_OK
    assert [c.wqe_index for c in one.sends()] == [1]


def test_an_error_ends_draining(bench: Bench):
    one, _ = pair(bench)
    one.send(wr("SEND"))
    one.sends()
    assert bench.run(op.RTS2SQD_QPEE, modifier=one.qpn | op.RTS2SQD_NOTIFY) == op.CMD_STAT_OK
    assert one.run(op.TOERR_QPEE) == op.CMD_STAT_OK
    assert [c.status for c in one.sends()] == [ops.WR_FLUSH_ERR]
    assert not one.device_object.draining
    assert bench.device.next_deadline_ns() is None


def test_reset_with_an_entry_in_hand_leaves_nothing(bench: Bench):
    one, _ = pair(bench)
    one.send(wr("SEND"))
    one.sends()
    assert one.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
    assert one.sends() == []
    assert bench.device.next_deadline_ns() is None
    assert bench.tables.ports[0].drops == {}


def test_a_message_of_another_mtu_may_be_one_packet(bench: Bench):
    one, other = User(bench, 2000, mtu=5), User(bench, 2001, mtu=2)
    one.connect(other)
    other.connect(one)
    near = Region(bench, 4096)
    one.send(wr("RDMA_WRITE"), [near.at(0, 512)], remote=(near.start + 1024, near.key))
    one.send(wr("RDMA_WRITE"), [near.at(0, 513)], remote=(near.start + 1024, near.key))
    assert [c.status for c in one.sends()] == [0, ops.REM_INV_REQ_ERR]
    assert other.state == table.ERR
