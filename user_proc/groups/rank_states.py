"""The states of a rank, and the one table of how they follow each other.

    WAITING --start--> STARTING --started--> RUNNING --ready--> READY
    STARTING, RUNNING, READY --stop--> STOPPING
    whatever runs --good end--> DONE, --bad end--> FAILED, --again--> STARTING
    STOPPING --any end--> STOPPED or DONE

Rules: an event that has no place in a state raises, and changes nothing.
"""

from enum import StrEnum
from typing import Final


class RankState(StrEnum):
    """Where a rank is."""

    WAITING = "waiting"  # for what its group comes after
    STARTING = "starting"
    RUNNING = "running"
    READY = "ready"
    STOPPING = "stopping"  # it was told to end
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # by the end of the launch, not by itself


class RankEvent(StrEnum):
    """What happens to a rank."""

    START = "start"
    STARTED = "started"
    READY = "ready"
    STOP = "stop"
    GOOD_END = "good end"
    BAD_END = "bad end"
    AGAIN = "again"
    CALLED_OFF = "called off"


_S = RankState
_E = RankEvent

TRANSITIONS: Final = {
    (_S.WAITING, _E.START): _S.STARTING,
    (_S.WAITING, _E.CALLED_OFF): _S.STOPPED,
    (_S.STARTING, _E.STARTED): _S.RUNNING,
    (_S.STARTING, _E.STOP): _S.STOPPING,
    (_S.STARTING, _E.BAD_END): _S.FAILED,  # it could not be started
    (_S.RUNNING, _E.READY): _S.READY,
    (_S.RUNNING, _E.STOP): _S.STOPPING,
    (_S.RUNNING, _E.GOOD_END): _S.DONE,
    (_S.RUNNING, _E.BAD_END): _S.FAILED,
    (_S.RUNNING, _E.AGAIN): _S.STARTING,
    (_S.READY, _E.READY): _S.READY,
    (_S.READY, _E.STOP): _S.STOPPING,
    (_S.READY, _E.GOOD_END): _S.DONE,
    (_S.READY, _E.BAD_END): _S.FAILED,
    (_S.READY, _E.AGAIN): _S.STARTING,
    (_S.STOPPING, _E.STARTED): _S.STOPPING,
    (_S.STOPPING, _E.STOP): _S.STOPPING,
    (_S.STOPPING, _E.GOOD_END): _S.DONE,  # it was to run until now, and so it did
    (_S.STOPPING, _E.BAD_END): _S.FAILED,
    (_S.STOPPING, _E.CALLED_OFF): _S.STOPPED,
}

OVER: Final = frozenset({_S.DONE, _S.FAILED, _S.STOPPED})
ALIVE: Final = frozenset({_S.STARTING, _S.RUNNING, _S.READY, _S.STOPPING})


class IllegalTransition(RuntimeError):
    """An event that has no place in a state: a mistake of the supervisor's."""


def following(state: RankState, event: RankEvent) -> RankState:
    """Return the state after an event; IllegalTransition if there is none."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a rank that is {state} has no place for: {event}") from None
