"""Queue pairs: every command from every state, values, flushing, and what events come of it."""

from itertools import product

import pytest

from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from shared import doorbell_layout as bells
from tests.kernel_proc.hca.hca_bench import PAGE, PD, TRANSPORTS, UAR, Bench

TRANSITION_COMMANDS = sorted({t.opcode for t in table.TRANSITIONS.values() if t.opcode})
LEADS = {
    (old, transition.opcode): new
    for (old, new), transition in table.TRANSITIONS.items()
    if transition.opcode
}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_command_is_legal_from_its_states_alone(transport: int):
    bench = Bench().bring_up()
    for number, (old, opcode) in enumerate(product(table.QP_STATES, TRANSITION_COMMANDS)):
        qp = bench.make_qp(qpn=1100 + number % 200, transport=transport)
        qp.bring(old)
        bench.settle()
        new = LEADS.get((old, opcode))
        expected = op.CMD_STAT_OK if new is not None else op.CMD_STAT_BAD_QPEE_STATE
        assert qp.run(opcode) == expected, (old, opcode)
        assert qp.state == (new if new is not None else old), (old, opcode)
        if qp.state != table.RESET:
            assert qp.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
        bench.ok(op.HW2SW_CQ, modifier=qp.cq.cqn)


def fields_of(attribute: int) -> dict[str, int]:
    """A value for each attribute that differs from the bench's."""
    return {
        table.PKEY: {"pkey_index": 3},
        table.PORT: {"port": 2},
        table.ACCESS: {"access": 4},
        table.QKEY: {"qkey": 99},
        table.AV: {"path_dlid": 44, "path_sl": 3},
        table.MTU: {"mtu": 2},
        table.DEST_QPN: {"remote_qpn": 4242},
        table.RQ_PSN: {"next_receive_psn": 321},
        table.SQ_PSN: {"next_send_psn": 123},
        table.DEST_RD_ATOMIC: {"rra_max": 1},
        table.RD_ATOMIC: {"sra_max": 1},
        table.RNR_TIMER: {"min_rnr_timer": 1},
        table.TIMEOUT: {"ack_timeout": 1},
        table.RETRY: {"retry_count": 1},
        table.RNR_RETRY: {"rnr_retry": 1},
    }.get(attribute, {})


