"""Numbers as fields of C structures take them: which Python values fit, and what is said of others.

Floats are truncated; text, bytes and None are a TypeError; what does not fit is an OverflowError
that names the C type. Nothing is masked.

Spec: Cython's conversions, as pyverbs has them.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, SupportsInt

IntLike = int | float | SupportsInt | SupportsIndex

_LONG: Final = 64


def _integer(value: object) -> int:
    """Turn what is a number into an integer."""
    kind = type(value)
    is_text = isinstance(value, (str, bytes, bytearray, memoryview))
    if is_text or not (hasattr(kind, "__index__") or hasattr(kind, "__int__")):
        raise TypeError("an integer is required")
    return int(value)  # type: ignore[call-overload, no-any-return]  # it has one of both


def _refuse(number: int, bits: int, c_type: str, signed: bool) -> OverflowError:
    if number < 0 and not signed:
        return OverflowError(f"can't convert negative value to {c_type}")
    if bits == _LONG:
        return OverflowError(f"Python int too large to convert to C {c_type}")
    return OverflowError(f"value too large to convert to {c_type}")


def _converter(bits: int, c_type: str, signed: bool = False) -> Callable[[object], int]:
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1 if signed else bits)) - 1

    def convert(value: object) -> int:
        if type(value) is int and low <= value <= high:
            return value
        number = _integer(value)
        if not low <= number <= high:
            raise _refuse(number, bits, c_type, signed)
        return number

    return convert


to_u8: Final = _converter(8, "unsigned char")
to_u16: Final = _converter(16, "unsigned short")
to_u32: Final = _converter(32, "unsigned int")
to_u64: Final = _converter(64, "unsigned long")
to_int: Final = _converter(32, "int", signed=True)


class CField(property):
    """An integer field: `name = CField(to_u32)`, kept in `_name`, or there in the part `inside`.

    A property whose getter is C code, so that reading costs no Python call.
    """

    _convert: Callable[[object], int]

    def __init__(self, convert: Callable[[object], int], inside: str = "") -> None:
        super().__init__()
        self._convert = convert
        self._inside = inside

    def __set_name__(self, owner: type, name: str) -> None:
        slot, inside, convert = f"_{name}", self._inside, self._convert

        def store(instance: object, value: object) -> None:
            part = getattr(instance, inside) if inside else instance
            setattr(part, slot, convert(value))

        super().__init__(attrgetter(f"{inside}.{slot}" if inside else slot), store)

    if TYPE_CHECKING:
        # A property's own signature tells apart the class; nobody reads a field of the class.
        def __get__(  # type: ignore[override]
            self, instance: Any, owner: type | None = None
        ) -> int:
            """Give the value."""

        def __set__(self, instance: Any, value: IntLike) -> None:
            """Take a value that fits."""


class ReadOnly(property):
    """A field that is only read: `name = ReadOnly()`, kept in `_name`."""

    def __init__(self) -> None:
        super().__init__()

    def __set_name__(self, owner: type, name: str) -> None:
        super().__init__(attrgetter(f"_{name}"))

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Give the value."""
