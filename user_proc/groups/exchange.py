"""What the ranks of a launch tell each other: values, barriers, points, figures.

A request is answered at once or later; what is answered is a list of (ticket, answer), where the
ticket is whatever the caller gave with the request. Nothing here knows sockets or clocks.

Rules: one thread. Bounded whatever is asked; a refusal changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from user_proc.groups.group_plan import MOST_NAME, is_name
from user_proc.groups.rank_wire import (
    GONE,
    MAX_FIGURES,
    OK,
    REFUSED,
    TIMED_OUT,
    Answer,
    Barrier,
    Hello,
    Lookup,
    Message,
    Publish,
    Reach,
    Report,
)

MOST_KEYS: Final = 1024
MOST_BYTES: Final = 1 << 20
MOST_POINTS: Final = 64

_DONE: Final = Answer(OK, b"", "")


class RankId(NamedTuple):
    """Which rank."""

    group: str
    rank: int

    def __str__(self) -> str:
        return f"{self.group}[{self.rank}]"


Replies = list[tuple[int, Answer]]


@dataclass(slots=True)
class _Told:
    """What a rank has told."""

    values: dict[str, bytes] = field(default_factory=dict)
    points: set[str] = field(default_factory=set)
    figures: dict[str, float] = field(default_factory=dict)
    held: int = 0
    gone: bool = False


class _Waiter(NamedTuple):
    who: RankId
    message: Lookup | Barrier
    deadline_ns: int


class Exchange:
    """The one place where ranks meet."""

    def __init__(
        self, sizes: Mapping[str, int], barriers: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._sizes = dict(sizes)
        self._barriers = {name: tuple(groups) for name, groups in (barriers or {}).items()}
        self._told = {
            RankId(group, rank): _Told() for group, size in sizes.items() for rank in range(size)
        }
        self._waiting: dict[int, _Waiter] = {}

    # What has been told

    def figures(self, who: RankId) -> Mapping[str, float]:
        """Return what a rank has reported last."""
        return self._told[who].figures

    def has_reached(self, who: RankId, point: str) -> bool:
        """Tell whether a rank has come to a point."""
        return point in self._told[who].points

    def is_waiting(self, ticket: int) -> bool:
        """Tell whether a request under this ticket is not answered yet."""
        return ticket in self._waiting

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` has to be called next."""
        return min((waiter.deadline_ns for waiter in self._waiting.values()), default=None)

    # Requests

    def ask(self, ticket: int, who: RankId, message: Message, now_ns: int) -> Replies:
        """Take a request; return the answers that follow from it, to others, too."""
        match message:
            case Publish():
                return self._publish(ticket, who, message)
            case Lookup():
                return self._lookup(ticket, who, message, now_ns)
            case Barrier():
                return self._barrier(ticket, who, message, now_ns)
            case Report():
                return [(ticket, self._report(who, message))]
            case Reach():
                return [(ticket, self._reach(who, message))]
            case _:
                return [(ticket, _refusal(f"{type(message).__name__} is no request"))]

    def _publish(self, ticket: int, who: RankId, message: Publish) -> Replies:
        told = self._told[who]
        before = told.values.get(message.key)
        held = told.held + len(message.value) - (0 if before is None else len(before))
        if before is None and len(told.values) >= MOST_KEYS:
            return [(ticket, _refusal(f"{who} has published {MOST_KEYS} keys, which is the most"))]
        if held > MOST_BYTES:
            sentence = f"{who} would hold {held} bytes: {MOST_BYTES} are the most"
            return [(ticket, _refusal(sentence))]
        told.values[message.key] = message.value
        told.held = held
        answer = Answer(OK, message.value, "")
        waited = [
            other
            for other, waiter in self._waiting.items()
            if isinstance(waiter.message, Lookup)
            and waiter.message[:3] == (who.group, who.rank, message.key)
        ]
        return [(ticket, _DONE), *self._answer(waited, answer)]

    def _lookup(self, ticket: int, who: RankId, message: Lookup, now_ns: int) -> Replies:
        other = RankId(message.group, message.rank)
        told = self._told.get(other)
        if told is None:
            sizes = ", ".join(f"{size} of {name!r}" for name, size in self._sizes.items())
            return [(ticket, _refusal(f"there is no rank {other}: there are {sizes}"))]
        if message.key in told.values:
            return [(ticket, Answer(OK, told.values[message.key], ""))]
        if told.gone:
            return [(ticket, _without_it(other, message))]
        return self._wait(ticket, who, message, now_ns)

    def _barrier(self, ticket: int, who: RankId, message: Barrier, now_ns: int) -> Replies:
        groups = self._groups_of(message.name, who)
        if not is_name(message.name):
            sentence = f"{message.name!r} is no name for a barrier: letters and digits, {MOST_NAME}"
            return [(ticket, _refusal(sentence))]
        if who.group not in groups:
            members = ", ".join(groups)
            sentence = f"{who} has no part in the barrier {message.name!r}: {members} have"
            return [(ticket, _refusal(sentence))]
        at_it = self._at_barrier(message.name, groups)
        if who in at_it:
            return [(ticket, _refusal(f"{who} waits at the barrier {message.name!r} already"))]
        missing = self._members(groups) - set(at_it) - {who}
        if not missing:
            return [(ticket, _DONE), *self._answer(list(at_it.values()), _DONE)]
        gone = sorted(one for one in missing if self._told[one].gone)
        if gone:
            return [(ticket, _will_not_come(gone[0], message))]
        return self._wait(ticket, who, message, now_ns)

    def _wait(self, ticket: int, who: RankId, message: Lookup | Barrier, now_ns: int) -> Replies:
        deadline = now_ns + message.timeout_ms * 1_000_000
        self._waiting[ticket] = _Waiter(who, message, deadline)
        return self.expire(now_ns) if message.timeout_ms == 0 else []

    def _report(self, who: RankId, message: Report) -> Answer:
        figures = {**self._told[who].figures, **message.figures}
        if len(figures) > MAX_FIGURES:
            return _refusal(f"{who} reports more than {MAX_FIGURES} different figures")
        self._told[who].figures = figures
        return _DONE

    def _reach(self, who: RankId, message: Reach) -> Answer:
        points = self._told[who].points
        if not is_name(message.point):
            return _refusal(f"{message.point!r} is no name for a point: letters and digits")
        if message.point not in points and len(points) >= MOST_POINTS:
            return _refusal(f"{who} has reached {MOST_POINTS} points, which is the most")
        points.add(message.point)
        return _DONE

    # Ends

    def forget(self, ticket: int) -> None:
        """Drop a request whose asker has gone away."""
        self._waiting.pop(ticket, None)

    def begin_again(self, who: RankId) -> None:
        """Forget what a rank has told: another process takes its place."""
        self._told[who] = _Told()
        for ticket in [one for one, waiter in self._waiting.items() if waiter.who == who]:
            del self._waiting[ticket]

    def leave(self, who: RankId) -> Replies:
        """Take note that a rank has ended for good; what waits for it alone is answered."""
        self._told[who].gone = True
        replies: Replies = []
        for ticket, waiter in list(self._waiting.items()):
            message = waiter.message
            if waiter.who == who:
                del self._waiting[ticket]
            elif isinstance(message, Lookup):
                if message[:2] == who:
                    replies += self._answer([ticket], _without_it(who, message))
            elif who.group in self._groups_of(message.name, waiter.who):
                replies += self._answer([ticket], _will_not_come(who, message))
        return replies

    def expire(self, now_ns: int) -> Replies:
        """Answer what has waited as long as it was to."""
        replies: Replies = []
        for ticket, waiter in list(self._waiting.items()):
            if waiter.deadline_ns <= now_ns:
                del self._waiting[ticket]
                replies.append((ticket, Answer(TIMED_OUT, b"", self._not_in_time(waiter))))
        return replies

    def _not_in_time(self, waiter: _Waiter) -> str:
        message = waiter.message
        seconds = f"{message.timeout_ms / 1000:g} s"
        if isinstance(message, Lookup):
            other = RankId(message.group, message.rank)
            return f"{other} has not published {message.key!r} within {seconds}"
        groups = self._groups_of(message.name, waiter.who)
        at_it = self._at_barrier(message.name, groups)
        missing = sorted(self._members(groups) - set(at_it) - {waiter.who})
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"{missing[0]}{more} did not come to the barrier {message.name!r} within {seconds}"

    # Who is where

    def _groups_of(self, barrier: str, who: RankId) -> Sequence[str]:
        """Return the groups of a barrier: one that was not described is of a group alone."""
        return self._barriers.get(barrier) or (who.group,)

    def _members(self, groups: Sequence[str]) -> set[RankId]:
        return {RankId(group, rank) for group in groups for rank in range(self._sizes[group])}

    def _at_barrier(self, name: str, groups: Sequence[str]) -> dict[RankId, int]:
        return {
            waiter.who: ticket
            for ticket, waiter in self._waiting.items()
            if isinstance(waiter.message, Barrier)
            and waiter.message.name == name
            and waiter.who.group in groups
        }

    def _answer(self, tickets: Sequence[int], answer: Answer) -> Replies:
        for ticket in tickets:
            del self._waiting[ticket]
        return [(ticket, answer) for ticket in tickets]


def _refusal(sentence: str) -> Answer:
    return Answer(REFUSED, b"", sentence)


def _without_it(who: RankId, message: Lookup) -> Answer:
    return Answer(GONE, b"", f"{who} has ended and has not published {message.key!r}")


def _will_not_come(who: RankId, message: Barrier) -> Answer:
    return Answer(GONE, b"", f"{who} has ended and will not come to the barrier {message.name!r}")


def require_hello(message: Message) -> Hello:
    """Return the first message of a connection; ValueError if it is another one."""
    if not isinstance(message, Hello):
        raise ValueError("the first message says who one is")
    return message
