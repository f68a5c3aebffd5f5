"""The histogram of request times: every length has a bucket that is at most a quarter too long."""

from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.server.request_times import _DOUBLINGS, _STEPS, RequestTimes, _bucket, _longest


@given(st.integers(_STEPS, (1 << _DOUBLINGS) - 1))
def test_a_bucket_holds_what_is_not_longer_than_it_says(length: int):
    longest = _longest(_bucket(length))
    assert length <= longest <= length * 1.25
    assert _bucket(longest) == _bucket(length)
    assert _bucket(longest + 1) == _bucket(length) + 1 or longest + 1 == 1 << _DOUBLINGS


@given(st.integers(-5, 1 << 70))
def test_any_length_has_a_bucket(length: int):
    times = RequestTimes()
    times.note(length)
    ((up_to, count),) = times.inspect()["up_to_ns"]
    assert count == 1
    assert up_to >= min(length, (1 << _DOUBLINGS) - 1)


def test_the_buckets_are_told_in_order():
    times = RequestTimes()
    for length in (5_000, 70, 5_000, 9_000_000):
        times.note(length)
    told = times.inspect()["up_to_ns"]
    assert [count for _, count in told] == [1, 2, 1]
    assert [up_to for up_to, _ in told] == sorted(up_to for up_to, _ in told)
