"""Judging and packing the work requests of kernel clients.

A kernel client is believed about memory and keys, which the HCA judges; what is looked at here is
what a queue's entry could not hold, or what its type of queue pair does not do.

Rules: any IRQL; does not wait.
Spec: WinOF inc/iba/ib_types.h (ib_post_send); shared/wqe_layout.py; docs/kernel-verbs.md.
"""

from typing import Final

from kernel_proc.channel_interface.ib_status import IbStatus
from kernel_proc.channel_interface.work_requests import ReceiveRequest, SendRequest
from kernel_proc.driver.ah_verbs import AddressHandle
from kernel_proc.hca_abi.qp_transitions import RC, UC, UD, XRC_SEND
from shared.verbs_enums import ibv_send_flags, ibv_wr_opcode
from shared.wqe_layout import ADDRESS_VECTOR, RECEIVE_HEAD, SEND_HEAD, SGE, bind_segment

_INLINE: Final = int(ibv_send_flags.IBV_SEND_INLINE)
_NO_VECTOR: Final = bytes(ADDRESS_VECTOR.size)


def _named(*names: str) -> frozenset[int]:
    return frozenset(int(ibv_wr_opcode[f"IBV_WR_{name}"]) for name in names)


_DATAGRAMS: Final = _named("SEND", "SEND_WITH_IMM")
_INLINED: Final = _DATAGRAMS | _named("SEND_WITH_INV", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
_ATOMICS: Final = _named("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
_BINDS: Final = _named("BIND_MW")
_UNRELIABLE: Final = _INLINED | _BINDS | _named("LOCAL_INV")
_RELIABLE: Final = _UNRELIABLE | _ATOMICS | _named("RDMA_READ")
_OPCODES: Final = {UD: _DATAGRAMS, UC: _UNRELIABLE, RC: _RELIABLE, XRC_SEND: _RELIABLE}
_ATOMIC_BYTES: Final = 8
_MOST_BYTES: Final = 1 << 31


class SendLimits:
    """What a send queue's entries hold; one object for each queue, so that it names the queue."""

    __slots__ = ("max_inline", "max_segments", "qp_type")

    def __init__(self, qp_type: int, max_segments: int, max_inline: int) -> None:
        self.qp_type = qp_type
        self.max_segments = max_segments
        self.max_inline = max_inline


def judge_send(limits: SendLimits, request: SendRequest) -> IbStatus:
    """Say what is wrong with a request for a queue of such limits; its handle is not judged."""
    opcode = request.opcode
    if opcode not in _OPCODES.get(limits.qp_type, ()):
        return IbStatus.INVALID_WR_TYPE
    if (request.bind is not None) != (opcode in _BINDS):
        return IbStatus.INVALID_PARAMETER
    data = request.inline_data
    if data is not None:
        if opcode not in _INLINED or len(data) > limits.max_inline or request.segments:
            return IbStatus.INVALID_SETTING
        return IbStatus.SUCCESS
    if len(request.segments) > limits.max_segments:
        return IbStatus.INVALID_MAX_SGE
    length = sum(segment.length for segment in request.segments)
    if opcode in _ATOMICS and (length != _ATOMIC_BYTES or request.remote_address % _ATOMIC_BYTES):
        return IbStatus.INVALID_PARAMETER
    return IbStatus.SUCCESS if length <= _MOST_BYTES else IbStatus.INVALID_PARAMETER


def pack_send(request: SendRequest, handle: AddressHandle | None) -> bytes:
    """Return a send entry; struct.error for a value its field does not hold."""
    data = request.inline_data
    flags = request.flags & ~_INLINE
    head = SEND_HEAD.pack(
        request.opcode,
        flags if data is None else flags | _INLINE,
        0 if data is not None else len(request.segments),
        request.imm_data,
        request.remote_address,
        request.rkey,
        request.srqn,
        request.compare_add,
        request.swap,
        _target(request, handle),
        request.remote_qpn,
        request.remote_qkey,
        0 if data is None else len(data),
    )
    if data is not None:
        return head + data
    return head + b"".join(SGE.pack(*segment) for segment in request.segments)


def pack_receive(request: ReceiveRequest) -> bytes:
    """Return a receive entry; struct.error for a value its field does not hold."""
    segments = request.segments
    return RECEIVE_HEAD.pack(len(segments)) + b"".join(SGE.pack(*one) for one in segments)


def _target(request: SendRequest, handle: AddressHandle | None) -> bytes:
    """Return where a datagram goes, or what a window is bound to: they share one place."""
    if request.bind is not None:
        return bind_segment(**request.bind._asdict())
    return _NO_VECTOR if handle is None else _vector(handle)


def _vector(handle: AddressHandle) -> bytes:
    address = handle.address
    known = bool(address.is_global)
    return ADDRESS_VECTOR.pack(
        address.port,
        address.sl,
        address.src_path_bits,
        address.static_rate,
        address.dlid,
        known,
        address.sgid_index if known else 0,
        address.flow_label if known else 0,
        address.hop_limit if known else 0,
        address.traffic_class if known else 0,
        address.dgid if known else b"",
        handle.pdn,
    )
