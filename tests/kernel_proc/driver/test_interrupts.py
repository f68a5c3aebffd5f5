"""From the interrupt line to who is told: event queues, DPCs, what the HCA says of itself."""

import os
from typing import Any

import pytest

from kernel_proc.driver.event_queue import SPARE_ENTRIES, EventQueue, log_size_for
from kernel_proc.driver.interrupt_dpc import DRAIN_LIMIT_NS
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi.registers import ASYNC_EQ, COMPLETION_EQ
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.nt_status import STATUS_IO_DEVICE_ERROR
from shared.verb_codes import IOCTL_ALLOC_PD, IOCTL_QUERY_PORT, IOCTL_REG_MR
from shared.verb_messages import PortQuery, RegMr
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, good, verb


class Told:
    """Event sinks that remember, and check the IRQL."""

    def __init__(self, box: HcaBox) -> None:
        self.box = box
        self.events: list[tuple[Any, ...]] = []
        box.life.event_sinks = self  # type: ignore[assignment] # what is not told is not asked

    def context_closing(self, context: Any) -> None:
        """Come at PASSIVE_LEVEL, from a file."""

    def device_fatal(self) -> None:
        self.events.append(("device_fatal",))

    def __getattr__(self, name: str) -> Any:
        def tell(*arguments: Any) -> None:
            assert self.box.processor.irql == DISPATCH_LEVEL
            self.events.append((name, *arguments))

        return tell


def let_run(box: HcaBox) -> None:
    """Have the HCA take a look and the kernel hear of it."""
    session = box.sessions[0] if box.sessions else box.session()
    good(session, IOCTL_QUERY_PORT, PortQuery(1))


def test_each_event_goes_where_it_belongs(box: HcaBox):
    let_run(box)
    told = Told(box)
    events = box.hca.tables.events
    events.completion(COMPLETION_EQ, 0x1234)
    events.cq_error(0x55, eqe.CQ_OVERRUN)
    events.queue_pair(eqe.EVENT_ACCESS_ERROR, 0x123456)
    events.queue_pair(eqe.EVENT_LAST_WQE_REACHED, 7)
    events.shared_receive_queue(eqe.EVENT_SRQ_LIMIT, 9)
    events.port(2, eqe.PORT_DOWN)
    let_run(box)
    assert sorted(told.events) == sorted(
        [
            ("completion", 0x1234),
            ("cq_error", 0x55, eqe.CQ_OVERRUN),
            ("qp_event", 0x123456, eqe.EVENT_ACCESS_ERROR),
            ("qp_event", 7, eqe.EVENT_LAST_WQE_REACHED),
            ("srq_event", 9, eqe.EVENT_SRQ_LIMIT),
            ("port_event", 2, eqe.PORT_DOWN),
        ]
    )


def test_every_completion_of_a_flood_is_told_in_order(box: HcaBox):
    let_run(box)
    told = Told(box)
    for cqn in range(3000):
        box.hca.tables.events.completion(COMPLETION_EQ, cqn)
    let_run(box)
    assert [event[1] for event in told.events] == list(range(3000))
    queues = box.hca.tables.events.inspect()["queues"]
    assert queues["0"]["consumer"] == queues["0"]["producer"] >= 3000  # type: ignore[index]


def test_more_asynchronous_events_than_the_queue_holds(box: HcaBox):
    let_run(box)
    told = Told(box)
    for qpn in range(1000):
        box.hca.tables.events.queue_pair(eqe.EVENT_SQ_DRAINED, qpn)
    assert box.hca.tables.events.stuck
    box.processor.run_until(lambda: len(told.events) == 1000)
    assert {event[1] for event in told.events} == set(range(1000))


def test_events_whose_interrupt_is_lost_are_found_by_the_watch(
    box: HcaBox, monkeypatch: pytest.MonkeyPatch
):
    let_run(box)
    told = Told(box)
    monkeypatch.setattr(type(box.hca), "_raise_line", lambda device: None)
    assert box.life.interrupts is not None
    box.life.interrupts.watch(5_000_000_000)
    begin = box.processor.clock.now_ns()
    box.hca.tables.events.completion(COMPLETION_EQ, 0x1234)
    box.processor.run_until(lambda: bool(told.events))
    assert told.events == [("completion", 0x1234)]
    assert box.processor.clock.now_ns() - begin <= 5_000_000_000
    assert box.life.inspect()["interrupts"]["found_by_looking"] == 1
    assert box.life.interrupts._watch.is_set
    box.life.stop_interrupts()
    assert not box.life.interrupts._watch.is_set


