"""Every enumeration and constant of libibverbs, under its name.

Those the kernel needs, too, are in shared/verbs_enums.

Spec: rdma-core, pyverbs/libibverbs_enums.pxd; libibverbs/verbs.h.
"""

from enum import IntEnum
from typing import Final

from shared.verbs_enums import *  # noqa: F403 - all of them are here, wherever they are defined


class ibv_transport_type(IntEnum):
    """libibverbs: enum ibv_transport_type."""

    IBV_TRANSPORT_UNKNOWN = -1
    IBV_TRANSPORT_IB = 0
    IBV_TRANSPORT_IWARP = 1
    IBV_TRANSPORT_USNIC = 2
    IBV_TRANSPORT_USNIC_UDP = 3


class ibv_node_type(IntEnum):
    """libibverbs: enum ibv_node_type."""

    IBV_NODE_UNKNOWN = -1
    IBV_NODE_CA = 1
    IBV_NODE_SWITCH = 2
    IBV_NODE_ROUTER = 3
    IBV_NODE_RNIC = 4
    IBV_NODE_USNIC = 5
    IBV_NODE_USNIC_UDP = 6
    IBV_NODE_UNSPECIFIED = 7


class ibv_atomic_cap(IntEnum):
    """libibverbs: enum ibv_atomic_cap."""

    IBV_ATOMIC_NONE = 0
    IBV_ATOMIC_HCA = 1
    IBV_ATOMIC_GLOB = 2


class ibv_port_cap_flags(IntEnum):
    """libibverbs: enum ibv_port_cap_flags."""

    IBV_PORT_SM = 2
    IBV_PORT_NOTICE_SUP = 4
    IBV_PORT_TRAP_SUP = 8
    IBV_PORT_OPT_IPD_SUP = 16
    IBV_PORT_AUTO_MIGR_SUP = 32
    IBV_PORT_SL_MAP_SUP = 64
    IBV_PORT_MKEY_NVRAM = 128
    IBV_PORT_PKEY_NVRAM = 256
    IBV_PORT_LED_INFO_SUP = 512
    IBV_PORT_SYS_IMAGE_GUID_SUP = 2048
    IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 4096
    IBV_PORT_EXTENDED_SPEEDS_SUP = 16384
    IBV_PORT_CAP_MASK2_SUP = 32768
    IBV_PORT_CM_SUP = 65536
    IBV_PORT_SNMP_TUNNEL_SUP = 131072
    IBV_PORT_REINIT_SUP = 262144
    IBV_PORT_DEVICE_MGMT_SUP = 524288
    IBV_PORT_VENDOR_CLASS_SUP = 0x100000
    IBV_PORT_DR_NOTICE_SUP = 0x200000
    IBV_PORT_CAP_MASK_NOTICE_SUP = 0x400000
    IBV_PORT_BOOT_MGMT_SUP = 0x800000
    IBV_PORT_LINK_LATENCY_SUP = 0x1000000
    IBV_PORT_CLIENT_REG_SUP = 0x2000000
    IBV_PORT_IP_BASED_GIDS = 0x4000000


class ibv_port_cap_flags2(IntEnum):
    """libibverbs: enum ibv_port_cap_flags2."""

    IBV_PORT_SET_NODE_DESC_SUP = 1
    IBV_PORT_INFO_EXT_SUP = 2
    IBV_PORT_VIRT_SUP = 4
    IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 8
    IBV_PORT_LINK_WIDTH_2X_SUP = 16
    IBV_PORT_LINK_SPEED_HDR_SUP = 32
    IBV_PORT_LINK_SPEED_NDR_SUP = 1024


class ibv_ops_wr_opcode(IntEnum):
    """libibverbs: enum ibv_ops_wr_opcode."""

    IBV_WR_TAG_ADD = 0
    IBV_WR_TAG_DEL = 1
    IBV_WR_TAG_SYNC = 2


class ibv_ops_flags(IntEnum):
    """libibverbs: enum ibv_ops_flags."""

    IBV_OPS_SIGNALED = 1
    IBV_OPS_TM_SYNC = 2


class ibv_tm_cap_flags(IntEnum):
    """libibverbs: enum ibv_tm_cap_flags."""

    IBV_TM_CAP_RC = 1


