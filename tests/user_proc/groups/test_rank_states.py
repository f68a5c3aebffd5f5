"""The states of a rank: every pair of state and event, and where a rank can end."""

import itertools

import pytest

from user_proc.groups.rank_states import (
    ALIVE,
    OVER,
    TRANSITIONS,
    IllegalTransition,
    RankEvent,
    RankState,
    following,
)

PAIRS = list(itertools.product(RankState, RankEvent))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_each_pair_is_in_the_table_or_refused(state: RankState, event: RankEvent):
    if (state, event) in TRANSITIONS:
        assert following(state, event) is TRANSITIONS[state, event]
        assert state not in OVER
    else:
        with pytest.raises(IllegalTransition, match=f"{state} has no place for: {event}"):
            following(state, event)


def test_every_state_can_be_reached_and_every_one_that_is_not_over_can_be_left():
    reached = {RankState.WAITING}
    while True:
        more = {after for (state, _), after in TRANSITIONS.items() if state in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(RankState)
    assert {state for state, _ in TRANSITIONS} == set(RankState) - OVER


def test_whatever_lives_can_be_stopped():
    for state in ALIVE:
        assert following(state, RankEvent.STOP) is RankState.STOPPING
    assert ALIVE | OVER | {RankState.WAITING} == set(RankState)