OPTIONS = {
    table.PKEY: abi.OPT_PKEY_INDEX,
    table.PORT: abi.OPT_PORT,
    table.ACCESS: abi.OPT_ACCESS,
    table.QKEY: abi.OPT_QKEY,
    table.AV: abi.OPT_PRIMARY_PATH,
    table.DEST_RD_ATOMIC: abi.OPT_RRA_MAX,
    table.RD_ATOMIC: abi.OPT_SRA_MAX,
    table.RNR_TIMER: abi.OPT_RNR_TIMER,
    table.TIMEOUT: abi.OPT_ACK_TIMEOUT,
    table.RETRY: abi.OPT_RETRY_COUNT,
    table.RNR_RETRY: abi.OPT_RNR_RETRY,
}
BITS = [1 << n for n in range(table.KNOWN_ATTRIBUTES.bit_length())]
WITH_MAILBOX = [
    (old, transition.opcode, transition)
    for (old, _), transition in table.TRANSITIONS.items()
    if transition.opcode not in (0, op.RST2INIT_QPEE, op.TOERR_QPEE, op.ERR2RST_QPEE)
    and transition.opcode != op.RTS2SQD_QPEE
]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_transition_takes_its_attributes_and_no_others(transport: int):
    bench = Bench().bring_up()
    changes = {name: value for bit in BITS for name, value in fields_of(bit).items()}
    for number, (old, opcode, transition) in enumerate(WITH_MAILBOX):
        for options in (0, *OPTIONS.values()):
            qp = bench.make_qp(qpn=1200 + number, transport=transport)
            qp.bring(old)
            before = qp.query()
            assert qp.run(opcode, options=options, **changes) == op.CMD_STAT_OK
            after = qp.query()
            allowed = transition.attributes[TRANSPORTS[transport]]
            taken = allowed.required
            for bit, option in OPTIONS.items():
                if options & option and allowed.optional & bit:
                    taken |= bit
            if taken & table.AV and options & abi.OPT_PORT:  # a path has its own port
                taken |= table.PORT
            assert before is not None
            assert after is not None
            for bit in BITS:
                for name, value in fields_of(bit).items():
                    expected = value if taken & bit else getattr(before, name)
                    assert getattr(after, name) == expected, (opcode, options, name)
            assert qp.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
            bench.ok(op.HW2SW_CQ, modifier=qp.cq.cqn)
            for key in (qp.key, qp.cq.key):
                bench.ok(op.HW2SW_MPT, modifier=bench.tables.translation.index_of(key))
            bench._next_index = 40
            bench._next_mtt = 256
            bench._next_page = 200


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"transport": 7}, op.CMD_STAT_BAD_PARAM),
        ({"local_qpn": 2001}, op.CMD_STAT_BAD_PARAM),
        ({"pd": 1 << 24}, op.CMD_STAT_BAD_PARAM),
        ({"pd": PD + 1}, op.CMD_STAT_BAD_PARAM),
        ({"uar": 99}, op.CMD_STAT_BAD_PARAM),
        ({"wqe_lkey": 0x100}, op.CMD_STAT_BAD_PARAM),
        ({"send_entries": 15}, op.CMD_STAT_BAD_PARAM),
        ({"send_entries": 1 << 14}, op.CMD_STAT_BAD_PARAM),
        ({"send_entries": 0xFFFFFFFF}, op.CMD_STAT_BAD_PARAM),
        ({"send_stride": 100}, op.CMD_STAT_BAD_PARAM),
        ({"send_offset": 64}, op.CMD_STAT_BAD_PARAM),
        ({"send_offset": 0xFFFFFF80}, op.CMD_STAT_BAD_PARAM),
        ({"receive_stride": 32}, op.CMD_STAT_BAD_PARAM),
        ({"send_slot": bells.SLOTS}, op.CMD_STAT_BAD_PARAM),
        ({"receive_slot": 0xFFFFFFFF}, op.CMD_STAT_BAD_PARAM),
        ({"send_cqn": 1}, op.CMD_STAT_BAD_RESOURCE),
        ({"receive_cqn": 0xFFFFFFFF}, op.CMD_STAT_BAD_RESOURCE),
        ({"flags": abi.QPC_HAS_SRQ, "srqn": 70}, op.CMD_STAT_BAD_RESOURCE),
        ({"port": 0}, op.CMD_STAT_BAD_PARAM),
        ({"port": 3}, op.CMD_STAT_BAD_PARAM),
        ({"pkey_index": 64}, op.CMD_STAT_BAD_PARAM),
    ],
)
def test_a_context_that_cannot_be_makes_no_queue_pair(
    bench: Bench, changes: dict[str, int], status: int
):
    qp = bench.make_qp(create=False)
    keys = bench.device.inspect()["translation"]
    assert qp.run(op.RST2INIT_QPEE, **changes) == status
    assert qp.state == table.RESET
    assert bench.device.inspect()["translation"] == keys
    bench.ok(op.HW2SW_MPT, modifier=bench.tables.translation.index_of(qp.key))
    bench.ok(op.HW2SW_CQ, modifier=qp.cq.cqn)


@pytest.mark.parametrize(
    "changes",
    [
        {"mtu": 0},
        {"mtu": 6},
        {"remote_qpn": 1 << 24},
        {"rra_max": 5},
        {"min_rnr_timer": 32},
        {"path_port": 0},
        {"path_dlid": 1 << 16},
        {"path_sl": 16},
        {"path_sgid_index": 32},
        {"path_flow_label": 1 << 20},
    ],
)
def test_a_bad_value_changes_nothing(bench: Bench, changes: dict[str, int]):
    qp = bench.make_qp()
    before = qp.query()
    assert qp.run(op.INIT2RTR_QPEE, **changes) == op.CMD_STAT_BAD_PARAM
    assert qp.query() == before
    assert qp.run(op.INIT2RTR_QPEE) == op.CMD_STAT_OK


