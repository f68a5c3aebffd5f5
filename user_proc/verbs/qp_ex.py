"""Extended queue pairs: send requests built call by call, and posted as one batch or not at all.

    qp.wr_start()
    qp.wr_id, qp.wr_flags = 7, IBV_SEND_SIGNALED
    qp.wr_rdma_write(rkey, address)     # one call for the operation
    qp.wr_set_sge(sge)                  # one call for the data
    qp.wr_complete()

Builders keep the first thing that is wrong, and `wr_complete` raises it: then nothing of the batch
has been posted. Data of inline builders is copied by them, elements and addresses too. Until
`wr_complete` the device sees nothing, and `wr_abort` leaves no trace. What is posted is what
`post_send` would post: both pack a `SendWR`.

From `wr_start` to `wr_complete` or `wr_abort` the builders belong to the calling thread; another
that starts waits for it. `post_send` of other threads goes on meanwhile.

Rules: any thread.
Spec: rdma-core, pyverbs/qp.pyx; ibv_wr_post(3).
"""

import errno
from collections.abc import Sequence
from typing import Any, Final

from shared.verbs_enums import ibv_qp_create_send_ops_flags as ops
from shared.verbs_enums import ibv_qp_type, ibv_wr_opcode
from user_proc.verbs.addr import AH
from user_proc.verbs.argument_types import require
from user_proc.verbs.base import PyverbsCM
from user_proc.verbs.c_integers import CField, IntLike, to_u32, to_u64
from user_proc.verbs.memory_windows import MW, MWBindInfo
from user_proc.verbs.qp_attributes import QPAttr
from user_proc.verbs.qp_init_attr import QPInitAttr
from user_proc.verbs.qp_init_attr_ex import QPInitAttrEx
from user_proc.verbs.wr import SGE
from user_proc.verbs.wr_batch import BatchingQP

_UD: Final = int(ibv_qp_type.IBV_QPT_UD)
_XRC_SEND: Final = int(ibv_qp_type.IBV_QPT_XRC_SEND)


class DataBuffer(PyverbsCM):
    """A piece of memory that an inline builder copies."""

    addr = CField(to_u64)
    length = CField(to_u64)

    def __init__(self, addr: IntLike, length: IntLike) -> None:
        super().__init__()
        self.addr = addr
        self.length = length


