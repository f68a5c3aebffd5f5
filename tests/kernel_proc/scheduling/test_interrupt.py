"""Interrupt lines: when the service routine runs, and at which level."""

from typing import Any

from kernel_proc.scheduling.bugcheck import KMODE_EXCEPTION_NOT_HANDLED
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.irql import (
    APC_LEVEL,
    DEVICE_LEVEL,
    DISPATCH_LEVEL,
    HIGH_LEVEL,
    PASSIVE_LEVEL,
)
from kernel_proc.scheduling.processor import Processor


def connect(
    processor: Processor, order: list[Any], name: str, irql: int = DEVICE_LEVEL, claim: bool = True
) -> Interrupt:
    def service(line: Interrupt, context: Any) -> bool:
        order.append((context, processor.irql))
        return claim

    line = Interrupt(processor, service, name, irql)
    line.connect()
    return line


def test_service_runs_at_once_at_dirql_when_the_level_allows(processor: Processor):
    order: list[Any] = []
    line = connect(processor, order, "line")

    def body() -> None:
        for level in (PASSIVE_LEVEL, APC_LEVEL, DISPATCH_LEVEL):
            processor.raise_irql(level)
            line.request()
            assert processor.irql == level
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert order == [("line", DEVICE_LEVEL)] * 3
    assert processor.interrupts == 3


def test_a_masked_line_is_served_once_when_the_level_falls(processor: Processor):
    order: list[Any] = []
    line = connect(processor, order, "line")

    def body() -> None:
        processor.raise_irql(HIGH_LEVEL)
        line.request()
        line.request()
        processor.lower_irql(DEVICE_LEVEL)
        assert not order
        processor.lower_irql(DEVICE_LEVEL - 1)
        assert order == [("line", DEVICE_LEVEL)]
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert len(order) == 1


def test_the_highest_line_comes_first_and_equals_in_order(processor: Processor):
    order: list[Any] = []
    lines = [
        connect(processor, order, name, irql)
        for name, irql in [("low", 4), ("first", 6), ("second", 6), ("top", 9)]
    ]

    def body() -> None:
        processor.raise_irql(HIGH_LEVEL)
        for line in lines:
            line.request()
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert [name for name, _ in order] == ["top", "first", "second", "low"]


def test_a_higher_line_interrupts_a_service_and_a_lower_one_waits(processor: Processor):
    order: list[Any] = []
    high = connect(processor, order, "high", 9)
    low = connect(processor, order, "low", 4)

    def service(line: Interrupt, context: Any) -> bool:
        order.append("in")
        high.request()
        low.request()
        order.append("out")
        return True

    middle = Interrupt(processor, service, irql=6)
    middle.connect()
    processor.run_thread(middle.request)
    assert order == ["in", ("high", 9), "out", ("low", 4)]


def test_a_service_routine_may_disconnect_a_line_raised_with_its_own(processor: Processor):
    order: list[Any] = []
    other = connect(processor, order, "other", 4)

    def service(line: Interrupt, context: Any) -> bool:
        other.disconnect()
        return True

    first = Interrupt(processor, service, irql=6)
    first.connect()

    def body() -> None:
        processor.raise_irql(HIGH_LEVEL)
        other.request()
        first.request()
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert not order
    assert processor.pending == 0


def test_service_dpc_and_woken_thread_follow_in_that_order(processor: Processor):
    order: list[str] = []
    event = Event(processor, notification=False)

    def deferred(*_: Any) -> None:
        order.append("dpc")
        event.set()

    dpc = Dpc(processor, deferred)

    def service(line: Interrupt, context: Any) -> bool:
        order.append("service")
        dpc.insert()
        order.append("service ends")
        return True

    line = Interrupt(processor, service)
    line.connect()

    def body() -> None:
        processor.schedule_hardware(line.request)
        order.append("waits")
        event.wait()
        order.append("woken")

    processor.run_thread(body)
    assert order == ["waits", "service", "service ends", "dpc", "woken"]


def test_a_line_that_is_not_connected_does_not_interrupt(processor: Processor):
    order: list[Any] = []
    line = connect(processor, order, "line")

    def body() -> None:
        processor.raise_irql(HIGH_LEVEL)
        line.request()
        line.disconnect()
        line.request()
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert not order
    assert not processor.interrupts


def test_an_unclaimed_interrupt_is_counted(processor: Processor):
    line = connect(processor, [], "line", claim=False)
    processor.run_thread(line.request)
    assert line.spurious == 1


def test_an_exception_leaving_a_service_routine_is_bug_check_1e(processor: Processor, stops: Any):
    def service(line: Interrupt, context: Any) -> bool:
        raise ZeroDivisionError

    line = Interrupt(processor, service)
    line.connect()
    with stops(KMODE_EXCEPTION_NOT_HANDLED) as caught:
        processor.run_thread(line.request)
    assert caught.value.report["irql"] == f"DIRQL {DEVICE_LEVEL}"
