"""Semaphores: count, limit, who is woken."""

from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL
from kernel_proc.scheduling.irql import HIGH_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.semaphore import Semaphore
from shared.nt_status import STATUS_SEMAPHORE_LIMIT_EXCEEDED, STATUS_SUCCESS, STATUS_TIMEOUT


def test_each_wait_takes_one_and_release_tells_the_previous_count(processor: Processor):
    semaphore = Semaphore(processor, 2, 3)

    def body() -> None:
        assert [semaphore.wait(0) for _ in range(3)] == [
            STATUS_SUCCESS,
            STATUS_SUCCESS,
            STATUS_TIMEOUT,
        ]
        assert semaphore.release() == 0
        assert semaphore.release(2) == 1
        assert semaphore.signal_state == 3

    processor.run_thread(body)


@pytest.mark.parametrize("adjustment", [2, 100, 0, -1])
def test_a_release_over_the_limit_raises_and_changes_nothing(processor: Processor, adjustment: int):
    semaphore = Semaphore(processor, 2, 3)

    def body() -> None:
        with pytest.raises(RaisedStatus) as caught:
            semaphore.release(adjustment)
        assert caught.value.status == STATUS_SEMAPHORE_LIMIT_EXCEEDED
        assert semaphore.signal_state == 2

    processor.run_thread(body)


def test_a_release_wakes_as_many_as_it_adds_in_order(processor: Processor):
    semaphore = Semaphore(processor, 0, 10)
    woken: list[int] = []

    def waiter(number: int) -> None:
        semaphore.wait()
        woken.append(number)

    threads = [create_system_thread(processor, waiter, number) for number in range(4)]
    processor.run_until(lambda: all(thread.is_waiting for thread in threads))
    assert processor.run_thread(semaphore.release, 2) == 0
    processor.run_until(lambda: len(woken) == 2)
    assert [thread.is_waiting for thread in threads] == [False, False, True, True]
    processor.run_thread(semaphore.release, 3)
    processor.run_until(lambda: len(woken) == 4)
    assert woken == [0, 1, 2, 3]
    assert semaphore.signal_state == 1


def test_release_above_dispatch_level_is_a_bug_check(processor: Processor, stops: Any):
    def body() -> None:
        processor.raise_irql(HIGH_LEVEL)
        Semaphore(processor, 0, 1).release()

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, HIGH_LEVEL):
        processor.run_thread(body)
