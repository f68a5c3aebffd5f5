"""What a port reports of itself, and an entry of its GID table.

Spec: rdma-core, pyverbs/device.pyx; ibv_query_port(3), ibv_query_gid_ex(3).
"""

from user_proc.verbs import device_strings as words
from user_proc.verbs.attribute_values import Values
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, ReadOnly, to_u32, to_u64
from user_proc.verbs.printing import lines
from user_proc.verbs.utils import gid_str


class PortAttr(Values):
    """ibv_port_attr."""

    state = ReadOnly()
    max_mtu = ReadOnly()
    active_mtu = ReadOnly()
    gid_tbl_len = ReadOnly()
    port_cap_flags = ReadOnly()
    max_msg_sz = ReadOnly()
    bad_pkey_cntr = ReadOnly()
    qkey_viol_cntr = ReadOnly()
    pkey_tbl_len = ReadOnly()
    lid = ReadOnly()
    sm_lid = ReadOnly()
    lmc = ReadOnly()
    max_vl_num = ReadOnly()
    sm_sl = ReadOnly()
    subnet_timeout = ReadOnly()
    init_type_reply = ReadOnly()
    active_width = ReadOnly()
    active_speed = ReadOnly()
    phys_state = ReadOnly()
    link_layer = ReadOnly()
    flags = ReadOnly()
    port_cap_flags2 = ReadOnly()
    active_speed_ex = ReadOnly()

    def __str__(self) -> str:
        return lines(
            24,
            [
                ("Port state", words.port_state_to_str(self.state)),
                ("Max MTU", words.translate_mtu(self.max_mtu)),
                ("Active MTU", words.translate_mtu(self.active_mtu)),
                ("SM lid", self.sm_lid),
                ("Port lid", self.lid),
                ("lmc", hex(self.lmc)),
                ("Link layer", words.translate_link_layer(self.link_layer)),
                ("Max message size", hex(self.max_msg_sz)),
                ("Port cap flags", words.translate_port_cap_flags(self.port_cap_flags)),
                ("Port cap flags 2", words.translate_port_cap_flags2(self.port_cap_flags2)),
                ("max VL num", words.translate_max_vl_num(self.max_vl_num)),
                ("Bad Pkey counter", self.bad_pkey_cntr),
                ("Qkey violations counter", self.qkey_viol_cntr),
                ("GID table len", self.gid_tbl_len),
                ("Pkey table len", self.pkey_tbl_len),
                ("SM sl", self.sm_sl),
                ("Subnet timeout", self.subnet_timeout),
                ("Init type reply", self.init_type_reply),
                ("Active width", words.width_to_str(self.active_width)),
                ("Active speed", words.speed_to_str(self.active_speed, self.active_speed_ex)),
                ("Phys state", words.phys_state_to_str(self.phys_state)),
                ("Flags", self.flags),
            ],
        )


class GIDEntry(PyverbsObject):
    """ibv_gid_entry; both halves of the GID are in network order."""

    gid_subnet_prefix = CField(to_u64)
    gid_interface_id = CField(to_u64)
    gid_index = CField(to_u32)
    port_num = CField(to_u32)
    gid_type = CField(to_u32)
    ndev_ifindex = CField(to_u32)

    def __init__(
        self,
        subnet_prefix: IntLike = 0,
        interface_id: IntLike = 0,
        gid_index: IntLike = 0,
        port_num: IntLike = 0,
        gid_type: IntLike = 0,
        ndev_ifindex: IntLike = 0,
    ) -> None:
        super().__init__()
        self.gid_subnet_prefix = subnet_prefix
        self.gid_interface_id = interface_id
        self.gid_index = gid_index
        self.port_num = port_num
        self.gid_type = gid_type
        self.ndev_ifindex = ndev_ifindex

    def gid_str(self) -> str:
        """Give the GID as text."""
        return gid_str(self.gid_subnet_prefix, self.gid_interface_id)

    def __str__(self) -> str:
        return lines(
            24,
            [
                ("GID", self.gid_str()),
                ("GID Index", self.gid_index),
                ("Port number", self.port_num),
                ("GID type", words.translate_gid_type(self.gid_type)),
                ("Ndev ifindex", self.ndev_ifindex),
            ],
        )
