"""The values of a fault as people write them: `20ms`, `0x405`, `10%`, a name.

Rules: any thread. FaultFileError says in one sentence what is wrong.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from shared.fault_messages import Fault
from shared.fault_points import (
    CERTAIN,
    FAULT_POINTS,
    FaultError,
    check_fault,
    no_such_point,
    word_of,
)
from user_proc.errors import WrongUsage

_LENGTHS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s)")
_PER_CENT: Final = 100


class FaultFileError(WrongUsage):
    """A fault that cannot be set as it is written."""


def parse_fault(point: str, values: Mapping[str, Any]) -> Fault:
    """Make a fault of a point's name and its parameters by the words people call them."""
    fields: dict[str, Any] = {}
    for word, value in values.items():
        field = FIELDS.get(word.replace("_", "-"))
        if field is None:
            raise FaultFileError(f"a fault has no {word!r}: it has {', '.join(FIELDS)}")
        try:
            fields[field] = _READERS[type(getattr(_NOTHING, field)), field in _SPECIAL](
                field, value
            )
        except (ValueError, OverflowError) as error:
            raise FaultFileError(f"{word} of {point} cannot be {value!r}: {error}") from None
    fault = Fault(point, **fields)
    try:
        check_fault(fault)
    except FaultError as error:
        raise FaultFileError(str(error)) from None
    return fault


def require_point(name: str) -> None:
    """Raise FaultFileError for a name that no fault has."""
    if name not in FAULT_POINTS:
        raise FaultFileError(no_such_point(name))


def _length_ns(value: Any) -> int:
    match = _LENGTH.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a time is a number with ns, us, ms or s: 20ms")
    return round(float(match[1]) * _LENGTHS[match[2]])


def _millionths(value: Any) -> int:
    text = str(value).strip()
    try:
        share = float(text[:-1]) / _PER_CENT if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError("a probability lies above 0 and at 1 at most, or is written as 10%")
    return max(1, round(share * CERTAIN))


def _special(field: str, value: Any) -> int:
    return _millionths(value) if field == "probability" else _length_ns(value)


def _number(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("it is a whole number")
    number = _whole(value) if isinstance(value, str) else value
    bits = 64 if field == "seed" else 32
    if not 0 < number < 1 << bits:
        raise ValueError(f"it lies above 0 and below 2**{bits}")
    return number


def _whole(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("it is a whole number") from None


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it is a name")
    return value


_NOTHING: Final = Fault("")
_SPECIAL: Final = ("probability", "time_ns", "lasts_ns")
#: What people call a field, and the field.
FIELDS: Final = {word_of(field): field for field in Fault._fields[1:]}
_READERS: Final[dict[tuple[type, bool], Callable[[str, Any], Any]]] = {
    (int, True): _special,
    (int, False): _number,
    (str, False): _name,
}
POINTS: Final = tuple(FAULT_POINTS)
