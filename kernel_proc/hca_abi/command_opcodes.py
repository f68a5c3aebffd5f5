"""The commands of the HCA: opcode, name, time class, latency group; and their statuses.

Time classes are bounds for unloaded firmware: A 1 ms, B 10 ms, C 100 ms, D beyond.
Spec: Linux drivers/infiniband/hw/mthca/mthca_cmd.c and mthca_cmd.h; docs/command-interface.md.
"""

import errno
from typing import Final, NamedTuple


class CommandKind(NamedTuple):
    """What is known of one opcode; `group` is the latency model's."""

    opcode: int
    name: str
    time_class: str
    group: str


QUERY_DEV_LIM: Final = 0x003
QUERY_FW: Final = 0x004
QUERY_ADAPTER: Final = 0x006
INIT_HCA: Final = 0x007
CLOSE_HCA: Final = 0x008
INIT_IB: Final = 0x009
CLOSE_IB: Final = 0x00A
SET_IB: Final = 0x00C
SW2HW_MPT: Final = 0x00D
QUERY_MPT: Final = 0x00E
HW2SW_MPT: Final = 0x00F
READ_MTT: Final = 0x010
WRITE_MTT: Final = 0x011
MAP_EQ: Final = 0x012
SW2HW_EQ: Final = 0x013
HW2SW_EQ: Final = 0x014
QUERY_EQ: Final = 0x015
SW2HW_CQ: Final = 0x016
HW2SW_CQ: Final = 0x017
QUERY_CQ: Final = 0x018
RST2INIT_QPEE: Final = 0x019
INIT2RTR_QPEE: Final = 0x01A
RTR2RTS_QPEE: Final = 0x01B
RTS2RTS_QPEE: Final = 0x01C
SQERR2RTS_QPEE: Final = 0x01D
TOERR_QPEE: Final = 0x01E  # 2ERR_QPEE
RTS2SQD_QPEE: Final = 0x01F
SQD2RTS_QPEE: Final = 0x020
ERR2RST_QPEE: Final = 0x021
QUERY_QPEE: Final = 0x022
CONF_SPECIAL_QP: Final = 0x023
MAD_IFC: Final = 0x024
READ_MGM: Final = 0x025
WRITE_MGM: Final = 0x026
MGID_HASH: Final = 0x027
RESIZE_CQ: Final = 0x02C
INIT2INIT_QPEE: Final = 0x02D
SYNC_TPT: Final = 0x02F
NOP: Final = 0x031
SW2HW_SRQ: Final = 0x035
HW2SW_SRQ: Final = 0x036
QUERY_SRQ: Final = 0x037
SQD2SQD_QPEE: Final = 0x038
ARM_SRQ: Final = 0x040
RUN_FW: Final = 0xFF6
DISABLE_LAM: Final = 0xFF7
ENABLE_LAM: Final = 0xFF8
UNMAP_ICM: Final = 0xFF9
MAP_ICM: Final = 0xFFA
UNMAP_ICM_AUX: Final = 0xFFB
MAP_ICM_AUX: Final = 0xFFC
SET_ICM_SIZE: Final = 0xFFD
UNMAP_FA: Final = 0xFFE
MAP_FA: Final = 0xFFF

