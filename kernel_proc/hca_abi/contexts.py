"""The contexts that commands carry in their mailboxes, as big-endian structures.

MPT, CQ and EQ contexts have the fields of the device at its offsets. QP and SRQ contexts carry the
device's fields as one dword each, which takes no decoding; they stay within the device's sizes.

Spec: Linux drivers/infiniband/hw/mthca (mthca_mr.c, mthca_cq.c, mthca_eq.c, mthca_qp.c,
mthca_srq.c); docs/command-interface.md.
"""

import struct
from typing import Final, NamedTuple

# Memory protection table

MPT_STATUS_SOFTWARE: Final = 0xF << 28
MPT_FLAG_MIO: Final = 1 << 17
MPT_FLAG_BIND: Final = 1 << 15
MPT_FLAG_ATOMIC: Final = 1 << 14
MPT_FLAG_REMOTE_WRITE: Final = 1 << 13
MPT_FLAG_REMOTE_READ: Final = 1 << 12
MPT_FLAG_LOCAL_WRITE: Final = 1 << 11
MPT_FLAG_LOCAL_READ: Final = 1 << 10
MPT_FLAG_PHYSICAL: Final = 1 << 9
MPT_FLAG_REGION: Final = 1 << 8
MPT_FLAG_ZERO_BASED: Final = 1 << 7
MPT_FLAG_TYPE_2: Final = 1 << 6  # of a window: bound by its consumer's keys, to one queue pair

MTT_PRESENT: Final = 1
MTT_ENTRY_SIZE: Final = 8
MTT_SEGMENT_ENTRIES: Final = 8
WRITE_MTT_HEADER: Final = struct.Struct(">QQ")  # target address, reserved; then the entries
WRITE_MTT_MOST_ENTRIES: Final = 510


class MptEntry(NamedTuple):
    """A memory key; `page_size` is log2 less 12, `mtt_address` a byte offset in the MTT."""

    flags: int
    page_size: int
    key: int
    pd: int
    start: int
    length: int
    lkey: int = 0
    window_count: int = 0
    window_limit: int = 0
    mtt_address: int = 0
    mtt_size: int = 0


MPT_ENTRY: Final = struct.Struct(">IIIIQQIIIQI8x")

# Event and completion queues

EQ_STATE_ALWAYS_ARMED: Final = 0xB << 8
CQ_STATUS_OVERFLOW: Final = 0x9 << 28
CQ_STATUS_WRITE_FAILURE: Final = 0xA << 28
CQ_FLAG_IGNORE_OVERRUN: Final = 1 << 17
CQ_STATE_ARMED: Final = 0x9 << 8
CQ_STATE_ARMED_SOLICITED: Final = 0x6 << 8
CQ_STATE_FIRED: Final = 0xA << 8
CQ_STATE_MASK: Final = 0xF << 8
LOG_SIZE_SHIFT: Final = 24
UAR_MASK: Final = (1 << 24) - 1
NO_EQ: Final = 0xFF  # a CQ without completion events


class EqContext(NamedTuple):
    """An event queue; its buffer starts at `start` of the region `lkey`."""

    flags: int
    start: int
    log_size: int  # << LOG_SIZE_SHIFT
    reserved_10: int
    interrupt: int
    pd: int
    lkey: int
    reserved_20: int = 0
    reserved_24: int = 0
    consumer: int = 0
    producer: int = 0


EQ_CONTEXT: Final = struct.Struct(">IQIIIIIIIII16x")


class CqContext(NamedTuple):
    """A completion queue: 2^log_size entries in the region `lkey`; two doorbell slots."""

    flags: int
    start: int
    log_size_uar: int
    error_eq: int
    completion_eq: int
    pd: int
    lkey: int
    last_notified: int
    solicit_producer: int
    consumer: int
    producer: int
    cqn: int
    consumer_slot: int
    arm_slot: int


CQ_CONTEXT: Final = struct.Struct(">IQIIIIIIIIIIII4x")

# Queue pairs

QPC_TRANSPORT_RC: Final = 0
QPC_TRANSPORT_UC: Final = 1
QPC_TRANSPORT_UD: Final = 3
QPC_TRANSPORT_XRC_SEND: Final = 4
QPC_TRANSPORT_XRC_RECV: Final = 5

QPC_SIGNAL_ALL: Final = 1 << 0
QPC_HAS_SRQ: Final = 1 << 1
QPC_BLOCK_SELF_MULTICAST: Final = 1 << 2

# opt_param_mask
OPT_ALT_PATH: Final = 1 << 0
OPT_REMOTE_READ: Final = 1 << 1
OPT_REMOTE_ATOMIC: Final = 1 << 2
OPT_REMOTE_WRITE: Final = 1 << 3
OPT_PKEY_INDEX: Final = 1 << 4
OPT_QKEY: Final = 1 << 5
OPT_RNR_TIMER: Final = 1 << 6
OPT_PRIMARY_PATH: Final = 1 << 7
OPT_SRA_MAX: Final = 1 << 8
OPT_RRA_MAX: Final = 1 << 9
OPT_MIGRATION_STATE: Final = 1 << 10
OPT_PORT: Final = 1 << 11
OPT_RETRY_COUNT: Final = 1 << 12
OPT_ALT_RNR_RETRY: Final = 1 << 13
OPT_ACK_TIMEOUT: Final = 1 << 14
OPT_RNR_RETRY: Final = 1 << 15
OPT_ACCESS: Final = OPT_REMOTE_READ | OPT_REMOTE_ATOMIC | OPT_REMOTE_WRITE

QP_MAILBOX_HEAD: Final = struct.Struct(">I4x")  # opt_param_mask, then the context


