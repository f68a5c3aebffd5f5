"""The watchdog: a held processor, a stuck DPC, and no false alarm."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import DPC_WATCHDOG_VIOLATION, BugCheck
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.wait import delay_execution
from kernel_proc.scheduling.watchdog import Watchdog
from shared.clock import now_ns

MILLISECOND = 1_000_000
PATIENCE_NS = 5_000 * MILLISECOND


class Listener:
    """What a machine's owner hears."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.violations: list[BugCheck] = []

    def watch(self, processor: Processor, limit_ns: int) -> Watchdog:
        watchdog = Watchdog(processor, self.held.append, self.violations.append, limit_ns)
        watchdog.start()
        return watchdog

    def hold_processor_until_told(self, times: int = 1) -> None:
        give_up = now_ns() + PATIENCE_NS
        while len(self.held) + len(self.violations) < times and now_ns() < give_up:
            pass


def hold_in_thread(processor: Processor, hold: Callable[[], None]) -> None:
    processor.run_thread(hold)


def hold_in_dpc(processor: Processor, hold: Callable[[], None]) -> None:
    processor.run_thread(Dpc(processor, lambda *_: hold()).insert)


def hold_in_service(processor: Processor, hold: Callable[[], None]) -> None:
    line = Interrupt(processor, lambda *_: hold() is None)
    line.connect()
    processor.run_thread(line.request)


def hold_in_callback(processor: Processor, hold: Callable[[], None]) -> None:
    processor.schedule_hardware(hold)
    processor.run_thread(delay_execution, processor, 1)


@pytest.mark.parametrize(
    ("how", "who"), [(hold_in_thread, "thread 1 'hold'"), (hold_in_callback, "the dispatcher")]
)
def test_a_held_processor_is_reported_once_with_its_stack(real: Processor, how: Any, who: str):
    listener = Listener()
    watchdog = listener.watch(real, 20 * MILLISECOND)

    def hold() -> None:
        listener.hold_processor_until_told()
        several_limits = now_ns() + 100 * MILLISECOND
        while now_ns() < several_limits:
            pass

    how(real, hold)
    watchdog.stop()
    (text,) = listener.held
    assert not listener.violations
    assert "processor held for over 0.02 s at PASSIVE_LEVEL" in text
    assert f"by {who}" in text
    assert "hold_processor_until_told" in text  # its stack


@pytest.mark.parametrize(("how", "level"), [(hold_in_dpc, "DISPATCH"), (hold_in_service, "DIRQL")])
def test_a_stuck_dpc_or_service_is_bug_check_133(real: Processor, how: Any, level: str):
    listener = Listener()
    watchdog = listener.watch(real, 20 * MILLISECOND)
    how(real, listener.hold_processor_until_told)
    watchdog.stop()
    (violation,) = listener.violations
    assert not listener.held
    assert violation.code == DPC_WATCHDOG_VIOLATION
    assert violation.report["irql"].startswith(level)
    assert "hold_processor_until_told" in violation.text()


def test_it_reports_again_after_the_processor_went_on(real: Processor):
    listener = Listener()
    watchdog = listener.watch(real, 10 * MILLISECOND)
    for times in (1, 2, 3):
        real.run_thread(listener.hold_processor_until_told, times)
        assert len(listener.held) == times
        real.run_thread(delay_execution, real, MILLISECOND)
    watchdog.stop()


def test_sleeping_working_and_not_running_are_no_holds(real: Processor):
    listener = Listener()
    watchdog = listener.watch(real, 100 * MILLISECOND)
    real.run_thread(delay_execution, real, 250 * MILLISECOND)

    def work() -> None:
        until = now_ns() + 250 * MILLISECOND
        while now_ns() < until:
            real.dispatcher.yield_execution()

    real.run_thread(work)
    until = now_ns() + 250 * MILLISECOND
    while now_ns() < until:  # the dispatcher does not run: nothing to watch
        pass
    watchdog.stop()
    assert not listener.held
    assert not listener.violations
