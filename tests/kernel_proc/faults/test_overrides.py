"""Routines that are replaced and put back: of objects with a dictionary, with slots, of modules."""

import types
from collections.abc import Callable

import pytest

from kernel_proc.faults.overrides import Overrides


class Open:
    def __init__(self) -> None:
        self.table = (1, 2)

    def ask(self) -> str:
        return "open"


class Slotted:
    __slots__ = ("routine", "value")

    def __init__(self) -> None:
        self.value = 7
        self.routine: Callable[[], str] = lambda: "slot"

    def ask(self) -> str:
        return f"slotted {self.value}"


def louder(former: Callable[[], str]) -> Callable[[], str]:
    return lambda: former() + "!"


@pytest.mark.parametrize(
    ("make", "name", "before"),
    [(Open, "ask", "open"), (Slotted, "ask", "slotted 7"), (Slotted, "routine", "slot")],
)
def test_a_routine_of_one_object(make: type, name: str, before: str):
    owner, other = make(), make()
    overrides = Overrides()
    overrides.replace(owner, name, louder)
    overrides.replace(owner, name, louder)
    assert overrides
    assert (getattr(owner, name)(), getattr(other, name)()) == (before + "!!", before)
    overrides.undo()
    assert not overrides
    assert getattr(owner, name)() == before
    assert type(owner) is make
    assert name == "routine" or vars(make)[name].__qualname__ == f"{make.__name__}.{name}"
    assert name not in getattr(owner, "__dict__", {})
    overrides.undo()  # nothing is left to be undone


def test_a_method_of_a_class_for_all_and_one_that_is_inherited():
    class Heir(Open):
        pass

    owner, other, heir = Open(), Open(), Heir()
    overrides = Overrides()
    overrides.replace(Open, "ask", lambda ask: lambda self: ask(self) + "?")
    overrides.replace(heir, "ask", louder)
    assert (owner.ask(), other.ask(), heir.ask()) == ("open?", "open?", "open?!")
    overrides.undo()
    assert (owner.ask(), other.ask(), heir.ask()) == ("open", "open", "open")


def test_an_attribute_and_a_module():
    owner, module = Open(), types.ModuleType("module")
    module.ask = lambda: "module"  # type: ignore[attr-defined]  # it is made here
    overrides = Overrides()
    overrides.replace(owner, "table", lambda table: (*table, 3))
    overrides.replace(module, "ask", louder)
    assert (owner.table, module.ask()) == ((1, 2, 3), "module!")
    overrides.undo()
    assert (owner.table, module.ask()) == ((1, 2), "module")
