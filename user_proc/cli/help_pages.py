"""How `--help` looks: flags without a type beside them, paragraphs that fill the width there is.

Spec: Typer: rich help; the width is the terminal's, or COLUMNS.
"""

import inspect
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup, TyperOption

#: The commands a newcomer needs, before those that look at what they left.
_FIRST: Final = ("bench", "kernel", "devinfo", "show")


def prose(text: str | None) -> str | None:
    """Let each paragraph of a docstring be one line, for the page to break."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _without_flag_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.is_flag and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """One command."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help = prose(self.help)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as a help page shows them."""
        return _without_flag_types(super().get_params(ctx))


class Group(TyperGroup):
    """A command with commands below it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help = prose(self.help)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names: what one begins with comes first."""
        names = super().list_commands(ctx)
        first = [name for name in _FIRST if name in names]
        return first + [name for name in names if name not in first]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as a help page shows them."""
        return _without_flag_types(super().get_params(ctx))
