"""Kernel mutexes and semaphores: states, owners, order, limits."""

from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import (
    APC_INDEX_MISMATCH,
    ATTEMPTED_SWITCH_FROM_DPC,
    THREAD_TERMINATE_HELD_MUTEX,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import KThread, create_system_thread, create_user_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.wait import delay_execution, wait_for_multiple
from shared.nt_status import (
    STATUS_ABANDONED,
    STATUS_MUTANT_NOT_OWNED,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
)


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


def test_k18_state_and_level(processor: Processor):
    mutex = Mutex(processor)

    def body() -> None:
        assert mutex.signal_state == 1
        assert mutex.wait() == STATUS_SUCCESS
        assert mutex.signal_state == 0
        assert processor.irql == PASSIVE_LEVEL
        assert mutex.release() == 0
        assert mutex.signal_state == 1
        assert processor.irql == PASSIVE_LEVEL

    processor.run_thread(body)


def test_it_is_recursive_and_disables_normal_apcs_once(processor: Processor):
    mutex = Mutex(processor)

    def body() -> None:
        thread = current(processor)
        for state in (0, -1, -2):
            assert mutex.wait() == STATUS_SUCCESS
            assert mutex.signal_state == state
            assert thread.kernel_apc_disable == -1
        assert thread.are_apcs_disabled()
        assert not thread.are_all_apcs_disabled()
        for previous in (-2, -1, 0):
            assert mutex.owner is thread
            assert mutex.release() == previous
        assert mutex.owner is None
        assert not thread.are_apcs_disabled()

    processor.run_thread(body)


def test_two_mutexes_count_twice(processor: Processor):
    first, second = Mutex(processor), Mutex(processor)

    def body() -> None:
        assert wait_for_multiple([first, second], wait_all=True) == STATUS_SUCCESS
        assert current(processor).kernel_apc_disable == -2
        first.release()
        assert current(processor).kernel_apc_disable == -1
        second.release()

    processor.run_thread(body)


def test_only_the_owner_may_release_it(processor: Processor):
    mutex = Mutex(processor)

    def release() -> None:
        with pytest.raises(RaisedStatus) as caught:
            mutex.release()
        assert caught.value.status == STATUS_MUTANT_NOT_OWNED

    def owner() -> None:
        mutex.wait()
        create_system_thread(processor, release, priority=12)
        assert mutex.signal_state == 0
        mutex.release()

    processor.run_thread(release)
    processor.run_thread(owner)


def test_it_excludes_and_goes_in_order_of_arrival(processor: Processor):
    mutex = Mutex(processor)
    order: list[int] = []

    def body(number: int) -> None:
        mutex.wait()
        assert mutex.owner is current(processor)
        delay_execution(processor, 10)
        assert mutex.owner is current(processor)
        order.append(number)
        mutex.release()

    threads = [create_system_thread(processor, body, number) for number in range(4)]
    processor.run_until(lambda: all(thread.ended for thread in threads))
    assert order == [0, 1, 2, 3]


def test_a_wait_for_it_can_time_out(processor: Processor):
    mutex = Mutex(processor)

    def other() -> int:
        assert mutex.wait(0) == STATUS_TIMEOUT
        return mutex.wait(50)

    def owner() -> None:
        mutex.wait()
        delay_execution(processor, 100)
        mutex.release()

    create_system_thread(processor, owner, priority=12)
    assert processor.run_thread(other) == STATUS_TIMEOUT
    assert processor.clock.now_ns() == 50
    processor.run_thread(lambda: delay_execution(processor, 100))
    assert mutex.signal_state == 1


def test_release_at_dispatch_level_lets_the_next_run_at_the_drop(processor: Processor):
    mutex = Mutex(processor)
    order: list[str] = []

    def next_owner() -> None:
        mutex.wait()
        order.append("next")
        mutex.release()

    def body() -> None:
        mutex.wait()
        create_system_thread(processor, next_owner, priority=12)
        old = processor.raise_irql(DISPATCH_LEVEL)
        mutex.release()
        order.append("released")
        processor.lower_irql(old)
        order.append("dropped")

    processor.run_thread(body)
    assert order == ["released", "next", "dropped"]


def test_a_system_thread_that_ends_with_it_is_bug_check_4000008a(processor: Processor, stops: Any):
    mutex = Mutex(processor)
    with stops(THREAD_TERMINATE_HELD_MUTEX) as caught:
        processor.run_thread(mutex.wait)
    assert "Mutex(state 0" in caught.value.report["detail"]


def test_a_service_that_returns_to_user_mode_with_it_is_bug_check_01(
    processor: Processor, stops: Any
):
    thread = create_user_thread(processor, KProcess(processor, "user"), "user")
    thread.enter_kernel(Mutex(processor).wait)
    with stops(APC_INDEX_MISMATCH, 0, 0, 1):
        processor.run_until(lambda: thread.in_user_mode)


@pytest.mark.parametrize("ahead", [True, False], ids=["waits already", "comes later"])
def test_the_owner_after_one_that_ended_is_told_once(processor: Processor, ahead: bool):
    mutex = Mutex(processor)
    statuses: list[int] = []
    dying = create_user_thread(processor, KProcess(processor, "user"), "dying")

    def service() -> None:
        mutex.wait()
        mutex.wait()
        delay_execution(processor, 10)
        dying.end()

    def successor() -> None:
        statuses.append(mutex.wait())
        mutex.release()
        statuses.append(mutex.wait())
        mutex.release()

    dying.enter_kernel(service)
    if ahead:
        create_system_thread(processor, successor)
    processor.run_until(lambda: dying.ended)
    assert dying.kernel_apc_disable == 0
    if not ahead:
        create_system_thread(processor, successor)
    processor.run_until(lambda: len(statuses) == 2)
    assert statuses == [STATUS_ABANDONED, STATUS_SUCCESS]


def test_a_wait_for_any_tells_which_one_was_abandoned(processor: Processor):
    held, abandoned = Mutex(processor), Mutex(processor)
    dying = create_user_thread(processor, KProcess(processor, "user"), "dying")

    def service() -> None:
        abandoned.wait()
        dying.end()

    def body() -> None:
        status = wait_for_multiple([held, abandoned], wait_all=False)
        assert status == STATUS_ABANDONED + 1
        abandoned.release()

    def holder() -> None:
        held.wait()
        delay_execution(processor, 1_000)
        held.release()

    create_system_thread(processor, holder, priority=12)
    processor.run_until(lambda: held.owner is not None)
    dying.enter_kernel(service)
    processor.run_until(lambda: dying.ended)
    processor.run_thread(body)


def test_acquiring_it_without_a_thread_is_a_bug_check(processor: Processor, stops: Any):
    with stops(ATTEMPTED_SWITCH_FROM_DPC):
        Mutex(processor).wait(0)


def test_waiting_for_it_at_apc_level_is_allowed(processor: Processor):
    mutex = Mutex(processor)

    def body() -> None:
        processor.raise_irql(APC_LEVEL)
        assert mutex.wait() == STATUS_SUCCESS
        mutex.release()
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
