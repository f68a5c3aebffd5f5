"""Work completions, and the words for what they report.

Spec: rdma-core, pyverbs/cq.pyx; ibv_poll_cq(3).
"""

from collections.abc import Mapping
from typing import Any, Final

from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_int, to_u8, to_u16, to_u32, to_u64
from user_proc.verbs.libibverbs_enums import ibv_create_cq_wc_flags
from user_proc.verbs.printing import lines
from user_proc.verbs.utils import names_of_flags

_STATUSES: Final = (
    "success",
    "local length error",
    "local QP op error",
    "local EEC op error",
    "local protection error",
    "WR flush error",
    "memory window bind error",
    "bad response error",
    "local access error",
    "remote invalidate request error",
    "remote access error",
    "remote op error",
    "retry exceeded error",
    "RNR retry exceeded",
    "local RDD violation error",
    "remote invalidate RD request error",
    "remote abort error",
    "invalidate EECN error",
    "invalidate EEC state error",
    "WC fatal error",
    "response timeout error",
    "general error",
)
_OPCODES: Final = {
    0: "Send",
    1: "RDMA write",
    2: "RDMA read",
    3: "Compare and swap",
    4: "Fetch and add",
    5: "Bind Memory window",
    6: "Local invalidate",
    7: "TSO",
    8: "Flush",
    9: "Atomic write",
    0x80: "Receive",
    0x81: "Receive RDMA with immediate",
}
_FLAGS: Final = {
    1: "GRH",
    2: "With immediate",
    4: "IP csum OK",
    8: "With invalidate",
    16: "TM sync request",
    32: "TM match",
    64: "TM data valid",
}


def cqe_status_to_str(status: int) -> str:
    """Name a completion's status."""
    return _STATUSES[status] if 0 <= status < len(_STATUSES) else "Unknown CQE status"


def cqe_opcode_to_str(opcode: int) -> str:
    """Name a completion's opcode."""
    return _OPCODES.get(opcode, f"Unknown CQE opcode {opcode}")


def flags_to_str(flags: int, dictionary: Mapping[int, str]) -> str:
    """List flags by a table of words, a space after each."""
    return "".join(f"{name} " for bit, name in dictionary.items() if flags & bit)


def cqe_flags_to_str(flags: int) -> str:
    """List a completion's flags."""
    return flags_to_str(flags, _FLAGS)


def create_wc_flags_to_str(flags: int) -> str:
    """List the fields an extended completion queue is asked to have."""
    return names_of_flags(flags, ibv_create_cq_wc_flags)


class WC(PyverbsObject):
    """One completion."""

    wr_id = CField(to_u64)
    status = CField(to_int)
    opcode = CField(to_int)
    vendor_err = CField(to_u32)
    byte_len = CField(to_u32)
    qp_num = CField(to_u32)
    src_qp = CField(to_u32)
    imm_data = CField(to_u32)
    wc_flags = CField(to_u32)
    pkey_index = CField(to_u16)
    slid = CField(to_u16)
    sl = CField(to_u8)
    dlid_path_bits = CField(to_u8)

    def __init__(
        self,
        wr_id: IntLike = 0,
        status: IntLike = 0,
        opcode: IntLike = 0,
        vendor_err: IntLike = 0,
        byte_len: IntLike = 0,
        qp_num: IntLike = 0,
        src_qp: IntLike = 0,
        imm_data: IntLike = 0,
        wc_flags: IntLike = 0,
        pkey_index: IntLike = 0,
        slid: IntLike = 0,
        sl: IntLike = 0,
        dlid_path_bits: IntLike = 0,
    ) -> None:
        super().__init__()
        self.wr_id = wr_id
        self.status = status
        self.opcode = opcode
        self.vendor_err = vendor_err
        self.byte_len = byte_len
        self.qp_num = qp_num
        self.src_qp = src_qp
        self.imm_data = imm_data
        self.wc_flags = wc_flags
        self.pkey_index = pkey_index
        self.slid = slid
        self.sl = sl
        self.dlid_path_bits = dlid_path_bits

    @classmethod
    def of(cls, wr_id: int, entry: tuple[Any, ...]) -> "WC":
        """Make one of a completion queue's entry (the fields of `Cqe`): the hot path of poll."""
        made = cls.__new__(cls)
        made._wr_id = wr_id  # type: ignore[attr-defined]  # where CField keeps it
        (
            made._qp_num,  # type: ignore[attr-defined]  # as above, and so are the rest
            _,
            made._byte_len,  # type: ignore[attr-defined]
            made._imm_data,  # type: ignore[attr-defined]
            made._src_qp,  # type: ignore[attr-defined]
            made._opcode,  # type: ignore[attr-defined]
            made._status,  # type: ignore[attr-defined]
            made._vendor_err,  # type: ignore[attr-defined]
            _,
            made._wc_flags,  # type: ignore[attr-defined]
            made._slid,  # type: ignore[attr-defined]
            made._pkey_index,  # type: ignore[attr-defined]
            made._sl,  # type: ignore[attr-defined]
            made._dlid_path_bits,  # type: ignore[attr-defined]
            _,
            _,
            _,
        ) = entry
        return made

    def __str__(self) -> str:
        return lines(
            22,
            [
                ("WR ID", self.wr_id),
                ("status", cqe_status_to_str(self.status)),
                ("opcode", cqe_opcode_to_str(self.opcode)),
                ("vendor error", self.vendor_err),
                ("byte length", self.byte_len),
                ("QP num", self.qp_num),
                ("source QP", self.src_qp),
                ("WC flags", cqe_flags_to_str(self.wc_flags)),
                ("pkey index", self.pkey_index),
                ("slid", self.slid),
                ("sl", self.sl),
                ("imm_data", self.imm_data),
                ("dlid path bits", self.dlid_path_bits),
            ],
        )
