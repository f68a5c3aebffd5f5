"""Named tuples of settings whose values are judged whenever one is made.

As dataclasses with __post_init__, whose import would be a share of a start that can be seen.
"""

from typing import Any, Protocol, TypeVar


class Judging(Protocol):
    """Values that know what they can be."""

    def judge(self) -> None:
        """Raise the error of their room, with a sentence, if they cannot be used."""


_Values = TypeVar("_Values", bound=Judging)


def judged(cls: type[_Values]) -> type[_Values]:
    """Have a NamedTuple, which cannot define __new__ itself, judge what `_replace` makes, too."""
    plain: Any = cls
    make = plain.__new__

    def new(cls: type[_Values], *values: Any, **named: Any) -> _Values:
        made: _Values = make(cls, *values, **named)
        made.judge()
        return made

    plain.__new__ = new
    plain._make = classmethod(lambda cls, values: cls(*values))
    return cls
