"""How the time of a run is divided among its blocks."""

import pytest

from user_proc.bench import time_share
from user_proc.bench.time_share import TimeShare, fitting_count


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [0]
    monkeypatch.setattr(time_share, "now_ns", lambda: now[0])
    return now


def test_equal_shares_when_each_block_takes_its_own(clock: list[int]):
    share = TimeShare(100_000_000, 10)
    for _ in range(10):
        limit = share.next_block_ns()
        assert limit == 10_000_000
        clock[0] += limit


def test_what_a_block_leaves_goes_to_the_others(clock: list[int]):
    share = TimeShare(100_000_000, 2)
    assert share.next_block_ns() == 50_000_000
    assert share.next_block_ns() == 100_000_000


def test_past_the_limit_a_block_still_has_a_millisecond(clock: list[int]):
    share = TimeShare(1_000, 3)
    clock[0] = 10**9
    assert [share.next_block_ns() for _ in range(5)] == [1_000_000] * 5


@pytest.mark.parametrize(
    ("wanted", "operation_ns", "limit_ns", "count"),
    [(70, 1_000.0, 10**9, 70), (70, 1_000.0, 20_000, 20), (70, 10**6, 1_000, 5), (3, 10**6, 1, 3),
     (70, 0.0, 1, 70)],
)  # fmt: skip
def test_a_count_fits_its_time_but_is_never_below_five(
    wanted: int, operation_ns: float, limit_ns: int, count: int
):
    assert fitting_count(wanted, operation_ns, limit_ns) == count
