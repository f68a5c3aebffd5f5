"""No wake-up is lost: user, HCA and driver in every order in which their steps can fall.

The user polls, finds nothing, arms (word, ring entry, counter), and waits. The HCA stores an entry
and then looks whether the queue is armed. The driver's DPC latches the event. The HCA stores after
`stored` steps of the user, looks after `looked`, and the DPC runs after `latched`; every order of
the three is forced, the user's steps in between being done at that very place inside the HCA.
"""

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement, product
from typing import Any

import pytest

from kernel_proc.driver.cq_verbs import Cq
from kernel_proc.driver.event_latch import EventKind
from kernel_proc.driver.notification import Notification
from kernel_proc.io_manager.cancel_safe_queue import CancelSafeQueue
from kernel_proc.io_manager.cancellation import cancel_irp
from kernel_proc.io_manager.irp import (
    Irp,
    allocate_irp,
    set_completion_routine,
    set_next_irp_stack_location,
)
from shared import verb_codes as codes
from shared.doorbell_layout import (
    ARM_SEQUENCE_SHIFT,
    ARM_SOLICITED,
    KIND_SHIFT,
    RING_CQ_ARM,
    RING_ENTRIES,
    RING_WORD,
    RUNG_WORD,
)
from shared.message_codec import decode
from shared.nt_status import STATUS_MORE_PROCESSING_REQUIRED, STATUS_SUCCESS
from shared.verb_codes import VERB_RESULT
from shared.verb_messages import COMPLETION_EVENT, Event, Object
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import ERR, INIT, RC, CqUser, QpUser, QueueUser

STATE, TO_INIT = 0x1, 0x39
STEPS = 5  # poll, arm word, ring entry, counter, wait
PLACES = list(combinations_with_replacement(range(STEPS + 1), 3))
WAYS = list(product((False, True), repeat=3))  # solicited only; own request; doorbells served


def test_every_order_is_there():
    assert len(PLACES) == 56
    assert len(PLACES) * len(WAYS) == 448


class Waiter:
    """A request of the driver's own kind, which needs no thread to wait in."""

    def __init__(self, box: HcaBox) -> None:
        self.irp: Irp = allocate_irp(box.processor, 1)
        self.irp.system_buffer = bytearray(256)
        self.events: list[Event] = []
        set_completion_routine(self.irp, self._completed)
        set_next_irp_stack_location(self.irp)

    def _completed(self, device: Any, irp: Irp, context: Any) -> int:
        if irp.status == STATUS_SUCCESS:
            event = decode(bytes(irp.system_buffer[VERB_RESULT.size : irp.information]))
            assert isinstance(event, Event)
            self.events.append(event)
        return STATUS_MORE_PROCESSING_REQUIRED


class HookedWords:
    """The words of a queue's page; a hook is called when one has been stored."""

    def __init__(self, words: memoryview, hook: Callable[[], None]) -> None:
        self._words = words
        self._hook = hook

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value
        self._hook()

    def release(self) -> None:
        self._words.release()