class ibv_create_cq_wc_flags(IntEnum):
    """libibverbs: enum ibv_create_cq_wc_flags."""

    IBV_WC_EX_WITH_BYTE_LEN = 1
    IBV_WC_EX_WITH_IMM = 2
    IBV_WC_EX_WITH_QP_NUM = 4
    IBV_WC_EX_WITH_SRC_QP = 8
    IBV_WC_EX_WITH_SLID = 16
    IBV_WC_EX_WITH_SL = 32
    IBV_WC_EX_WITH_DLID_PATH_BITS = 64
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 128
    IBV_WC_EX_WITH_CVLAN = 256
    IBV_WC_EX_WITH_FLOW_TAG = 512
    IBV_WC_EX_WITH_TM_INFO = 1024
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 2048


class ibv_srq_init_attr_mask(IntEnum):
    """libibverbs: enum ibv_srq_init_attr_mask."""

    IBV_SRQ_INIT_ATTR_TYPE = 1
    IBV_SRQ_INIT_ATTR_PD = 2
    IBV_SRQ_INIT_ATTR_XRCD = 4
    IBV_SRQ_INIT_ATTR_CQ = 8
    IBV_SRQ_INIT_ATTR_TM = 16


class ibv_mig_state(IntEnum):
    """libibverbs: enum ibv_mig_state."""

    IBV_MIG_MIGRATED = 0
    IBV_MIG_REARM = 1
    IBV_MIG_ARMED = 2


class ibv_qp_init_attr_mask(IntEnum):
    """libibverbs: enum ibv_qp_init_attr_mask."""

    IBV_QP_INIT_ATTR_PD = 1
    IBV_QP_INIT_ATTR_XRCD = 2
    IBV_QP_INIT_ATTR_CREATE_FLAGS = 4
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 8
    IBV_QP_INIT_ATTR_IND_TABLE = 16
    IBV_QP_INIT_ATTR_RX_HASH = 32
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64


class ibv_query_qp_data_in_order_flags(IntEnum):
    """libibverbs: enum ibv_query_qp_data_in_order_flags."""

    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1


class ibv_query_qp_data_in_order_caps(IntEnum):
    """libibverbs: enum ibv_query_qp_data_in_order_caps."""

    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1
    IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 2


class ibv_wq_type(IntEnum):
    """libibverbs: enum ibv_wq_type."""

    IBV_WQT_RQ = 0


class ibv_wq_init_attr_mask(IntEnum):
    """libibverbs: enum ibv_wq_init_attr_mask."""

    IBV_WQ_INIT_ATTR_FLAGS = 1


class ibv_wq_flags(IntEnum):
    """libibverbs: enum ibv_wq_flags."""

    IBV_WQ_FLAGS_CVLAN_STRIPPING = 1
    IBV_WQ_FLAGS_SCATTER_FCS = 2
    IBV_WQ_FLAGS_DELAY_DROP = 4
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 8


class ibv_wq_state(IntEnum):
    """libibverbs: enum ibv_wq_state."""

    IBV_WQS_RESET = 0
    IBV_WQS_RDY = 1
    IBV_WQS_ERR = 2
    IBV_WQS_UNKNOWN = 3


class ibv_wq_attr_mask(IntEnum):
    """libibverbs: enum ibv_wq_attr_mask."""

    IBV_WQ_ATTR_STATE = 1
    IBV_WQ_ATTR_CURR_STATE = 2
    IBV_WQ_ATTR_FLAGS = 4


class ibv_rx_hash_function_flags(IntEnum):
    """libibverbs: enum ibv_rx_hash_function_flags."""

    IBV_RX_HASH_FUNC_TOEPLITZ = 1


class ibv_rx_hash_fields(IntEnum):
    """libibverbs: enum ibv_rx_hash_fields."""

    IBV_RX_HASH_SRC_IPV4 = 1
    IBV_RX_HASH_DST_IPV4 = 2
    IBV_RX_HASH_SRC_IPV6 = 4
    IBV_RX_HASH_DST_IPV6 = 8
    IBV_RX_HASH_SRC_PORT_TCP = 16
    IBV_RX_HASH_DST_PORT_TCP = 32
    IBV_RX_HASH_SRC_PORT_UDP = 64
    IBV_RX_HASH_DST_PORT_UDP = 128


class ibv_flow_flags(IntEnum):
    """libibverbs: enum ibv_flow_flags."""

    IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 2
    IBV_FLOW_ATTR_FLAGS_EGRESS = 4


class ibv_flow_attr_type(IntEnum):
    """libibverbs: enum ibv_flow_attr_type."""

    IBV_FLOW_ATTR_NORMAL = 0
    IBV_FLOW_ATTR_ALL_DEFAULT = 1
    IBV_FLOW_ATTR_MC_DEFAULT = 2
    IBV_FLOW_ATTR_SNIFFER = 3


