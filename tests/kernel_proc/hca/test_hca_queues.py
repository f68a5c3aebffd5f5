"""Event queues, completion queues, shared receive queues and doorbells."""

import pytest

from kernel_proc.hca.cq_entries import SWEPT_QPN
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.device_settings import HcaSettings
from shared import doorbell_layout as bells
from shared.cqe_layout import CQE_SIZE
from tests.kernel_proc.hca.hca_bench import PAGE, PD, RIGHTS, UAR, Bench, BenchCq


def add(cq: BenchCq, count: int, qpn: int = 5, **arguments: int) -> list[bool]:
    return [cq.queue.post(qpn, n, 0, is_send=0, **arguments) for n in range(count)]


# Event queues


def test_command_completion_is_an_event_with_token_status_and_result(bench: Bench):
    bench.post(op.MGID_HASH, inbox=b"\xff" * 16, event=True, token=0x1234)
    assert bench.device.run_once()
    assert not bench.control & reg.HCR_GO_BIT
    bench.settle()
    (entry,) = bench.events(reg.COMMAND_EQ)
    assert entry[1] == eqe.EVENT_COMMAND_DONE
    assert eqe.EQE_COMMAND.unpack_from(entry) == (
        0x1234,
        0,
        bench.tables.multicast.hash_of(b"\xff" * 16),
    )
    bench.post(op.INIT_IB, modifier=9, inbox=b"", event=True, token=7)
    bench.settle()
    (entry,) = bench.events(reg.COMMAND_EQ)
    assert eqe.EQE_COMMAND.unpack_from(entry)[:2] == (7, op.CMD_STAT_BAD_PARAM)


