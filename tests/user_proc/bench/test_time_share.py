"""How the time of a run is divided among its blocks."""

import pytest

from user_proc.bench import time_share
from user_proc.bench.time_share import TimeShare, fitting_count


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [0]
    monkeypatch.setattr(time_share, "now_ns", lambda: now[0])
    return now


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("blocks", [1, 2, 3, 10, 1000])
def test_blocks_that_take_all_they_may_keep_the_limit(clock: list[int], blocks: int, shares: int):
    share = TimeShare(10_000_000_000, blocks, shares)
    for _ in range(blocks):
        clock[0] += share.next_block_ns()
    # Past the limit each block still had a millisecond.
    assert clock[0] <= 10_000_000_000 + blocks * 1_000_000


def test_a_block_may_take_three_shares_but_no_more_than_is_left(clock: list[int]):
    share = TimeShare(100_000_000, 10, 3)
    assert share.next_block_ns() == 30_000_000
    clock[0] = 40_000_000
    assert share.next_block_ns() == 20_000_000
    assert TimeShare(100_000_000, 2, 3).next_block_ns() == 100_000_000


def test_a_warm_up_may_take_as_long_as_the_next_block_and_is_none(clock: list[int]):
    share = TimeShare(100_000_000, 10, 1)
    assert share.warm_up_ns() == share.warm_up_ns() == 10_000_000
    assert share.next_block_ns() == 10_000_000
    clock[0] = 10**9
    assert share.warm_up_ns() == 1_000_000


def test_past_the_limit_a_block_still_has_a_millisecond(clock: list[int]):
    share = TimeShare(1_000, 3, 3)
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
