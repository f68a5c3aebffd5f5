"""One command in hand: its parameters, its mailboxes, its times; and how it is refused.

Spec: docs/command-interface.md; PRM, HCR.
"""

import struct

from kernel_proc.hca.device_memory import BusError, DeviceMemory
from kernel_proc.hca_abi.command_opcodes import (
    CMD_STAT_BAD_INDEX,
    CMD_STAT_BAD_PARAM,
    CMD_STAT_BAD_RES_STATE,
)
from kernel_proc.hca_abi.registers import MAILBOX_ALIGNMENT


class CommandRefused(Exception):
    """A command ends with this status; nothing has changed."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status:#04x}")
        self.status = status


class CommandNotYet(Exception):
    """A command's object is in use by a copy under way; it is tried again when that has ended."""


def bad_parameter() -> CommandRefused:
    """Make the refusal of a value that cannot be."""
    return CommandRefused(CMD_STAT_BAD_PARAM)


def bad_index() -> CommandRefused:
    """Make the refusal of a number beyond its table."""
    return CommandRefused(CMD_STAT_BAD_INDEX)


def bad_resource_state() -> CommandRefused:
    """Make the refusal of an object that is owned by the other side, or has no ICM."""
    return CommandRefused(CMD_STAT_BAD_RES_STATE)


class Command:
    """What the HCR held when GO was seen, and what becomes of it."""

    __slots__ = (
        "asked_ns",
        "event",
        "in_param",
        "memory",
        "modifier",
        "opcode",
        "opmod",
        "out_param",
        "result",
        "start_ns",
        "status",
        "token",
    )

    def __init__(
        self, memory: DeviceMemory, parameters: tuple[int, int, int, int], control: int, event: bool
    ) -> None:
        self.memory = memory
        self.in_param, self.modifier, self.out_param, token = parameters
        self.token = token >> 16
        self.opcode = control & 0xFFF
        self.opmod = control >> 12 & 0xF
        self.event = event
        self.result = self.out_param
        self.status = 0
        self.start_ns = 0
        self.asked_ns = 0

    def inbox(self, length: int) -> bytes:
        """Copy the head of the input mailbox; BAD_PARAM if there is none."""
        if self.in_param % MAILBOX_ALIGNMENT:
            raise bad_parameter()
        try:
            return self.memory.read(self.in_param, length)
        except BusError:
            raise bad_parameter() from None

    def unpack(self, layout: struct.Struct, offset: int = 0) -> tuple[int, ...]:
        """Copy and decode a structure of the input mailbox."""
        return layout.unpack(self.inbox(offset + layout.size)[offset:])

    def check_outbox(self) -> None:
        """Refuse an output mailbox that cannot be written, before anything changes."""
        if self.out_param % MAILBOX_ALIGNMENT or not self.memory.contains(
            self.out_param, MAILBOX_ALIGNMENT
        ):
            raise bad_parameter()

    def outbox(self, data: bytes) -> None:
        """Write the output mailbox: the data, then zeros to a multiple of 256 bytes."""
        self.check_outbox()
        try:
            self.memory.write(self.out_param, data.ljust(-len(data) % 256 + len(data), b"\0"))
        except BusError:
            raise bad_parameter() from None