def test_a_dpc_that_takes_too_long_queues_itself_again(box: HcaBox):
    let_run(box)
    told = Told(box)
    clock: Any = box.processor.clock
    slow: list[int] = []

    def completion(cqn: int) -> None:
        slow.append(cqn)
        clock.advance_to(clock.now_ns() + DRAIN_LIMIT_NS // 100)

    told.__dict__["completion"] = completion
    for cqn in range(300):
        box.hca.tables.events.completion(COMPLETION_EQ, cqn)
    let_run(box)
    assert slow == list(range(300))
    assert box.life.inspect()["interrupts"]["requeued"] == 2


def test_an_event_of_an_unknown_type_is_logged(box: HcaBox):
    let_run(box)
    told = Told(box)
    box.hca.tables.events.map_types(1 << 0x0D, ASYNC_EQ)
    box.hca.tables.events.queue_pair(0x0D, 5)
    let_run(box)
    assert told.events == []
    assert any("type 0xd is not known" in line for line in box.lines)


@pytest.mark.parametrize("events", [1, 128, 129, 65536])
def test_queues_have_spare_entries(events: int):
    assert 1 << log_size_for(events) >= events + SPARE_ENTRIES
    assert 1 << log_size_for(events) < 2 * (events + SPARE_ENTRIES)


def test_the_consumer_index_is_published_in_time(box: HcaBox):
    life = box.life
    buffer = life.buffers.allocate_pages(1024 * 32)
    registers = memoryview(bytearray(4096))
    queue = EventQueue(5, 10, buffer, registers)
    assert queue.take() is None
    views = buffer.views()
    for number in range(300):
        view, place = views[number // 128], number % 128 * 32
        view[place : place + 32] = number.to_bytes(31, "big") + b"\0"
        assert queue.has_entry()
        entry = queue.take()
        assert entry is not None
        assert int.from_bytes(entry[:31], "big") == number
        published = int.from_bytes(registers[0x800 + 40 : 0x800 + 48], "little")
        assert queue.consumed - published < SPARE_ENTRIES
        assert view[place + 31] == 0x80
    life.buffers.free(buffer)


# Death and reset


def test_death_is_told_once_and_everything_is_refused(box: HcaBox, session: HcaSession):
    told = Told(box)
    box.link.kill("for the test")
    box.link.kill("once more")
    box.extension.fail("and again")
    assert told.events == [("device_fatal",)]
    assert verb(session, IOCTL_ALLOC_PD, None).reason == VerbReason.DEVICE_FATAL
    assert session.try_open() == (STATUS_IO_DEVICE_ERROR, 0)
    assert sum("the HCA is dead, 1 contexts with it" in line for line in box.lines) == 1


def test_a_catastrophic_error_is_found_at_its_interrupt(box: HcaBox, session: HcaSession):
    def fault(*_: Any) -> None:
        raise ZeroDivisionError

    box.at_command(0, fault)
    answer = verb(session, IOCTL_QUERY_PORT, PortQuery(1))
    assert answer.reason == VerbReason.DEVICE_FATAL
    assert box.life.dead
    assert any("error buffer" in line or "catastrophic" in line for line in box.lines)


def test_after_a_reset_old_contexts_stay_dead(box: HcaBox, session: HcaSession):
    pd = good(session, IOCTL_ALLOC_PD).handle
    address = session.private_buffer(4096)
    old = good(session, IOCTL_REG_MR, RegMr(pd, address, 4096, address, 0))
    old_handle = session.handle
    assert box.processor.run_thread(box.extension.reset)
    assert verb(session, IOCTL_ALLOC_PD, None).reason == VerbReason.DEVICE_FATAL
    grant = box.processor.run_thread(box.doorbells.open, session.process, session.lane)
    for descriptor in grant.descriptors:
        os.close(descriptor)
    session.open()
    pd = good(session, IOCTL_ALLOC_PD).handle
    new = good(session, IOCTL_REG_MR, RegMr(pd, address, 4096, address, 0))
    assert new.lkey == old.lkey  # the same entry, in another life
    assert session.process.locked_pages == 2
    session.close(old_handle)  # takes nothing from the life that came after it
    assert session.process.locked_pages == 1
    translation = box.hca.tables.translation
    assert translation.entry(translation.index_of(new.lkey)) is not None
    assert len(box.extension.inspect()["hca"]["contexts"]) == 1
    assert box.extension.inspect()["resets"] == 1


def test_resets_leak_nothing(box: HcaBox):
    used = box.memory.used
    for _ in range(3):
        assert box.processor.run_thread(box.extension.reset)
        assert box.memory.used == used
