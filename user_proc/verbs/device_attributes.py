"""What a device reports of itself.

What this device does not have reads 0, as libibverbs leaves it.

Spec: rdma-core, pyverbs/device.pyx; ibv_query_device(3), ibv_query_device_ex(3).
"""

from collections.abc import Callable
from typing import Any, Final

from user_proc.verbs.attribute_values import Values
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, ReadOnly, to_u32
from user_proc.verbs.device_strings import guid_format, translate_device_caps
from user_proc.verbs.printing import Line, lines

_ATOMICS: Final = {0: "IBV_ATOMIC_NONE", 1: "IBV_ATOMIC_HCA", 2: "IBV_ATOMIC_GLOB"}


class DeviceAttr(Values):
    """ibv_device_attr; both GUIDs are in network order."""

    fw_version = ReadOnly()
    node_guid = ReadOnly()
    sys_image_guid = ReadOnly()
    max_mr_size = ReadOnly()
    page_size_cap = ReadOnly()
    vendor_id = ReadOnly()
    vendor_part_id = ReadOnly()
    hw_ver = ReadOnly()
    max_qp = ReadOnly()
    max_qp_wr = ReadOnly()
    device_cap_flags = ReadOnly()
    max_sge = ReadOnly()
    max_sge_rd = ReadOnly()
    max_cq = ReadOnly()
    max_cqe = ReadOnly()
    max_mr = ReadOnly()
    max_pd = ReadOnly()
    max_qp_rd_atom = ReadOnly()
    max_ee_rd_atom = ReadOnly()
    max_res_rd_atom = ReadOnly()
    max_qp_init_rd_atom = ReadOnly()
    max_ee_init_rd_atom = ReadOnly()
    atomic_caps = ReadOnly()
    max_ee = ReadOnly()
    max_rdd = ReadOnly()
    max_mw = ReadOnly()
    max_raw_ipv6_qps = ReadOnly()
    max_raw_ethy_qp = ReadOnly()
    max_mcast_grp = ReadOnly()
    max_mcast_qp_attach = ReadOnly()
    max_ah = ReadOnly()
    max_fmr = ReadOnly()
    max_map_per_fmr = ReadOnly()
    max_srq = ReadOnly()
    max_srq_wr = ReadOnly()
    max_srq_sge = ReadOnly()
    max_pkeys = ReadOnly()
    local_ca_ack_delay = ReadOnly()
    phys_port_cnt = ReadOnly()

    def __str__(self) -> str:
        return lines(22, [(label, self._shown(name)) for label, name in _LABELS])

    def _shown(self, name: str) -> object:
        value: Any = getattr(self, name)
        show = _SHOWN.get(name)
        return value if show is None else show(value)


_LABELS: Final[tuple[tuple[str, str], ...]] = (
    ("FW version", "fw_version"),
    ("Node guid", "node_guid"),
    ("Sys image GUID", "sys_image_guid"),
    ("Max MR size", "max_mr_size"),
    ("Page size cap", "page_size_cap"),
    ("Vendor ID", "vendor_id"),
    ("Vendor part ID", "vendor_part_id"),
    ("HW version", "hw_ver"),
    ("Max QP", "max_qp"),
    ("Max QP WR", "max_qp_wr"),
    ("Device cap flags", "device_cap_flags"),
    ("Max SGE", "max_sge"),
    ("Max SGE RD", "max_sge_rd"),
    ("MAX CQ", "max_cq"),
    ("Max CQE", "max_cqe"),
    ("Max MR", "max_mr"),
    ("Max PD", "max_pd"),
    ("Max QP RD atom", "max_qp_rd_atom"),
    ("Max EE RD atom", "max_ee_rd_atom"),
    ("Max res RD atom", "max_res_rd_atom"),
    ("Max QP init RD atom", "max_qp_init_rd_atom"),
    ("Max EE init RD atom", "max_ee_init_rd_atom"),
    ("Atomic caps", "atomic_caps"),
    ("Max EE", "max_ee"),
    ("Max RDD", "max_rdd"),
    ("Max MW", "max_mw"),
    ("Max raw IPv6 QPs", "max_raw_ipv6_qps"),
    ("Max raw ethy QP", "max_raw_ethy_qp"),
    ("Max mcast group", "max_mcast_grp"),
    ("Max mcast QP attach", "max_mcast_qp_attach"),
    ("Max AH", "max_ah"),
    ("Max FMR", "max_fmr"),
    ("Max map per FMR", "max_map_per_fmr"),
    ("Max SRQ", "max_srq"),
    ("Max SRQ WR", "max_srq_wr"),
    ("Max SRQ SGE", "max_srq_sge"),
    ("Max PKeys", "max_pkeys"),
    ("local CA ack delay", "local_ca_ack_delay"),
    ("Phys port count", "phys_port_cnt"),
)

