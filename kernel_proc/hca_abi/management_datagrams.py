"""The management datagrams MAD_IFC carries: subnet management attributes of the own port.

A MAD is 256 bytes, big-endian; an attribute's 64 bytes begin at byte 64.
Spec: IBA vol. 1, 13.4 (MAD format) and 14.2 (subnet management class).
"""

import struct
from typing import Final

MAD_SIZE: Final = 256
SMP_DATA_OFFSET: Final = 64
SMP_DATA_SIZE: Final = 64

# base version, class, class version, method, status, hop pointer and count, transaction id,
# attribute id, attribute modifier
SMP_HEAD: Final = struct.Struct(">BBBBHBBQH2xI")

BASE_VERSION: Final = 1
CLASS_SUBNET_MANAGEMENT: Final = 0x01
CLASS_VERSION: Final = 1
METHOD_GET: Final = 0x01
METHOD_SET: Final = 0x02
METHOD_GET_RESPONSE: Final = 0x81
MAD_STATUS_OK: Final = 0
MAD_STATUS_BAD_ATTRIBUTE: Final = 0x0C  # method and attribute do not go together
MAD_STATUS_BAD_VALUE: Final = 0x1C

ATTRIBUTE_NODE_DESCRIPTION: Final = 0x0010
ATTRIBUTE_NODE_INFO: Final = 0x0011
ATTRIBUTE_GUID_INFO: Final = 0x0014  # modifier: block of 8 GUIDs
ATTRIBUTE_PORT_INFO: Final = 0x0015  # modifier: port
ATTRIBUTE_PKEY_TABLE: Final = 0x0016  # modifier: block of 32 P_Keys
GUIDS_PER_BLOCK: Final = 8
PKEYS_PER_BLOCK: Final = 32

# NodeInfo: versions, type, ports, system, node and port GUID, partitions, device, revision, local
# port << 24 | vendor
NODE_INFO: Final = struct.Struct(">BBBBQQQHHII")

# PortInfo, offsets in the attribute's data.
PORT_INFO_GID_PREFIX: Final = 8  # u64
PORT_INFO_LID: Final = 16  # u16
PORT_INFO_SM_LID: Final = 18  # u16
PORT_INFO_CAPABILITY_MASK: Final = 20  # u32
PORT_INFO_LINK_WIDTH_ACTIVE: Final = 31
PORT_INFO_SPEED_SUPPORTED_STATE: Final = 32  # state in the low half
PORT_INFO_PHYSICAL_STATE: Final = 33  # in the high half
PORT_INFO_LMC: Final = 34  # low three bits
PORT_INFO_SPEED_ACTIVE: Final = 35  # high half
PORT_INFO_ACTIVE_MTU_SM_SL: Final = 36  # MTU high, SM SL low
PORT_INFO_VL_CAPABILITY: Final = 37  # high half
PORT_INFO_INIT_TYPE_REPLY_MTU_CAPABILITY: Final = 41  # MTU low
PORT_INFO_PKEY_VIOLATIONS: Final = 46  # u16
PORT_INFO_QKEY_VIOLATIONS: Final = 48  # u16
PORT_INFO_GUID_CAPABILITY: Final = 50
PORT_INFO_SUBNET_TIMEOUT: Final = 51  # low five bits

# SET_IB mailbox: flags, capability mask, system image GUID.
SET_IB_MAILBOX: Final = struct.Struct(">IIQ")
SET_IB_RESET_QKEY_VIOLATIONS: Final = 1 << 18
SET_IB_SYSTEM_IMAGE_GUID: Final = 1 << 17

# INIT_IB mailbox: VL capability, port width, MTU, GIDs, P_Keys, node GUID, system image GUID.
INIT_IB_MAILBOX: Final = struct.Struct(">IIIIIQQ")
