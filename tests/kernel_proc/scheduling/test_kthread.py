"""Kernel threads: system services, ends, priorities, processes."""

from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import (
    ATTEMPTED_SWITCH_FROM_DPC,
    IRQL_GT_ZERO_AT_SYSTEM_SERVICE,
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
)
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.kthread import KThread, create_system_thread, create_user_thread
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.wait import delay_execution
from shared.nt_status import STATUS_SUCCESS


def user_thread(processor: Processor, priority: int = 8) -> KThread:
    return create_user_thread(processor, KProcess(processor, "user", 123), "user", priority)


# System services


def test_a_user_thread_is_in_user_mode_and_has_no_stack(processor: Processor):
    thread = user_thread(processor)
    assert thread.in_user_mode
    assert not thread.is_system_thread
    assert thread.stack is None
    assert not thread.is_waiting
    assert not thread.ended


def test_services_run_one_after_the_other_also_when_the_first_waits(processor: Processor):
    thread = user_thread(processor)
    event = Event(processor, notification=False)
    order: list[str] = []

    def first() -> None:
        order.append("first")
        event.wait()
        order.append("first again")

    thread.enter_kernel(first)
    processor.run_until(lambda: thread.is_waiting)
    thread.enter_kernel(order.append, "second")
    thread.enter_kernel(order.append, "third")
    assert order == ["first"]
    event.set()
    processor.run_until(lambda: thread.in_user_mode)
    assert order == ["first", "first again", "second", "third"]


def test_a_service_may_queue_another(processor: Processor):
    thread = user_thread(processor)
    order: list[str] = []

    def service() -> None:
        thread.enter_kernel(order.append, "second")
        order.append("first")

    thread.enter_kernel(service)
    processor.run_until(lambda: thread.in_user_mode)
    assert order == ["first", "second"]


def test_services_of_many_threads_share_the_stacks(processor: Processor):
    threads = [user_thread(processor) for _ in range(10)]
    done: list[int] = []
    for _ in range(3):
        for thread in threads:
            thread.enter_kernel(done.append, thread.number)
        processor.run_until(lambda: all(thread.in_user_mode for thread in threads))
    assert len(done) == 30
    assert processor.dispatcher.inspect()["pooled_greenlets"] == 1


@pytest.mark.parametrize("level", [APC_LEVEL, DISPATCH_LEVEL])
@pytest.mark.parametrize("system", [True, False])
def test_leaving_the_kernel_above_passive_level_is_bug_check_4a(
    processor: Processor, stops: Any, level: int, system: bool
):
    with stops(IRQL_GT_ZERO_AT_SYSTEM_SERVICE, 0, level):
        if system:
            processor.run_thread(processor.raise_irql, level)
        thread = user_thread(processor)
        thread.enter_kernel(processor.raise_irql, level)
        processor.run_until(lambda: thread.in_user_mode)


def test_an_exception_leaving_a_service_is_bug_check_1e(processor: Processor, stops: Any):
    thread = user_thread(processor)
    thread.enter_kernel(int, "no number")
    with stops(KMODE_EXCEPTION_NOT_HANDLED) as caught:
        processor.run_until(lambda: thread.in_user_mode)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "no number" in caught.value.report["detail"]


# Priorities


def test_a_new_higher_thread_runs_at_once(processor: Processor):
    order: list[str] = []

    def body() -> None:
        create_system_thread(processor, order.append, "higher", priority=9)
        create_system_thread(processor, order.append, "equal")
        create_system_thread(processor, order.append, "lower", priority=7)
        order.append("creator")

    processor.run_thread(body)
    processor.run_until(lambda: len(order) == 4)
    assert order == ["higher", "creator", "equal", "lower"]


def test_ready_threads_run_in_order_of_priority_and_arrival(processor: Processor):
    order: list[int] = []
    for number, priority in enumerate([3, 31, 8, 0, 8, 31, 16]):
        create_system_thread(processor, order.append, number, priority=priority)
    processor.run_until(lambda: len(order) == 7)
    assert order == [1, 5, 6, 2, 4, 0, 3]


def test_yield_lets_equals_run_but_not_lower_ones(processor: Processor):
    order: list[str] = []

    def body(name: str) -> None:
        for _ in range(2):
            order.append(name)
            processor.dispatcher.yield_execution()

    create_system_thread(processor, order.append, "low", priority=2)
    for name in "ab":
        create_system_thread(processor, body, name)
    processor.run_until(lambda: len(order) == 5)
    assert order == ["a", "b", "a", "b", "low"]


