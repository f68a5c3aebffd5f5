"""The messages inside the IOCTL buffers of the verbs: what is asked, and what is answered.

A handle names an object of the context (the open file) that asks; 0 is none. Addresses are the
user's. Masks, states and types are those of `verbs_enums`. The kernel judges every value.

A user's queue lives in memory it allocated itself in an arena: `buffer` and `buffer_length`. Its
index words are slots of the session's doorbell segment, which the driver chooses and answers.

Tags 40 to 99 are the verbs'.
"""

from typing import Annotated, Any, Final, NamedTuple

from shared.messages import U32, U64, Text

Gid = Annotated[bytes, 16]  # at most so many bytes

#: Of device memory, that one request carries.
DM_BYTES_AT_ONCE: Final = 1024


class OpenContext(NamedTuple):
    """Answer of open_context (no input): what a library needs to know of the device.

    `doorbells` is the session's doorbell segment (UAR) number; its descriptors come over the
    lifeline.
    """

    doorbells: U32
    completion_vectors: U32
    ports: U32
    cqe_size: U32
    receive_stride: U32
    max_inline: U32


class QueryDevice(NamedTuple):
    """Answer of query_device (no input): ibv_device_attr, in its order."""

    fw_version: Text
    node_guid: U64  # host order
    sys_image_guid: U64
    max_mr_size: U64
    page_size_cap: U64
    vendor_id: U32
    vendor_part_id: U32
    hw_ver: U32
    max_qp: U32
    max_qp_wr: U32
    device_cap_flags: U64
    max_sge: U32
    max_sge_rd: U32
    max_cq: U32
    max_cqe: U32
    max_mr: U32
    max_pd: U32
    max_qp_rd_atom: U32
    max_res_rd_atom: U32
    max_qp_init_rd_atom: U32
    atomic_cap: U32
    max_mw: U32
    max_mcast_grp: U32
    max_mcast_qp_attach: U32
    max_total_mcast_qp_attach: U32
    max_ah: U32
    max_srq: U32
    max_srq_wr: U32
    max_srq_sge: U32
    max_pkeys: U32
    local_ca_ack_delay: U32
    phys_port_cnt: U32


class PortQuery(NamedTuple):
    """Input of query_port; with `index`, of query_gid and query_pkey."""

    port: U32
    index: U32 = 0  # type: ignore[assignment]  # hides a method of tuples that nobody calls


class QueryPort(NamedTuple):
    """Answer of query_port: ibv_port_attr."""

    state: U32
    max_mtu: U32
    active_mtu: U32
    gid_tbl_len: U32
    port_cap_flags: U32
    max_msg_sz: U32
    bad_pkey_cntr: U32
    qkey_viol_cntr: U32
    pkey_tbl_len: U32
    lid: U32
    sm_lid: U32
    lmc: U32
    max_vl_num: U32
    sm_sl: U32
    subnet_timeout: U32
    init_type_reply: U32
    active_width: U32
    active_speed: U32
    phys_state: U32
    link_layer: U32
    flags: U32


class QueryGid(NamedTuple):
    """Answer of query_gid: the 16 bytes in network order."""

    gid: Gid


class QueryPkey(NamedTuple):
    """Answer of query_pkey, host order."""

    pkey: U32


class ModifyPort(NamedTuple):
    """Input of modify_port: capability bits to set and clear; reset the Q_Key counter or not."""

    port: U32
    set_capabilities: U32
    clear_capabilities: U32
    reset_qkey_violations: U32


class Object(NamedTuple):
    """A handle: the input of every destroy and of queries, the answer of creations without more."""

    handle: U32


class Destroyed(NamedTuple):
    """Answer of destroying a CQ, QP or SRQ: events delivered for it in its life.

    The library waits until so many are acknowledged.
    """

    completion_events: U32
    async_events: U32


class RegMr(NamedTuple):
    """Input of reg_mr; `iova` is what the key's addresses start from (0 if zero based)."""

    pd: U32
    address: U64
    length: U64
    iova: U64
    access: U32


class Registered(NamedTuple):
    """Answer of reg_mr and rereg_mr."""

    handle: U32
    lkey: U32
    rkey: U32


class ReregMr(NamedTuple):
    """Input of rereg_mr; `flags` is ibv_rereg_mr_flags."""

    handle: U32
    flags: U32
    pd: U32
    address: U64
    length: U64
    access: U32


class AhCreated(NamedTuple):
    """Answer of create_ah: `pdn`, the HCA's number of the domain, goes into each datagram."""

    handle: U32
    pdn: U32


class CreateAh(NamedTuple):
    """Input of create_ah: ibv_ah_attr."""

    pd: U32
    port: U32
    dlid: U32
    sl: U32
    src_path_bits: U32
    static_rate: U32
    is_global: U32
    dgid: Gid
    flow_label: U32
    sgid_index: U32
    hop_limit: U32
    traffic_class: U32