def test_commands_of_the_doorbell_are_taken_in_order_between_those_of_the_register(bench: Bench):
    taken = bench.words[reg.COMMANDS_TAKEN_OFFSET // 8]
    tokens: list[int] = []
    for batch in range(6):  # the ring is used more than once
        for number in range(reg.COMMAND_RING_ENTRIES // 2):
            bench.post_to_ring(op.NOP, token=batch << 8 | number)
        bench.post(op.NOP, event=True, token=batch << 8 | 0xFF)
        bench.settle()
        tokens += [eqe.EQE_COMMAND.unpack_from(e)[0] for e in bench.events(reg.COMMAND_EQ)]
    half = [*range(reg.COMMAND_RING_ENTRIES // 2), 0xFF]
    assert tokens == [batch << 8 | number for batch in range(6) for number in half]
    assert bench.words[reg.COMMANDS_TAKEN_OFFSET // 8] == taken + 6 * len(half) - 6


def test_the_doorbell_takes_no_more_than_may_be_outstanding():
    bench = Bench(HcaSettings(latency_model="prm-ceiling")).bring_up()
    for batch in range(2):
        for number in range(reg.COMMAND_RING_ENTRIES):
            bench.post_to_ring(op.NOP, token=batch * reg.COMMAND_RING_ENTRIES + number)
        assert bench.device.run_once()
    most = 1 << reg.COMMANDS_OUTSTANDING_LOG2
    taken = bench.words[reg.COMMANDS_TAKEN_OFFSET // 8]
    assert taken == most
    for number in range(4):
        bench.post_to_ring(op.NOP, token=most + number)
    assert not bench.device.run_once(), "64 are outstanding"
    assert bench.words[reg.COMMANDS_TAKEN_OFFSET // 8] == taken
    tokens: list[int] = []
    while len(tokens) < most + 4:
        due = bench.device.next_deadline_ns()
        assert due is not None
        bench.now = max(bench.now, due)
        bench.settle()
        tokens += [eqe.EQE_COMMAND.unpack_from(e)[0] for e in bench.events(reg.COMMAND_EQ)]
    assert tokens == list(range(most + 4))


def test_the_line_is_raised_and_a_sleeping_kernel_woken(bench: Bench):
    raised = bench.words[reg.LINE_OFFSET // 8]
    bench.post(op.NOP, event=True)
    bench.settle()
    assert bench.words[reg.LINE_OFFSET // 8] == raised + 1
    assert bench.interrupts == 0
    bench.words[reg.KERNEL_SLEEPS_OFFSET // 8] = 1
    bench.post(op.NOP, event=True)
    bench.settle()
    assert bench.interrupts == 1


def test_a_full_event_queue_loses_nothing(bench: Bench):
    for token in range(60):
        bench.post(op.NOP, event=True, token=token)
        bench.settle()
    assert bench.device.next_deadline_ns() == bench.now + 1_000_000
    tokens = []
    for _ in range(3):
        tokens += [eqe.EQE_COMMAND.unpack_from(e)[0] for e in bench.events(reg.COMMAND_EQ)]
        bench.settle()
    assert tokens == list(range(60))
    assert bench.device.next_deadline_ns() is None
    assert bench.device.inspect()["events"]["queues"]["2"]["fulls"] == 1


def test_event_queue_commands_check(bench: Bench):
    key, _ = bench.region(PAGE)
    context = abi.EqContext(0, 0, 5 << 24, 0, 0, PD, key)

    def give(number: int, **changes: int) -> int:
        inbox = abi.EQ_CONTEXT.pack(*context._replace(**changes))
        return bench.run(op.SW2HW_EQ, modifier=number, inbox=inbox)

    assert give(0) == op.CMD_STAT_BAD_RES_STATE
    assert give(32) == op.CMD_STAT_BAD_INDEX
    assert give(5, log_size=8 << 24) == op.CMD_STAT_BAD_PARAM  # 256 entries need two pages
    assert give(5, log_size=0xFF << 24) == op.CMD_STAT_BAD_PARAM
    assert give(5, pd=1) == op.CMD_STAT_BAD_PARAM
    assert give(5, lkey=key ^ 0x100) == op.CMD_STAT_BAD_PARAM
    assert give(5, start=8) == op.CMD_STAT_BAD_PARAM
    assert give(5) == op.CMD_STAT_OK
    index = bench.tables.translation.index_of(key)
    assert bench.run(op.HW2SW_MPT, modifier=index) == op.CMD_STAT_RESOURCE_BUSY
    bench.ok(op.QUERY_EQ, modifier=5)
    assert abi.EqContext(*abi.EQ_CONTEXT.unpack(bench.out(64))).lkey == key
    bench.ok(op.HW2SW_EQ, modifier=5)
    bench.ok(op.HW2SW_MPT, modifier=index)
    for opcode in (op.HW2SW_EQ, op.QUERY_EQ):
        assert bench.run(opcode, modifier=5) == op.CMD_STAT_BAD_RES_STATE
    assert bench.run(op.MAP_EQ, modifier=5, in_param=2) == op.CMD_STAT_BAD_RES_STATE
    bench.ok(op.MAP_EQ, modifier=reg.ASYNC_EQ | op.MAP_EQ_UNMAP, in_param=0xFFFFFFFFFFFFFFFF)
    bench.ok(op.CLOSE_IB, modifier=1)
    assert bench.async_events() == []


# Completion queues


def test_arming_before_an_entry_gives_one_event(bench: Bench):
    cq = bench.make_cq()
    cq.arm()
    assert bench.completions() == []
    add(cq, 3)
    assert bench.completions() == [cq.cqn]
    assert [entry.wqe_index for entry in cq.poll()] == [0, 1, 2]


def test_arming_behind_an_entry_gives_the_event_at_once(bench: Bench):
    cq = bench.make_cq()
    add(cq, 2)
    cq.arm(consumer=1)
    assert bench.completions() == [cq.cqn]
    cq.poll()
    cq.arm()
    assert bench.completions() == []


@pytest.mark.parametrize("solicited", [False, True])
def test_what_was_polled_before_the_arm_is_seen_raises_no_event(bench: Bench, solicited: bool):
    cq = bench.make_cq()
    add(cq, 2, solicited=1)
    cq.ring_arm(consumer=1, solicited=solicited)
    cq.poll()
    bench.settle()
    assert bench.completions() == []
    add(cq, 1, solicited=1)
    assert bench.completions() == [cq.cqn]  # it is armed


def test_solicited_arms_wait_for_solicited_entries_or_errors(bench: Bench):
    cq = bench.make_cq()
    add(cq, 1, solicited=1)
    add(cq, 1)
    cq.poll()
    cq.arm(solicited=True)
    add(cq, 2)
    assert bench.completions() == []
    cq.arm(solicited=True, consumer=1)  # entry 0 was the solicited one
    assert bench.completions() == []
    add(cq, 1, solicited=1)
    assert bench.completions() == [cq.cqn]
    cq.poll()
    cq.arm(solicited=True)
    cq.queue.post(5, 0, 4, is_send=1)
    assert bench.completions() == [cq.cqn]


def test_arming_again_widens_and_never_narrows(bench: Bench):
    cq = bench.make_cq()
    cq.arm(solicited=True)
    cq.arm()
    cq.arm(solicited=True)
    add(cq, 1)
    assert bench.completions() == [cq.cqn]


def test_the_same_arm_word_rung_twice_arms_once(bench: Bench):
    cq = bench.make_cq()
    cq.arm()
    add(cq, 1)
    assert bench.completions() == [cq.cqn]
    bench.ring(bells.RING_CQ_ARM, cq.arm_slot)
    assert bench.completions() == []


def test_an_overrun_kills_the_queue_and_says_so(bench: Bench):
    cq = bench.make_cq(log_size=2)
    assert add(cq, 3) == [True] * 3
    assert add(cq, 2) == [False] * 2
    bench.settle()
    (entry,) = bench.events(reg.ASYNC_EQ)
    assert (entry[1], *eqe.EQE_CQ_ERROR.unpack_from(entry)) == (4, cq.cqn, eqe.CQ_OVERRUN)
    cq.poll()
    assert add(cq, 1) == [False]
    cq.arm()
    assert bench.completions() == []
    bench.ok(op.QUERY_CQ, modifier=cq.cqn)
    assert abi.CqContext(*abi.CQ_CONTEXT.unpack(bench.out(64))).flags >> 28 == 9


def test_a_published_consumer_index_makes_room(bench: Bench):
    cq = bench.make_cq(log_size=2)
    for _ in range(20):
        assert add(cq, 3) == [True] * 3
        assert len(cq.poll()) == 3


def test_overrun_can_be_ignored(bench: Bench):
    cq = bench.make_cq(log_size=2, flags=abi.CQ_FLAG_IGNORE_OVERRUN)
    assert add(cq, 10) == [True] * 10
    assert bench.async_events() == []
    cq.consumer = 6
    assert [entry.wqe_index for entry in cq.poll()] == [6, 7, 8, 9]


@pytest.mark.parametrize("consumer", [1 << 63, 2**64 - 1, 12345])
def test_a_consumer_index_that_lies_hurts_nobody_else(bench: Bench, consumer: int):
    cq = bench.make_cq(log_size=2)
    bench.slots[bells.FIRST_SLOT_WORD + cq.consumer_slot] = consumer
    assert all(add(cq, 20))
    resize = abi.CQ_CONTEXT.pack(*cq.make_context(2))
    assert bench.run(op.RESIZE_CQ, modifier=cq.cqn, inbox=resize) == op.CMD_STAT_BAD_SIZE
    bench.ok(op.QUERY_CQ, modifier=cq.cqn)
    bench.ok(op.HW2SW_CQ, modifier=cq.cqn)


@pytest.mark.parametrize("new_log_size", [3, 4, 6])
def test_resizing_moves_what_is_not_polled(bench: Bench, new_log_size: int):
    cq = bench.make_cq(log_size=4)
    add(cq, 9)
    cq.poll()
    add(cq, 7)
    old = cq.key
    cq.key, bus = bench.region(CQE_SIZE << new_log_size)
    inbox = abi.CQ_CONTEXT.pack(*cq.make_context(new_log_size))
    bench.ok(op.RESIZE_CQ, modifier=cq.cqn, opmod=1, inbox=inbox)
    bench.ok(op.HW2SW_MPT, modifier=bench.tables.translation.index_of(old))
    cq.bus, cq.size = bus, 1 << new_log_size
    assert [entry.wqe_index for entry in cq.poll()] == list(range(7))
    assert all(add(cq, cq.size - 1))
    assert len(cq.poll()) == cq.size - 1


def test_resizing_refuses_what_does_not_fit_and_changes_nothing(bench: Bench):
    cq = bench.make_cq(log_size=4)
    add(cq, 8)
    key, _ = bench.region(PAGE)

    def resize(log_size: int, lkey: int = key) -> int:
        context = cq.make_context(log_size)._replace(lkey=lkey)
        return bench.run(op.RESIZE_CQ, modifier=cq.cqn, inbox=abi.CQ_CONTEXT.pack(*context))

    assert resize(3) == op.CMD_STAT_BAD_SIZE
    assert resize(18) == op.CMD_STAT_EXCEED_LIM
    assert resize(7) == op.CMD_STAT_BAD_PARAM  # the region holds 64
    assert resize(4, lkey=0x100) == op.CMD_STAT_BAD_PARAM
    bench.ok(op.HW2SW_MPT, modifier=bench.tables.translation.index_of(key))
    assert len(cq.poll()) == 8


def test_completion_queue_commands_check(bench: Bench):
    cq = bench.make_cq(cqn=200)

    def give(number: int, **changes: int) -> int:
        context = cq.context._replace(cqn=number, arm_slot=bench.slot())._replace(**changes)
        return bench.run(op.SW2HW_CQ, modifier=number, inbox=abi.CQ_CONTEXT.pack(*context))

    assert give(200) == op.CMD_STAT_BAD_RES_STATE
    assert give(512 + 200) == op.CMD_STAT_BAD_RES_STATE  # another generation
    assert give(127) == op.CMD_STAT_BAD_INDEX
    assert give(1 << 24 | 201) == op.CMD_STAT_BAD_INDEX
    assert give(201, cqn=202) == op.CMD_STAT_BAD_PARAM
    assert give(201, log_size_uar=4 << 24 | 77) == op.CMD_STAT_BAD_PARAM
    assert give(201, arm_slot=cq.arm_slot) == op.CMD_STAT_BAD_PARAM
    assert give(201, arm_slot=bells.SLOTS) == op.CMD_STAT_BAD_PARAM
    assert give(201, consumer_slot=0xFFFFFFFF) == op.CMD_STAT_BAD_PARAM
    assert give(201, log_size_uar=18 << 24 | UAR) == op.CMD_STAT_EXCEED_LIM
    assert give(201, start=32) == op.CMD_STAT_BAD_PARAM
    assert bench.run(op.QUERY_CQ, modifier=201) == op.CMD_STAT_BAD_RES_STATE
    assert bench.run(op.HW2SW_CQ, modifier=512 + 200) == op.CMD_STAT_BAD_INDEX
    bench.ok(op.HW2SW_CQ, modifier=200)
    assert bench.run(op.HW2SW_CQ, modifier=200) == op.CMD_STAT_BAD_RES_STATE
    assert give(200 + 512) == op.CMD_STAT_OK


def test_a_read_only_key_takes_no_completions(bench: Bench):
    cq = bench.make_cq()
    bus = bench.pages(1)
    flags = RIGHTS & ~abi.MPT_FLAG_LOCAL_WRITE
    key = bench.mpt([bus], PAGE, flags=flags)
    context = cq.context._replace(cqn=201, lkey=key, arm_slot=bench.slot())
    inbox = abi.CQ_CONTEXT.pack(*context)
    assert bench.run(op.SW2HW_CQ, modifier=201, inbox=inbox) == op.CMD_STAT_BAD_PARAM


def test_query_shows_producer_and_arm_state(bench: Bench):
    cq = bench.make_cq()
    states = []
    for solicited in (True, False):
        cq.arm(solicited=solicited)
        bench.ok(op.QUERY_CQ, modifier=cq.cqn)
        states.append(abi.CqContext(*abi.CQ_CONTEXT.unpack(bench.out(64))).flags)
    add(cq, 2)
    bench.ok(op.QUERY_CQ, modifier=cq.cqn)
    live = abi.CqContext(*abi.CQ_CONTEXT.unpack(bench.out(64)))
    assert states == [abi.CQ_STATE_ARMED_SOLICITED, abi.CQ_STATE_ARMED]
    assert (live.flags, live.producer, live.consumer) == (abi.CQ_STATE_FIRED, 2, 0)


def test_scattered_pages_hold_a_queue_and_none_is_written_beyond(bench: Bench):
    pages = [bench.pages(1) for _ in range(8)]
    order = pages[::-2]
    key = bench.mpt(order, 4 * PAGE)
    cq = BenchCq.__new__(BenchCq)
    cq.bench, cq.cqn, cq.size, cq.key, cq.consumer = bench, 210, 256, key, 0
    cq.consumer_slot, cq.arm_slot = bench.slot(), bench.slot()
    inbox = abi.CQ_CONTEXT.pack(*cq.make_context(8))
    bench.ok(op.SW2HW_CQ, modifier=210, inbox=inbox)
    assert all(add(cq, 255))
    for number, page in enumerate(order):
        cq.bus, cq.size = page, 64
        first = number * 64
        for position in range(first, min(first + 64, 255)):
            entry = cq.entry(position)
            assert entry is not None
            assert entry.wqe_index == position
    for page in set(pages) - set(order):
        assert not any(bench.at(page, PAGE))


def test_a_segment_that_goes_takes_its_queues_memory_along(bench: Bench):
    memory = memoryview(bytearray(PAGE))
    bench.device.add_segment(9, memory)
    key = bench.mpt([9 << 48], PAGE)
    cq = bench.make_cq()
    context = cq.context._replace(cqn=220, lkey=key, arm_slot=bench.slot())
    bench.ok(op.SW2HW_CQ, modifier=220, inbox=abi.CQ_CONTEXT.pack(*context))
    queue = bench.tables.cqs.find(220)
    assert queue is not None
    assert queue.post(1, 1, 0, is_send=1)
    bench.device.remove_segment(9)
    memory.release()  # nobody has a view of it any more
    assert not queue.post(1, 1, 0, is_send=1)
    assert bench.async_events() == [(eqe.EVENT_CQ_ERROR, 220)]
    bench.ok(op.HW2SW_CQ, modifier=220)


# Shared receive queues


def make_srq(bench: Bench, srqn: int = 70, **changes: int) -> abi.SrqContext:
    key, _ = bench.region(16 * 64)
    values = {"srqn": srqn, "pd": PD, "uar": UAR, "wqe_lkey": key, "entries": 16, "stride": 64}
    context = abi.SrqContext(**{**values, "slot": bench.slot(), "limit": 0, **changes})
    assert bench.run(op.SW2HW_SRQ, modifier=srqn, inbox=abi.SRQ_CONTEXT.pack(*context)) == 0
    return context


def test_the_limit_event_comes_once(bench: Bench):
    context = make_srq(bench)
    srq = bench.tables.srqs.find(70)
    assert srq is not None
    assert srq.next_entry() is None
    bench.ring(bells.RING_SRQ, context.slot, 5)
    bench.ok(op.ARM_SRQ, modifier=70, in_param=4)
    assert srq.next_entry() == 0
    assert bench.async_events() == []
    assert srq.next_entry() == 1
    assert bench.async_events() == [(eqe.EVENT_SRQ_LIMIT, 70)]
    assert srq.next_entry() == 2
    assert bench.async_events() == []
    bench.ok(op.QUERY_SRQ, modifier=70)
    live = abi.SrqContext(*abi.SRQ_CONTEXT.unpack(bench.out(48)))
    assert (live.limit, live.posted) == (0, 2)


def test_an_srq_whose_index_cannot_be_is_told_once(bench: Bench):
    context = make_srq(bench)
    for word in (17, 3, 99):
        bench.ring(bells.RING_SRQ, context.slot, word)
        bench.settle()
    assert bench.async_events() == [(eqe.EVENT_SRQ_CATASTROPHIC, 70)]


def test_shared_receive_queue_commands_check(bench: Bench):
    context = make_srq(bench)

    def give(number: int = 71, **changes: int) -> int:
        new = context._replace(srqn=number, slot=bench.slot())._replace(**changes)
        return bench.run(op.SW2HW_SRQ, modifier=number, inbox=abi.SRQ_CONTEXT.pack(*new))

    assert give(70) == op.CMD_STAT_BAD_RES_STATE
    assert give(5) == op.CMD_STAT_BAD_INDEX
    assert give(srqn=72) == op.CMD_STAT_BAD_PARAM
    assert give(entries=15) == op.CMD_STAT_BAD_PARAM
    assert give(entries=0) == op.CMD_STAT_BAD_PARAM
    assert give(entries=1 << 20) == op.CMD_STAT_BAD_PARAM
    assert give(stride=32) == op.CMD_STAT_BAD_PARAM
    assert give(stride=96) == op.CMD_STAT_BAD_PARAM
    assert give(limit=17) == op.CMD_STAT_BAD_PARAM
    assert give(uar=99) == op.CMD_STAT_BAD_PARAM
    assert give(slot=bells.SLOTS) == op.CMD_STAT_BAD_PARAM
    assert give(slot=context.slot) == op.CMD_STAT_BAD_PARAM
    assert give(wqe_lkey=0x100) == op.CMD_STAT_BAD_PARAM
    assert give(flags=abi.SRQ_IS_XRC, cqn=300) == op.CMD_STAT_BAD_RES_STATE
    assert bench.run(op.ARM_SRQ, modifier=70, in_param=17) == op.CMD_STAT_BAD_PARAM
    cq = bench.make_cq(cqn=210)
    assert give(flags=abi.SRQ_IS_XRC, cqn=210) == op.CMD_STAT_OK
    assert bench.run(op.HW2SW_CQ, modifier=210) == op.CMD_STAT_RESOURCE_BUSY
    bench.ok(op.HW2SW_SRQ, modifier=71)
    bench.ok(op.HW2SW_CQ, modifier=cq.cqn)
    assert bench.run(op.HW2SW_SRQ, modifier=71) == op.CMD_STAT_BAD_RES_STATE


# Sweeps and doorbells


def test_reset_sweeps_the_entries_of_the_queue_pair_alone(bench: Bench):
    qp = bench.make_qp()
    add(qp.cq, 3, qpn=5)
    add(qp.cq, 4, qpn=qp.qpn)
    add(qp.cq, 2, qpn=6)
    qp.cq.consumer = 1
    qp.cq.publish()
    assert qp.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
    names = [entry.qpn for entry in qp.cq.poll()]
    assert names == [5, 5, SWEPT_QPN, SWEPT_QPN, SWEPT_QPN, SWEPT_QPN, 6, 6]
    assert all(add(qp.cq, 3))


def test_a_ring_that_ran_over_is_found_by_a_scan(bench: Bench):
    qp = bench.make_qp()
    qp.bring(table.ERR)
    qp.post(bells.RING_SEND, 2, ring=False)
    qp.post(bells.RING_RECEIVE, 3, ring=False)
    bench.slots[bells.RUNG_WORD] += bells.RING_ENTRIES
    bench.settle()
    assert len(qp.cq.poll()) == 5
    assert bench.device.inspect()["doorbells"][str(UAR)]["scans"] == 1


def test_every_entry_of_a_nearly_full_ring_is_seen(bench: Bench):
    cqs = [bench.make_cq(cqn=200 + n) for n in range(8)]
    for round_ in range(bells.RING_ENTRIES // 8 - 1):
        for cq in cqs:
            word = (round_ + 1) << bells.ARM_SEQUENCE_SHIFT
            bench.ring(bells.RING_CQ_ARM, cq.arm_slot, word)
    bench.settle()
    page = bench.device.inspect()["doorbells"][str(UAR)]
    assert (page["rings"], page["scans"]) == ((bells.RING_ENTRIES // 8 - 1) * 8, 0)
    for cq in cqs:
        add(cq, 1)
    assert sorted(bench.completions()) == [cq.cqn for cq in cqs]


def test_a_session_rings_its_own_queues_only(bench: Bench):
    other = memoryview(bytearray(bells.SEGMENT_LENGTH))
    bench.device.add_doorbells(UAR + 1, other)
    qp = bench.make_qp()
    qp.bring(table.ERR)
    qp.post(bells.RING_SEND, 1, ring=False)
    words = other.cast("Q")
    words[bells.RING_WORD] = bells.RING_SEND << bells.KIND_SHIFT | qp.send_slot
    words[bells.RUNG_WORD] = 1
    bench.settle()
    assert qp.cq.poll() == []
    assert bench.device.inspect()["doorbells"][str(UAR + 1)]["unknown"] == 1


def test_a_session_that_went_leaves_queues_that_can_be_destroyed(bench: Bench):
    qp = bench.make_qp()
    qp.post(bells.RING_SEND, 4)
    bench.device.remove_doorbells(UAR)
    qp.bring(table.ERR)
    bench.settle()
    assert qp.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
    bench.ok(op.HW2SW_CQ, modifier=qp.cq.cqn)


def test_a_silent_session_gets_its_turn_beside_a_loud_one(bench: Bench):
    loud = bench.make_qp(qpn=2000, cq=bench.make_cq(cqn=300, log_size=10), entries=512)
    quiet = bench.make_qp(qpn=2001)
    for qp in (loud, quiet):
        qp.bring(table.ERR)
    loud.post(bells.RING_SEND, 500)
    quiet.post(bells.RING_SEND, 1)
    bench.device.run_once()
    assert len(quiet.cq.poll()) == 1
    assert 0 < len(loud.cq.poll()) < 100
    bench.settle()
    assert bench.device.inspect()["flushed"] == 501


@pytest.mark.parametrize(("source", "opcode", "is_send"), [(0, 2, 1), (0xFFFFFF, 0x80, 0)])
def test_the_short_way_to_add_an_entry_writes_the_same(
    bench: Bench, source: int, opcode: int, is_send: int
):
    cq = bench.make_cq()
    assert cq.queue.add_plain(2000, 5 | 7 << 32, 4096, source, opcode, is_send)
    assert cq.queue.post(2000, 5, 0, is_send=is_send, opcode=opcode, byte_len=4096, src_qp=source)
    first, second = cq.poll()
    assert first == second
    assert len(first) == 17
