"""What a caller may say in a request: the numbers its header has room for, in words.

Looked at only after packing has failed, so that it costs a good call nothing.
"""

import operator
import struct
from collections.abc import Sequence
from typing import Any, Final

from shared.envelope import HEADER, Header

#: How callers know the fields of a header that come from them.
_WORDS: Final[dict[str, str]] = {
    "file_handle": "the handle",
    "control_code": "the control code",
    "event_handle": "the event's handle",
    "input_address": "the address of the input",
    "output_address": "the address of the output",
    "input_length": "the length of the input",
    "output_length": "the length of the output",
    "apc_context": "the ApcContext or key",
}
_MOST: Final[dict[str, int]] = {"I": 0xFFFF_FFFF, "H": 0xFFFF, "Q": 0xFFFF_FFFF_FFFF_FFFF}
_FORMATS: Final = [code for code in HEADER.format if code in _MOST]


class UnpackableField(ValueError):
    """An argument does not fit into its field of a message; nothing has been sent."""


def misfit(what: str, value: Any, most: int) -> UnpackableField | TypeError | None:
    """Say why a value is no number from 0 to `most`; None if it is one."""
    try:
        number = operator.index(value)
    except TypeError:
        return TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not 0 <= number <= most:
        return UnpackableField(f"{what} must lie between 0 and {most:#x}, not {number:#x}")
    return None


def header_error(error: struct.error, *fields: object) -> UnpackableField | TypeError:
    """Name the first field of a header that could not be packed."""
    words = [_WORDS.get(name, name) for name in Header._fields]
    return _first_misfit(error, words, _FORMATS, fields)


def packet_error(error: struct.error, *fields: object) -> UnpackableField | TypeError:
    """Name the first field of a completion packet that could not be packed."""
    return _first_misfit(error, ("key", "apc_context", "information", "status"), "QQQI", fields)


def _first_misfit(
    error: struct.error, words: Sequence[str], formats: Sequence[str], fields: Sequence[object]
) -> UnpackableField | TypeError:
    for what, code, value in zip(words, formats, fields, strict=True):
        found = misfit(what, value, _MOST[code])
        if found is not None:
            return found
    return UnpackableField(str(error))