COMMANDS: Final[dict[int, CommandKind]] = {
    kind.opcode: kind
    for kind in (
        CommandKind(QUERY_DEV_LIM, "QUERY_DEV_LIM", "A", "query"),
        CommandKind(QUERY_FW, "QUERY_FW", "A", "query"),
        CommandKind(QUERY_ADAPTER, "QUERY_ADAPTER", "A", "query"),
        CommandKind(INIT_HCA, "INIT_HCA", "D", "init_hca"),
        CommandKind(CLOSE_HCA, "CLOSE_HCA", "C", "close"),
        CommandKind(INIT_IB, "INIT_IB", "A", "port"),
        CommandKind(CLOSE_IB, "CLOSE_IB", "A", "port"),
        CommandKind(SET_IB, "SET_IB", "B", "other_b"),
        CommandKind(SW2HW_MPT, "SW2HW_MPT", "B", "mpt_in"),
        CommandKind(QUERY_MPT, "QUERY_MPT", "A", "query"),
        CommandKind(HW2SW_MPT, "HW2SW_MPT", "B", "mpt_out"),
        CommandKind(READ_MTT, "READ_MTT", "A", "query"),
        CommandKind(WRITE_MTT, "WRITE_MTT", "B", "mtt"),
        CommandKind(MAP_EQ, "MAP_EQ", "B", "other_b"),
        CommandKind(SW2HW_EQ, "SW2HW_EQ", "A", "queue_context"),
        CommandKind(HW2SW_EQ, "HW2SW_EQ", "A", "queue_context"),
        CommandKind(QUERY_EQ, "QUERY_EQ", "A", "query"),
        CommandKind(SW2HW_CQ, "SW2HW_CQ", "A", "queue_context"),
        CommandKind(HW2SW_CQ, "HW2SW_CQ", "A", "queue_context"),
        CommandKind(QUERY_CQ, "QUERY_CQ", "A", "query"),
        CommandKind(RST2INIT_QPEE, "RST2INIT_QPEE", "C", "qp_forward"),
        CommandKind(INIT2RTR_QPEE, "INIT2RTR_QPEE", "C", "qp_forward"),
        CommandKind(RTR2RTS_QPEE, "RTR2RTS_QPEE", "C", "qp_forward"),
        CommandKind(RTS2RTS_QPEE, "RTS2RTS_QPEE", "C", "qp_forward"),
        CommandKind(SQERR2RTS_QPEE, "SQERR2RTS_QPEE", "C", "qp_forward"),
        CommandKind(TOERR_QPEE, "2ERR_QPEE", "C", "qp_down"),
        CommandKind(RTS2SQD_QPEE, "RTS2SQD_QPEE", "C", "qp_down"),
        CommandKind(SQD2RTS_QPEE, "SQD2RTS_QPEE", "C", "qp_forward"),
        CommandKind(ERR2RST_QPEE, "ERR2RST_QPEE", "C", "qp_down"),
        CommandKind(QUERY_QPEE, "QUERY_QPEE", "A", "query"),
        CommandKind(CONF_SPECIAL_QP, "CONF_SPECIAL_QP", "B", "other_b"),
        CommandKind(MAD_IFC, "MAD_IFC", "C", "mad"),
        CommandKind(READ_MGM, "READ_MGM", "A", "multicast"),
        CommandKind(WRITE_MGM, "WRITE_MGM", "A", "multicast"),
        CommandKind(MGID_HASH, "MGID_HASH", "A", "multicast"),
        CommandKind(RESIZE_CQ, "RESIZE_CQ", "B", "other_b"),
        CommandKind(INIT2INIT_QPEE, "INIT2INIT_QPEE", "C", "qp_forward"),
        CommandKind(SYNC_TPT, "SYNC_TPT", "B", "mpt_out"),
        CommandKind(NOP, "NOP", "A", "nop"),
        CommandKind(SW2HW_SRQ, "SW2HW_SRQ", "A", "queue_context"),
        CommandKind(HW2SW_SRQ, "HW2SW_SRQ", "A", "queue_context"),
        CommandKind(QUERY_SRQ, "QUERY_SRQ", "A", "query"),
        CommandKind(SQD2SQD_QPEE, "SQD2SQD_QPEE", "C", "qp_forward"),
        CommandKind(ARM_SRQ, "ARM_SRQ", "B", "other_b"),
        CommandKind(RUN_FW, "RUN_FW", "A", "firmware_start"),
        CommandKind(DISABLE_LAM, "DISABLE_LAM", "C", "attached_memory"),
        CommandKind(ENABLE_LAM, "ENABLE_LAM", "C", "attached_memory"),
        CommandKind(UNMAP_ICM, "UNMAP_ICM", "B", "icm"),
        CommandKind(MAP_ICM, "MAP_ICM", "B", "icm"),
        CommandKind(UNMAP_ICM_AUX, "UNMAP_ICM_AUX", "B", "icm"),
        CommandKind(MAP_ICM_AUX, "MAP_ICM_AUX", "B", "icm"),
        CommandKind(SET_ICM_SIZE, "SET_ICM_SIZE", "A", "query"),
        CommandKind(UNMAP_FA, "UNMAP_FA", "B", "icm"),
        CommandKind(MAP_FA, "MAP_FA", "B", "icm"),
    )
}

