"""Which calls a fault takes: counted against a model."""

import random

from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.faults.active_fault import ActiveFault
from shared.fault_messages import Fault
from shared.fault_points import CERTAIN

S = 1_000_000_000


def taken(calls: int, **given_: int) -> list[int]:
    active = ActiveFault(1, Fault("ack-lost", **given_), 0)
    found = [number for number in range(1, calls + 1) if active.strikes()]
    assert active.hits == len(found)
    return found


@given(st.integers(1, 50), st.integers(0, 60), st.integers(0, 5))
def test_the_nth_and_every_nth(number: int, calls: int, times: int):
    most = times or calls
    assert taken(calls, nth=number, times=times) == [number] * (number <= calls)
    every = [call for call in range(1, calls + 1) if call % number == 0]
    assert taken(calls, every=number, times=times) == every[:most]
    assert taken(calls, times=times) == list(range(1, calls + 1))[:most]


@given(st.integers(0, CERTAIN), st.integers(0, (1 << 64) - 1))
def test_a_probability_is_drawn_from_the_seed(probability: int, seed: int):
    draws = random.Random(seed)
    expected = [
        call for call in range(1, 51) if probability == 0 or draws.random() * CERTAIN < probability
    ]
    assert taken(50, probability=probability, seed=seed) == expected


def test_what_is_spent_counts_no_more():
    active = ActiveFault(1, Fault("ack-lost", nth=2), 0)
    assert [active.strikes() for _ in range(4)] == [False, True, False, False]
    assert active.spent
    assert str(active) == "ack-lost nth=2"
    assert active.inspect() == {
        "number": 1, "point": "ack-lost", "nth": 2, "calls": 2, "hits": 1
    }  # fmt: skip


def test_its_time():
    active = ActiveFault(3, Fault("link-down", lasts_ns=2 * S), now_ns=5 * S)
    assert not active.is_over(7 * S - 1)
    assert active.is_over(7 * S)
    assert not ActiveFault(3, Fault("ack-lost"), 0).is_over(1 << 62)