_SHOWN: Final[dict[str, Callable[[int], str]]] = {
    "node_guid": guid_format,
    "sys_image_guid": guid_format,
    "max_mr_size": hex,
    "page_size_cap": hex,
    "vendor_id": hex,
    "device_cap_flags": translate_device_caps,
    "atomic_caps": lambda value: _ATOMICS.get(value, str(value)),
}


class QueryDeviceExInput(PyverbsObject):
    """Input of an extended query."""

    comp_mask = CField(to_u32)

    def __init__(self, comp_mask: IntLike) -> None:
        super().__init__()
        self.comp_mask = comp_mask


class ODPCaps(Values):
    """On-demand paging."""

    general_caps = ReadOnly()
    rc_odp_caps = ReadOnly()
    uc_odp_caps = ReadOnly()
    ud_odp_caps = ReadOnly()

    def __init__(self) -> None:
        super().__init__()
        self._xrc_odp_caps = 0

    xrc_odp_caps = CField(to_u32)

    def __str__(self) -> str:
        fields: list[Line] = [
            ("General", self.general_caps),
            ("RC", self.rc_odp_caps),
            ("UC", self.uc_odp_caps),
            ("UD", self.ud_odp_caps),
            ("XRC", self.xrc_odp_caps),
        ]
        return "ODP caps:\n" + lines(20, fields)


class PCIAtomicCaps(Values):
    """Atomic operations over PCI."""

    fetch_add = ReadOnly()
    swap = ReadOnly()
    compare_swap = ReadOnly()


class TSOCaps(Values):
    """Segmentation offload."""

    max_tso = ReadOnly()
    supported_qpts = ReadOnly()


class RSSCaps(Values):
    """Receive-side scaling."""

    supported_qpts = ReadOnly()
    max_rwq_indirection_tables = ReadOnly()
    rx_hash_fields_mask = ReadOnly()
    rx_hash_function = ReadOnly()
    max_rwq_indirection_table_size = ReadOnly()


class PacketPacingCaps(Values):
    """Rate limits."""

    qp_rate_limit_min = ReadOnly()
    qp_rate_limit_max = ReadOnly()
    supported_qpts = ReadOnly()


class TMCaps(Values):
    """Tag matching."""

    max_rndv_hdr_size = ReadOnly()
    max_num_tags = ReadOnly()
    flags = ReadOnly()
    max_ops = ReadOnly()
    max_sge = ReadOnly()


class CQModerationCaps(Values):
    """Moderation of completion events."""

    max_cq_count = ReadOnly()
    max_cq_period = ReadOnly()


class CompCntrCaps(Values):
    """Completion counters."""

    max_counters = ReadOnly()
    max_value = ReadOnly()
    supported_qp_attach_ops = ReadOnly()


class DeviceAttrEx(Values):
    """ibv_device_attr_ex."""

    completion_timestamp_mask = ReadOnly()
    hca_core_clock = ReadOnly()
    device_cap_flags_ex = ReadOnly()
    max_wq_type_rq = ReadOnly()
    raw_packet_caps = ReadOnly()
    max_dm_size = ReadOnly()
    phys_port_cnt_ex = ReadOnly()
    comp_mask = CField(to_u32)

    def __init__(self) -> None:
        super().__init__()
        self._comp_mask = 0
        self.orig_attr = DeviceAttr()
        self.odp_caps = ODPCaps()
        self.tso_caps = TSOCaps()
        self.pci_atomic_caps = PCIAtomicCaps()
        self.rss_caps = RSSCaps()
        self.packet_pacing_caps = PacketPacingCaps()
        self.tm_caps = TMCaps()
        self.cq_mod_caps = CQModerationCaps()

    def __str__(self) -> str:
        own = [(label, show(getattr(self, name))) for label, name, show in _EXTENDED]
        parts = [
            (f"{kind} {field.replace('_', ' ')}", getattr(part, field))
            for kind, part in (
                ("ODP", self.odp_caps),
                ("TSO", self.tso_caps),
                ("PCI atomic", self.pci_atomic_caps),
                ("RSS", self.rss_caps),
                ("Packet pacing", self.packet_pacing_caps),
                ("TM", self.tm_caps),
                ("CQ moderation", self.cq_mod_caps),
            )
            for field in part.FIELDS
            if getattr(part, field)  # of what a device lacks all is 0
        ]
        return f"{self.orig_attr}{lines(28, [*own, *parts])}"


_EXTENDED: Final[tuple[tuple[str, str, Callable[[int], object]], ...]] = (
    ("Completion timestamp mask", "completion_timestamp_mask", hex),
    ("HCA core clock", "hca_core_clock", lambda value: f"{value} kHz"),
    ("Device cap flags ex", "device_cap_flags_ex", hex),
    ("Max WQ type RQ", "max_wq_type_rq", int),
    ("Raw packet caps", "raw_packet_caps", hex),
    ("Max DM size", "max_dm_size", int),
    ("Phys port count ex", "phys_port_cnt_ex", int),
)
