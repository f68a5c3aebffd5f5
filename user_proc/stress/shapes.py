"""The shapes connections have, and the numbers of the verbs that steps are written in."""

from dataclasses import dataclass
from typing import Any, Final

from shared.verbs_enums import ibv_access_flags, ibv_qp_state, ibv_qp_type, ibv_wr_opcode

RC: Final = int(ibv_qp_type.IBV_QPT_RC)
UC: Final = int(ibv_qp_type.IBV_QPT_UC)
UD: Final = int(ibv_qp_type.IBV_QPT_UD)
XRC_SEND: Final = int(ibv_qp_type.IBV_QPT_XRC_SEND)
XRC_RECV: Final = int(ibv_qp_type.IBV_QPT_XRC_RECV)

WRITE: Final = int(ibv_wr_opcode.IBV_WR_RDMA_WRITE)
WRITE_IMM: Final = int(ibv_wr_opcode.IBV_WR_RDMA_WRITE_WITH_IMM)
SEND: Final = int(ibv_wr_opcode.IBV_WR_SEND)
SEND_IMM: Final = int(ibv_wr_opcode.IBV_WR_SEND_WITH_IMM)
READ: Final = int(ibv_wr_opcode.IBV_WR_RDMA_READ)
SWAP: Final = int(ibv_wr_opcode.IBV_WR_ATOMIC_CMP_AND_SWP)
ADD: Final = int(ibv_wr_opcode.IBV_WR_ATOMIC_FETCH_AND_ADD)
LOCAL_INV: Final = int(ibv_wr_opcode.IBV_WR_LOCAL_INV)
BIND: Final = int(ibv_wr_opcode.IBV_WR_BIND_MW)
SEND_INV: Final = int(ibv_wr_opcode.IBV_WR_SEND_WITH_INV)

RESET: Final = int(ibv_qp_state.IBV_QPS_RESET)
INIT: Final = int(ibv_qp_state.IBV_QPS_INIT)
RTR: Final = int(ibv_qp_state.IBV_QPS_RTR)
RTS: Final = int(ibv_qp_state.IBV_QPS_RTS)
SQD: Final = int(ibv_qp_state.IBV_QPS_SQD)
SQE: Final = int(ibv_qp_state.IBV_QPS_SQE)
ERR: Final = int(ibv_qp_state.IBV_QPS_ERR)

LOCAL_WRITE: Final = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
REMOTE_WRITE: Final = int(ibv_access_flags.IBV_ACCESS_REMOTE_WRITE)
REMOTE_READ: Final = int(ibv_access_flags.IBV_ACCESS_REMOTE_READ)
REMOTE_ATOMIC: Final = int(ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC)
MW_BIND: Final = int(ibv_access_flags.IBV_ACCESS_MW_BIND)
REMOTE: Final = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
ALL_ACCESS: Final = LOCAL_WRITE | REMOTE | MW_BIND

TAKING_ENTRY: Final = frozenset((SEND, SEND_IMM, WRITE_IMM, SEND_INV))
WITH_IMM: Final = frozenset((SEND_IMM, WRITE_IMM))
WRITES: Final = frozenset((WRITE, WRITE_IMM))
SENDS: Final = frozenset((SEND, SEND_IMM, SEND_INV))
ATOMICS: Final = frozenset((SWAP, ADD))

#: How connections are called in steps; `loop` is a queue pair that is its own peer.
KINDS: Final = ("rc", "loop", "uc", "ud", "xrc")
RELIABLE: Final = frozenset(("rc", "loop", "xrc"))
OPCODES: Final[dict[str, tuple[int, ...]]] = {
    "rc": (SEND, SEND_IMM, WRITE, WRITE_IMM, READ, SWAP, ADD),
    "loop": (SEND, SEND_IMM, WRITE, WRITE_IMM, READ, SWAP, ADD),
    "xrc": (SEND, SEND_IMM, WRITE, WRITE_IMM, READ, SWAP, ADD),
    "uc": (SEND, SEND_IMM, WRITE, WRITE_IMM),
    "ud": (SEND, SEND_IMM),
}
SEND_TYPES: Final = {"rc": RC, "loop": RC, "uc": UC, "ud": UD, "xrc": XRC_SEND}

QKEY: Final = 0x1234
GRH: Final = 40
SGES: Final = 3
INLINE: Final = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """What a connection is asked to be.

    `slot` is the longest message, `depth` how many requests a queue has out. `private` memory is
    the process's own, else it is an arena's. `shared` receives by an SRQ, `extended` completes to
    a CQEX, `patient` waits for a receiver for ever instead of failing at once.
    """

    kind: str
    depth: int = 8
    slot: int = 2048
    mtu: int = 3
    private: bool = False
    shared: bool = False
    extended: bool = False
    channel: bool = False
    patient: bool = True

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Shape":
        """Make one of what a step says."""
        return cls(**values)

    @property
    def longest(self) -> int:
        """Bytes a message has at most."""
        return min(self.slot - GRH, 4096) if self.kind == "ud" else self.slot
