"""Takes the values of a TOML table, each with its type and bounds; what is left is refused.

Rules: pure. Every complaint is a PlanError with the key's path and the cure.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from user_proc.groups.group_plan import PlanError

_KINDS: Final[Mapping[type, str]] = {
    str: "a text in quotes",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list in [ ]",
    dict: "a table",
}
_MISSING: Final = object()


class Table:
    """A table under its path; a value that is taken is known, the others are not."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.path = path
        self._values = dict(values)
        self._known: list[str] = []

    def where(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Tell whether there is a value that was not taken yet."""
        return key in self._values

    def is_list(self, key: str) -> bool:
        """Tell whether such a value is a list."""
        return isinstance(self._values.get(key), list)

    def take(self, key: str, kind: type, default: Any = _MISSING) -> Any:
        """Take a value of this type; a whole number is a number, too."""
        self._known.append(key)
        value = self._values.pop(key, default)
        if value is _MISSING:
            raise PlanError(self.where(key), f"is missing: give {_KINDS[kind]}")
        if value is default:
            return value
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise PlanError(
                self.where(key), f"is {_KINDS.get(type(value), 'a date')}: give {_KINDS[kind]}"
            )
        return value

    def number(self, key: str, kind: type, least: float, most: float, default: Any) -> Any:
        """Take a number within bounds."""
        value = self.take(key, kind, default)
        if value is not default and not least <= value <= most:  # NaN is not, either
            raise PlanError(
                self.where(key), f"is {value:g}: give a number between {least:g} and {most:g}"
            )
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """Take one of several words."""
        value = self.take(key, str, default)
        if value not in choices:
            raise PlanError(self.where(key), f"is {value!r}: give one of {', '.join(choices)}")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of texts; one text alone is a list, too."""
        if isinstance(self._values.get(key), str):
            return (self.take(key, str),)
        return tuple(self.members(key, str))

    def members(self, key: str, kind: type) -> list[Any]:
        """Take a list whose members are all of one type."""
        values = self.take(key, list, [])
        for index, value in enumerate(values):
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise PlanError(
                    f"{self.where(key)}[{index}]",
                    f"is {_KINDS.get(type(value), 'a date')}: give {_KINDS[kind]}",
                )
        return list(values)

    def table(self, key: str) -> "Table":
        """Take a table; an empty one if there is none."""
        return Table(self.take(key, dict, {}), self.where(key))

    def tables(self, key: str) -> list["Table"]:
        """Take an array of tables."""
        values = self.members(key, dict)
        return [Table(value, f"{self.where(key)}[{n}]") for n, value in enumerate(values)]

    def names_left(self) -> list[str]:
        """Return the keys that were not taken yet."""
        return list(self._values)

    def take_the_rest(self) -> dict[str, Any]:
        """Take the values that are left, whatever they are; somebody else judges them."""
        rest, self._values = self._values, {}
        return rest

    def refuse_the_rest(self) -> None:
        """Complain of a key that nobody took."""
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, 1)
            cure = f"is {near[0]!r} meant?" if near else f"known are {', '.join(self._known)}"
            raise PlanError(self.where(key), f"there is no such key: {cure}")
