"""Timing loops against operations and a clock whose times are known."""

import pytest

from user_proc.bench import timed_loops
from user_proc.bench.timed_loops import Window, sample_store, take, take_moments, wait_until


class FakeClock:
    """A clock that only operations and sleeps move."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.sleeps: list[int] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(round(seconds * 1e9))
        self.now += round(seconds * 1e9)

    def read(self) -> int:
        self.now += 1  # so that looking again and again ends
        return self.now

    def operation(self, ns: int) -> None:
        self.now += ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(timed_loops, "now_ns", fake.read)
    monkeypatch.setattr(timed_loops.time, "sleep", fake.sleep)
    return fake


def test_a_closed_loop_times_each_operation_and_leaves_the_warm_up_out(clock: FakeClock):
    times = iter([50, 50, 100, 200, 300])
    taken = take(lambda: clock.operation(next(times)), Window(3, warmup=2))
    assert list(taken.samples) == [101, 201, 301]
    assert taken.elapsed_ns == sum(taken.samples)
    assert (taken.late_ns, taken.last_late_ns) == (0, 0)


def test_a_block_ends_when_its_time_is_up_but_not_before_five(clock: FakeClock):
    taken = take(lambda: clock.operation(1_000), Window(100, limit_ns=10))
    assert len(taken.samples) == 5
    taken = take(lambda: clock.operation(1_000), Window(100, limit_ns=10_000))
    assert len(taken.samples) == 10


def test_processes_begin_together_and_count_what_lies_between(clock: FakeClock):
    begin = clock.now + 1_000_000
    taken = take(lambda: clock.operation(100), Window(4, begin_ns=begin))
    assert clock.now >= begin + 4 * 100
    assert taken.elapsed_ns > sum(taken.samples)


def test_a_wait_sleeps_long_and_looks_at_the_clock_at_the_end(clock: FakeClock):
    moment = clock.now + 10_000_000
    wait_until(moment)
    assert moment <= clock.now <= moment + 10
    assert clock.sleeps == [10_000_000 - timed_loops.SENDER_SPIN_NS - 1]
    wait_until(clock.now + 1_000)
    assert len(clock.sleeps) == 1


def test_an_open_loop_counts_from_the_intended_start(clock: FakeClock):
    # One stall of 3.5 intervals: the next starts are late, and their times say so.
    times = iter([1_000, 35_000, 1_000, 1_000, 1_000, 1_000, 1_000])
    taken = take(lambda: clock.operation(next(times)), Window(7, interval_ns=10_000))
    samples = [round(sample, -3) for sample in taken.samples]
    assert samples == [1_000, 35_000, 26_000, 17_000, 8_000, 1_000, 1_000]
    assert round(taken.late_ns, -3) == 25_000
    assert round(taken.last_late_ns, -3) == 0
    assert round(taken.elapsed_ns, -3) == 61_000


def test_an_open_loop_that_cannot_keep_pace_falls_behind(clock: FakeClock):
    taken = take(lambda: clock.operation(15_000), Window(10, interval_ns=10_000))
    assert list(taken.samples) == sorted(taken.samples)
    assert round(taken.last_late_ns, -3) == 9 * 5_000
    assert taken.late_ns == taken.last_late_ns


def test_an_open_loop_ends_when_its_time_is_up(clock: FakeClock):
    window = Window(1_000, interval_ns=10_000, limit_ns=100_000)
    taken = take(lambda: clock.operation(10), window)
    assert 5 <= len(taken.samples) <= 12


def test_moments_are_those_of_the_operation(clock: FakeClock):
    moments = take_moments(lambda: clock.operation(500), 3)
    assert [end - begin for begin, end in moments] == [501] * 3


def test_the_cost_of_storing_a_sample_is_a_time():
    taken = sample_store(Window(7))
    assert len(taken.samples) == 7
    assert 0 < sum(taken.samples) == taken.elapsed_ns