class QPEx(BatchingQP):
    """A queue pair with builders, for the operations `send_ops_flags` named."""

    comp_mask = CField(to_u64)

    def __init__(
        self,
        creator: Any,
        init_attr: QPInitAttr | QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        super().__init__(creator, init_attr, qp_attr)
        self.comp_mask = 0

    @property
    def ind_table(self) -> None:
        """None: the device has no receive-side scaling."""
        return

    # Operations

    def wr_send(self) -> None:
        """Send."""
        self._begin(ops.IBV_QP_EX_WITH_SEND, ibv_wr_opcode.IBV_WR_SEND)

    def wr_send_imm(self, data: IntLike) -> None:
        """Send with immediate data, in host order."""
        self._begin(
            ops.IBV_QP_EX_WITH_SEND_WITH_IMM, ibv_wr_opcode.IBV_WR_SEND_WITH_IMM, _network(data)
        )

    def wr_send_inv(self, invalidate_rkey: IntLike) -> None:
        """Send, and have the peer invalidate a key."""
        self._begin(
            ops.IBV_QP_EX_WITH_SEND_WITH_INV,
            ibv_wr_opcode.IBV_WR_SEND_WITH_INV,
            to_u32(invalidate_rkey),
        )

    def wr_rdma_read(self, rkey: IntLike, remote_addr: IntLike) -> None:
        """Read the peer's memory."""
        place = to_u32(rkey), to_u64(remote_addr)
        self._begin(ops.IBV_QP_EX_WITH_RDMA_READ, ibv_wr_opcode.IBV_WR_RDMA_READ).set_wr_rdma(
            *place
        )

    def wr_rdma_write(self, rkey: IntLike, remote_addr: IntLike) -> None:
        """Write the peer's memory."""
        place = to_u32(rkey), to_u64(remote_addr)
        self._begin(ops.IBV_QP_EX_WITH_RDMA_WRITE, ibv_wr_opcode.IBV_WR_RDMA_WRITE).set_wr_rdma(
            *place
        )

    def wr_rdma_write_imm(self, rkey: IntLike, remote_addr: IntLike, data: IntLike) -> None:
        """Write the peer's memory, and send immediate data, in host order."""
        place = to_u32(rkey), to_u64(remote_addr)
        self._begin(
            ops.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
            ibv_wr_opcode.IBV_WR_RDMA_WRITE_WITH_IMM,
            _network(data),
        ).set_wr_rdma(*place)

    def wr_atomic_cmp_swp(
        self, rkey: IntLike, remote_addr: IntLike, compare: IntLike, swap: IntLike
    ) -> None:
        """Compare and swap a word of the peer's."""
        operands = to_u32(rkey), to_u64(remote_addr), to_u64(compare), to_u64(swap)
        self._begin(
            ops.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, ibv_wr_opcode.IBV_WR_ATOMIC_CMP_AND_SWP
        ).set_wr_atomic(*operands)

    def wr_atomic_fetch_add(self, rkey: IntLike, remote_addr: IntLike, add: IntLike) -> None:
        """Add to a word of the peer's."""
        operands = to_u32(rkey), to_u64(remote_addr), to_u64(add)
        self._begin(
            ops.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, ibv_wr_opcode.IBV_WR_ATOMIC_FETCH_AND_ADD
        ).set_wr_atomic(*operands)

    def wr_local_inv(self, invalidate_rkey: IntLike) -> None:
        """Invalidate a key of one's own."""
        key = to_u32(invalidate_rkey)
        self._begin(ops.IBV_QP_EX_WITH_LOCAL_INV, ibv_wr_opcode.IBV_WR_LOCAL_INV, key)

    def wr_bind_mw(self, mw: MW, rkey: IntLike, bind_info: MWBindInfo) -> None:
        """Bind a type 2 window; the low 8 bits of its new key are those of `rkey`."""
        window, key = require("mw", mw, MW), to_u32(rkey)
        info = require("bind_info", bind_info, MWBindInfo)
        self._begin(ops.IBV_QP_EX_WITH_BIND_MW, ibv_wr_opcode.IBV_WR_BIND_MW).set_bind(
            window, info, key
        )

    def wr_send_tso(self, hdr: object, hdr_sz: IntLike, mss: IntLike) -> None:
        """Refuse: the device does not segment."""
        self._begin(ops.IBV_QP_EX_WITH_TSO, ibv_wr_opcode.IBV_WR_TSO)

    def wr_atomic_write(self, rkey: IntLike, remote_addr: IntLike, atomic_wr: bytes) -> None:
        """Refuse: the device has no atomic write."""
        self._begin(ops.IBV_QP_EX_WITH_ATOMIC_WRITE, ibv_wr_opcode.IBV_WR_ATOMIC_WRITE)

    def wr_flush(
        self,
        rkey: IntLike,
        remote_addr: IntLike,
        length: IntLike,
        ptype: IntLike,
        level: IntLike,
    ) -> None:
        """Refuse: the device does not flush."""
        self._begin(ops.IBV_QP_EX_WITH_FLUSH, ibv_wr_opcode.IBV_WR_FLUSH)

    # Addresses

    def wr_set_ud_addr(self, ah: AH, remote_qpn: IntLike, remote_rkey: IntLike) -> None:
        """Say where the datagram goes; the last is the Q_Key."""
        handle, queue, key = require("ah", ah, AH), to_u32(remote_qpn), to_u32(remote_rkey)
        draft = self._draft("wr_set_ud_addr")
        if self._qp_type != _UD:
            self._note(errno.EINVAL, "wr_set_ud_addr is for UD queue pairs")
        elif draft is not None:
            draft.wr.set_wr_ud(handle, queue, key)

    def wr_set_xrc_srqn(self, remote_srqn: IntLike) -> None:
        """Say which shared receive queue of the peer takes the message."""
        number = to_u32(remote_srqn)
        draft = self._draft("wr_set_xrc_srqn")
        if self._qp_type != _XRC_SEND:
            self._note(errno.EINVAL, "wr_set_xrc_srqn is for XRC_SEND queue pairs")
        elif draft is not None:
            draft.wr.set_qp_type_xrc(number)

    # Data

    def wr_set_sge(self, sge: SGE) -> None:
        """Take the data from, or put it into, one piece of registered memory."""
        self._set_elements("wr_set_sge", 1, [require("sge", sge, SGE)])

    def wr_set_sge_list(self, num_sge: IntLike, sg_list: Sequence[SGE]) -> None:
        """Take the data from, or put it into, pieces of registered memory."""
        number = to_u64(num_sge)
        chosen = [require("sge", sg_list[index], SGE) for index in range(number)]
        self._set_elements("wr_set_sge_list", number, chosen)

    def wr_set_inline_data(self, addr: IntLike, length: IntLike) -> None:
        """Copy the data into the request, from any memory."""
        self._set_inline("wr_set_inline_data", [(to_u64(addr), to_u64(length))])

    def wr_set_inline_data_list(self, num_buf: IntLike, buf_list: Sequence[DataBuffer]) -> None:
        """Copy the data into the request, from several pieces of any memory."""
        buffers = [require("buf", buf_list[index], DataBuffer) for index in range(to_u64(num_buf))]
        self._set_inline("wr_set_inline_data_list", [(one.addr, one.length) for one in buffers])


def _network(data: IntLike) -> int:
    """Give a host's number as the memory of one in network order reads."""
    return int.from_bytes(to_u32(data).to_bytes(4, "big"), "little")
