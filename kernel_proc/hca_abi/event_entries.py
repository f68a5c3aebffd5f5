"""Event queue entries: 32 bytes each, big-endian, the owner in the last byte.

An entry is the software's when bit 7 of byte 0x1f equals 0; the HCA writes that byte last. The
consumer index of an EQ goes into its register; EQ sizes are powers of two.

Spec: Linux drivers/infiniband/hw/mthca/mthca_eq.c; docs/command-interface.md.
"""

import struct
from typing import Final

EQE_SIZE: Final = 32
EQE_OWNER_OFFSET: Final = 0x1F
EQE_OWNED_BY_HCA: Final = 0x80

# Byte 0x01 type, 0x03 subtype; data from 0x04.
EQE_HEAD: Final = struct.Struct(">xBxB")
EQE_COMPLETION: Final = struct.Struct(">4xI")  # cqn
EQE_COMMAND: Final = struct.Struct(">6xH7xBQ")  # token 0x06, status 0x0f, out_param 0x10
EQE_QP: Final = struct.Struct(">4xI")  # qpn
EQE_SRQ: Final = struct.Struct(">4xI")  # srqn
EQE_CQ_ERROR: Final = struct.Struct(">4xI7xB")  # cqn 0x04, syndrome 0x0f
EQE_PORT: Final = struct.Struct(">12xI")  # port in bits 29:28

EVENT_COMPLETION: Final = 0x00
EVENT_PATH_MIGRATED: Final = 0x01
EVENT_COMMUNICATION_ESTABLISHED: Final = 0x02
EVENT_SQ_DRAINED: Final = 0x03
EVENT_CQ_ERROR: Final = 0x04
EVENT_WQ_CATASTROPHIC: Final = 0x05
EVENT_MIGRATION_FAILED: Final = 0x07
EVENT_LOCAL_CATASTROPHIC: Final = 0x08
EVENT_PORT_CHANGE: Final = 0x09
EVENT_COMMAND_DONE: Final = 0x0A
EVENT_INVALID_REQUEST: Final = 0x10
EVENT_ACCESS_ERROR: Final = 0x11
EVENT_SRQ_CATASTROPHIC: Final = 0x12
EVENT_LAST_WQE_REACHED: Final = 0x13
EVENT_SRQ_LIMIT: Final = 0x14

PORT_SHIFT: Final = 28
PORT_DOWN: Final = 1
PORT_UP: Final = 4
PORT_LID_CHANGE: Final = 0x10  # the following are told by MAD traps on hardware
PORT_PKEY_CHANGE: Final = 0x11
PORT_GID_CHANGE: Final = 0x12
PORT_SM_CHANGE: Final = 0x13
PORT_CLIENT_REREGISTER: Final = 0x14

CQ_OVERRUN: Final = 1
CQ_ACCESS_VIOLATION: Final = 2