class ibv_flow_spec_type(IntEnum):
    """libibverbs: enum ibv_flow_spec_type."""

    IBV_FLOW_SPEC_ETH = 32
    IBV_FLOW_SPEC_IPV4 = 48
    IBV_FLOW_SPEC_IPV6 = 49
    IBV_FLOW_SPEC_IPV4_EXT = 50
    IBV_FLOW_SPEC_ESP = 52
    IBV_FLOW_SPEC_TCP = 64
    IBV_FLOW_SPEC_UDP = 65
    IBV_FLOW_SPEC_VXLAN_TUNNEL = 80
    IBV_FLOW_SPEC_GRE = 81
    IBV_FLOW_SPEC_MPLS = 96
    IBV_FLOW_SPEC_INNER = 256
    IBV_FLOW_SPEC_ACTION_TAG = 4096
    IBV_FLOW_SPEC_ACTION_DROP = 4097
    IBV_FLOW_SPEC_ACTION_HANDLE = 4098
    IBV_FLOW_SPEC_ACTION_COUNT = 4099


class ibv_counter_description(IntEnum):
    """libibverbs: enum ibv_counter_description."""

    IBV_COUNTER_PACKETS = 0
    IBV_COUNTER_BYTES = 1


class ibv_read_counters_flags(IntEnum):
    """libibverbs: enum ibv_read_counters_flags."""

    IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1


class ibv_cq_init_attr_mask(IntEnum):
    """libibverbs: enum ibv_cq_init_attr_mask."""

    IBV_CQ_INIT_ATTR_MASK_FLAGS = 1
    IBV_CQ_INIT_ATTR_MASK_PD = 2


class ibv_odp_general_caps(IntEnum):
    """libibverbs: enum ibv_odp_general_caps."""

    IBV_ODP_SUPPORT = 1
    IBV_ODP_SUPPORT_IMPLICIT = 2


class ibv_odp_transport_cap_bits(IntEnum):
    """libibverbs: enum ibv_odp_transport_cap_bits."""

    IBV_ODP_SUPPORT_SEND = 1
    IBV_ODP_SUPPORT_RECV = 2
    IBV_ODP_SUPPORT_WRITE = 4
    IBV_ODP_SUPPORT_READ = 8
    IBV_ODP_SUPPORT_ATOMIC = 16
    IBV_ODP_SUPPORT_SRQ_RECV = 32
    IBV_ODP_SUPPORT_FLUSH = 64
    IBV_ODP_SUPPORT_ATOMIC_WRITE = 128


class ibv_device_cap_flags(IntEnum):
    """libibverbs: enum ibv_device_cap_flags."""

    IBV_DEVICE_RESIZE_MAX_WR = 1
    IBV_DEVICE_BAD_PKEY_CNTR = 2
    IBV_DEVICE_BAD_QKEY_CNTR = 4
    IBV_DEVICE_RAW_MULTI = 8
    IBV_DEVICE_AUTO_PATH_MIG = 16
    IBV_DEVICE_CHANGE_PHY_PORT = 32
    IBV_DEVICE_UD_AV_PORT_ENFORCE = 64
    IBV_DEVICE_CURR_QP_STATE_MOD = 128
    IBV_DEVICE_SHUTDOWN_PORT = 256
    IBV_DEVICE_INIT_TYPE = 512
    IBV_DEVICE_PORT_ACTIVE_EVENT = 1024
    IBV_DEVICE_SYS_IMAGE_GUID = 2048
    IBV_DEVICE_RC_RNR_NAK_GEN = 4096
    IBV_DEVICE_SRQ_RESIZE = 8192
    IBV_DEVICE_N_NOTIFY_CQ = 16384
    IBV_DEVICE_MEM_WINDOW = 131072
    IBV_DEVICE_UD_IP_CSUM = 262144
    IBV_DEVICE_XRC = 0x100000
    IBV_DEVICE_MEM_MGT_EXTENSIONS = 0x200000
    IBV_DEVICE_MEM_WINDOW_TYPE_2A = 0x800000
    IBV_DEVICE_MEM_WINDOW_TYPE_2B = 0x1000000
    IBV_DEVICE_RC_IP_CSUM = 0x2000000
    IBV_DEVICE_RAW_IP_CSUM = 0x4000000
    IBV_DEVICE_MANAGED_FLOW_STEERING = 0x20000000


