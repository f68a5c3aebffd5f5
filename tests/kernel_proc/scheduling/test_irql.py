"""IRQL: raise, lower, and what runs when it falls."""

from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DETECTED_VIOLATION
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import (
    APC_LEVEL,
    DEVICE_LEVEL,
    DISPATCH_LEVEL,
    HIGH_LEVEL,
    PASSIVE_LEVEL,
    irql_name,
)
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.processor import Processor

LEVELS = (PASSIVE_LEVEL, APC_LEVEL, DISPATCH_LEVEL, DEVICE_LEVEL, HIGH_LEVEL)


def test_k20_raise_returns_the_old_level_and_same_level_is_a_no_op(processor: Processor):
    def body() -> None:
        for level in LEVELS:
            old = processor.raise_irql(level)
            assert old == LEVELS[max(0, LEVELS.index(level) - 1)]
            assert processor.raise_irql(level) == level
            assert processor.irql == level
        for level in reversed(LEVELS):
            processor.lower_irql(level)
            processor.lower_irql(level)
            assert processor.irql == level

    processor.run_thread(body)


def test_k20b_raise_to_dpc_level_twice(processor: Processor):
    def body() -> None:
        assert processor.raise_irql(DISPATCH_LEVEL) == PASSIVE_LEVEL
        assert processor.raise_irql(DISPATCH_LEVEL) == DISPATCH_LEVEL
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)


def test_k20c_free_build_takes_the_level_asked_for(free: Processor):
    def body() -> None:
        free.raise_irql(DISPATCH_LEVEL)
        assert free.raise_irql(APC_LEVEL) == DISPATCH_LEVEL
        assert free.irql == APC_LEVEL
        free.lower_irql(HIGH_LEVEL)
        assert free.irql == HIGH_LEVEL
        free.lower_irql(PASSIVE_LEVEL)

    free.run_thread(body)


def test_k20c_a_raise_that_lowers_lets_pending_work_run(free: Processor):
    ran: list[int] = []
    dpc = Dpc(free, lambda *_: ran.append(free.irql))

    def body() -> None:
        free.raise_irql(HIGH_LEVEL)
        dpc.insert()
        free.raise_irql(DISPATCH_LEVEL)
        assert not ran
        free.raise_irql(APC_LEVEL)
        assert ran == [DISPATCH_LEVEL]
        assert free.irql == APC_LEVEL
        free.lower_irql(PASSIVE_LEVEL)

    free.run_thread(body)


def test_k20c_verifier_refuses_a_raise_to_a_lower_level(checked: Processor, stops: Any):
    def body() -> None:
        checked.raise_irql(DISPATCH_LEVEL)
        checked.raise_irql(APC_LEVEL)

    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x30, DISPATCH_LEVEL, APC_LEVEL):
        checked.run_thread(body)
    assert checked.irql == DISPATCH_LEVEL


def test_k20c_verifier_refuses_a_lowering_to_a_higher_level(checked: Processor, stops: Any):
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x31, PASSIVE_LEVEL, APC_LEVEL, 0):
        checked.run_thread(checked.lower_irql, APC_LEVEL)


def test_a_higher_thread_readied_at_dispatch_runs_when_the_level_falls(processor: Processor):
    order: list[str] = []
    event = Event(processor, notification=False)

    def waiter() -> None:
        event.wait()
        order.append("high")

    def body() -> None:
        old = processor.raise_irql(DISPATCH_LEVEL)
        event.set()
        order.append("still at DISPATCH_LEVEL")
        processor.lower_irql(APC_LEVEL)
        order.append("after the drop")
        assert processor.irql == APC_LEVEL  # not that of the thread that ran meanwhile
        processor.lower_irql(old)

    create_system_thread(processor, waiter, priority=12)
    processor.run_thread(body)
    assert order == ["still at DISPATCH_LEVEL", "high", "after the drop"]


@pytest.mark.parametrize(
    ("level", "name"),
    [(0, "PASSIVE_LEVEL"), (2, "DISPATCH_LEVEL"), (5, "DIRQL 5"), (15, "HIGH_LEVEL")],
)
def test_levels_have_names(level: int, name: str):
    assert irql_name(level) == name
