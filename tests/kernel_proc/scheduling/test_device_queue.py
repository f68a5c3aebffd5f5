"""Device queues: busy, order, keys and levels."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
)
from kernel_proc.scheduling.device_queue import (
    DEVICE_QUEUE_OBJECT_TYPE,
    SIZE_OF_DEVICE_QUEUE,
    DeviceQueue,
    DeviceQueueEntry,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.processor import Processor


@pytest.fixture
def queue(processor: Processor) -> Iterator[DeviceQueue]:
    """A queue used at DISPATCH_LEVEL, as it must be, and left there."""
    processor.raise_irql(DISPATCH_LEVEL)
    yield DeviceQueue(processor)
    assert processor.irql == DISPATCH_LEVEL


def entries(*names: str) -> list[DeviceQueueEntry]:
    return [DeviceQueueEntry(name) for name in names]


def names(queue: DeviceQueue) -> list[str]:
    return [entry.owner for entry in queue.entries]


def test_w21_a_new_queue(queue: DeviceQueue):
    assert queue.busy is False
    assert not queue.entries
    assert (queue.type, queue.size) == (DEVICE_QUEUE_OBJECT_TYPE, SIZE_OF_DEVICE_QUEUE)
    assert queue.type == 0x14


def test_w21b_the_first_insertion_makes_it_busy_and_inserts_nothing(queue: DeviceQueue):
    (entry,) = entries("first")
    assert queue.insert(entry) is False
    assert entry.inserted is False
    assert not queue.entries
    assert queue.busy is True


def test_w21c_the_next_is_inserted(queue: DeviceQueue):
    first, second = entries("first", "second")
    queue.insert(first)
    assert queue.insert(second) is True
    assert second.inserted is True
    assert names(queue) == ["second"]


def test_w21d_entries_come_in_order_and_the_last_removal_makes_it_idle(queue: DeviceQueue):
    served, second, third = entries("served", "second", "third")
    for entry in (served, second, third):
        queue.insert(entry)
    assert queue.remove() is second
    assert (second.inserted, queue.busy) == (False, True)
    assert queue.remove() is third
    assert queue.busy is True
    assert queue.remove() is None
    assert queue.busy is False
    assert queue.insert(second) is False  # from the start again


def test_by_key_an_idle_queue_takes_none_either(queue: DeviceQueue):
    (entry,) = entries("first")
    assert queue.insert_by_key(entry, 7) is False
    assert (entry.inserted, entry.sort_key, queue.busy) == (False, 7, True)


def test_by_key_equals_stay_in_order_of_arrival(queue: DeviceQueue):
    queue.insert(DeviceQueueEntry("served"))
    for name, key in [("b", 5), ("d", 9), ("a", 1), ("c", 5), ("e", 9), ("a2", 1)]:
        assert queue.insert_by_key(DeviceQueueEntry(name), key) is True
    assert names(queue) == ["a", "a2", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("key", "found"), [(0, "one"), (1, "one"), (2, "five"), (5, "five"), (6, "nine"), (10, "one")]
)
def test_removal_by_key_takes_the_next_key_and_starts_over(
    queue: DeviceQueue, key: int, found: str
):
    queue.insert(DeviceQueueEntry("served"))
    for name, own in [("one", 1), ("five", 5), ("five too", 5), ("nine", 9)]:
        queue.insert_by_key(DeviceQueueEntry(name), own)
    entry = queue.remove_by_key(key)
    assert entry is not None
    assert (entry.owner, entry.inserted, queue.busy) == (found, False, True)


def test_removal_by_key_of_nothing_makes_it_idle(queue: DeviceQueue):
    queue.insert(DeviceQueueEntry())
    assert queue.remove_by_key(3) is None
    assert queue.busy is False


def test_an_entry_can_be_taken_out_of_the_middle(queue: DeviceQueue):
    served, *others = entries("served", "a", "b", "c")
    for entry in (served, *others):
        queue.insert(entry)
    assert queue.remove_entry(others[1]) is True
    assert queue.remove_entry(others[1]) is False
    assert queue.remove_entry(served) is False  # it was never in
    assert names(queue) == ["a", "c"]
    assert queue.busy is True
    assert queue.insert(others[1]) is True
    assert names(queue) == ["a", "c", "b"]


def test_the_last_entry_taken_out_leaves_the_queue_busy(queue: DeviceQueue):
    served, waiting = entries("served", "waiting")
    queue.insert(served)
    queue.insert(waiting)
    queue.remove_entry(waiting)
    assert (queue.busy, names(queue)) == (True, [])
    assert queue.remove() is None


def test_it_shows_itself(queue: DeviceQueue):
    queue.insert(DeviceQueueEntry("served"))
    queue.insert_by_key(DeviceQueueEntry("waiting"), 4)
    assert queue.inspect() == {"busy": True, "entries": [(4, "waiting")]}


def insert(queue: DeviceQueue) -> None:
    queue.insert(DeviceQueueEntry())


def insert_by_key(queue: DeviceQueue) -> None:
    queue.insert_by_key(DeviceQueueEntry(), 1)


def remove(queue: DeviceQueue) -> None:
    queue.remove()


def remove_by_key(queue: DeviceQueue) -> None:
    queue.remove_by_key(1)


def remove_entry(queue: DeviceQueue) -> None:
    queue.remove_entry(DeviceQueueEntry())


@pytest.mark.parametrize("level", [PASSIVE_LEVEL, APC_LEVEL, HIGH_LEVEL])
@pytest.mark.parametrize("act", [insert, insert_by_key, remove, remove_by_key])
def test_verifier_wants_exactly_dispatch_level(
    checked: Processor, stops: Any, act: Any, level: int
):
    checked.raise_irql(level)
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x20003, level):
        act(DeviceQueue(checked))


def test_verifier_takes_an_entry_out_at_dispatch_level_or_below(checked: Processor, stops: Any):
    remove_entry(DeviceQueue(checked))
    checked.raise_irql(HIGH_LEVEL)
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x20011, HIGH_LEVEL):
        remove_entry(DeviceQueue(checked))


@pytest.mark.parametrize("act", [insert, insert_by_key, remove, remove_by_key, remove_entry])
def test_a_free_build_raises_the_level_itself_but_never_lowers_it(
    free: Processor, stops: Any, act: Any
):
    act(DeviceQueue(free))
    assert free.irql == PASSIVE_LEVEL
    free.raise_irql(HIGH_LEVEL)
    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, HIGH_LEVEL):
        act(DeviceQueue(free))


class Model:
    """What a device queue is: nothing is in it, or a list sorted by key and then by arrival."""

    def __init__(self) -> None:
        self.busy = False
        self.waiting: list[DeviceQueueEntry] = []

    def insert(self, entry: DeviceQueueEntry) -> bool:
        was_busy, self.busy = self.busy, True
        if was_busy:
            self.waiting.append(entry)
            self.waiting.sort(key=lambda one: one.sort_key)
        return was_busy

    def take(self, key: int) -> DeviceQueueEntry | None:
        if not self.waiting:
            self.busy = False
            return None
        later = [entry for entry in self.waiting if entry.sort_key >= key]
        found = later[0] if later else self.waiting[0]
        self.waiting.remove(found)
        return found

    def take_out(self, entry: DeviceQueueEntry) -> bool:
        if entry not in self.waiting:
            return False
        self.waiting.remove(entry)
        return True


keys = st.integers(0, 5)
operations = st.one_of(
    st.tuples(st.just("insert"), keys),
    st.tuples(st.just("remove"), st.just(0)),
    st.tuples(st.just("remove by key"), keys),
    st.tuples(st.just("take out"), st.integers(0, 30)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(operations, max_size=40), st.booleans())
def test_it_is_its_model(steps: list[tuple[str, int]], verifier: bool):
    processor = Processor(VirtualClock(), verifier=verifier)
    processor.raise_irql(DISPATCH_LEVEL)
    queue, model = DeviceQueue(processor), Model()
    made: list[DeviceQueueEntry] = []
    for what, number in steps:
        if what == "insert":
            entry = DeviceQueueEntry(len(made))
            made.append(entry)
            assert queue.insert_by_key(entry, number) is model.insert(entry)
        elif what == "remove":
            assert queue.remove() is model.take(0)
        elif what == "remove by key":
            assert queue.remove_by_key(number) is model.take(number)
        elif number < len(made):
            assert queue.remove_entry(made[number]) is model.take_out(made[number])
        assert (queue.busy, list(queue.entries)) == (model.busy, model.waiting)
        assert all(entry.inserted is (entry in model.waiting) for entry in made)
