"""The rate of DPC requests, and what it decides for DPCs of low importance."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.scheduling.dpc import LOW_IMPORTANCE, MEDIUM_HIGH_IMPORTANCE, Dpc
from kernel_proc.scheduling.dpc_rate import TICK_NS, DpcRate
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.wait import delay_execution
from shared.nt_status import STATUS_INVALID_PARAMETER, STATUS_SUCCESS


def test_a_tick_is_that_of_nt():
    assert TICK_NS == 1_000_000_000 // 64


def test_within_a_tick_it_stays():
    rate = DpcRate(0)
    assert rate.update(TICK_NS - 1, 1_000) == 0
    assert rate.update(TICK_NS, 1_000) == 500


def test_it_starts_with_the_machine_not_with_the_clock():
    rate = DpcRate(1_000_000 * TICK_NS)
    assert rate.update(1_000_001 * TICK_NS, 8) == 4


def test_each_tick_counts_half():
    rate = DpcRate(0)
    seen = [rate.update(tick * TICK_NS, requests) for tick, requests in enumerate((0, 8, 16, 16))]
    assert seen == [0, 4, 6, 3]


def test_a_long_silence_ends_in_nothing_however_long():
    rate = DpcRate(0)
    rate.update(TICK_NS, 1_000_000)
    assert rate.update(10**9 * TICK_NS, 1_000_000) == 0


def test_requests_that_were_taken_back_do_not_make_it_negative():
    rate = DpcRate(0)
    rate.update(TICK_NS, 10)
    assert rate.update(2 * TICK_NS, 4) == 2


@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(0, 500)), min_size=1, max_size=10),
    st.integers(0, TICK_NS - 1),
)
def test_it_is_the_filter_of_nt_over_evenly_spread_requests(
    looks: list[tuple[int, int]], within: int
):
    rate = DpcRate(0)
    tick = requests = expected = spread = 0
    for passed, more in looks:
        tick += passed
        requests += more
        spread += more
        if passed:
            for number in range(passed):
                each = spread // passed + (number < spread % passed)
                expected = (expected + each) // 2
            spread = 0
        assert rate.update(tick * TICK_NS + within, requests) == expected


def low(processor: Processor, order: list[str]) -> Dpc:
    dpc = Dpc(processor, lambda *_: order.append("low"))
    dpc.set_importance(LOW_IMPORTANCE)
    return dpc


@pytest.mark.parametrize(("a_tick", "at_once"), [(0, True), (2, True), (5, False), (100, False)])
def test_low_importance_runs_at_once_below_three_requests_a_tick(
    processor: Processor, a_tick: int, at_once: bool
):
    order: list[str] = []
    other = Dpc(processor, lambda *_: None)

    def body() -> None:
        for _ in range(10):
            for _ in range(a_tick):
                other.insert()
            delay_execution(processor, TICK_NS)
        low(processor, order).insert()
        order.append("thread")

    processor.run_thread(body)
    processor.run_thread(delay_execution, processor, 1)  # an idle moment
    assert order == (["low", "thread"] if at_once else ["thread", "low"])


def test_after_a_burst_it_takes_some_quiet_ticks(processor: Processor):
    waits: list[bool] = []
    other = Dpc(processor, lambda *_: None)

    def body() -> None:
        for _ in range(32):
            other.insert()
        for _ in range(5):
            order: list[str] = []
            low(processor, order).insert()
            waits.append(not order)
            delay_execution(processor, TICK_NS)  # it runs now at the latest
            assert order == ["low"]

    processor.run_thread(body)
    # The rate is 0, then (0 + 33) / 2, and each look of ours counts: (16 + 1) / 2, 4, 2.
    assert waits == [False, True, True, True, False]


def test_by_the_real_clock_it_is_the_same_rule(real: Processor):
    order: list[str] = []
    real.run_thread(low(real, order).insert)
    assert order == ["low"]


# KeSetImportanceDpc, KeSetTargetProcessorDpcEx


def test_importance_set_while_queued_counts_for_the_next_insertion(processor: Processor):
    order: list[str] = []
    first, second = (Dpc(processor, lambda *_, n=n: order.append(n)) for n in ("first", "second"))

    def body() -> None:
        old = processor.raise_irql(DISPATCH_LEVEL)
        first.insert()
        second.insert()
        second.set_importance(2)
        processor.lower_irql(old)
        old = processor.raise_irql(DISPATCH_LEVEL)
        first.insert()
        second.insert()
        processor.lower_irql(old)

    processor.run_thread(body)
    assert order == ["first", "second", "second", "first"]


def test_medium_high_goes_to_the_tail_and_runs_at_once(processor: Processor):
    processor.minimum_dpc_rate = 0
    order: list[Any] = []

    def body() -> None:
        low(processor, order).insert()
        dpc = Dpc(processor, lambda *_: order.append("medium high"))
        dpc.set_importance(MEDIUM_HIGH_IMPORTANCE)
        dpc.insert()
        assert order == ["low", "medium high"]

    processor.run_thread(body)


def test_there_is_one_processor_to_choose(processor: Processor):
    dpc = Dpc(processor, print)
    assert dpc.set_target_processor(0) == STATUS_SUCCESS
    assert dpc.set_target_processor(1) == STATUS_INVALID_PARAMETER
    assert dpc.set_target_processor(-1) == STATUS_INVALID_PARAMETER
    assert dpc.number == 0


def test_a_machine_made_late_starts_with_few_requests():
    processor = Processor(VirtualClock(10**18))
    order: list[str] = []
    for _ in range(10):
        Dpc(processor, lambda *_: None).insert()
    low(processor, order).insert()
    assert order == ["low"]
