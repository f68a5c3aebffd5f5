"""What ranks tell each other: values, barriers, points, figures, and who has ended."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from user_proc.groups.exchange import (
    MOST_BYTES,
    MOST_KEYS,
    MOST_POINTS,
    Exchange,
    RankId,
    Replies,
)
from user_proc.groups.rank_wire import (
    GONE,
    MAX_FIGURES,
    MAX_VALUE,
    OK,
    REFUSED,
    TIMED_OUT,
    Answer,
    Barrier,
    Hello,
    Lookup,
    Publish,
    Reach,
    Report,
)

A0, A1, B0 = RankId("a", 0), RankId("a", 1), RankId("b", 0)
MS = 1_000_000
DONE = Answer(OK, b"", "")


@pytest.fixture
def exchange() -> Exchange:
    return Exchange({"a": 2, "b": 1}, {"all": ["a", "b"]})


def only(replies: Replies) -> Answer:
    ((_, answer),) = replies
    return answer


def test_a_value_is_found_by_whom_it_was_published(exchange: Exchange):
    assert exchange.ask(1, A0, Publish("k", b"v"), 0) == [(1, DONE)]
    assert exchange.ask(2, B0, Lookup("a", 0, "k", 0), 0) == [(2, Answer(OK, b"v", ""))]
    assert only(exchange.ask(3, B0, Lookup("a", 1, "k", 0), 0)).status == TIMED_OUT
    assert exchange.ask(4, A0, Publish("k", b"w"), 0) == [(4, DONE)]
    assert only(exchange.ask(5, A1, Lookup("a", 0, "k", 0), 0)).value == b"w"


def test_a_lookup_waits_for_its_value_and_all_who_wait_get_it(exchange: Exchange):
    assert exchange.ask(1, B0, Lookup("a", 0, "k", 10), 0) == []
    assert exchange.ask(2, A1, Lookup("a", 0, "k", 10), 0) == []
    found = Answer(OK, b"v", "")
    assert exchange.ask(3, A0, Publish("k", b"v"), 0) == [(3, DONE), (1, found), (2, found)]
    assert exchange.next_deadline_ns() is None


def test_a_lookup_that_is_not_served_in_time_says_so(exchange: Exchange):
    exchange.ask(1, B0, Lookup("a", 0, "k", 10), 5)
    assert exchange.next_deadline_ns() == 10 * MS + 5
    assert exchange.expire(10 * MS) == []
    answer = only(exchange.expire(10 * MS + 5))
    assert answer == Answer(TIMED_OUT, b"", "a[0] has not published 'k' within 0.01 s")
    assert not exchange.is_waiting(1)


def test_who_has_ended_is_not_waited_for(exchange: Exchange):
    exchange.ask(1, B0, Lookup("a", 0, "k", 10), 0)
    exchange.ask(2, A1, Barrier("own", 10), 0)
    replies = dict(exchange.leave(A0))
    assert replies[1] == Answer(GONE, b"", "a[0] has ended and has not published 'k'")
    assert replies[2].sentence == "a[0] has ended and will not come to the barrier 'own'"
    assert only(exchange.ask(3, B0, Lookup("a", 0, "k", 10), 0)).status == GONE
    assert only(exchange.ask(4, A1, Barrier("own", 10), 0)).status == GONE


def test_what_an_ended_rank_has_published_stays(exchange: Exchange):
    exchange.ask(1, A0, Publish("k", b"v"), 0)
    exchange.leave(A0)
    assert only(exchange.ask(2, B0, Lookup("a", 0, "k", 0), 0)).value == b"v"


def test_a_barrier_lets_all_go_when_the_last_has_come_and_can_be_used_again(exchange: Exchange):
    for _ in range(2):
        assert exchange.ask(1, A0, Barrier("all", 10), 0) == []
        assert exchange.ask(2, B0, Barrier("all", 10), 0) == []
        assert exchange.ask(3, A1, Barrier("all", 10), 0) == [(3, DONE), (1, DONE), (2, DONE)]


def test_a_barrier_nobody_described_is_of_one_group(exchange: Exchange):
    assert exchange.ask(1, A0, Barrier("x", 10), 0) == []
    assert exchange.ask(2, B0, Barrier("x", 10), 0) == [(2, DONE)]
    assert exchange.ask(3, A1, Barrier("x", 10), 0) == [(3, DONE), (1, DONE)]


def test_a_barrier_that_is_not_met_names_who_is_missing(exchange: Exchange):
    exchange.ask(1, A0, Barrier("all", 10), 0)
    sentence = only(exchange.expire(10 * MS)).sentence
    assert sentence == "a[1] and 1 more did not come to the barrier 'all' within 0.01 s"


def test_the_same_rank_does_not_count_twice_at_a_barrier(exchange: Exchange):
    exchange.ask(1, A0, Barrier("x", 10), 0)
    assert only(exchange.ask(2, A0, Barrier("x", 10), 0)).status == REFUSED


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Lookup("a", 2, "k", 0), "there is no rank a[2]: there are 2 of 'a', 1 of 'b'"),
        (Lookup("c", 0, "k", 0), "there is no rank c[0]"),
        (Barrier("", 0), "no name for a barrier"),
        (Barrier("only-a", 0), "b[0] has no part in the barrier 'only-a': a have"),
        (Reach("no point"), "no name for a point"),
        (Hello(1, "a", 0, ""), "Hello is no request"),
        (Answer(OK, b"", ""), "Answer is no request"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(message: Any, words: str):
    exchange = Exchange({"a": 2, "b": 1}, {"only-a": ["a"]})
    answer = only(exchange.ask(1, B0, message, 0))
    assert answer.status == REFUSED
    assert words in answer.sentence


def test_points_and_figures_are_those_of_the_present_process(exchange: Exchange):
    exchange.ask(1, A0, Reach("ready"), 0)
    exchange.ask(1, A0, Report({"ops_per_s": 5.0}), 0)
    exchange.ask(1, A0, Report({"other": 6.0}), 0)
    exchange.ask(1, A0, Publish("k", b"v"), 0)
    assert exchange.has_reached(A0, "ready")
    assert exchange.figures(A0) == {"ops_per_s": 5.0, "other": 6.0}
    exchange.begin_again(A0)
    assert not exchange.has_reached(A0, "ready")
    assert exchange.figures(A0) == {}
    assert only(exchange.ask(2, B0, Lookup("a", 0, "k", 0), 0)).status == TIMED_OUT


def test_what_a_rank_may_keep_here_is_bounded(exchange: Exchange):
    for number in range(MOST_BYTES // MAX_VALUE):
        assert only(exchange.ask(1, A0, Publish(f"k{number}", b"x" * MAX_VALUE), 0)) == DONE
    assert only(exchange.ask(1, A0, Publish("more", b"x"), 0)).status == REFUSED
    assert only(exchange.ask(1, A0, Publish("k0", b""), 0)) == DONE  # which makes room
    assert only(exchange.ask(1, A0, Publish("more", b"x"), 0)) == DONE
    for number in range(MOST_KEYS):
        assert only(exchange.ask(1, A1, Publish(f"{number}", b""), 0)) == DONE
    assert only(exchange.ask(1, A1, Publish("more", b""), 0)).status == REFUSED
    for number in range(MOST_POINTS):
        assert only(exchange.ask(1, B0, Reach(f"p{number}"), 0)) == DONE
    assert only(exchange.ask(1, B0, Reach("more"), 0)).status == REFUSED
    assert only(exchange.ask(1, B0, Reach("p0"), 0)) == DONE
    exchange.ask(1, B0, Report({f"f{n}": 1.0 for n in range(MAX_FIGURES)}), 0)
    assert only(exchange.ask(1, B0, Report({"more": 1.0}), 0)).status == REFUSED
    assert len(exchange.figures(B0)) == MAX_FIGURES


ids = st.sampled_from([A0, A1, B0])
keys = st.sampled_from(["k", "l"])
requests = st.one_of(
    st.builds(Publish, keys, st.binary(max_size=3)),
    st.builds(Lookup, st.sampled_from(["a", "b", "c"]), st.integers(0, 2), keys, st.integers(0, 9)),
    st.builds(Barrier, st.sampled_from(["x", "all", ""]), st.integers(0, 9)),
    st.builds(Reach, st.sampled_from(["ready", "?"])),
    st.builds(Report, st.just({"f": 1.0})),
)
steps = st.one_of(
    st.tuples(st.just("ask"), ids, requests),
    st.tuples(st.just("leave"), ids, st.none()),
    st.tuples(st.just("again"), ids, st.none()),
    st.tuples(st.just("time"), ids, st.none()),
)


@given(st.lists(steps, max_size=40))
def test_every_request_is_answered_once_or_waits(plan: list[tuple[str, RankId, Any]]):
    exchange = Exchange({"a": 2, "b": 1}, {"all": ["a", "b"]})
    waiting: dict[int, RankId] = {}
    now = 0
    for ticket, (what, who, message) in enumerate(plan):
        if what == "ask":
            waiting[ticket] = who
            replies = exchange.ask(ticket, who, message, now)
        elif what == "leave":
            waiting = {one: asker for one, asker in waiting.items() if asker != who}
            replies = exchange.leave(who)
        elif what == "again":
            waiting = {one: asker for one, asker in waiting.items() if asker != who}
            replies = []
            exchange.begin_again(who)
        else:
            now += 5 * MS
            replies = exchange.expire(now)
        for answered, _ in replies:
            del waiting[answered]  # KeyError for a second answer, or one to somebody who has ended
        assert {one for one in range(len(plan)) if exchange.is_waiting(one)} == set(waiting)
    exchange.expire(now + 10 * MS)
    assert exchange.next_deadline_ns() is None