def test_numbers_are_checked(bench: Bench):
    qp = bench.make_qp(qpn=2000)
    for number, status in (
        (1023, op.CMD_STAT_BAD_INDEX),
        (0, op.CMD_STAT_BAD_INDEX),
        (2000 | 1 << 24, op.CMD_STAT_BAD_INDEX),  # an EE context
        (2000 + 4096, op.CMD_STAT_BAD_QPEE_STATE),  # another generation is in RESET
        (2001, op.CMD_STAT_BAD_QPEE_STATE),
    ):
        for opcode in (op.QUERY_QPEE, op.TOERR_QPEE, op.ERR2RST_QPEE, op.INIT2RTR_QPEE):
            assert bench.run(opcode, modifier=number, inbox=qp.mailbox()) == status, number
    inbox = qp.mailbox(local_qpn=2000 + 4096)
    status = bench.run(op.RST2INIT_QPEE, modifier=2000 + 4096, inbox=inbox)
    assert status == op.CMD_STAT_BAD_QPEE_STATE
    assert bench.run(op.ERR2RST_QPEE, modifier=2000, opmod=3, out_param=0) == op.CMD_STAT_OK
    assert bench.run(op.RST2INIT_QPEE, modifier=2000 + 4096, inbox=inbox) == op.CMD_STAT_OK


@pytest.mark.parametrize("bit", [abi.OPT_ALT_PATH, abi.OPT_MIGRATION_STATE, abi.OPT_ALT_RNR_RETRY])
def test_alternate_paths_are_refused(bench: Bench, bit: int):
    assert bench.make_qp().run(op.INIT2RTR_QPEE, options=bit) == op.CMD_STAT_BAD_PARAM


def test_sequence_numbers_are_masked_and_live(bench: Bench):
    qp = bench.make_qp()
    qp.bring(table.RTS)
    live = qp.query()
    assert live is not None
    assert (live.next_send_psn, live.next_receive_psn) == (0x111, 0x222)
    queue_pair = bench.tables.qps.find(qp.qpn)
    assert queue_pair is not None
    queue_pair.send_psn = 0x555
    live = qp.query()
    assert live is not None
    assert live.next_send_psn == 0x555


# Work queues


def test_posted_work_waits_until_the_error_state_and_is_flushed_in_order(bench: Bench):
    qp = bench.make_qp(cq=bench.make_cq(cqn=300, log_size=6))
    qp.post(bells.RING_RECEIVE, 5)
    bench.settle()
    qp.bring(table.RTS)
    qp.post(bells.RING_SEND, 16)
    qp.post(bells.RING_RECEIVE, 4)
    bench.settle()
    assert qp.cq.poll() == []
    assert qp.run(op.TOERR_QPEE) == op.CMD_STAT_OK
    got = []
    for _ in range(10):
        bench.device.run_once()
        got += qp.cq.poll()
    assert all(entry.status == 5 and entry.qpn == qp.qpn for entry in got)
    assert [entry.wqe_index for entry in got if entry.is_send] == list(range(16))
    assert [entry.wqe_index for entry in got if not entry.is_send] == list(range(9))
    qp.post(bells.RING_SEND, 2)
    bench.settle()
    assert [entry.wqe_index for entry in qp.cq.poll()] == [16, 17]


def test_sqe_flushes_the_send_queue_alone(bench: Bench):
    qp = bench.make_qp(transport=abi.QPC_TRANSPORT_UD)
    qp.bring(table.SQE)
    qp.post(bells.RING_SEND, 3)
    qp.post(bells.RING_RECEIVE, 3)
    bench.settle()
    assert [entry.is_send for entry in qp.cq.poll()] == [1, 1, 1]
    assert qp.run(op.SQERR2RTS_QPEE) == op.CMD_STAT_OK


def test_a_queue_pair_made_again_starts_where_its_index_word_is(bench: Bench):
    qp = bench.make_qp()
    qp.post(bells.RING_SEND, 7)
    assert qp.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
    assert qp.run(op.RST2INIT_QPEE) == op.CMD_STAT_OK
    qp.bring(table.ERR)
    qp.post(bells.RING_SEND, 1)
    bench.settle()
    assert [entry.wqe_index for entry in qp.cq.poll()] == [7]


