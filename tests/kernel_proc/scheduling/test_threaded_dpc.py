"""Threaded DPCs: their thread, the rules they keep, the fall-back, and flushing."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.scheduling.apc import SpecialKernelApc
from kernel_proc.scheduling.bugcheck import (
    APC_INDEX_MISMATCH,
    ATTEMPTED_SWITCH_FROM_DPC,
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
)
from kernel_proc.scheduling.dpc import (
    HIGH_IMPORTANCE,
    LOW_IMPORTANCE,
    MEDIUM_IMPORTANCE,
    Dpc,
    generic_call_dpc,
)
from kernel_proc.scheduling.dpc_flush import flush_queued_dpcs
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.guarded_mutex import GuardedMutex
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.irql import (
    APC_LEVEL,
    DEVICE_LEVEL,
    DISPATCH_LEVEL,
    HIGH_LEVEL,
    PASSIVE_LEVEL,
)
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.threaded_dpc import (
    DPC_THREAD_PRIORITY,
    THREADED_DPC_OBJECT_TYPE,
    ThreadedDpc,
    dpc_thread_of,
)
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.wait import delay_execution, wait_for_multiple
from kernel_proc.scheduling.work_item import WorkItem, stop_service_threads


@pytest.fixture
def busy(processor: Processor) -> Processor:
    """One on which DPCs of low importance wait."""
    processor.minimum_dpc_rate = 0
    return processor


@pytest.fixture
def without() -> Processor:
    """A machine made without threaded DPCs."""
    return Processor(VirtualClock(), verifier=True, threaded_dpcs=False)


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


def note(processor: Processor, order: list[Any], name: Any, importance: int = 1) -> ThreadedDpc:
    dpc = ThreadedDpc(processor, lambda *_: order.append(name))
    dpc.set_importance(importance)
    return dpc


def test_a_new_one_differs_by_its_type(processor: Processor):
    dpc = ThreadedDpc(processor, print, "context")
    assert (dpc.type, dpc.number) == (THREADED_DPC_OBJECT_TYPE, 0)
    assert THREADED_DPC_OBJECT_TYPE == 0x18
    assert dpc.importance == MEDIUM_IMPORTANCE
    assert (dpc.routine, dpc.context, dpc.queued) == (print, "context", False)


def test_inserted_at_passive_level_it_has_run_in_its_own_thread_on_return(processor: Processor):
    seen: list[Any] = []

    def routine(dpc: Dpc, context: Any, argument1: Any, argument2: Any) -> None:
        thread = current(processor)
        seen.append((dpc.queued, context, argument1, argument2))
        seen.append((processor.irql, processor.dpc_routine_active, thread.priority, thread.name))

    dpc = ThreadedDpc(processor, routine, "context")

    def body() -> None:
        assert dpc.insert(1, 2) is True
        assert len(seen) == 2
        assert processor.irql == PASSIVE_LEVEL

    processor.run_thread(body)
    assert seen == [
        (False, "context", 1, 2),
        (PASSIVE_LEVEL, False, DPC_THREAD_PRIORITY, "threaded DPCs"),
    ]
    assert processor.dpcs == 1


def test_queued_twice_it_keeps_its_first_arguments_and_runs_once(processor: Processor):
    calls: list[Any] = []
    dpc = ThreadedDpc(processor, lambda dpc, context, *arguments: calls.append(arguments))

    def body() -> None:
        processor.raise_irql(DISPATCH_LEVEL)
        assert dpc.insert("first", 1) is True
        assert dpc.insert("second", 2) is False
        processor.raise_irql(HIGH_LEVEL)
        processor.lower_irql(DISPATCH_LEVEL)
        assert not calls
        processor.lower_irql(APC_LEVEL)
        assert calls == [("first", 1)]
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert calls == [("first", 1)]


def test_removed_it_never_runs(processor: Processor):
    order: list[str] = []
    dpc = note(processor, order, "run")

    def body() -> None:
        assert dpc.remove() is False
        old = processor.raise_irql(DISPATCH_LEVEL)
        dpc.insert()
        assert dpc.remove() is True
        assert dpc.remove() is False
        processor.lower_irql(old)

    processor.run_thread(body)
    assert not order
    assert not processor.dpcs


def test_a_dpc_may_remove_one_after_its_thread_was_woken(processor: Processor):
    order: list[str] = []
    dpc = note(processor, order, "threaded")

    def body() -> None:
        old = processor.raise_irql(DISPATCH_LEVEL)
        dpc.insert()
        Dpc(processor, lambda *_: order.append(str(dpc.remove()))).insert()
        processor.lower_irql(old)

    processor.run_thread(body)
    assert order == ["True"]


def test_high_importance_goes_to_the_head_and_ordinary_dpcs_come_first(processor: Processor):
    order: list[str] = []

    def body() -> None:
        old = processor.raise_irql(DISPATCH_LEVEL)
        note(processor, order, "medium").insert()
        note(processor, order, "low", LOW_IMPORTANCE).insert()
        note(processor, order, "high", HIGH_IMPORTANCE).insert()
        Dpc(processor, lambda *_: order.append("ordinary")).insert()
        processor.lower_irql(old)

    processor.run_thread(body)
    assert order == ["ordinary", "high", "medium", "low"]


def test_its_thread_comes_before_every_other(processor: Processor):
    order: list[str] = []
    event = Event(processor, notification=False)

    def woken() -> None:
        event.wait()
        order.append("woken")

    def deferred(*_: Any) -> None:
        event.set()
        note(processor, order, "threaded").insert()

    def body() -> None:
        Dpc(processor, deferred).insert()
        order.append("thread")

    create_system_thread(processor, woken, priority=30)
    processor.run_thread(body)
    assert order == ["threaded", "woken", "thread"]


def test_an_interrupt_may_queue_one(processor: Processor):
    levels: list[int] = []
    dpc = ThreadedDpc(processor, lambda *_: levels.append(processor.irql))

    def service(*_: Any) -> bool:
        levels.append(processor.irql)
        return dpc.insert()

    line = Interrupt(processor, service)
    line.connect()
    processor.run_thread(line.request)
    assert levels == [DEVICE_LEVEL, PASSIVE_LEVEL]


def test_a_timer_may_queue_one(processor: Processor):
    times: list[int] = []
    timer = Timer(processor)
    dpc = ThreadedDpc(processor, lambda *_: times.append(processor.clock.now_ns()))
    timer.set(10, period_ns=10, dpc=dpc)
    processor.run_until(lambda: len(times) == 3)
    timer.cancel()
    assert times == [10, 20, 30]


def test_it_may_queue_itself_again(processor: Processor):
    runs: list[int] = []

    def routine(dpc: Dpc, context: Any, left: int, _: Any) -> None:
        runs.append(left)
        if left:
            assert dpc.insert(left - 1) is True
            assert dpc.insert(99) is False

    processor.run_thread(ThreadedDpc(processor, routine).insert, 3)
    assert runs == [3, 2, 1, 0]
    assert processor.dpcs == 4


def test_of_low_importance_it_waits_for_the_idle_processor(busy: Processor):
    order: list[str] = []

    def body() -> None:
        note(busy, order, "low", LOW_IMPORTANCE).insert()
        order.append("thread")
        busy.dispatcher.yield_execution()
        order.append("thread again")
        delay_execution(busy, 1)

    busy.run_thread(body)
    assert order == ["thread", "thread again", "low"]


def test_of_low_importance_it_runs_when_its_queue_is_deep(busy: Processor):
    order: list[int] = []

    def body() -> None:
        for number in range(busy.dpc_depth_limit):
            assert not order
            note(busy, order, number, LOW_IMPORTANCE).insert()

    busy.run_thread(body)
    assert order == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [Dpc, ThreadedDpc])
@pytest.mark.parametrize("importance", [MEDIUM_IMPORTANCE, HIGH_IMPORTANCE])
def test_of_low_importance_it_runs_with_any_other_that_asks(
    busy: Processor, kind: Any, importance: int
):
    order: list[str] = []

    def body() -> None:
        note(busy, order, "low", LOW_IMPORTANCE).insert()
        assert not order
        other = kind(busy, lambda *_: order.append("other"))
        other.set_importance(importance)
        other.insert()
        assert sorted(order) == ["low", "other"]

    busy.run_thread(body)


def test_of_low_importance_it_runs_at_once_while_dpcs_are_rare(processor: Processor):
    order: list[str] = []

    def body() -> None:
        note(processor, order, "low", LOW_IMPORTANCE).insert()
        order.append("thread")

    processor.run_thread(body)
    assert order == ["low", "thread"]


def test_its_idle_thread_is_no_deadlock_and_not_in_its_report(processor: Processor):
    note(processor, [], "x").insert()
    processor.run_thread(lambda: None)
    thread = dpc_thread_of(processor).thread
    assert thread is not None
    assert thread.describe().endswith("'threaded DPCs' waiting for threaded DPCs")
    with pytest.raises(Deadlock) as caught:
        processor.run_thread(Event(processor, notification=True).wait)
    (line,) = caught.value.threads
    assert "'wait'" in line


def test_a_real_machine_runs_them(real: Processor):
    order: list[str] = []
    real.run_thread(note(real, order, "run").insert)
    assert order == ["run"]
    assert real.run_thread(stop_service_threads, real) is True
    assert real.dispatcher.threads == set()


def test_they_show_themselves(processor: Processor):
    seen: list[Any] = []
    inspect = processor.dispatcher.inspect

    def routine(*_: Any) -> None:
        seen.append(inspect()["threaded_dpcs"])

    def body() -> None:
        seen.append(inspect()["threaded_dpcs"])
        old = processor.raise_irql(DISPATCH_LEVEL)
        ThreadedDpc(processor, routine).insert()
        seen.append(inspect()["threaded_dpcs"])
        processor.lower_irql(old)

    processor.run_thread(body)
    assert seen == [
        {},
        {"queued": [repr(routine)], "in_routine": False},
        {"queued": [], "in_routine": True},
    ]


# The rules they keep

Act = Callable[[Processor], object]


def wait(processor: Processor) -> None:
    Event(processor, notification=True).wait()


def wait_for_what_is_signalled(processor: Processor) -> None:
    Event(processor, notification=True, signaled=True).wait()


def wait_a_time(processor: Processor) -> None:
    Event(processor, notification=True).wait(1)


def wait_for_several(processor: Processor) -> None:
    wait_for_multiple([Event(processor, True, True), Event(processor, True)], wait_all=False)


def delay(processor: Processor) -> None:
    delay_execution(processor, 1)


def give_way(processor: Processor) -> None:
    processor.dispatcher.yield_execution()


def take_mutex(processor: Processor) -> None:
    Mutex(processor).wait()


WAITS: list[Act] = [
    wait,
    wait_for_what_is_signalled,
    wait_a_time,
    wait_for_several,
    delay,
    give_way,
    take_mutex,
]


@pytest.mark.parametrize("act", WAITS)
def test_verifier_a_wait_is_bug_check_b8(checked: Processor, stops: Any, act: Act):
    with stops(ATTEMPTED_SWITCH_FROM_DPC) as caught:
        checked.run_thread(ThreadedDpc(checked, lambda *_: act(checked)).insert)
    assert caught.value.report["in_dpc"] is True
    assert "threaded DPCs" in caught.value.report["thread"]


@pytest.mark.parametrize("act", [act for act in WAITS if act not in (wait, take_mutex)])
def test_a_free_build_lets_it_wait(free: Processor, act: Act):
    ended: list[bool] = []
    dpc = ThreadedDpc(free, lambda *_: (act(free), ended.append(True)))
    free.run_thread(dpc.insert)
    free.run_until(lambda: bool(ended))


def enter_critical_region(processor: Processor) -> None:
    current(processor).enter_critical_region()


def enter_guarded_region(processor: Processor) -> None:
    current(processor).enter_guarded_region()


def take_fast_mutex(processor: Processor) -> None:
    FastMutex(processor).acquire()


def take_guarded_mutex(processor: Processor) -> None:
    GuardedMutex(processor).acquire()


def make_thread(processor: Processor) -> None:
    create_system_thread(processor, print)


def flush(processor: Processor) -> None:
    flush_queued_dpcs(processor)


def call_everywhere(processor: Processor) -> None:
    generic_call_dpc(processor, print)


@pytest.mark.parametrize(
    ("act", "code", "first"),
    [
        (enter_critical_region, DRIVER_VERIFIER_DETECTED_VIOLATION, 0x11A),
        (enter_guarded_region, DRIVER_VERIFIER_DETECTED_VIOLATION, 0x20010),
        (take_fast_mutex, DRIVER_VERIFIER_DETECTED_VIOLATION, 0x33),
        (take_guarded_mutex, DRIVER_VERIFIER_DETECTED_VIOLATION, 0x2000F),
        (flush, DRIVER_VERIFIER_DETECTED_VIOLATION, 0xE5),
        (make_thread, IRQL_NOT_LESS_OR_EQUAL, 0),
        (call_everywhere, IRQL_NOT_LESS_OR_EQUAL, 0),
    ],
)
def test_verifier_what_needs_a_lower_level_is_forbidden(
    checked: Processor, stops: Any, act: Act, code: int, first: int
):
    with stops(code, first) as caught:
        checked.run_thread(ThreadedDpc(checked, lambda *_: act(checked)).insert)
    assert "PASSIVE_LEVEL in a threaded DPC" in caught.value.report["detail"]


def test_what_dispatch_level_allows_is_allowed(processor: Processor):
    event = Event(processor, notification=True)
    timer = Timer(processor)
    lock = SpinLock(processor)
    ran: list[Any] = []

    def routine(*_: Any) -> None:
        old = lock.acquire()
        assert (old, processor.irql) == (PASSIVE_LEVEL, DISPATCH_LEVEL)
        lock.release(old)
        assert event.wait(0) != 0  # a look
        event.set()
        timer.set(5, dpc=Dpc(processor, lambda *_: ran.append("timer")))
        Dpc(processor, lambda *_: ran.append(processor.irql)).insert()
        WorkItem(processor, lambda *_: ran.append("work")).insert()
        ran.append("end")

    processor.run_thread(ThreadedDpc(processor, routine).insert)
    processor.run_until(lambda: "timer" in ran)
    assert ran == [DISPATCH_LEVEL, "end", "work", "timer"]


def test_the_rules_end_with_the_routine(checked: Processor):
    event = Event(checked, notification=True)

    def body() -> None:
        ThreadedDpc(checked, lambda *_: None).insert()
        event.wait(10)
        mutex = FastMutex(checked)
        mutex.acquire()
        mutex.release()
        checked.dispatcher.yield_execution()

    checked.run_thread(body)
    assert checked.clock.now_ns() == 10


@pytest.mark.parametrize("seed", range(6))
def test_an_equal_that_takes_the_processor_keeps_its_own_rules(seed: int):
    processor = Processor(VirtualClock(), verifier=True, seed=seed)
    lock = SpinLock(processor)
    order: list[str] = []

    def routine(*_: Any) -> None:
        for _ in range(20):
            lock.release(lock.acquire())  # the quantum may end here
        order.append("routine")

    def equal() -> None:
        for _ in range(20):
            delay_execution(processor, 0)
            current(processor).enter_critical_region()
            current(processor).leave_critical_region()
        order.append("equal")

    create_system_thread(processor, equal, priority=DPC_THREAD_PRIORITY)
    thread = create_system_thread(
        processor, ThreadedDpc(processor, routine).insert, priority=DPC_THREAD_PRIORITY
    )
    processor.run_until(lambda: thread.ended and len(order) == 2)
    assert sorted(order) == ["equal", "routine"]


def test_an_apc_of_the_dpc_thread_waits_for_nobody(processor: Processor):
    """An APC may come in between: the thread is at PASSIVE_LEVEL."""
    order: list[str] = []

    def routine(*_: Any) -> None:
        SpecialKernelApc(current(processor), lambda apc: order.append("apc")).insert()
        order.append("routine")

    processor.run_thread(ThreadedDpc(processor, routine).insert)
    assert order == ["apc", "routine"]


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda processor: processor.raise_irql(APC_LEVEL), IRQL_NOT_LESS_OR_EQUAL),
        (enter_critical_region, APC_INDEX_MISMATCH),
        (enter_guarded_region, APC_INDEX_MISMATCH),
    ],
)
def test_what_it_leaves_behind_stops_the_machine(free: Processor, stops: Any, act: Act, code: int):
    def routine(*_: Any) -> None:
        act(free)

    with stops(code, id(routine)) as caught:
        free.run_thread(ThreadedDpc(free, routine).insert)
    assert "threaded DPC routine" in caught.value.report["detail"]


def test_an_exception_leaving_it_is_bug_check_1e(processor: Processor, stops: Any):
    with stops(KMODE_EXCEPTION_NOT_HANDLED) as caught:
        processor.run_thread(ThreadedDpc(processor, lambda *_: {}["lost"]).insert)
    assert "KeyError left threaded DPC routine" in caught.value.report["detail"]


# Without threads of their own


def test_without_them_it_is_an_ordinary_dpc(without: Processor):
    levels: list[tuple[int, bool]] = []
    dpc = ThreadedDpc(without, lambda *_: levels.append((without.irql, without.dpc_routine_active)))

    def body() -> None:
        old = without.raise_irql(DISPATCH_LEVEL)
        assert dpc.insert() is True
        assert dpc in without.dpc_queue
        assert dpc.remove() is True
        assert dpc.insert() is True
        without.lower_irql(old)

    without.run_thread(body)
    assert dpc.type == THREADED_DPC_OBJECT_TYPE
    assert levels == [(DISPATCH_LEVEL, True)]
    assert without.dpc_thread is None


@pytest.mark.parametrize("act", WAITS)
def test_without_them_every_build_forbids_waiting(without: Processor, stops: Any, act: Act):
    without.verifier = False
    with stops(ATTEMPTED_SWITCH_FROM_DPC):
        without.run_thread(ThreadedDpc(without, lambda *_: act(without)).insert)


# KeFlushQueuedDpcs


def test_flush_with_nothing_queued_returns(processor: Processor):
    processor.run_thread(flush_queued_dpcs, processor)
    assert not processor.dpcs


def test_flush_runs_those_of_low_importance(busy: Processor):
    order: list[str] = []

    def body() -> None:
        low = Dpc(busy, lambda *_: order.append("low"))
        low.set_importance(LOW_IMPORTANCE)
        low.insert()
        note(busy, order, "threaded", LOW_IMPORTANCE).insert()
        assert not order
        flush_queued_dpcs(busy)
        order.append("flushed")

    busy.run_thread(body)
    assert sorted(order[:-1]) == ["low", "threaded"]
    assert order[-1] == "flushed"


def test_flush_waits_for_a_threaded_one_that_waits_but_not_for_later_ones(free: Processor):
    go_on, never = Event(free, notification=True), Event(free, notification=True)
    order: list[str] = []

    def slow(*_: Any) -> None:
        go_on.wait()
        order.append("slow")

    def later(*_: Any) -> None:
        order.append("later begins")
        never.wait()

    def flusher() -> None:
        flush_queued_dpcs(free)
        order.append("flushed")

    def body() -> None:
        ThreadedDpc(free, slow).insert()
        note(free, order, "queued").insert()
        thread = create_system_thread(free, flusher)
        delay_execution(free, 10)
        assert not order
        ThreadedDpc(free, later).insert()
        go_on.set()
        thread.wait()

    free.run_thread(body)
    assert order == ["slow", "queued", "later begins", "flushed"]


def test_flush_needs_passive_level(free: Processor, checked: Processor, stops: Any):
    for processor, code, first in ((free, 0x0A, 0), (checked, 0xC4, 0xE5)):
        processor.raise_irql(APC_LEVEL)
        with stops(code, first):
            flush_queued_dpcs(processor)


# The end of the machine


def test_stopping_ends_the_thread_and_the_next_dpc_makes_another(processor: Processor):
    order: list[str] = []

    def body() -> None:
        note(processor, order, "first").insert()
        assert stop_service_threads(processor) is True
        assert dpc_thread_of(processor).thread is None
        note(processor, order, "second").insert()
        assert order == ["first", "second"]
        assert stop_service_threads(processor) is True

    processor.run_thread(body)
    assert processor.dispatcher.threads == set()


def test_stopping_gives_up_on_a_routine_that_never_ends(free: Processor):
    free.run_thread(ThreadedDpc(free, lambda *_: wait(free)).insert)
    assert free.run_thread(stop_service_threads, free, 1_000) is False
    assert free.clock.now_ns() == 1_000
