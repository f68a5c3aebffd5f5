"""DPCs: when they run, how often, and what they may not do."""

from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import (
    ATTEMPTED_SWITCH_FROM_DPC,
    DPC_WATCHDOG_VIOLATION,
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
)
from kernel_proc.scheduling.dpc import (
    DPC_OBJECT_TYPE,
    HIGH_IMPORTANCE,
    LOW_IMPORTANCE,
    MEDIUM_IMPORTANCE,
    CallBarrier,
    Dpc,
    generic_call_dpc,
)
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.wait import delay_execution
from shared.nt_status import STATUS_SUCCESS, STATUS_TIMEOUT


class Recorder:
    """A deferred routine that notes its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any]] = []

    def __call__(self, dpc: Dpc, context: Any, argument1: Any, argument2: Any) -> None:
        self.calls.append((context, argument1, argument2))


@pytest.fixture
def busy(processor: Processor) -> Processor:
    """A processor that takes DPCs to be frequent: those of low importance are not asked for."""
    processor.minimum_dpc_rate = 0
    return processor


def note(order: list[str], name: str, processor: Processor, importance: int) -> Dpc:
    dpc = Dpc(processor, lambda *_: order.append(name))
    dpc.importance = importance
    return dpc


def test_k5_inserted_at_passive_level_it_has_run_on_return(processor: Processor):
    routine = Recorder()
    dpc = Dpc(processor, routine, "context")

    def body() -> None:
        assert dpc.insert(1, 2) is True
        assert routine.calls == [("context", 1, 2)]
        assert processor.irql == PASSIVE_LEVEL

    processor.run_thread(body)
    assert processor.dpcs == 1


def test_k6_it_waits_for_the_level_to_fall_and_keeps_its_first_arguments(processor: Processor):
    routine = Recorder()
    dpc = Dpc(processor, routine)

    def body() -> None:
        processor.raise_irql(DISPATCH_LEVEL)
        assert dpc.insert("first", 1) is True
        assert dpc.insert("second", 2) is False
        processor.raise_irql(HIGH_LEVEL)
        assert not routine.calls
        processor.lower_irql(DISPATCH_LEVEL)
        assert not routine.calls
        processor.lower_irql(APC_LEVEL)
        assert routine.calls == [(None, "first", 1)]
        processor.lower_irql(PASSIVE_LEVEL)
        assert len(routine.calls) == 1

    processor.run_thread(body)


def test_k7_removed_it_never_runs(processor: Processor):
    routine = Recorder()
    dpc = Dpc(processor, routine)

    def body() -> None:
        assert dpc.remove() is False
        old = processor.raise_irql(DISPATCH_LEVEL)
        dpc.insert()
        assert dpc.remove() is True
        assert dpc.remove() is False
        processor.lower_irql(old)

    processor.run_thread(body)
    assert not routine.calls
    assert not processor.dpcs


def test_k8_inside_the_routine(processor: Processor):
    seen: list[tuple[int, bool, bool, bool]] = []

    def routine(dpc: Dpc, *_: Any) -> None:
        active = processor.dpc_routine_active
        seen.append((processor.irql, dpc.queued, active, dpc in processor.dpc_queue))

    processor.run_thread(Dpc(processor, routine).insert)
    assert seen == [(DISPATCH_LEVEL, False, True, False)]
    assert processor.dpc_routine_active is False


def test_w23_a_new_dpc(processor: Processor):
    routine = Recorder()
    dpc = Dpc(processor, routine, "context")
    assert (dpc.number, dpc.type, dpc.type) == (0, 0x13, DPC_OBJECT_TYPE)
    assert dpc.importance == MEDIUM_IMPORTANCE
    assert dpc.routine is routine
    assert dpc.context == "context"
    assert dpc.queued is False


def test_w23b_generic_call_runs_once_per_processor(processor: Processor):
    selected: list[bool] = []
    levels: list[int] = []

    def routine(dpc: Dpc, context: Any, done: CallBarrier, synchronize: CallBarrier) -> None:
        assert context == "context"
        levels.append(processor.irql)
        # Each round selects one processor, and there is one.
        selected.extend([synchronize.synchronize(), synchronize.synchronize()])
        done.done()

    processor.run_thread(generic_call_dpc, processor, routine, "context")
    assert levels == [DISPATCH_LEVEL]
    assert selected == [True, True]


def test_w23b_generic_call_that_is_never_done_stops_the_machine(processor: Processor, stops: Any):
    with stops(DPC_WATCHDOG_VIOLATION):
        processor.run_thread(generic_call_dpc, processor, Recorder())


def test_high_importance_goes_to_the_head_and_others_to_the_tail(processor: Processor):
    order: list[str] = []
    importances = {"medium": 1, "low": 0, "high": 2, "second high": 2}
    dpcs = [note(order, name, processor, value) for name, value in importances.items()]

    def body() -> None:
        old = processor.raise_irql(DISPATCH_LEVEL)
        for dpc in dpcs:
            dpc.insert()
        processor.lower_irql(old)

    processor.run_thread(body)
    assert order == ["second high", "high", "medium", "low"]


def test_low_importance_waits_for_the_idle_busy(busy: Processor):
    order: list[str] = []

    def body() -> None:
        note(order, "low", busy, LOW_IMPORTANCE).insert()
        order.append("thread")
        busy.dispatcher.yield_execution()
        order.append("thread again")
        delay_execution(busy, 1)

    busy.run_thread(body)
    assert order == ["thread", "thread again", "low"]


def test_low_importance_runs_when_the_queue_is_deep(busy: Processor):
    order: list[str] = []

    def body() -> None:
        for number in range(busy.dpc_depth_limit):
            assert not order
            note(order, str(number), busy, LOW_IMPORTANCE).insert()

    busy.run_thread(body)
    assert order == ["0", "1", "2", "3"]


@pytest.mark.parametrize("importance", [MEDIUM_IMPORTANCE, HIGH_IMPORTANCE])
def test_low_importance_runs_with_another_that_asks(busy: Processor, importance: int):
    order: list[str] = []

    def body() -> None:
        note(order, "low", busy, LOW_IMPORTANCE).insert()
        assert not order
        note(order, "other", busy, importance).insert()

    busy.run_thread(body)
    assert sorted(order) == ["low", "other"]


def test_it_may_queue_itself_again(processor: Processor):
    runs: list[int] = []

    def routine(dpc: Dpc, context: Any, left: int, _: Any) -> None:
        runs.append(left)
        if left:
            assert dpc.insert(left - 1) is True
            assert dpc.insert(99) is False

    processor.run_thread(Dpc(processor, routine).insert, 3)
    assert runs == [3, 2, 1, 0]


def test_one_queued_in_another_runs_after_it(processor: Processor):
    order: list[str] = []
    inner = note(order, "inner", processor, MEDIUM_IMPORTANCE)

    def outer(*_: Any) -> None:
        inner.insert()
        order.append("outer")

    processor.run_thread(Dpc(processor, outer).insert)
    assert order == ["outer", "inner"]


def test_a_thread_it_wakes_runs_after_all_queued_dpcs(processor: Processor):
    order: list[str] = []
    event = Event(processor, notification=False)

    def waiter() -> None:
        event.wait()
        order.append("woken")

    def body() -> None:
        old = processor.raise_irql(DISPATCH_LEVEL)
        Dpc(processor, lambda *_: event.set()).insert()
        note(order, "second", processor, MEDIUM_IMPORTANCE).insert()
        processor.lower_irql(old)
        order.append("interrupted thread")

    create_system_thread(processor, waiter, priority=10)
    processor.run_thread(body)
    assert order == ["second", "woken", "interrupted thread"]


def wait_for_ever(processor: Processor) -> None:
    Event(processor, notification=True).wait()


def wait_a_time(processor: Processor) -> None:
    Event(processor, notification=True).wait(1)


def delay(processor: Processor) -> None:
    delay_execution(processor, 1)


def give_way(processor: Processor) -> None:
    processor.dispatcher.yield_execution()


@pytest.mark.parametrize("act", [wait_for_ever, wait_a_time, delay, give_way])
def test_waiting_in_one_is_bug_check_b8(processor: Processor, stops: Any, act: Any):
    dpc = Dpc(processor, lambda *_: act(processor))
    with stops(ATTEMPTED_SWITCH_FROM_DPC) as caught:
        processor.run_thread(dpc.insert)
    assert caught.value.report["in_dpc"] is True


def test_a_switch_by_lowering_the_level_is_bug_check_b8(free: Processor, stops: Any):
    event = Event(free, notification=False)

    def routine(*_: Any) -> None:
        event.set()
        free.lower_irql(PASSIVE_LEVEL)

    create_system_thread(free, event.wait, priority=12)
    with stops(ATTEMPTED_SWITCH_FROM_DPC):
        free.run_thread(Dpc(free, routine).insert)


def test_verifier_names_the_lowering_in_a_routine(checked: Processor, stops: Any):
    dpc = Dpc(checked, lambda *_: checked.lower_irql(PASSIVE_LEVEL))
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x31, DISPATCH_LEVEL, PASSIVE_LEVEL, 1):
        checked.run_thread(dpc.insert)


def test_a_look_at_an_object_is_no_wait(processor: Processor):
    event = Event(processor, notification=False, signaled=True)
    seen: list[int] = []
    dpc = Dpc(processor, lambda *_: seen.extend([event.wait(0), event.wait(0)]))
    processor.run_thread(dpc.insert)
    assert seen == [STATUS_SUCCESS, STATUS_TIMEOUT]


def test_a_routine_must_return_at_the_level_it_was_called(processor: Processor, stops: Any):
    dpc = Dpc(processor, lambda *_: processor.raise_irql(HIGH_LEVEL))
    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, HIGH_LEVEL):
        processor.run_thread(dpc.insert)


@pytest.mark.parametrize("in_thread", [True, False])
def test_an_exception_leaving_a_routine_is_bug_check_1e(
    processor: Processor, stops: Any, in_thread: bool
):
    def routine(*_: Any) -> None:
        raise KeyError("lost")

    dpc = Dpc(processor, routine)
    with stops(KMODE_EXCEPTION_NOT_HANDLED) as caught:
        if in_thread:
            processor.run_thread(dpc.insert)
        else:
            dpc.insert()
    stop = caught.value
    assert isinstance(stop.__cause__, KeyError)
    assert "KeyError left DPC routine" in stop.report["detail"]
    assert stop.report["irql"] == "DISPATCH_LEVEL"
    assert ("run_thread" in stop.report["thread"] or "insert" in stop.report["thread"]) is in_thread


def test_without_a_thread_it_runs_too(processor: Processor):
    routine = Recorder()
    Dpc(processor, routine).insert(5)
    assert routine.calls == [(None, 5, None)]
    assert processor.irql == PASSIVE_LEVEL