class Race:
    """One CQ, one QP in ERR whose next receive entry is flushed at once, one user."""

    def __init__(self, user: QueueUser, solicited: bool, own: bool) -> None:
        self.user = user
        self.solicited = solicited
        self.cq: CqUser = user.cq()
        self.qp: QpUser = user.qp(self.cq, RC)
        user.modify(self.qp.handle, TO_INIT, qp_state=INIT)
        user.modify(self.qp.handle, STATE, qp_state=ERR)
        context = user.session.context
        sinks = context.driver.event_sinks
        assert isinstance(sinks, Notification)
        self.sinks = sinks
        self.events = sinks.events_of(context)
        self.resource: Cq = context.find(Cq, self.cq.handle)
        self.latch = self.resource.latch if own else None
        self.waiter = Waiter(user.box)
        self.done = 0
        self.polled = False

    # The user

    def advance(self, until: int) -> None:
        """Do the user's steps up to a number of them."""
        while self.done < until:
            self.done += 1
            getattr(self, f"step_{self.done}")()

    def step_1(self) -> None:
        self.polled = self.cq.poll() is not None

    def step_2(self) -> None:
        word = 1 << ARM_SEQUENCE_SHIFT | self.cq.consumer
        slot = self.cq.created.arm_slot
        self.cq.doorbells.store(slot, word | (ARM_SOLICITED if self.solicited else 0))

    def step_3(self) -> None:
        words = self.cq.doorbells.words
        entry = RING_CQ_ARM << KIND_SHIFT | self.cq.created.arm_slot
        words[RING_WORD + words[RUNG_WORD] % RING_ENTRIES] = entry

    def step_4(self) -> None:
        self.cq.doorbells.words[RUNG_WORD] += 1

    def step_5(self) -> None:
        self.sinks.pend(self.waiter.irp, EventKind.CQ_COMPLETION, self.events, self.latch)

    # The HCA and the driver

    def store_entry(self, looked: int) -> None:
        """Have the HCA flush an entry, the user going on while it has not looked yet."""
        device = self.user.box.hca
        cq = device.tables.cqs.find(self.cq.number)
        assert cq is not None
        words = cq.buffer.words
        cq.buffer.words = [HookedWords(page, lambda: self.advance(looked)) for page in words]  # type: ignore[misc]  # stands in for memory
        assert self.qp.receive is not None
        slot = self.qp.receive.slot
        self.qp.receive.posted += 1
        self.cq.doorbells.store(slot, self.qp.receive.posted)
        # Without ringing, which would be a store into the ring beside the user's own.
        queue = device.tables.qps.find(self.qp.number)
        assert queue is not None
        assert queue.receive is not None
        queue.receive.rung()
        while device.tables.rounds.turn():
            pass
        cq.buffer.words = words
        if device.tables.events.raised:
            device.run_once()

    def latch_event(self) -> None:
        """Have the interrupt taken and its DPC run."""
        self.user.box.processor.run_thread(lambda: None)

    def run(self, stored: int, looked: int, latched: int, served: bool) -> None:
        self.advance(stored)
        if served:  # the HCA has seen what was rung, and looks at the queues afterwards
            self.user.box.hca.tables.doorbells.serve()
        self.store_entry(looked)
        self.advance(looked)
        self.advance(latched)
        self.latch_event()
        self.advance(STEPS)
        self.user.settle()


@pytest.fixture(scope="module")
def user() -> Iterator[QueueUser]:
    with HcaBox() as box:
        yield QueueUser(box)


@pytest.mark.parametrize(("solicited", "own", "served"), WAYS)
def test_whoever_polled_in_vain_is_woken(user: QueueUser, solicited: bool, own: bool, served: bool):
    woken = 0
    for stored, looked, latched in PLACES:
        race = Race(user, solicited, own)
        race.run(stored, looked, latched, served)
        where = (stored, looked, latched)
        assert race.done == STEPS
        if race.polled:
            assert stored == 0, where
            assert not race.waiter.events, where  # there is nothing left to be woken for
            assert cancel_irp(race.waiter.irp)
            continue
        woken += 1
        assert race.waiter.events == [Event(COMPLETION_EVENT, race.cq.handle, 0, 1)], where
        assert race.cq.poll() is not None, where
        assert race.resource.latch.completion_events == 1
    assert woken == 35  # all but those where the entry was there before the poll


def test_a_new_cq_tells_nothing_before_it_is_armed(user: QueueUser):
    # N1
    race = Race(user, False, True)
    race.step_5()
    race.store_entry(0)
    user.settle()
    assert not race.waiter.events
    race.advance(4)
    assert race.polled


def test_one_arm_is_one_event(user: QueueUser):
    race = Race(user, False, True)
    race.cq.arm()
    user.settle()
    assert race.qp.receive is not None
    for _ in range(3):
        race.qp.receive.post()
    user.settle()
    first = user.good(codes.IOCTL_GET_CQ_COMP_EVENT, Object(race.cq.handle))
    assert first.count == 1
    assert len(race.cq.poll_all()) == 3
    race.step_5()
    user.settle()
    assert not race.waiter.events


def test_what_is_armed_late_is_told_at_once(user: QueueUser):
    # N3: nothing was found, an entry came, then the CQ is armed.
    race = Race(user, False, True)
    race.store_entry(0)
    user.settle()
    race.step_5()
    race.cq.arm()
    user.settle()
    assert len(race.waiter.events) == 1


@pytest.mark.parametrize("before", [True, False])
def test_the_pause_points_of_the_driver_are_real(
    user: QueueUser, monkeypatch: pytest.MonkeyPatch, before: bool
):
    # The event comes between the queueing of the request and its matching, or right before it.
    race = Race(user, False, True)
    race.cq.arm()
    user.settle()
    insert = CancelSafeQueue.insert

    def paused(queue: CancelSafeQueue, irp: Irp, *more: Any) -> None:
        if before:
            race.store_entry(0)
            race.latch_event()
        insert(queue, irp, *more)
        if not before:
            race.store_entry(0)
            race.latch_event()

    monkeypatch.setattr(CancelSafeQueue, "insert", paused)
    race.step_5()
    monkeypatch.undo()
    assert len(race.waiter.events) == 1
