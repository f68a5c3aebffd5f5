"""The answer of IOCTL_COMMAND_JOURNAL: the number of the latest verb, then a record a command.

The input is the number of a verb (JOURNAL_HEAD); commands of later verbs are answered.
"""

import struct
from typing import Final, NamedTuple

JOURNAL_HEAD: Final = struct.Struct("=Q")
#: verb, name of the opcode, what the driver waited, what the model asked, what the HCA took.
JOURNAL_RECORD: Final = struct.Struct("=Q16sQQQ")


class JournalRecord(NamedTuple):
    """One command of a verb; times in nanoseconds."""

    verb: int
    name: str
    took_ns: int
    asked_ns: int
    device_ns: int


def unpack_journal(data: bytes) -> tuple[int, list[JournalRecord]]:
    """Return the number of the latest verb and the records."""
    (verbs,) = JOURNAL_HEAD.unpack_from(data)
    return verbs, [
        JournalRecord(verb, name.rstrip(b"\0").decode("ascii"), *times)
        for verb, name, *times in JOURNAL_RECORD.iter_unpack(data[JOURNAL_HEAD.size :])
    ]
