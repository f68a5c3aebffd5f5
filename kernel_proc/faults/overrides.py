"""Faults are put where they strike by replacing a routine, so that without one nothing is paid.

The routine of one object is replaced in its class, by one that lets all other objects of the class
have theirs. Undone, the class is as it was, and the object was never touched: had it got an
attribute of its own, CPython would find its methods more slowly ever after. No flag is tested on
any path, with faults set or not.

Rules: one thread; between two calls of what is replaced.
"""

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

#: Makes the routine of the one that was there.
Make = Callable[[Any], Any]


class Overrides:
    """Routines that are replaced at present, the latest last."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, make: Make) -> None:
        """Put another in the place of `owner.name`.

        That is a method of an object, for this object alone; an attribute it has; or a function of
        a module or a class, for all.
        """
        place = None if isinstance(owner, type | ModuleType) else _class_with(owner, name)
        if place is None:
            former = getattr(owner, name)
            setattr(owner, name, make(former))
            self._undo.append(lambda: setattr(owner, name, former))
            return
        function = vars(place)[name]
        setattr(place, name, _routed(owner, make(getattr(owner, name)), function))
        self._undo.append(lambda: setattr(place, name, function))

    def undo(self) -> None:
        """Put back what was there."""
        while self._undo:
            self._undo.pop()()


def _class_with(owner: Any, name: str) -> type | None:
    """Return the class that has a method of that name; None if it is an attribute."""
    for one in type(owner).__mro__:
        if name in vars(one):
            return one if isinstance(vars(one)[name], FunctionType) else None
    return None


def _routed(owner: Any, routine: Any, others: Any) -> FunctionType:
    def routed(self: Any, *arguments: Any, **named: Any) -> Any:
        if self is owner:
            return routine(*arguments, **named)
        return others(self, *arguments, **named)

    assert isinstance(routed, FunctionType)
    return routed
