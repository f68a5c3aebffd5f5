"""What the options of all tools are made of: numbers with bounds, refusals, one-sentence errors."""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from user_proc.perftest.tool_errors import WrongOptions

EMULATOR: Final = "Every number is of an emulator in software, never of hardware."

_UNITS: Final = {"k": 1 << 10, "m": 1 << 20}


class OptionParser(argparse.ArgumentParser):
    """A parser whose errors are WrongOptions; `-h` alone leaves by SystemExit."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=f"{name}.py",
            description=description,
            epilog=f"Without a host it is the server. {EMULATOR}",
            allow_abbrev=False,
        )
        self.add_argument("host", nargs="?", help="the server's, 127.0.0.1; none: be the server")
        self.add_argument(
            "--name",
            help="the kernel's (default: SOFTHCA_NAME, else 'default'; the client: the server's)",
        )

    def error(self, message: str) -> NoReturn:
        """Raise for what argparse complains of."""
        raise WrongOptions(f"{message} (-h lists the options)")

    def refuse(self, spellings: Iterable[str], reason: str) -> None:
        """Refuse options people may know, with the reason they are missing."""
        for spelling in spellings:
            self.add_argument(
                spelling, nargs="*", action=_Refusal, const=reason, help=argparse.SUPPRESS
            )


class _Refusal(argparse.Action):
    """An option that is not supported: `const` says why."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        raise WrongOptions(f"{option_string} is not supported: {self.const}")


def number(least: int, most: int) -> Callable[[str], int]:
    """Give what converts a text to a number of this range; K and M are multiples of 1024."""

    def convert(text: str) -> int:
        unit = _UNITS.get(text[-1:].lower(), 1)
        digits = text if unit == 1 else text[:-1]
        if digits.isascii() and digits.isdigit() and least <= int(digits[:20]) * unit <= most:
            return int(digits) * unit
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")

    return convert


def positive(text: str) -> float:
    """Convert a text to a number above 0, of any size."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value > 0:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
