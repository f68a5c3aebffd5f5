"""The operations of the engine as tables indexed by opcode: who may ask for what, and what it is.

Spec: IBA vol. 1, table 38 (opcodes by transport); libibverbs, ibv_wr_opcode and ibv_wc_opcode.
"""

from typing import Final

from kernel_proc.hca_abi import contexts as abi
from shared.verbs_enums import (
    ibv_access_flags,
    ibv_wc_flags,
    ibv_wc_opcode,
    ibv_wc_status,
    ibv_wr_opcode,
)

RDMA_WRITE: Final = int(ibv_wr_opcode.IBV_WR_RDMA_WRITE)
RDMA_WRITE_WITH_IMM: Final = int(ibv_wr_opcode.IBV_WR_RDMA_WRITE_WITH_IMM)
SEND: Final = int(ibv_wr_opcode.IBV_WR_SEND)
SEND_WITH_IMM: Final = int(ibv_wr_opcode.IBV_WR_SEND_WITH_IMM)
RDMA_READ: Final = int(ibv_wr_opcode.IBV_WR_RDMA_READ)
CMP_AND_SWP: Final = int(ibv_wr_opcode.IBV_WR_ATOMIC_CMP_AND_SWP)
FETCH_AND_ADD: Final = int(ibv_wr_opcode.IBV_WR_ATOMIC_FETCH_AND_ADD)
LOCAL_INV: Final = int(ibv_wr_opcode.IBV_WR_LOCAL_INV)
BIND_MW: Final = int(ibv_wr_opcode.IBV_WR_BIND_MW)
SEND_WITH_INV: Final = int(ibv_wr_opcode.IBV_WR_SEND_WITH_INV)
OPCODES: Final = 16

SUCCESS: Final = int(ibv_wc_status.IBV_WC_SUCCESS)
LOC_LEN_ERR: Final = int(ibv_wc_status.IBV_WC_LOC_LEN_ERR)
LOC_QP_OP_ERR: Final = int(ibv_wc_status.IBV_WC_LOC_QP_OP_ERR)
LOC_PROT_ERR: Final = int(ibv_wc_status.IBV_WC_LOC_PROT_ERR)
WR_FLUSH_ERR: Final = int(ibv_wc_status.IBV_WC_WR_FLUSH_ERR)
MW_BIND_ERR: Final = int(ibv_wc_status.IBV_WC_MW_BIND_ERR)
BAD_RESP_ERR: Final = int(ibv_wc_status.IBV_WC_BAD_RESP_ERR)
LOC_ACCESS_ERR: Final = int(ibv_wc_status.IBV_WC_LOC_ACCESS_ERR)
REM_INV_REQ_ERR: Final = int(ibv_wc_status.IBV_WC_REM_INV_REQ_ERR)
REM_ACCESS_ERR: Final = int(ibv_wc_status.IBV_WC_REM_ACCESS_ERR)
REM_OP_ERR: Final = int(ibv_wc_status.IBV_WC_REM_OP_ERR)
RETRY_EXC_ERR: Final = int(ibv_wc_status.IBV_WC_RETRY_EXC_ERR)
RNR_RETRY_EXC_ERR: Final = int(ibv_wc_status.IBV_WC_RNR_RETRY_EXC_ERR)

RECEIVED: Final = int(ibv_wc_opcode.IBV_WC_RECV)
RECEIVED_WRITE: Final = int(ibv_wc_opcode.IBV_WC_RECV_RDMA_WITH_IMM)

PSN_MASK: Final = 0xFF_FFFF
MTU_SHIFT: Final = 7  # ibv_mtu 1 is 256 bytes
LONGEST_MESSAGE: Final = 1 << 31
ATOMIC_LENGTH: Final = 8
WORD_MASK: Final = (1 << 64) - 1

LOCAL_READ: Final = abi.MPT_FLAG_REGION | abi.MPT_FLAG_LOCAL_READ
LOCAL_WRITE: Final = abi.MPT_FLAG_REGION | abi.MPT_FLAG_LOCAL_WRITE
# What a peer asks for a window may grant, too.
REMOTE_READ: Final = abi.MPT_FLAG_REMOTE_READ
REMOTE_WRITE: Final = abi.MPT_FLAG_REMOTE_WRITE
REMOTE_ATOMIC: Final = abi.MPT_FLAG_ATOMIC

SENDS: Final = frozenset({SEND, SEND_WITH_IMM, SEND_WITH_INV})
WRITES: Final = frozenset({RDMA_WRITE, RDMA_WRITE_WITH_IMM})
ATOMICS: Final = frozenset({CMP_AND_SWP, FETCH_AND_ADD})
WITH_INLINE: Final = SENDS | WRITES
SOLICITING: Final = SENDS | {RDMA_WRITE_WITH_IMM}
UNRELIABLE_REQUEST: Final = SENDS | WRITES
ANY_REQUEST: Final = UNRELIABLE_REQUEST | ATOMICS | {RDMA_READ}