class ibv_raw_packet_caps(IntEnum):
    """libibverbs: enum ibv_raw_packet_caps."""

    IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1
    IBV_RAW_PACKET_CAP_SCATTER_FCS = 2
    IBV_RAW_PACKET_CAP_IP_CSUM = 4
    IBV_RAW_PACKET_CAP_DELAY_DROP = 8


class ibv_xrcd_init_attr_mask(IntEnum):
    """libibverbs: enum ibv_xrcd_init_attr_mask."""

    IBV_XRCD_INIT_ATTR_FD = 1
    IBV_XRCD_INIT_ATTR_OFLAGS = 2
    IBV_XRCD_INIT_ATTR_RESERVED = 4


class ibv_values_mask(IntEnum):
    """libibverbs: enum ibv_values_mask."""

    IBV_VALUES_MASK_RAW_CLOCK = 1


class ibv_parent_domain_init_attr_mask(IntEnum):
    """libibverbs: enum ibv_parent_domain_init_attr_mask."""

    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 2
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 4


class ibv_gid_type(IntEnum):
    """libibverbs: enum ibv_gid_type."""

    IBV_GID_TYPE_IB = 0
    IBV_GID_TYPE_ROCE_V1 = 1
    IBV_GID_TYPE_ROCE_V2 = 2


class ibv_fork_status(IntEnum):
    """libibverbs: enum ibv_fork_status."""

    IBV_FORK_DISABLED = 0
    IBV_FORK_ENABLED = 1
    IBV_FORK_UNNEEDED = 2


class ibv_placement_type(IntEnum):
    """libibverbs: enum ibv_placement_type."""

    IBV_FLUSH_GLOBAL = 1
    IBV_FLUSH_PERSISTENT = 2


class ibv_selectivity_level(IntEnum):
    """libibverbs: enum ibv_selectivity_level."""

    IBV_FLUSH_MR = 1
    IBV_FLUSH_RANGE = 0


class ibv_tph_mem_type(IntEnum):
    """libibverbs: enum ibv_tph_mem_type."""

    IBV_TPH_MEM_TYPE_VM = 0
    IBV_TPH_MEM_TYPE_PM = 1


class ibv_dmah_init_attr_mask(IntEnum):
    """libibverbs: enum ibv_dmah_init_attr_mask."""

    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1
    IBV_DMAH_INIT_ATTR_MASK_PH = 2
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 4


class ibv_mr_init_attr_mask(IntEnum):
    """libibverbs: enum ibv_mr_init_attr_mask."""

    IBV_REG_MR_MASK_IOVA = 1
    IBV_REG_MR_MASK_ADDR = 2
    IBV_REG_MR_MASK_FD = 4
    IBV_REG_MR_MASK_FD_OFFSET = 8
    IBV_REG_MR_MASK_DMAH = 16
    IBV_REG_MR_MASK_BUF = 32


class ibv_qp_attach_comp_cntr_op(IntEnum):
    """libibverbs: enum ibv_qp_attach_comp_cntr_op."""

    IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1
    IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 2
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 4
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 8
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 16
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 32


class ibv_gid_type_sysfs(IntEnum):
    """libibverbs: enum ibv_gid_type_sysfs."""

    IBV_GID_TYPE_SYSFS_IB_ROCE_V1 = 0
    IBV_GID_TYPE_SYSFS_ROCE_V2 = 1


class ibv_tmh_op(IntEnum):
    """libibverbs: enum ibv_tmh_op."""

    IBV_TMH_NO_TAG = 0
    IBV_TMH_RNDV = 1
    IBV_TMH_FIN = 2
    IBV_TMH_EAGER = 3


IBV_LINK_LAYER_UNSPECIFIED: Final = 0
IBV_LINK_LAYER_INFINIBAND: Final = 1
IBV_LINK_LAYER_ETHERNET: Final = 2
IBV_QPF_GRH_REQUIRED: Final = 1
IBV_WC_STANDARD_FLAGS: Final = 127

_IBV_DEVICE_RAW_SCATTER_FCS: Final = 0x400000000
_IBV_DEVICE_PCI_WRITE_END_PADDING: Final = 0x1000000000
_IBV_DEVICE_CC_DMA_BOUNCE: Final = 0x20000000000
_IBV_ADVISE_MR_ADVICE_PREFETCH: Final = 0
_IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: Final = 1
_IBV_ADVISE_MR_FLAG_FLUSH: Final = 1
_IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: Final = 2
_IBV_ALLOCATOR_USE_DEFAULT: Final = 0xFFFFFFFFFFFFFFFF
