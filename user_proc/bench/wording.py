"""Figures in words: microseconds, sizes, shares, and what an interval lets one say.

Rules: a difference whose interval includes zero is said not to be shown, whatever its size.
"""

import math
from collections.abc import Callable
from typing import Final

from user_proc.bench.row_figures import Figure

_KIB: Final = 1024


def payload_text(payload: int) -> str:
    """Return a size as people write it: bytes below 1 KiB, whole KiB or MiB above."""
    for unit, size in (("MiB", _KIB * _KIB), ("KiB", _KIB)):
        if payload >= size and payload % size == 0:
            return f"{payload // size} {unit}"
    return f"{payload} B"


def about_size(size: float) -> str:
    """Return a computed size with two digits, in the unit that fits."""
    for unit, factor in (("MiB", _KIB * _KIB), ("KiB", _KIB)):
        if size >= factor:
            return f"{_two_digits(size / factor)} {unit}"
    return f"{_two_digits(size)} B"


def _two_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def microseconds(value: float) -> str:
    """Return microseconds with about three meaningful digits."""
    size = abs(value)
    return f"{value:,.{2 if size < 10 else 1 if size < 1000 else 0}f}"


def share(part: float, whole: float) -> str:
    """Return a part of a whole as a percentage with two digits."""
    percent = 100 * part / whole
    places = max(0, 1 - math.floor(math.log10(abs(percent)))) if percent else 0
    return f"{percent:.{places}f} %"


def span(figure: Figure, text: Callable[[float], str] = microseconds, unit: str = "us") -> str:
    """Return a figure's interval."""
    return f"95 % interval {text(figure.low)} to {text(figure.high)} {unit}".rstrip()


def more_or_less(figure: Figure) -> str:
    """Return a difference in microseconds with its interval, or that none is shown."""
    if not figure.shown:
        return f"no difference shown ({span(figure)})"
    direction = "more" if figure.value > 0 else "less"
    size = figure if figure.value > 0 else Figure(-figure.value, -figure.high, -figure.low)
    return f"{microseconds(size.value)} us {direction} ({span(size)})"