class CreateCq(NamedTuple):
    """Input of create_cq; `cqe` as asked, the buffer holds the next power of two above it.

    With `has_channel`, completion events are delivered to get_cq_comp_event.
    """

    cqe: U32
    comp_vector: U32
    has_channel: U32
    flags: U32
    buffer: U64
    buffer_length: U64


class CqCreated(NamedTuple):
    """Answer of create_cq and resize_cq; `cqe` is what the queue holds."""

    handle: U32
    cqn: U32
    cqe: U32
    consumer_slot: U32
    arm_slot: U32


class ResizeCq(NamedTuple):
    """Input of resize_cq: a new buffer; entries not polled are moved by the HCA."""

    handle: U32
    cqe: U32
    buffer: U64
    buffer_length: U64


class CreateSrq(NamedTuple):
    """Input of create_srq; an XRC SRQ (`srq_type` 1) has a domain and a CQ."""

    pd: U32
    srq_type: U32
    max_wr: U32
    max_sge: U32
    xrcd: U32
    cq: U32
    buffer: U64
    buffer_length: U64


class SrqCreated(NamedTuple):
    """Answer of create_srq."""

    handle: U32
    srqn: U32
    max_wr: U32
    max_sge: U32
    slot: U32


class ModifySrq(NamedTuple):
    """Input of modify_srq; `mask` is ibv_srq_attr_mask."""

    handle: U32
    mask: U32
    max_wr: U32
    srq_limit: U32


class SrqAttributes(NamedTuple):
    """Answer of query_srq."""

    max_wr: U32
    max_sge: U32
    srq_limit: U32


class CreateQp(NamedTuple):
    """Input of create_qp: ibv_qp_init_attr_ex. One buffer: receive queue, then send queue."""

    qp_type: U32
    pd: U32
    send_cq: U32
    receive_cq: U32
    srq: U32
    xrcd: U32
    max_send_wr: U32
    max_recv_wr: U32
    max_send_sge: U32
    max_recv_sge: U32
    max_inline_data: U32
    sq_sig_all: U32
    create_flags: U32
    send_ops_flags: U64
    buffer: U64
    buffer_length: U64


class QpCreated(NamedTuple):
    """Answer of create_qp: the capabilities granted, the layout of the buffer, the slots."""

    handle: U32
    qpn: U32
    max_send_wr: U32
    max_recv_wr: U32
    max_send_sge: U32
    max_recv_sge: U32
    max_inline_data: U32
    send_offset: U32
    send_stride: U32
    receive_stride: U32
    send_slot: U32
    receive_slot: U32


class ModifyQp(NamedTuple):
    """Input of modify_qp: `mask` is ibv_qp_attr_mask; the others are ibv_qp_attr's."""

    handle: U32
    mask: U32
    qp_state: U32
    cur_qp_state: U32
    path_mtu: U32
    path_mig_state: U32
    qkey: U32
    rq_psn: U32
    sq_psn: U32
    dest_qp_num: U32
    qp_access_flags: U32
    pkey_index: U32
    alt_pkey_index: U32
    en_sqd_async_notify: U32
    max_rd_atomic: U32
    max_dest_rd_atomic: U32
    min_rnr_timer: U32
    port_num: U32
    timeout: U32
    retry_cnt: U32
    rnr_retry: U32
    alt_port_num: U32
    alt_timeout: U32
    rate_limit: U32
    ah_port_num: U32
    ah_dlid: U32
    ah_sl: U32
    ah_src_path_bits: U32
    ah_static_rate: U32
    ah_is_global: U32
    ah_dgid: Gid
    ah_flow_label: U32
    ah_sgid_index: U32
    ah_hop_limit: U32
    ah_traffic_class: U32


class QpAttributes(NamedTuple):
    """Answer of query_qp: every attribute as it is now, and what the QP was created with."""

    qp_state: U32
    path_mtu: U32
    path_mig_state: U32
    qkey: U32
    rq_psn: U32
    sq_psn: U32
    dest_qp_num: U32
    qp_access_flags: U32
    pkey_index: U32
    sq_draining: U32
    max_rd_atomic: U32
    max_dest_rd_atomic: U32
    min_rnr_timer: U32
    port_num: U32
    timeout: U32
    retry_cnt: U32
    rnr_retry: U32
    ah_port_num: U32
    ah_dlid: U32
    ah_sl: U32
    ah_src_path_bits: U32
    ah_static_rate: U32
    ah_is_global: U32
    ah_dgid: Gid
    ah_flow_label: U32
    ah_sgid_index: U32
    ah_hop_limit: U32
    ah_traffic_class: U32
    qp_type: U32
    sq_sig_all: U32
    max_send_wr: U32
    max_recv_wr: U32
    max_send_sge: U32
    max_recv_sge: U32
    max_inline_data: U32


class OpenXrcd(NamedTuple):
    """Input of open_xrcd; `fd` is a descriptor number of the asking process, or NO_FD."""

    fd: U32
    oflags: U32


class Multicast(NamedTuple):
    """Input of attach_mcast and detach_mcast."""

    qp: U32
    gid: Gid
    lid: U32


