"""The device and its ports: what they are, and modify_port.

What belongs to the port is asked of its agent each time: another may have changed it.

Rules: PASSIVE_LEVEL; a refused verb has changed nothing.
Spec: IBA vol. 1, 11.2.1; Linux mthca_provider.c; docs/verbs-in-the-driver.md.
"""

import errno
import time
from typing import TYPE_CHECKING, Final

from kernel_proc.driver.dm_pool import DEVICE_MEMORY
from kernel_proc.driver.hca_driver import firmware_version
from kernel_proc.driver.limits import MAX_GIDS_IN_GROUP, MAX_MESSAGE
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.subnet_queries import query_attribute, query_node_info
from kernel_proc.driver.verb import Verb
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import management_datagrams as mad
from shared import verb_codes as code
from shared.cqe_layout import CQE_SIZE
from shared.verb_messages import (
    DeviceClock,
    ModifyPort,
    OpenContext,
    PortQuery,
    QueryDevice,
    QueryDeviceEx,
    QueryGid,
    QueryPkey,
    QueryPort,
)
from shared.verb_reasons import VerbReason
from shared.wqe_layout import receive_stride

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp

_TIMESTAMPS: Final = (1 << 64) - 1
_CLOCK_KHZ: Final = 1_000_000  # a tick is a nanosecond
_ATOMIC_HCA: Final = 1
_LINK_LAYER_INFINIBAND: Final = 1
_PAGE_SIZES: Final = 0xFFFF_F000
_MAX_INITIATOR_DEPTH: Final = 128
_MAX_VL_SHIFT: Final = 4
_GID_LENGTH: Final = 16

# What modify_port may change: SM, communication management, SNMP tunnelling, device management.
_CAPABILITIES: Final = 1 << 1 | 1 << 16 | 1 << 17 | 1 << 19


def open_context(driver: "HcaDriver", context: "Context", request: None, irp: "Irp") -> OpenContext:
    """Say what a library needs to know; no command."""
    return OpenContext(
        doorbells=context.uar,
        completion_vectors=1,
        ports=driver.limits.ports,
        cqe_size=CQE_SIZE,
        receive_stride=receive_stride(1),
        max_inline=driver.limits.device.max_inline,
    )


def query_device(driver: "HcaDriver", context: "Context", request: None, irp: "Irp") -> QueryDevice:
    """Return what the device is and can: MAD_IFC once."""
    node = query_node_info(driver)
    limits, device = driver.limits, driver.limits.device
    groups = 1 << limits.log_mgms
    return QueryDevice(
        fw_version=firmware_version(driver.firmware),
        node_guid=node.node_guid,
        sys_image_guid=node.system_guid,
        max_mr_size=(1 << 64) - 1,
        page_size_cap=_PAGE_SIZES,
        vendor_id=node.vendor_id,
        vendor_part_id=node.device_id,
        hw_ver=node.revision,
        max_qp=limits.max_qp,
        max_qp_wr=device.max_wqes,
        device_cap_flags=device.flags,
        max_sge=device.max_sges,
        max_sge_rd=device.max_sges,
        max_cq=limits.max_cq,
        max_cqe=limits.max_cqe,
        max_mr=limits.max_mr,
        max_pd=driver.numbers.pd.size,
        max_qp_rd_atom=limits.max_rd_atomic,
        max_res_rd_atom=limits.max_rd_atomic * limits.max_qp,
        max_qp_init_rd_atom=_MAX_INITIATOR_DEPTH,
        atomic_cap=_ATOMIC_HCA,
        max_mw=limits.max_mr,
        max_mcast_grp=groups,
        max_mcast_qp_attach=MAX_GIDS_IN_GROUP,
        max_total_mcast_qp_attach=groups * MAX_GIDS_IN_GROUP,
        max_ah=0,
        max_srq=limits.max_srq,
        max_srq_wr=device.max_srq_wqes,
        max_srq_sge=device.max_sges,
        max_pkeys=device.pkey_table_length,
        local_ca_ack_delay=device.local_ack_delay,
        phys_port_cnt=limits.ports,
    )


def query_device_ex(
    driver: "HcaDriver", context: "Context", request: None, irp: "Irp"
) -> QueryDeviceEx:
    """Return what the device has beyond the plain attributes; no command."""
    return QueryDeviceEx(
        completion_timestamp_mask=_TIMESTAMPS,
        hca_core_clock=_CLOCK_KHZ,
        device_cap_flags_ex=driver.limits.device.flags,
        max_dm_size=DEVICE_MEMORY,
    )


