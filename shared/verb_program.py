"""A program of verbs as bytes: steps that a user process performs, or a kernel client for it.

A step is a verb and its request. What one verb answers another needs: a program has registers, a
step takes fields of its request from some and puts fields of its answer into others. So the same
bytes mean the same verbs on both sides of the boundary.

Rules: any thread. `unpack_program` raises ProgramError and nothing else, whatever the bytes.
Spec: msgpack array of steps, each [code, request message, [[field, register]...] twice].
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgpack

from shared.message_codec import MessageError, decode, encode
from shared.verb_codes import VERB_NAMES

MOST_STEPS: Final = 64
MOST_REGISTERS: Final = 64
#: What the output of IOCTL_VERBS_RUN begins with: errno, reason, object and detail of a verb that
#: was refused, and its code; that is all then. Else these are 0 and the samples follow.
RUN_RESULT: Final = struct.Struct("<IIQQQ")

Places = tuple[tuple[int, int], ...]


class ProgramError(ValueError):
    """The bytes are no program; the text is one sentence."""


class VerbStep:
    """One verb: `uses` says which request fields come from registers, `gives` where answers go."""

    __slots__ = ("_cls", "_values", "code", "gives", "uses")

    def __init__(self, code: int, message: Any, uses: Places = (), gives: Places = ()) -> None:
        self.code = code
        self.uses = uses
        self.gives = gives
        self._cls = type(message) if message is not None else None
        self._values = list(message) if message is not None else []

    def request(self, registers: Sequence[int]) -> Any:
        """Return the request with its fields filled in; None if the verb takes none."""
        if self._cls is None:
            return None
        values = list(self._values)
        for field, register in self.uses:
            values[field] = registers[register]
        return self._cls(*values)

    def keep(self, reply: Any, registers: list[int]) -> None:
        """Put what the answer gives into the registers; ProgramError if it does not give that."""
        for field, register in self.gives:
            value = reply[field] if reply is not None and field < len(reply) else None
            if type(value) is not int:
                raise ProgramError(f"{self.name} does not answer a number in field {field}")
            registers[register] = value

    @property
    def name(self) -> str:
        """The verb's name."""
        return VERB_NAMES[self.code]

    def packed(self) -> list[Any]:
        """Return the step as it stands in the bytes."""
        message = b"" if self._cls is None else encode(self._cls(*self._values))
        return [self.code, message, [*self.uses], [*self.gives]]


def pack_program(steps: Iterable[VerbStep]) -> bytes:
    """Return a program as bytes."""
    return bytes(msgpack.packb([step.packed() for step in steps]))


def unpack_program(data: bytes) -> list[VerbStep]:
    """Return the steps of a program."""
    try:
        steps = msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except ValueError as error:
        raise ProgramError(f"not msgpack: {str(error) or type(error).__name__}") from error
    if type(steps) is not list or len(steps) > MOST_STEPS:
        raise ProgramError(f"a program is an array of at most {MOST_STEPS} steps")
    return [_step(step) for step in steps]


def _step(parts: Any) -> VerbStep:
    if type(parts) is not list or len(parts) != 4:
        raise ProgramError("a step has four parts")
    code, message, uses, gives = parts
    if type(code) is not int or code not in VERB_NAMES or type(message) is not bytes:
        raise ProgramError("a step begins with a verb's code and a message")
    try:
        request = decode(message) if message else None
    except MessageError as error:
        raise ProgramError(f"{VERB_NAMES[code]}: {error}") from error
    length = len(request) if request is not None else 0
    return VerbStep(code, request, _places(uses, length), _places(gives, MOST_REGISTERS))


def _places(pairs: Any, length: int) -> Places:
    if type(pairs) is not list or len(pairs) > MOST_REGISTERS:
        raise ProgramError("fields and registers are a short array of pairs")
    for pair in pairs:
        if (
            type(pair) is not list
            or len(pair) != 2
            or not all(type(number) is int for number in pair)
            or not (0 <= pair[0] < length and 0 <= pair[1] < MOST_REGISTERS)
        ):
            raise ProgramError("a field or register that does not exist")
    return tuple((pair[0], pair[1]) for pair in pairs)
