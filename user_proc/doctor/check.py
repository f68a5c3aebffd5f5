"""One thing that is looked at: what was found, whether that will do, and the cure if not."""

import enum
from dataclasses import dataclass


class State(enum.StrEnum):
    """Whether a thing will do; with a warning there are kernels, but something is short."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """`found` and `cure` are a sentence each; who is well needs no cure."""

    name: str
    state: State
    found: str
    cure: str = ""

    def as_dict(self) -> dict[str, str | None]:
        """Return it as JSON values."""
        return {
            "name": self.name,
            "state": self.state.value,
            "found": self.found,
            "cure": self.cure or None,
        }


def well(name: str, found: str) -> Check:
    """Return a check that found what is wanted."""
    return Check(name, State.OK, found)


def short(name: str, found: str, cure: str) -> Check:
    """Return a check that found less than one would like."""
    return Check(name, State.WARNING, found, cure)


def missing(name: str, found: str, cure: str) -> Check:
    """Return a check without which there is no kernel, or no use of it."""
    return Check(name, State.MISSING, found, cure)