@pytest.mark.parametrize("word", [17, 1 << 63, 2**64 - 1])
def test_an_index_word_that_cannot_be_is_fatal_to_the_queue_pair_alone(bench: Bench, word: int):
    qp = bench.make_qp()
    other = bench.make_qp(qpn=2001)
    for each in (qp, other):
        each.bring(table.ERR)
    for _ in range(3):
        bench.ring(bells.RING_SEND, qp.send_slot, word)
        bench.settle()
    assert bench.async_events() == [(eqe.EVENT_WQ_CATASTROPHIC, qp.qpn)]
    other.post(bells.RING_SEND, 2)
    bench.settle()
    assert len(other.cq.poll()) == 2
    assert qp.cq.poll() == []


def test_a_lost_completion_takes_the_queue_pair_to_error(bench: Bench):
    cq = bench.make_cq(cqn=300, log_size=1)
    qp = bench.make_qp(cq=cq, transport=abi.QPC_TRANSPORT_UD)
    qp.bring(table.SQE)
    qp.post(bells.RING_SEND, 3)
    events = bench.async_events()
    assert events == [(eqe.EVENT_CQ_ERROR, 300)]
    assert qp.state == table.ERR
    assert bench.device.inspect()["cqs"]["300"]["lost"] == 2


def test_queues_in_use_stay(bench: Bench):
    qp = bench.make_qp()
    assert bench.run(op.HW2SW_CQ, modifier=qp.cq.cqn) == op.CMD_STAT_RESOURCE_BUSY
    index = bench.tables.translation.index_of(qp.key)
    assert bench.run(op.HW2SW_MPT, modifier=index) == op.CMD_STAT_RESOURCE_BUSY
    assert qp.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
    bench.ok(op.HW2SW_MPT, modifier=index)
    bench.ok(op.HW2SW_CQ, modifier=qp.cq.cqn)


def test_a_slot_belongs_to_one_queue(bench: Bench):
    qp = bench.make_qp()
    other = bench.make_qp(qpn=2001, create=False)
    for slots in ({"send_slot": qp.send_slot}, {"receive_slot": qp.receive_slot}):
        assert other.run(op.RST2INIT_QPEE, **slots) == op.CMD_STAT_BAD_PARAM
    assert other.run(op.RST2INIT_QPEE) == op.CMD_STAT_OK


# Events


@pytest.mark.parametrize("notify", [0, op.RTS2SQD_NOTIFY])
def test_the_drained_event_comes_if_asked_for(bench: Bench, notify: int):
    qp = bench.make_qp()
    qp.bring(table.RTS)
    inbox = qp.mailbox()
    assert bench.run(op.RTS2SQD_QPEE, modifier=qp.qpn | notify, inbox=inbox) == op.CMD_STAT_OK
    assert bench.async_events() == [(eqe.EVENT_SQ_DRAINED, qp.qpn)] * bool(notify)
    live = qp.query()
    assert live is not None
    assert (live.state, live.sq_draining) == (table.SQD, 0)


def test_a_queue_pair_with_an_srq_says_that_it_takes_no_more(bench: Bench):
    key, _ = bench.region(PAGE)
    slot = bench.slot()
    context = abi.SrqContext(70, PD, UAR, key, 16, 64, slot, 0)
    bench.ok(op.SW2HW_SRQ, modifier=70, inbox=abi.SRQ_CONTEXT.pack(*context))
    bench.ring(bells.RING_SRQ, slot, 4)
    qp = bench.make_qp(srqn=70)
    assert bench.run(op.HW2SW_SRQ, modifier=70) == op.CMD_STAT_RESOURCE_BUSY
    assert qp.run(op.TOERR_QPEE) == op.CMD_STAT_OK
    assert bench.async_events() == [(eqe.EVENT_LAST_WQE_REACHED, qp.qpn)]
    assert qp.run(op.TOERR_QPEE) == op.CMD_STAT_OK
    assert bench.async_events() == []
    assert qp.cq.poll() == []
    srq = bench.tables.srqs.find(70)
    assert srq is not None
    assert srq.outstanding() == 4
    assert qp.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
    bench.ok(op.HW2SW_SRQ, modifier=70)