class Event(NamedTuple):
    """Answer of every notification request.

    `event_type` is ibv_event_type, or COMPLETION_EVENT; `object` the handle named (0 for ports and
    the device), `port` the port of a port event; `count` how many of the kind it stands for.
    """

    event_type: U32
    object: U32
    port: U32
    count: U32  # type: ignore[assignment]  # hides a method of tuples that nobody calls


class AllocMw(NamedTuple):
    """Input of alloc_mw; `mw_type` is ibv_mw_type."""

    pd: U32
    mw_type: U32


class WindowMade(NamedTuple):
    """Answer of alloc_mw; `rkey` names nothing before the window is bound."""

    handle: U32
    rkey: U32


class QueryDeviceEx(NamedTuple):
    """Answer of query_device_ex (no input): what ibv_device_attr_ex has beyond query_device.

    `hca_core_clock` is in kHz; what the device lacks is not told.
    """

    completion_timestamp_mask: U64
    hca_core_clock: U64
    device_cap_flags_ex: U64
    max_dm_size: U64


class DeviceClock(NamedTuple):
    """Answer of query_clock (no input): the device's clock in ticks, and the wall clock then."""

    raw_ns: U64
    wall_ns: U64


class AllocDm(NamedTuple):
    """Input of alloc_dm: ibv_alloc_dm_attr."""

    length: U64
    log_align: U32


class DmBytes(NamedTuple):
    """Input of copy_to_dm, which stores them; `offset` counts from the start of the memory."""

    handle: U32
    offset: U64
    data: Annotated[bytes, DM_BYTES_AT_ONCE]


class DmRange(NamedTuple):
    """Input of copy_from_dm."""

    handle: U32
    offset: U64
    length: U32


class DmContents(NamedTuple):
    """Answer of copy_from_dm."""

    data: Annotated[bytes, DM_BYTES_AT_ONCE]


class ImportByDescriptor(NamedTuple):
    """Input of export_context and import_context: a descriptor number of the asking process."""

    fd: U32


class ImportMr(NamedTuple):
    """Input of import_mr: a domain of one's own, and a region of the context imported from."""

    pd: U32
    mr: U32


class MrImported(NamedTuple):
    """Answer of import_mr."""

    handle: U32
    lkey: U32
    rkey: U32
    length: U64


class DmImported(NamedTuple):
    """Answer of import_dm."""

    handle: U32
    length: U64


class RegDmMr(NamedTuple):
    """Input of reg_dm_mr, answered as reg_mr: the region's addresses count from 0."""

    pd: U32
    dm: U32
    offset: U64
    length: U64
    access: U32


NO_FD = 0xFFFF_FFFF
COMPLETION_EVENT = 0xFFFF_FFFF

VerbMessage = (
    OpenContext
    | QueryDevice
    | PortQuery
    | QueryPort
    | QueryGid
    | QueryPkey
    | ModifyPort
    | Object
    | Destroyed
    | RegMr
    | Registered
    | ReregMr
    | CreateAh
    | CreateCq
    | CqCreated
    | ResizeCq
    | CreateSrq
    | SrqCreated
    | ModifySrq
    | SrqAttributes
    | CreateQp
    | QpCreated
    | ModifyQp
    | QpAttributes
    | OpenXrcd
    | Multicast
    | Event
    | AllocMw
    | WindowMade
    | QueryDeviceEx
    | DeviceClock
    | AllocDm
    | DmBytes
    | DmRange
    | DmContents
    | RegDmMr
    | ImportByDescriptor
    | ImportMr
    | MrImported
    | DmImported
    | AhCreated
)

#: Tag and version of each message.
VERB_MESSAGES: Final[dict[type[Any], tuple[int, int]]] = {
    OpenContext: (40, 1),
    QueryDevice: (41, 1),
    PortQuery: (42, 1),
    QueryPort: (43, 1),
    QueryGid: (44, 1),
    QueryPkey: (45, 1),
    ModifyPort: (46, 1),
    Object: (47, 1),
    Destroyed: (48, 1),
    RegMr: (49, 1),
    Registered: (50, 1),
    ReregMr: (51, 1),
    CreateAh: (52, 1),
    CreateCq: (53, 1),
    CqCreated: (54, 1),
    ResizeCq: (55, 1),
    CreateSrq: (56, 1),
    SrqCreated: (57, 1),
    ModifySrq: (58, 1),
    SrqAttributes: (59, 1),
    CreateQp: (60, 1),
    QpCreated: (61, 1),
    ModifyQp: (62, 1),
    QpAttributes: (63, 1),
    OpenXrcd: (64, 1),
    Multicast: (65, 1),
    Event: (66, 1),
    AllocMw: (67, 1),
    WindowMade: (68, 1),
    QueryDeviceEx: (69, 1),
    DeviceClock: (70, 1),
    AllocDm: (71, 1),
    DmBytes: (72, 1),
    DmRange: (73, 1),
    DmContents: (74, 1),
    RegDmMr: (75, 1),
    ImportByDescriptor: (76, 1),
    ImportMr: (77, 1),
    MrImported: (78, 1),
    DmImported: (79, 1),
    AhCreated: (80, 1),
}
