"""Attribute classes that are only read: values filled in by a query."""

from typing import Any, ClassVar, Self

from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import ReadOnly


class Values(PyverbsObject):
    """A class whose fields are all 0 unless a query filled them in."""

    FIELDS: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.FIELDS = tuple(name for name in vars(cls) if isinstance(vars(cls)[name], ReadOnly))

    def __init__(self) -> None:
        super().__init__()
        self._fill({})

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Make one from what was queried; further values are ignored."""
        made = cls()
        made._fill(values)
        return made

    def _fill(self, values: dict[str, Any]) -> None:
        for name in self.FIELDS:
            setattr(self, f"_{name}", values.get(name, 0))