# What the requester does for an entry: an index into its routines.
REFUSED: Final = 0
MOVES_DATA: Final = 1
READS: Final = 2
IS_ATOMIC: Final = 3
INVALIDATES: Final = 4
IS_DATAGRAM: Final = 5
BINDS: Final = 6

_RELIABLE: Final = {
    **dict.fromkeys(SENDS | WRITES, MOVES_DATA),
    RDMA_READ: READS,
    **dict.fromkeys(ATOMICS, IS_ATOMIC),
    LOCAL_INV: INVALIDATES,
    BIND_MW: BINDS,
}
_UNRELIABLE: Final = {
    **dict.fromkeys(UNRELIABLE_REQUEST, MOVES_DATA),
    LOCAL_INV: INVALIDATES,
    BIND_MW: BINDS,
}
_DATAGRAM: Final = dict.fromkeys((SEND, SEND_WITH_IMM), IS_DATAGRAM)
_BY_TRANSPORT: Final[dict[int, dict[int, int]]] = {
    abi.QPC_TRANSPORT_RC: _RELIABLE,
    abi.QPC_TRANSPORT_UC: _UNRELIABLE,
    abi.QPC_TRANSPORT_UD: _DATAGRAM,
    abi.QPC_TRANSPORT_XRC_SEND: _RELIABLE,
}

#: The transport of the queue pairs that take what one of this transport sends; -1 for none.
ARRIVES_AT: Final = tuple(
    {
        abi.QPC_TRANSPORT_RC: abi.QPC_TRANSPORT_RC,
        abi.QPC_TRANSPORT_UC: abi.QPC_TRANSPORT_UC,
        abi.QPC_TRANSPORT_UD: abi.QPC_TRANSPORT_UD,
        abi.QPC_TRANSPORT_XRC_SEND: abi.QPC_TRANSPORT_XRC_RECV,
    }.get(transport, -1)
    for transport in range(8)
)

#: By transport * OPCODES + opcode.
ACTIONS: Final = tuple(
    _BY_TRANSPORT.get(transport, {}).get(opcode, REFUSED)
    for transport in range(8)
    for opcode in range(OPCODES)
)


def _by_opcode(values: dict[int, int]) -> tuple[int, ...]:
    return tuple(values.get(opcode, 0) for opcode in range(OPCODES))


#: What the sender's completion says it was.
COMPLETED_AS: Final = _by_opcode(
    {
        **dict.fromkeys(SENDS, int(ibv_wc_opcode.IBV_WC_SEND)),
        **dict.fromkeys(WRITES, int(ibv_wc_opcode.IBV_WC_RDMA_WRITE)),
        RDMA_READ: int(ibv_wc_opcode.IBV_WC_RDMA_READ),
        CMP_AND_SWP: int(ibv_wc_opcode.IBV_WC_COMP_SWAP),
        FETCH_AND_ADD: int(ibv_wc_opcode.IBV_WC_FETCH_ADD),
        LOCAL_INV: int(ibv_wc_opcode.IBV_WC_LOCAL_INV),
        BIND_MW: int(ibv_wc_opcode.IBV_WC_BIND_MW),
    }
)

#: What the receiver's completion says beside that, as ibv_wc_flags.
WC_FLAGS: Final = _by_opcode(
    {
        SEND_WITH_IMM: int(ibv_wc_flags.IBV_WC_WITH_IMM),
        RDMA_WRITE_WITH_IMM: int(ibv_wc_flags.IBV_WC_WITH_IMM),
        SEND_WITH_INV: int(ibv_wc_flags.IBV_WC_WITH_INV),
    }
)

#: The right a responder's queue pair must grant, as ibv_access_flags.
QP_RIGHTS: Final = _by_opcode(
    {
        **dict.fromkeys(WRITES, int(ibv_access_flags.IBV_ACCESS_REMOTE_WRITE)),
        RDMA_READ: int(ibv_access_flags.IBV_ACCESS_REMOTE_READ),
        **dict.fromkeys(ATOMICS, int(ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC)),
    }
)

#: min_rnr_timer code to nanoseconds [IBA vol. 1, table 45].
RNR_DELAYS_NS: Final = tuple(
    hundredths * 10_000
    for hundredths in (
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
        256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        49152,
    )
)  # fmt: skip
RNR_FOR_EVER: Final = 7
#: How long an unreliable sender waits for a link that is busy before it looks again: 67 ms.
BUSY_LINK_TIMEOUT: Final = 14


def timeout_ns(code: int) -> int:
    """Return the transport timeout of a code, 4.096 us times a power of two; 0 is for ever."""
    return 4096 << code if code else 0