def query_clock(driver: "HcaDriver", context: "Context", request: None, irp: "Irp") -> DeviceClock:
    """Read the device's clock, which is the host's own free-running one, and the wall clock."""
    clock = driver.processor.clock
    before = clock.now_ns()
    wall = time.time_ns()
    return DeviceClock(raw_ns=(before + clock.now_ns()) // 2, wall_ns=wall)


def query_port(
    driver: "HcaDriver", context: "Context", request: PortQuery, irp: "Irp"
) -> QueryPort:
    """Return a port's attributes: MAD_IFC once. EINVAL without such a port."""
    info = _port_info(driver, request.port)
    state = info[mad.PORT_INFO_SPEED_SUPPORTED_STATE] & 0xF
    device = driver.limits.device
    return QueryPort(
        state=state,
        max_mtu=info[mad.PORT_INFO_INIT_TYPE_REPLY_MTU_CAPABILITY] & 0xF,
        active_mtu=info[mad.PORT_INFO_ACTIVE_MTU_SM_SL] >> 4,
        gid_tbl_len=device.gid_table_length,
        port_cap_flags=_u32(info, mad.PORT_INFO_CAPABILITY_MASK),
        max_msg_sz=MAX_MESSAGE,
        bad_pkey_cntr=_u16(info, mad.PORT_INFO_PKEY_VIOLATIONS),
        qkey_viol_cntr=_u16(info, mad.PORT_INFO_QKEY_VIOLATIONS),
        pkey_tbl_len=device.pkey_table_length,
        lid=_u16(info, mad.PORT_INFO_LID),
        sm_lid=_u16(info, mad.PORT_INFO_SM_LID),
        lmc=info[mad.PORT_INFO_LMC] & 7,
        max_vl_num=info[mad.PORT_INFO_VL_CAPABILITY] >> _MAX_VL_SHIFT,
        sm_sl=info[mad.PORT_INFO_ACTIVE_MTU_SM_SL] & 0xF,
        subnet_timeout=info[mad.PORT_INFO_SUBNET_TIMEOUT] & 0x1F,
        init_type_reply=info[mad.PORT_INFO_INIT_TYPE_REPLY_MTU_CAPABILITY] >> 4,
        active_width=info[mad.PORT_INFO_LINK_WIDTH_ACTIVE],
        active_speed=info[mad.PORT_INFO_SPEED_ACTIVE] >> 4,
        phys_state=info[mad.PORT_INFO_PHYSICAL_STATE] >> 4,
        link_layer=_LINK_LAYER_INFINIBAND,
        flags=0,
    )


def query_gid(driver: "HcaDriver", context: "Context", request: PortQuery, irp: "Irp") -> QueryGid:
    """Return a GID: prefix and GUID, MAD_IFC twice. EINVAL beyond the table."""
    _require_port(driver, request.port)
    _require_index(request.index, driver.limits.device.gid_table_length)
    info = _port_info(driver, request.port)
    block, place = divmod(request.index, mad.GUIDS_PER_BLOCK)
    guids = query_attribute(driver, mad.ATTRIBUTE_GUID_INFO, block, request.port)
    guid = guids[8 * place : 8 * place + 8]
    if not any(guid):
        return QueryGid(gid=bytes(_GID_LENGTH))
    return QueryGid(gid=info[mad.PORT_INFO_GID_PREFIX : mad.PORT_INFO_GID_PREFIX + 8] + guid)


def query_pkey(
    driver: "HcaDriver", context: "Context", request: PortQuery, irp: "Irp"
) -> QueryPkey:
    """Return a P_Key: MAD_IFC once. EINVAL beyond the table."""
    _require_port(driver, request.port)
    _require_index(request.index, driver.limits.device.pkey_table_length)
    block, place = divmod(request.index, mad.PKEYS_PER_BLOCK)
    keys = query_attribute(driver, mad.ATTRIBUTE_PKEY_TABLE, block, request.port)
    return QueryPkey(pkey=_u16(keys, 2 * place))


def modify_port(driver: "HcaDriver", context: "Context", request: ModifyPort, irp: "Irp") -> None:
    """Set and clear capability bits, reset the Q_Key counter: MAD_IFC, SET_IB."""
    changed = request.set_capabilities | request.clear_capabilities
    _require_port(driver, request.port)
    if changed & ~_CAPABILITIES:
        unknown = changed & ~_CAPABILITIES
        raise VerbRefused(errno.EINVAL, VerbReason.UNKNOWN_CAPABILITY_BITS, 0, unknown)
    info = _port_info(driver, request.port)
    mask = _u32(info, mad.PORT_INFO_CAPABILITY_MASK)
    mask = (mask | request.set_capabilities) & ~request.clear_capabilities
    flags = mad.SET_IB_RESET_QKEY_VIOLATIONS if request.reset_qkey_violations else 0
    driver.channel.run(
        op.SET_IB, modifier=request.port, inbox=mad.SET_IB_MAILBOX.pack(flags, mask, 0)
    )


def _port_info(driver: "HcaDriver", port: int) -> bytes:
    _require_port(driver, port)
    return query_attribute(driver, mad.ATTRIBUTE_PORT_INFO, port, port)


def _require_port(driver: "HcaDriver", port: int) -> None:
    if not 1 <= port <= driver.limits.ports:
        raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_PORT, port, driver.limits.ports)


def _require_index(index: int, length: int) -> None:
    if index >= length:
        raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_INDEX, index, length)


def _u16(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2], "big")


def _u32(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "big")


VERBS: Final = {
    code.IOCTL_OPEN_CONTEXT: Verb(open_context, None),
    code.IOCTL_QUERY_DEVICE: Verb(query_device, None),
    code.IOCTL_QUERY_DEVICE_EX: Verb(query_device_ex, None),
    code.IOCTL_QUERY_CLOCK: Verb(query_clock, None),
    code.IOCTL_QUERY_PORT: Verb(query_port, PortQuery),
    code.IOCTL_QUERY_GID: Verb(query_gid, PortQuery),
    code.IOCTL_QUERY_PKEY: Verb(query_pkey, PortQuery),
    code.IOCTL_MODIFY_PORT: Verb(modify_port, ModifyPort),
}
