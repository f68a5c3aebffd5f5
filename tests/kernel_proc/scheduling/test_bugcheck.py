"""Bug checks: the report, and that the machine stays stopped."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_proc.scheduling import bugcheck
from kernel_proc.scheduling.bugcheck import (
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
    BugCheck,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.semaphore import Semaphore
from kernel_proc.scheduling.spinlock import SpinLock
from shared.trace_points import trace


@pytest.fixture
def traced() -> Iterator[None]:
    trace.clear()
    trace.enabled = True
    trace.record("before the end", 7)
    trace.enabled = False
    yield
    trace.clear()


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def stop(processor: Processor) -> BugCheck:
    """Have a thread with an IRP in hand release a semaphore above DISPATCH_LEVEL."""

    def faulty_driver() -> None:
        thread = processor.current_thread
        assert thread is not None
        thread.irps["IRP 5 for device 'noop'"] = None
        processor.raise_irql(HIGH_LEVEL)
        Semaphore(processor, 0, 1).release()

    with pytest.raises(BugCheck) as caught:
        processor.run_thread(faulty_driver)
    return caught.value


def test_the_report_for_people(processor: Processor, traced: None):
    text = stop(processor).text()
    for fact in (
        "*** bug check 0xa IRQL_NOT_LESS_OR_EQUAL (0x0, 0xf, 0x0, 0x0): "
        "KeReleaseSemaphore called at HIGH_LEVEL, at most DISPATCH_LEVEL",
        "routine: release (semaphore.py:",
        "driver: stop.<locals>.faulty_driver (test_bugcheck.py:",
        "irql: HIGH_LEVEL",
        "'faulty_driver'",
        "IRP 5 for device 'noop'",
        "before the end",
    ):
        assert fact in text
    assert len(text.splitlines()) == 8


def test_the_report_as_json(processor: Processor, traced: None):
    document = json.loads(stop(processor).to_json(), parse_constant=refuse_constant)
    assert document["code"] == IRQL_NOT_LESS_OR_EQUAL
    assert document["name"] == "IRQL_NOT_LESS_OR_EQUAL"
    assert document["parameters"] == [0, HIGH_LEVEL, 0, 0]
    assert document["irql"] == "HIGH_LEVEL"
    assert document["in_dpc"] is False
    assert "faulty_driver" in document["thread"]
    assert document["irps"] == ["IRP 5 for device 'noop'"]
    assert len(document["last_trace_points"]) == 1
    assert document["routine"].startswith("release (semaphore.py:")


def test_without_a_thread_the_report_says_so(processor: Processor):
    with pytest.raises(BugCheck) as caught:
        processor.bug_check(0x999)
    assert caught.value.report["thread"] == "none (idle)"
    assert caught.value.report["irps"] == []
    assert caught.value.headline() == "bug check 0x999 UNKNOWN_BUG_CHECK (0x0, 0x0, 0x0, 0x0)"
    assert "test_without_a_thread" in caught.value.report["routine"]


def test_the_machine_stays_stopped(processor: Processor):
    first = stop(processor)
    assert processor.bug_checked is first
    for again in (
        lambda: processor.run_thread(print),
        lambda: processor.run_until(lambda: False),
        processor.run,
        lambda: create_system_thread(processor, print, priority=15),
        lambda: Event(processor, notification=True).clear(),
    ):
        with pytest.raises(BugCheck) as caught:
            again()
        assert caught.value is first


def test_kernel_code_cannot_swallow_it(processor: Processor):
    def body() -> str:
        try:
            processor.raise_irql(HIGH_LEVEL)
            Event(processor, notification=True).set()
        except Exception:
            return "swallowed"
        return "unnoticed"

    with pytest.raises(BugCheck):
        processor.run_thread(body)


def finally_breaks_more(processor: Processor) -> None:
    lock = SpinLock(processor)
    try:
        processor.raise_irql(HIGH_LEVEL)
        Event(processor, notification=True).set()
    finally:
        lock.release(PASSIVE_LEVEL)


def finally_raises(processor: Processor) -> None:
    try:
        processor.raise_irql(HIGH_LEVEL)
        Event(processor, notification=True).set()
    finally:
        raise OSError("from a finally block")


def finally_wakes_a_thread(processor: Processor) -> None:
    event = Event(processor, notification=False)
    create_system_thread(processor, lambda: (event.wait(), pytest.fail("ran")), priority=12)
    try:
        processor.raise_irql(HIGH_LEVEL)
        Event(processor, notification=True).set()
    finally:
        processor.lower_irql(PASSIVE_LEVEL)
        event.set()


@pytest.mark.parametrize("act", [finally_breaks_more, finally_raises, finally_wakes_a_thread])
def test_the_first_one_is_reported_whatever_the_way_out_breaks(free: Processor, act: Any):
    with pytest.raises(BugCheck) as caught:
        free.run_thread(act, free)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL
    assert "KeSetEvent" in caught.value.headline()
    assert free.bug_checked is caught.value


def test_it_passes_through_nested_kernel_code(processor: Processor):
    """A DPC on top of a thread's APC stops the machine with the DPC's report."""

    def deferred(*_: Any) -> None:
        processor.raise_irql(HIGH_LEVEL)
        Event(processor, notification=True).set()

    with pytest.raises(BugCheck) as caught:
        processor.run_thread(Dpc(processor, deferred).insert)
    assert caught.value.report["in_dpc"] is True
    assert caught.value.code != KMODE_EXCEPTION_NOT_HANDLED


@pytest.mark.parametrize(
    ("constant", "value"),
    [
        ("APC_INDEX_MISMATCH", 0x01),
        ("IRQL_NOT_LESS_OR_EQUAL", 0x0A),
        ("SPIN_LOCK_ALREADY_OWNED", 0x0F),
        ("SPIN_LOCK_NOT_OWNED", 0x10),
        ("KMODE_EXCEPTION_NOT_HANDLED", 0x1E),
        ("NO_MORE_IRP_STACK_LOCATIONS", 0x35),
        ("MULTIPLE_IRP_COMPLETE_REQUESTS", 0x44),
        ("CANCEL_STATE_IN_COMPLETED_IRP", 0x48),
        ("IRQL_GT_ZERO_AT_SYSTEM_SERVICE", 0x4A),
        ("PROCESS_HAS_LOCKED_PAGES", 0x76),
        ("ATTEMPTED_SWITCH_FROM_DPC", 0xB8),
        ("DRIVER_VERIFIER_DETECTED_VIOLATION", 0xC4),
        ("TIMER_OR_DPC_INVALID", 0xC7),
        ("DRIVER_VERIFIER_IOMANAGER_VIOLATION", 0xC9),
        ("DRIVER_LEFT_LOCKED_PAGES_IN_PROCESS", 0xCB),
        ("DRIVER_IRQL_NOT_LESS_OR_EQUAL", 0xD1),
        ("DRIVER_VERIFIER_DMA_VIOLATION", 0xE6),
        ("DPC_WATCHDOG_VIOLATION", 0x133),
        ("THREAD_TERMINATE_HELD_MUTEX", 0x4000008A),
    ],
)
def test_codes_and_names(constant: str, value: int):
    assert getattr(bugcheck, constant) == value
    assert BugCheck(value, (0, 0, 0, 0), {}).name == constant


def test_every_name_is_a_code():
    constants = {name for name in vars(bugcheck) if name.isupper()} - {"NAMES"}
    assert set(bugcheck.NAMES.values()) == constants
    assert all(isinstance(code, int) for code in bugcheck.NAMES)


@pytest.mark.parametrize("level", [DISPATCH_LEVEL, HIGH_LEVEL])
def test_require_irql_names_the_routine(processor: Processor, stops: Any, level: int):
    def body() -> None:
        processor.require_irql(PASSIVE_LEVEL, "IoCreateSomething")
        processor.raise_irql(level)
        processor.require_irql(level, "IoCallSomething")
        processor.require_irql(PASSIVE_LEVEL, "IoCreateSomething")

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, level) as caught:
        processor.run_thread(body)
    assert "IoCreateSomething called at" in caught.value.headline()
