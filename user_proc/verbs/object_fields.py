"""Fields that hold an object of the verbs: what they take, and whether they give it or a copy.

What a field is assigned is checked as an argument `val` is; None where it must not be, or an object
of another class, is a TypeError.

Spec: Cython's signatures, as pyverbs has them.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from user_proc.verbs.argument_types import optional, require


class _Copied(Protocol):
    def copy(self) -> Self:
        """Make an equal one."""


_Kept = TypeVar("_Kept")
_Given = TypeVar("_Given", bound=_Copied)


class ObjectField(property, Generic[_Kept]):
    """An object or None: `name = ObjectField(PD)`, kept in `_name`."""

    def __init__(self, kind: type[_Kept]) -> None:
        super().__init__()
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        slot, kind = f"_{name}", self._kind

        def store(instance: object, val: object) -> None:
            setattr(instance, slot, optional("val", val, kind))

        super().__init__(attrgetter(slot), store)

    if TYPE_CHECKING:

        def __get__(  # type: ignore[override]  # nobody reads a field of the class
            self, instance: Any, owner: type | None = None
        ) -> _Kept | None:
            """Give the object."""

        def __set__(self, instance: Any, value: _Kept | None) -> None:
            """Take another one."""


class CopiedField(property, Generic[_Given]):
    """An object read and stored as a copy: a change counts when it is assigned back."""

    def __init__(self, kind: type[_Given]) -> None:
        super().__init__()
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        slot, kind = f"_{name}", self._kind
        kept: Callable[[object], _Given] = attrgetter(slot)

        def give(instance: object) -> _Given:
            return kept(instance).copy()

        def store(instance: object, val: object) -> None:
            setattr(instance, slot, require("val", val, kind).copy())

        super().__init__(give, store)

    if TYPE_CHECKING:

        def __get__(  # type: ignore[override]  # nobody reads a field of the class
            self, instance: Any, owner: type | None = None
        ) -> _Given:
            """Give a copy."""

        def __set__(self, instance: Any, value: _Given) -> None:
            """Keep a copy."""