def test_yield_above_apc_level_is_a_bug_check(processor: Processor, stops: Any):
    def body() -> None:
        processor.raise_irql(DISPATCH_LEVEL)
        processor.dispatcher.yield_execution()

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, DISPATCH_LEVEL):
        processor.run_thread(body)


def test_creating_a_system_thread_above_passive_level_is_a_bug_check(
    processor: Processor, stops: Any
):
    def body() -> None:
        processor.raise_irql(APC_LEVEL)
        create_system_thread(processor, print)

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, APC_LEVEL):
        processor.run_thread(body)


# Ends


@pytest.mark.parametrize("priority", [4, 8, 12])
def test_a_thread_is_signalled_when_it_has_ended(processor: Processor, priority: int):
    thread = create_system_thread(processor, delay_execution, processor, 10)
    ended: list[tuple[int, bool]] = []
    create_system_thread(
        processor, lambda: ended.append((thread.wait(), thread.ended)), priority=priority
    )
    processor.run_until(lambda: bool(ended))
    assert ended == [(STATUS_SUCCESS, True)]
    processor.run_thread(delay_execution, processor, 10)
    assert thread.ended  # also after the waiter of higher priority took the processor from it
    assert thread not in processor.dispatcher.threads
    assert processor.run_thread(thread.wait) == STATUS_SUCCESS


def test_a_user_thread_ends_from_outside_or_by_its_own_service(processor: Processor):
    outside, inside = user_thread(processor), user_thread(processor)
    done: list[str] = []

    def service() -> None:
        inside.enter_kernel(done.append, "never")
        inside.end()
        inside.end()

    waiter = create_system_thread(processor, lambda: (outside.wait(), inside.wait()), priority=12)
    outside.end()
    inside.enter_kernel(service)
    processor.run_until(lambda: waiter.ended)
    processor.run_thread(delay_execution, processor, 1)
    for thread in (outside, inside):
        assert thread.ended
        assert thread.terminating
        assert thread.process is not None
        assert not thread.process.threads
    inside.enter_kernel(done.append, "after the end")
    processor.run_thread(delay_execution, processor, 1)
    assert not done


def test_processes_know_their_threads_and_are_signalled_at_their_end(processor: Processor):
    process = KProcess(processor, "program", 4711)
    threads = [create_user_thread(processor, process, name) for name in "ab"]
    system = create_system_thread(processor, process.wait, process=process)
    assert process.threads == {*threads, system}
    processor.run_until(lambda: system.is_waiting)
    for thread in threads:
        thread.end()
    process.end()
    processor.run_until(lambda: system.ended)
    assert not process.threads
    assert process.exiting
    assert str(process) == f"process {process.number} 'program' (pid 4711)"
    assert len({process.number, *(thread.number for thread in threads)}) == 3


def test_pool_quota(processor: Processor):
    process = KProcess(processor, "program", pool_quota=100)
    assert process.charge_pool(60) is True
    assert process.charge_pool(41) is False
    assert process.charge_pool(40) is True
    process.return_pool(60)
    assert process.pool_charged == 40
    assert process.charge_pool(60) is True


def test_threads_describe_themselves(processor: Processor):
    event = Event(processor, notification=False)
    thread = create_system_thread(processor, event.wait, name="reader")
    assert thread.describe() == f"thread {thread.number} 'reader' ready"
    sleeper = create_system_thread(processor, delay_execution, processor, 100, name="sleeper")
    processor.run_until(lambda: sleeper.is_waiting)
    assert thread.describe() == f"thread {thread.number} 'reader' waiting for Event(state 0)"
    assert sleeper.describe() == f"thread {sleeper.number} 'sleeper' waiting for time to pass"
    inspected = processor.dispatcher.inspect()
    assert inspected["threads"] == [thread.describe(), sleeper.describe()]
    assert inspected["timers"] == 1


def test_a_wait_without_a_thread_in_a_hardware_callback_is_a_bug_check(
    processor: Processor, stops: Any
):
    processor.schedule_hardware(Event(processor, notification=True).wait)
    with stops(ATTEMPTED_SWITCH_FROM_DPC):
        processor.run_thread(delay_execution, processor, 1)
