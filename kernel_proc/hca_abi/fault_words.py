"""What faults call commands and their statuses: by the names of the command interface.

Spec: kernel_proc/hca_abi/command_opcodes.py.
"""

from typing import Final

from kernel_proc.hca_abi import command_opcodes as op
from shared.fault_messages import Fault
from shared.fault_points import FaultError

_PREFIX: Final = "CMD_STAT_"
OPCODES: Final = {kind.name: opcode for opcode, kind in op.COMMANDS.items()}
STATUSES: Final[dict[str, int]] = {
    name.removeprefix(_PREFIX): value
    for name, value in vars(op).items()
    if name.startswith(_PREFIX) and value != op.CMD_STAT_OK
}


def opcode_of(fault: Fault) -> int | None:
    """Return the opcode of the commands a fault is about, None for all; FaultError if unknown."""
    if not fault.command:
        return None
    opcode = OPCODES.get(fault.command.upper())
    if opcode is None:
        raise FaultError(f"the HCA has no command {fault.command!r}: it has {', '.join(OPCODES)}")
    return opcode


def status_of(fault: Fault) -> int:
    """Return the status a fault has commands end with; FaultError if there is none of the name."""
    status = STATUSES.get(fault.status.upper())
    if status is None:
        raise FaultError(f"no command ends with {fault.status!r}: but with {', '.join(STATUSES)}")
    return status
