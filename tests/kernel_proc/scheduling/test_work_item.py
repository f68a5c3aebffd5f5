"""Work items: who runs them, at which level, in which order, and with how many workers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.scheduling.apc import SpecialKernelApc
from kernel_proc.scheduling.bugcheck import (
    APC_INDEX_MISMATCH,
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    INVALID_WORK_QUEUE_ITEM,
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.wait import delay_execution
from kernel_proc.scheduling.work_item import (
    CRITICAL_WORK_QUEUE,
    DELAYED_WORK_QUEUE,
    HYPER_CRITICAL_WORK_QUEUE,
    MOST_WORKERS,
    WorkItem,
    WorkQueue,
    stop_service_threads,
    work_queues_of,
)

QUEUES = [CRITICAL_WORK_QUEUE, DELAYED_WORK_QUEUE, HYPER_CRITICAL_WORK_QUEUE]


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


def queue_of(processor: Processor, number: int = DELAYED_WORK_QUEUE) -> WorkQueue:
    return work_queues_of(processor).queues[number]


def workers(processor: Processor) -> list[KThread]:
    return [worker for number in QUEUES for worker in queue_of(processor, number).workers]


def note(processor: Processor, order: list[Any], name: Any, **more: Any) -> WorkItem:
    return WorkItem(processor, lambda *_: order.append(name), **more)


def settle(processor: Processor) -> None:
    """Run until the workers have nothing to do."""
    processor.run_until(
        lambda: (
            not any(
                queue.items or any(item is not None for item in queue.workers.values())
                for queue in work_queues_of(processor).queues
            )
        )
    )


@pytest.mark.parametrize(
    ("queue", "name", "priority"),
    [
        (CRITICAL_WORK_QUEUE, "critical worker", 13),
        (DELAYED_WORK_QUEUE, "delayed worker", 12),
        (HYPER_CRITICAL_WORK_QUEUE, "hypercritical worker", 15),
    ],
)
def test_it_runs_at_passive_level_in_a_system_worker(
    processor: Processor, queue: int, name: str, priority: int
):
    seen: list[Any] = []

    def routine(item: WorkItem, context: Any) -> None:
        thread = current(processor)
        seen.append((item, context, item.queued, processor.irql, thread.name, thread.priority))
        assert thread.is_system_thread
        assert not thread.are_all_apcs_disabled()

    item = WorkItem(processor, routine, "context", queue)
    item.insert()
    assert item.queued
    settle(processor)
    assert seen == [(item, "context", False, PASSIVE_LEVEL, name, priority)]


def test_delayed_is_the_queue_nobody_chose(processor: Processor):
    assert WorkItem(processor, print).queue == DELAYED_WORK_QUEUE


def test_a_thread_below_the_worker_is_overtaken_and_one_above_is_not(processor: Processor):
    order: list[str] = []

    def body(name: str) -> None:
        note(processor, order, f"work of {name}").insert()
        order.append(name)

    for name, priority in [("low", 8), ("high", 14)]:
        thread = create_system_thread(processor, body, name, priority=priority)
        processor.run_until(lambda thread=thread: thread.ended)
        settle(processor)
    assert order == ["work of low", "low", "high", "work of high"]


def test_the_queues_come_in_order_of_their_priorities(processor: Processor):
    order: list[int] = []

    def body() -> None:
        old = processor.raise_irql(DISPATCH_LEVEL)
        for queue in (DELAYED_WORK_QUEUE, CRITICAL_WORK_QUEUE, HYPER_CRITICAL_WORK_QUEUE):
            note(processor, order, queue, queue=queue).insert()
        processor.lower_irql(old)

    processor.run_thread(body)
    settle(processor)
    assert order == [HYPER_CRITICAL_WORK_QUEUE, CRITICAL_WORK_QUEUE, DELAYED_WORK_QUEUE]


def test_a_dpc_may_queue_one_which_runs_later_at_passive_level(processor: Processor):
    levels: list[int] = []
    item = WorkItem(processor, lambda *_: levels.append(processor.irql))

    def deferred(*_: Any) -> None:
        item.insert()
        assert not levels
        assert processor.irql == DISPATCH_LEVEL

    processor.run_thread(Dpc(processor, deferred).insert)
    settle(processor)
    assert levels == [PASSIVE_LEVEL]


@pytest.mark.parametrize("how", ["insert", "try_insert"])
def test_above_dispatch_level_it_cannot_be_queued(
    free: Processor, checked: Processor, stops: Any, how: str
):
    free.raise_irql(HIGH_LEVEL)
    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, HIGH_LEVEL):
        getattr(WorkItem(free, print), how)()
    checked.raise_irql(HIGH_LEVEL)
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0xE5, HIGH_LEVEL):
        getattr(WorkItem(checked, print), how)()


def test_queued_while_queued_is_bug_check_96(processor: Processor, stops: Any):
    item = WorkItem(processor, print)
    processor.raise_irql(DISPATCH_LEVEL)
    item.insert()
    with stops(INVALID_WORK_QUEUE_ITEM, id(item), DELAYED_WORK_QUEUE) as caught:
        item.insert()
    assert "queued while queued" in caught.value.text()


def test_try_insert_refuses_a_queued_one_and_changes_nothing(processor: Processor):
    order: list[str] = []
    item = note(processor, order, "run")
    processor.raise_irql(DISPATCH_LEVEL)
    assert item.try_insert() is True
    assert item.try_insert() is False
    processor.lower_irql(PASSIVE_LEVEL)
    settle(processor)
    assert order == ["run"]
    assert item.try_insert() is True
    settle(processor)
    assert order == ["run", "run"]


def test_its_routine_may_queue_it_again(processor: Processor):
    left = [3, 2, 1, 0]
    runs: list[int] = []

    def routine(item: WorkItem, context: Any) -> None:
        runs.append(left.pop(0))
        if left:
            item.insert()
            assert item.queued
        runs.append(-1)

    WorkItem(processor, routine).insert()
    settle(processor)
    assert runs == [3, -1, 2, -1, 1, -1, 0, -1]


def test_queued_again_while_its_routine_waits_it_runs_twice_at_once(processor: Processor):
    event = Event(processor, notification=True)
    inside: list[KThread] = []
    most: list[int] = []

    def routine(item: WorkItem, context: Any) -> None:
        inside.append(current(processor))
        most.append(len(inside))
        if len(most) == 1:
            item.insert()
            event.wait()
        else:
            event.set()
        inside.remove(current(processor))

    WorkItem(processor, routine).insert()
    settle(processor)
    assert most == [1, 2]


# Workers


def test_without_waits_one_worker_does_it_all_in_order(processor: Processor):
    order: list[tuple[int, KThread]] = []

    def routine(item: WorkItem, context: int) -> None:
        order.append((context, current(processor)))

    processor.raise_irql(DISPATCH_LEVEL)
    for number in range(50):
        WorkItem(processor, routine, number).insert()
    processor.lower_irql(PASSIVE_LEVEL)
    settle(processor)
    assert [number for number, _ in order] == list(range(50))
    assert len({thread for _, thread in order}) == 1
    assert len(workers(processor)) == 2  # the other stood by, in case the first had to wait


def test_workers_are_kept_and_used_again(processor: Processor):
    seen: list[KThread] = []
    item = WorkItem(processor, lambda *_: seen.append(current(processor)))
    for _ in range(5):
        item.insert()
        settle(processor)
    assert len(seen) == 5
    assert set(seen) == set(workers(processor))
    assert len(workers(processor)) == 1


def test_while_routines_wait_others_go_on(processor: Processor):
    event = Event(processor, notification=True)
    order: list[str] = []

    def waits(*_: Any) -> None:
        event.wait()
        order.append("waited")

    processor.raise_irql(DISPATCH_LEVEL)
    for _ in range(3):
        WorkItem(processor, waits).insert()
    WorkItem(processor, lambda *_: (order.append("sets"), event.set())).insert()
    processor.lower_irql(PASSIVE_LEVEL)
    settle(processor)
    assert order == ["sets", "waited", "waited", "waited"]
    assert len(workers(processor)) == 4


def test_with_every_worker_waiting_the_rest_stays_queued_and_the_deadlock_says_so(
    processor: Processor,
):
    event = Event(processor, notification=True)
    order: list[str] = []
    items = [WorkItem(processor, lambda *_: event.wait()) for _ in range(MOST_WORKERS)]
    for item in items:
        item.insert()
    note(processor, order, "late").insert()
    with pytest.raises(Deadlock) as caught:
        settle(processor)
    assert len(caught.value.threads) == MOST_WORKERS
    assert all("'delayed worker' waiting for Event" in line for line in caught.value.threads)
    state = processor.dispatcher.inspect()["work_queues"]["delayed"]
    assert len(state["queued"]) == 1
    assert len(state["workers"]) == MOST_WORKERS
    event.set()
    settle(processor)
    assert order == ["late"]


def test_a_free_worker_is_no_deadlock_and_not_in_its_report(processor: Processor):
    note(processor, [], "x").insert()
    settle(processor)
    processor.run_thread(lambda: None)  # the worker waits for work meanwhile
    assert workers(processor)[0].describe().endswith("'delayed worker' waiting for work")
    with pytest.raises(Deadlock) as caught:
        processor.run_thread(Event(processor, notification=True).wait)
    (line,) = caught.value.threads
    assert "'wait' waiting for Event" in line


def test_a_free_worker_takes_the_apcs_of_what_it_began(processor: Processor):
    """A request issued by a routine that does not wait for it ends in the worker all the same."""
    apcs: list[SpecialKernelApc] = []
    ran: list[str] = []

    def routine(*_: Any) -> None:
        apcs.append(SpecialKernelApc(current(processor), lambda apc: ran.append("apc")))

    WorkItem(processor, routine).insert()
    settle(processor)
    processor.run_thread(lambda: apcs[0].insert())
    processor.run_until(lambda: bool(ran))
    note(processor, ran, "next item").insert()
    settle(processor)
    assert ran == ["apc", "next item"]


def test_real_workers_do_real_work(real: Processor):
    order: list[str] = []

    def routine(item: WorkItem, context: str) -> None:
        delay_execution(real, 1_000_000)
        order.append(context)

    for name in ("a", "b", "c"):
        WorkItem(real, routine, name).insert()
    real.run_until(lambda: len(order) == 3)
    assert sorted(order) == ["a", "b", "c"]
    real.run_thread(stop_service_threads, real)
    assert not workers(real)


# What a routine may not do


def raised(processor: Processor) -> None:
    processor.raise_irql(APC_LEVEL)


def holds_fast_mutex(processor: Processor) -> None:
    FastMutex(processor).acquire()


def in_critical_region(processor: Processor) -> None:
    current(processor).enter_critical_region()


def in_guarded_region(processor: Processor) -> None:
    current(processor).enter_guarded_region()


def left_once_too_often(processor: Processor) -> None:
    current(processor).leave_critical_region()


def holds_mutex(processor: Processor) -> None:
    Mutex(processor).wait()


@pytest.mark.parametrize(
    ("act", "code", "parameters"),
    [
        (raised, IRQL_NOT_LESS_OR_EQUAL, (APC_LEVEL,)),
        (holds_fast_mutex, IRQL_NOT_LESS_OR_EQUAL, (APC_LEVEL,)),
        (in_critical_region, APC_INDEX_MISMATCH, (0, 1)),
        (in_guarded_region, APC_INDEX_MISMATCH, (1, 0)),
        (left_once_too_often, APC_INDEX_MISMATCH, (0, -1)),
        (holds_mutex, APC_INDEX_MISMATCH, (0, 1)),
    ],
)
def test_what_it_leaves_behind_stops_the_machine(
    processor: Processor, stops: Any, act: Any, code: int, parameters: tuple[int, ...]
):
    def routine(*_: Any) -> None:
        act(processor)

    WorkItem(processor, routine).insert()
    with stops(code, id(routine), *parameters) as caught:
        settle(processor)
    detail = caught.value.report["detail"]
    assert "work item" in detail
    assert "routine" in detail
    assert ("Mutex" in detail) is (act is holds_mutex)
    assert "delayed worker" in caught.value.report["thread"]


def test_an_exception_leaving_it_is_bug_check_1e(processor: Processor, stops: Any):
    WorkItem(processor, lambda *_: {}["lost"]).insert()
    with stops(KMODE_EXCEPTION_NOT_HANDLED) as caught:
        settle(processor)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "KeyError left work item" in caught.value.report["detail"]


# Flush


def test_flush_of_one_never_queued_returns_at_once(processor: Processor):
    processor.run_thread(WorkItem(processor, print).flush)
    assert processor.clock.now_ns() == 0


@pytest.mark.parametrize("state", ["queued", "running"])
def test_flush_waits_for_the_run_asked_for_before(processor: Processor, state: str):
    order: list[str] = []

    def routine(*_: Any) -> None:
        delay_execution(processor, 100)
        order.append("run")

    item = WorkItem(processor, routine)

    def body() -> None:
        old = processor.raise_irql(DISPATCH_LEVEL)
        item.insert()
        if state == "running":
            processor.lower_irql(old)
            delay_execution(processor, 10)
            assert not item.queued
        processor.irql = PASSIVE_LEVEL
        item.flush()
        order.append("flushed")

    processor.run_thread(body)
    assert order == ["run", "flushed"]


def test_flush_does_not_wait_for_later_runs(processor: Processor):
    begun: list[int] = []

    def routine(item: WorkItem, context: Any) -> None:
        begun.append(processor.clock.now_ns())
        if len(begun) < 5:
            item.insert()
        delay_execution(processor, 100 * len(begun))

    item = WorkItem(processor, routine)

    def body() -> None:
        item.insert()
        assert not begun
        item.flush()  # while its first run waits, each run asks for the next
        assert begun == [0] * 5
        assert processor.clock.now_ns() == 100

    thread = create_system_thread(processor, body, priority=20)
    processor.run_until(lambda: thread.ended)
    settle(processor)
    assert processor.clock.now_ns() == 500


def test_flush_with_two_runs_at_once_waits_for_both(processor: Processor):
    ends: list[int] = []
    times = [300, 100]

    def routine(item: WorkItem, context: Any) -> None:
        delay_execution(processor, times.pop(0))
        ends.append(processor.clock.now_ns())

    item = WorkItem(processor, routine)

    def body() -> None:
        item.insert()
        item.insert()  # the first runs, so it may be queued again
        item.flush()
        assert processor.clock.now_ns() == 300

    processor.run_thread(body)
    assert ends == [100, 300]


def test_several_may_flush_and_each_returns(processor: Processor):
    item = WorkItem(processor, lambda *_: delay_execution(processor, 50))
    item.insert()
    threads = [create_system_thread(processor, item.flush) for _ in range(3)]
    processor.run_until(lambda: all(thread.ended for thread in threads))
    assert processor.clock.now_ns() == 50


def test_flush_from_its_own_routine_waits_for_ever(processor: Processor):
    WorkItem(processor, lambda item, _: item.flush()).insert()
    with pytest.raises(Deadlock, match="'delayed worker' waiting for Event"):
        settle(processor)


def test_flush_needs_passive_level(checked: Processor, free: Processor, stops: Any):
    for processor, code, first in ((free, 0x0A, 0), (checked, 0xC4, 0xE5)):
        processor.raise_irql(APC_LEVEL)
        with stops(code, first):
            WorkItem(processor, print).flush()


# The end of the machine


def test_stopping_ends_every_worker_when_all_is_done(processor: Processor):
    order: list[str] = []

    def slow(*_: Any) -> None:
        delay_execution(processor, 100)
        order.append("slow")

    def body() -> None:
        for queue in QUEUES:
            WorkItem(processor, slow, queue=queue).insert()
            note(processor, order, "quick", queue=queue).insert()
        assert stop_service_threads(processor) is True

    processor.run_thread(body)
    assert sorted(order) == ["quick"] * 3 + ["slow"] * 3
    assert workers(processor) == []
    assert processor.dispatcher.threads == set()


def test_an_item_after_the_stop_gets_a_new_worker(processor: Processor):
    order: list[str] = []
    note(processor, order, "before").insert()
    processor.run_thread(stop_service_threads, processor)
    note(processor, order, "after").insert()
    settle(processor)
    assert order == ["before", "after"]
    assert len(workers(processor)) == 1
    assert processor.run_thread(stop_service_threads, processor) is True


def test_a_routine_that_never_ends_makes_the_stop_late_not_endless(processor: Processor):
    WorkItem(processor, lambda *_: Event(processor, notification=True).wait()).insert()
    assert processor.run_thread(stop_service_threads, processor, 1_000) is False
    assert processor.clock.now_ns() == 1_000


# Items as they come

plans = st.lists(
    st.tuples(
        st.sampled_from(QUEUES),
        st.integers(0, 3).map(lambda n: n * 10),  # when
        st.integers(0, 2).map(lambda n: n * 7),  # how long the routine waits
        st.integers(0, 2),  # how often it queues itself again
        st.booleans(),  # by a DPC
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(plans=plans, verifier=st.booleans(), seed=st.none() | st.integers(0, 3))
def test_every_run_asked_for_happens_once_and_in_order_within_its_queue(
    plans: list[tuple[int, int, int, int, bool]], verifier: bool, seed: int | None
):
    processor = Processor(VirtualClock(), verifier=verifier, seed=seed)
    asked: dict[int, list[int]] = {queue: [] for queue in QUEUES}
    begun: dict[int, list[int]] = {queue: [] for queue in QUEUES}

    def make(number: int, queue: int, stay: int, again: int) -> WorkItem:
        left = [again]

        def routine(item: WorkItem, context: Any) -> None:
            assert (processor.irql, item.queued) == (PASSIVE_LEVEL, False)
            begun[queue].append(number)
            if left[0]:
                left[0] -= 1
                insert(item)
            if stay:
                delay_execution(processor, stay)

        def insert(item: WorkItem) -> None:
            old = processor.raise_irql(DISPATCH_LEVEL)
            asked[queue].append(number)
            item.insert()
            processor.lower_irql(old)

        item = WorkItem(processor, routine, queue=queue)
        item.context = insert
        return item

    def body() -> None:
        for number, (queue, when, stay, again, by_dpc) in enumerate(plans):
            delay_execution(processor, when)
            item = make(number, queue, stay, again)
            if by_dpc:
                Dpc(processor, lambda *_, item=item: item.context(item)).insert()
            else:
                item.context(item)

    processor.run_thread(body)
    settle(processor)
    if (
        verifier and seed is not None
    ):  # a worker may lose the processor to its equal before it begins
        begun = {queue: sorted(numbers) for queue, numbers in begun.items()}
        asked = {queue: sorted(numbers) for queue, numbers in asked.items()}
    assert begun == asked
    assert sum(map(len, begun.values())) == sum(1 + again for _, _, _, again, _ in plans)
    assert len(workers(processor)) <= MOST_WORKERS * len(QUEUES)
    processor.run_thread(stop_service_threads, processor)
    assert processor.dispatcher.threads == set()
