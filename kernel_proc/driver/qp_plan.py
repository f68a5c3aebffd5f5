"""What a QP may be created with, and the layout of its memory: rules and arithmetic, no object.

Rules: any IRQL; does not wait.
Spec: IBA vol. 1, 11.2.5.1; Linux mthca_qp.c (mthca_set_qp_size, mthca_alloc_wqe_buf).
"""

import errno
from typing import Final, NamedTuple

from kernel_proc.driver.limits import Limits
from kernel_proc.driver.queue_resource import refuse
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import qp_transitions as table
from shared.verb_messages import CreateQp
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_qp_create_flags
from shared.verbs_enums import ibv_qp_create_send_ops_flags as ops
from shared.wqe_layout import (
    RECEIVE_SGE_OFFSET,
    SEND_HEAD_SIZE,
    SGE,
    receive_stride,
    ring_entries,
    send_stride,
)

SUPPORTED_TYPES: Final = (table.RC, table.UC, table.UD, table.XRC_SEND, table.XRC_RECV)
WITHOUT_RECEIVE_QUEUE: Final = (table.XRC_SEND, table.XRC_RECV)
BLOCK_SELF_MULTICAST: Final = int(ibv_qp_create_flags.IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)

_SENDS: Final = int(ops.IBV_QP_EX_WITH_SEND) | int(ops.IBV_QP_EX_WITH_SEND_WITH_IMM)
_UNRELIABLE: Final = (
    _SENDS
    | int(ops.IBV_QP_EX_WITH_RDMA_WRITE)
    | int(ops.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
    | int(ops.IBV_QP_EX_WITH_LOCAL_INV)
    | int(ops.IBV_QP_EX_WITH_BIND_MW)
    | int(ops.IBV_QP_EX_WITH_SEND_WITH_INV)
)
_RELIABLE: Final = (
    _UNRELIABLE
    | int(ops.IBV_QP_EX_WITH_RDMA_READ)
    | int(ops.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
    | int(ops.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
)
SEND_OPERATIONS: Final = {
    table.RC: _RELIABLE,
    table.UC: _UNRELIABLE,
    table.UD: _SENDS,
    table.XRC_SEND: _RELIABLE,
    table.XRC_RECV: 0,
}


class QueuePlan(NamedTuple):
    """Both rings of a QP: entries, strides and what they grant; the send ring's place."""

    send_entries: int
    send_stride: int
    send_offset: int
    receive_entries: int
    receive_stride: int
    max_send_sge: int
    max_recv_sge: int
    max_inline: int
    length: int

    @property
    def alignment(self) -> int:
        """Return what the memory must be aligned to: no entry may cross a page."""
        return max(self.send_stride, self.receive_stride, 1)


def check_request(request: CreateQp) -> None:
    """Refuse a type, flags or operations the device does not have, and missing parts."""
    kind = request.qp_type
    if kind not in SUPPORTED_TYPES:
        raise VerbRefused(errno.EOPNOTSUPP, VerbReason.QP_TYPE_NOT_SUPPORTED, 0, kind)
    _check_flags(request)
    if kind == table.XRC_RECV:
        if not request.xrcd:
            refuse(VerbReason.XRCD_NEEDED)
        return
    if not request.pd:
        refuse(VerbReason.PD_NEEDED)
    if not request.send_cq:
        refuse(VerbReason.SEND_CQ_NEEDED)
    if kind != table.XRC_SEND and not request.receive_cq:
        refuse(VerbReason.RECEIVE_CQ_NEEDED)


def _check_flags(request: CreateQp) -> None:
    unknown = request.create_flags & ~BLOCK_SELF_MULTICAST
    if unknown:
        raise VerbRefused(errno.EOPNOTSUPP, VerbReason.CREATE_FLAGS_NOT_SUPPORTED, 0, unknown)
    if request.create_flags and request.qp_type != table.UD:
        refuse(VerbReason.CREATE_FLAGS_NOT_SUPPORTED, 0, request.create_flags)
    missing = request.send_ops_flags & ~SEND_OPERATIONS[request.qp_type]
    if missing:
        raise VerbRefused(errno.EOPNOTSUPP, VerbReason.SEND_OPS_NOT_SUPPORTED, 0, missing)


def _limit(reason: VerbReason, value: int, most: int) -> None:
    if value > most:
        refuse(reason, value, most)


def plan_queues(request: CreateQp, limits: Limits) -> QueuePlan:
    """Check the capabilities and lay out the memory: receive ring, then send ring."""
    device, kind = limits.device, request.qp_type
    has_send = kind != table.XRC_RECV
    has_receive = kind not in WITHOUT_RECEIVE_QUEUE and not request.srq
    send_entries = send_bytes = receive_entries = receive_bytes = 0
    if has_send:
        _limit(VerbReason.BAD_MAX_WR, request.max_send_wr, device.max_wqes)
        _limit(VerbReason.BAD_MAX_SGE, request.max_send_sge, device.max_sges)
        _limit(VerbReason.BAD_MAX_INLINE, request.max_inline_data, device.max_inline)
        send_entries = ring_entries(request.max_send_wr)
        send_bytes = send_stride(request.max_send_sge, request.max_inline_data)
    if has_receive:
        _limit(VerbReason.BAD_MAX_WR, request.max_recv_wr, device.max_wqes)
        _limit(VerbReason.BAD_MAX_SGE, request.max_recv_sge, device.max_sges)
        receive_entries = ring_entries(request.max_recv_wr)
        receive_bytes = receive_stride(request.max_recv_sge)
    end = receive_entries * receive_bytes
    offset = -(-end // send_bytes) * send_bytes if send_bytes else end
    body = max(send_bytes - SEND_HEAD_SIZE, 0)
    return QueuePlan(
        send_entries=send_entries,
        send_stride=send_bytes,
        send_offset=offset,
        receive_entries=receive_entries,
        receive_stride=receive_bytes,
        max_send_sge=min(body // SGE.size, device.max_sges),
        max_recv_sge=min(max(receive_bytes - RECEIVE_SGE_OFFSET, 0) // SGE.size, device.max_sges),
        max_inline=min(body, device.max_inline),
        length=offset + send_entries * send_bytes if send_entries else end,
    )
