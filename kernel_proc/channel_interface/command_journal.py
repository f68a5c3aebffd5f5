"""The HCA driver's journal of commands, for kernel code that measures verbs: types only.

Rules: the request is answered at <= DISPATCH_LEVEL, at once.
Spec: docs/benchmark-verbs.md.
"""

from typing import Final, NamedTuple

from shared.ioctl_codes import FILE_ANY_ACCESS, METHOD_NEITHER, ctl_code
from shared.verb_codes import HCA_DEVICE_TYPE

# Sent as IRP_MJ_INTERNAL_DEVICE_CONTROL, so no user program can ask. Type3InputBuffer is the
# number of a verb; the driver appends the journal after it to the list it finds as UserBuffer.
IOCTL_INTERNAL_READ_JOURNAL: Final = ctl_code(
    HCA_DEVICE_TYPE, 0xF01, METHOD_NEITHER, FILE_ANY_ACCESS
)


class CommandRecord(NamedTuple):
    """One command of a verb.

    `took_ns` is what the driver waited for it, `asked_ns` what the latency model asked of the HCA,
    `device_ns` what it was in execution there.
    """

    verb: int
    opcode: int
    took_ns: int
    asked_ns: int
    device_ns: int


class CommandJournal(NamedTuple):
    """The number of the latest verb, and the commands of verbs that are still remembered."""

    verbs: int
    records: list[CommandRecord]