class QpContext(NamedTuple):
    """A queue pair, as transitions carry it and QUERY_QPEE returns it.

    `state` is an ibv_qp_state, `mtu` an ibv_mtu, `access` the REMOTE_* bits of
    ibv_access_flags, `path_*` the primary address vector (a GRH if `path_grh`). Queue sizes are
    entries, strides bytes; the send queue begins `send_offset` bytes into the region `wqe_lkey`.
    `sq_draining` is returned only.
    """

    state: int = 0
    transport: int = 0
    flags: int = 0
    local_qpn: int = 0
    pd: int = 0
    uar: int = 0
    wqe_lkey: int = 0
    send_offset: int = 0
    send_entries: int = 0
    send_stride: int = 0
    receive_entries: int = 0
    receive_stride: int = 0
    send_slot: int = 0
    receive_slot: int = 0
    send_cqn: int = 0
    receive_cqn: int = 0
    srqn: int = 0
    xrcd: int = 0
    remote_qpn: int = 0
    qkey: int = 0
    mtu: int = 0
    access: int = 0
    port: int = 0
    pkey_index: int = 0
    ack_timeout: int = 0
    retry_count: int = 0
    rnr_retry: int = 0
    min_rnr_timer: int = 0
    sra_max: int = 0  # reads and atomics outstanding as requester
    rra_max: int = 0  # and as responder
    next_send_psn: int = 0
    next_receive_psn: int = 0
    sq_draining: int = 0
    path_port: int = 0
    path_grh: int = 0
    path_dlid: int = 0
    path_sl: int = 0
    path_source_bits: int = 0
    path_static_rate: int = 0
    path_sgid_index: int = 0
    path_hop_limit: int = 0
    path_traffic_class: int = 0
    path_flow_label: int = 0
    path_dgid: bytes = bytes(16)


QP_CONTEXT: Final = struct.Struct(f">{len(QpContext._fields) - 1}I16s")

# Shared receive queues

SRQ_IS_XRC: Final = 1


class SrqContext(NamedTuple):
    """A shared receive queue; the receive entries are those of a QP's receive queue."""

    srqn: int
    pd: int
    uar: int
    wqe_lkey: int
    entries: int
    stride: int
    slot: int
    limit: int
    flags: int = 0
    xrcd: int = 0
    cqn: int = 0
    posted: int = 0


SRQ_CONTEXT: Final = struct.Struct(">12I")

# ICM

ICM_MAP_ENTRY: Final = struct.Struct(">QQ")  # virtual address; bus address + log2 of 4 KiB pages
MAP_ICM_MOST_ENTRIES: Final = 256
ICM_CHUNK_SIZE: Final = 256 << 10
ICM_PAGE_SIZE: Final = 4096


class InitHca(NamedTuple):
    """INIT_HCA: where each table lies in the ICM, and log2 of its entries."""

    qpc_base: int
    eqpc_base: int
    rdb_base: int
    cqc_base: int
    srqc_base: int
    eqc_base: int
    mpt_base: int
    mtt_base: int
    mgm_base: int
    log_qps: int
    log_cqs: int
    log_srqs: int
    log_eqs: int
    log_mpts: int
    log_mtt_segments: int
    log_mgms: int
    uar_pages: int


INIT_HCA_MAILBOX: Final = struct.Struct(">9Q8I")

# Bytes of ICM that one object takes.
QPC_SIZE: Final = 256
EQPC_SIZE: Final = 32
RDB_SIZE: Final = 32 * 4
CQC_SIZE: Final = 64
SRQC_SIZE: Final = 32
EQC_SIZE: Final = 64
MPT_SIZE: Final = 64
MGM_ENTRY_SIZE: Final = 256
MTT_SEGMENT_SIZE: Final = MTT_ENTRY_SIZE * MTT_SEGMENT_ENTRIES


class DeviceLimits(NamedTuple):
    """QUERY_DEV_LIM: log2 of what the device has, and how many of each the firmware reserves."""

    log_max_qps: int
    reserved_qps: int
    log_max_cqs: int
    reserved_cqs: int
    log_max_srqs: int
    reserved_srqs: int
    log_max_mpts: int
    reserved_mpts: int
    reserved_mtt_segments: int
    log_max_eqs: int
    reserved_eqs: int
    log_max_pds: int
    reserved_pds: int
    reserved_uars: int
    log_max_mgms: int
    max_wqes: int
    max_sges: int
    log_max_cqes: int
    max_srq_wqes: int
    max_inline: int
    ports: int
    max_mtu: int
    gid_table_length: int
    pkey_table_length: int
    local_ack_delay: int
    flags: int
    log_max_rdb_per_qp: int
    max_responder_resources: int


DEVICE_LIMITS: Final = struct.Struct(">28I")


class Firmware(NamedTuple):
    """QUERY_FW: version, outstanding commands, and where the firmware wants things."""

    version: int  # major << 32 | minor << 16 | subminor
    log_outstanding: int
    firmware_pages: int
    catastrophic_offset: int
    catastrophic_words: int
    eq_consumer_offset: int
    command_ring_entries: int  # 0: commands cannot be posted through a doorbell


FIRMWARE: Final = struct.Struct(">Q6I")


class Adapter(NamedTuple):
    """QUERY_ADAPTER: who made the device, and its interrupt pin."""

    vendor_id: int
    device_id: int
    revision: int
    interrupt_pin: int
    board_id: bytes


ADAPTER: Final = struct.Struct(">IIII64s")

# Multicast

MGM_HEAD: Final = struct.Struct(">I12x16s")  # next index << 6; GID
MGM_QP_OFFSET: Final = 0x20
MGM_QP_VALID: Final = 1 << 31
MGM_QPS: Final = 56