CMD_STAT_OK: Final = 0x00
CMD_STAT_INTERNAL_ERR: Final = 0x01
CMD_STAT_BAD_OP: Final = 0x02
CMD_STAT_BAD_PARAM: Final = 0x03
CMD_STAT_BAD_SYS_STATE: Final = 0x04
CMD_STAT_BAD_RESOURCE: Final = 0x05
CMD_STAT_RESOURCE_BUSY: Final = 0x06
CMD_STAT_DDR_MEM_ERR: Final = 0x07
CMD_STAT_EXCEED_LIM: Final = 0x08
CMD_STAT_BAD_RES_STATE: Final = 0x09
CMD_STAT_BAD_INDEX: Final = 0x0A
CMD_STAT_BAD_NVMEM: Final = 0x0B
CMD_STAT_BAD_QPEE_STATE: Final = 0x10
CMD_STAT_BAD_SEG_PARAM: Final = 0x20
CMD_STAT_REG_BOUND: Final = 0x21
CMD_STAT_LAM_NOT_PRE: Final = 0x22
CMD_STAT_BAD_PKT: Final = 0x30
CMD_STAT_BAD_SIZE: Final = 0x40

STATUS_ERRNO: Final[dict[int, int]] = {
    CMD_STAT_OK: 0,
    CMD_STAT_INTERNAL_ERR: errno.EIO,
    CMD_STAT_BAD_OP: errno.EPERM,
    CMD_STAT_BAD_PARAM: errno.EINVAL,
    CMD_STAT_BAD_SYS_STATE: errno.ENXIO,
    CMD_STAT_BAD_RESOURCE: errno.EBADF,
    CMD_STAT_RESOURCE_BUSY: errno.EBUSY,
    CMD_STAT_DDR_MEM_ERR: errno.ENOMEM,
    CMD_STAT_EXCEED_LIM: errno.ENOMEM,
    CMD_STAT_BAD_RES_STATE: errno.EBADF,
    CMD_STAT_BAD_INDEX: errno.EBADF,
    CMD_STAT_BAD_NVMEM: errno.EFAULT,
    CMD_STAT_BAD_QPEE_STATE: errno.EINVAL,
    CMD_STAT_BAD_SEG_PARAM: errno.EFAULT,
    CMD_STAT_REG_BOUND: errno.EBUSY,
    CMD_STAT_LAM_NOT_PRE: errno.EAGAIN,
    CMD_STAT_BAD_PKT: errno.EBADMSG,
    CMD_STAT_BAD_SIZE: errno.ENOMEM,
}

# Opcode modifiers.
HW2SW_MPT_NO_OUTBOX: Final = 1
HW2SW_MPT_UNBIND: Final = 2  # windows bound to the region are unbound, and do not keep it
ERR2RST_NO_OUTBOX: Final = 1
ERR2RST_WITHOUT_FLUSH: Final = 2  # straight to RESET
RTS2SQD_NOTIFY: Final = 1 << 31  # of the input modifier: the SQ-drained event is wanted
MAP_EQ_UNMAP: Final = 1 << 31  # of the input modifier
RESIZE_CQ_OPMOD: Final = 1
NOP_MODIFIER: Final = 0x1F
