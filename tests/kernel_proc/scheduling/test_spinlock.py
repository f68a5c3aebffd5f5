"""Spin locks: levels, and the checks that stand for spinning."""

from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
    SPIN_LOCK_ALREADY_OWNED,
    SPIN_LOCK_NOT_OWNED,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.irql import APC_LEVEL, DEVICE_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.spinlock import SpinLock


@pytest.mark.parametrize("level", [PASSIVE_LEVEL, APC_LEVEL, DISPATCH_LEVEL])
def test_k28_acquire_and_release(processor: Processor, level: int):
    lock = SpinLock(processor)

    def body() -> None:
        thread = processor.current_thread
        assert thread is not None
        processor.raise_irql(level)
        old = lock.acquire()
        assert (old, processor.irql, lock.held) == (level, DISPATCH_LEVEL, True)
        assert not thread.are_apcs_disabled()
        lock.release(old)
        assert (processor.irql, lock.held) == (level, False)
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)


def test_k28_at_dpc_level_leaves_the_level_alone(processor: Processor):
    lock = SpinLock(processor)

    def body() -> None:
        processor.raise_irql(DISPATCH_LEVEL)
        lock.acquire_at_dpc_level()
        assert (processor.irql, lock.held) == (DISPATCH_LEVEL, True)
        lock.release_from_dpc_level()
        assert (processor.irql, lock.held) == (DISPATCH_LEVEL, False)
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)


def test_k28_free_build_does_not_check_the_dpc_level_forms(free: Processor):
    lock = SpinLock(free)

    def body() -> None:
        lock.acquire_at_dpc_level()
        lock.release_from_dpc_level()
        assert free.irql == PASSIVE_LEVEL

    free.run_thread(body)


def test_a_dpc_queued_inside_runs_at_the_release(processor: Processor):
    lock = SpinLock(processor)
    held: list[bool] = []

    def body() -> None:
        old = lock.acquire()
        Dpc(processor, lambda *_: held.append(lock.held)).insert()
        assert not held
        lock.release(old)
        assert held == [False]

    processor.run_thread(body)


@pytest.mark.parametrize("again", ["acquire", "acquire_at_dpc_level"])
def test_a_held_lock_is_bug_check_0f(processor: Processor, stops: Any, again: str):
    lock = SpinLock(processor, "the queue lock")

    def body() -> None:
        lock.acquire()
        getattr(lock, again)()

    with stops(SPIN_LOCK_ALREADY_OWNED) as caught:
        processor.run_thread(body)
    assert "the queue lock" in caught.value.headline()


def test_a_lock_left_by_a_thread_that_lowered_the_level_is_bug_check_0f(
    free: Processor, stops: Any
):
    lock = SpinLock(free)

    def careless() -> None:
        lock.acquire()
        free.lower_irql(PASSIVE_LEVEL)

    free.run_thread(careless)
    with stops(SPIN_LOCK_ALREADY_OWNED):
        free.run_thread(lock.acquire)


def release_at_dispatch(processor: Processor, lock: SpinLock) -> None:
    processor.raise_irql(DISPATCH_LEVEL)
    lock.release(PASSIVE_LEVEL)


def release_from_dpc_level(processor: Processor, lock: SpinLock) -> None:
    processor.raise_irql(DISPATCH_LEVEL)
    lock.release_from_dpc_level()


@pytest.mark.parametrize("release", [release_at_dispatch, release_from_dpc_level])
def test_release_of_a_free_lock_is_bug_check_10(processor: Processor, stops: Any, release: Any):
    with stops(SPIN_LOCK_NOT_OWNED):
        processor.run_thread(release, processor, SpinLock(processor))


def acquire_at_dirql(processor: Processor, lock: SpinLock) -> None:
    processor.raise_irql(DEVICE_LEVEL)
    lock.acquire()


def release_below_dispatch(processor: Processor, lock: SpinLock) -> None:
    lock.acquire()
    processor.lower_irql(PASSIVE_LEVEL)
    lock.release(PASSIVE_LEVEL)


def acquire_below_dispatch(processor: Processor, lock: SpinLock) -> None:
    lock.acquire_at_dpc_level()


def release_from_below_dispatch(processor: Processor, lock: SpinLock) -> None:
    lock.acquire()
    processor.lower_irql(PASSIVE_LEVEL)
    lock.release_from_dpc_level()


@pytest.mark.parametrize(
    ("act", "sub_code"),
    [
        (acquire_at_dirql, 0x42),
        (release_below_dispatch, 0x32),
        (acquire_below_dispatch, 0x40),
        (release_from_below_dispatch, 0x41),
    ],
)
def test_verifier_sub_codes(checked: Processor, stops: Any, act: Any, sub_code: int):
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, sub_code):
        checked.run_thread(act, checked, SpinLock(checked))


def test_free_build_stops_an_acquisition_at_dirql(free: Processor, stops: Any):
    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, DEVICE_LEVEL):
        free.run_thread(acquire_at_dirql, free, SpinLock(free))
