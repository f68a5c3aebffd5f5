"""Putting chains of work requests into rings: one at a time, told to the device once.

The first request that does not fit ends the chain; those before it stay posted.

Rules: any thread; one posts to a ring at a time.
Spec: ibv_post_send(3), ibv_post_recv(3).
"""

import errno
from collections.abc import Callable
from typing import Final

from shared.verbs_enums import ibv_access_flags, ibv_mw_type, ibv_send_flags, ibv_wr_opcode
from shared.verbs_enums import ibv_qp_type as qp_type
from user_proc.provider.receive_ring import SharedReceiveRing
from user_proc.provider.send_ring import SendRing
from user_proc.verbs.memory_windows import MW, MWBindInfo
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.wr import RecvWR, SendWR

_MOST_BYTES: Final = 1 << 31
_ATOMIC_BYTES: Final = 8
_INLINE: Final = int(ibv_send_flags.IBV_SEND_INLINE)
_IP_CSUM: Final = int(ibv_send_flags.IBV_SEND_IP_CSUM)
_BIND_MW: Final = int(ibv_wr_opcode.IBV_WR_BIND_MW)
_TYPE_1: Final = int(ibv_mw_type.IBV_MW_TYPE_1)
_TYPE_2: Final = int(ibv_mw_type.IBV_MW_TYPE_2)
_ZERO_BASED: Final = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)

_RC: Final = int(qp_type.IBV_QPT_RC)
_UC: Final = int(qp_type.IBV_QPT_UC)
_UD: Final = int(qp_type.IBV_QPT_UD)
_XRC_SEND: Final = int(qp_type.IBV_QPT_XRC_SEND)


def _opcodes(*names: str) -> frozenset[int]:
    return frozenset(int(ibv_wr_opcode[f"IBV_WR_{name}"]) for name in names)


_SENDS: Final = _opcodes("SEND", "SEND_WITH_IMM")
_WRITES: Final = _opcodes("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
_ATOMICS: Final = _opcodes("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
_LOCAL: Final = _opcodes("LOCAL_INV", "BIND_MW")
_UNRELIABLE: Final = _SENDS | _WRITES | _LOCAL | _opcodes("SEND_WITH_INV")
_RELIABLE: Final = _UNRELIABLE | _ATOMICS | _opcodes("RDMA_READ")
_NOT_OF_THIS_DEVICE: Final = {
    _UD: _opcodes("TSO"),
    _RC: _opcodes("FLUSH", "ATOMIC_WRITE"),
    _XRC_SEND: _opcodes("FLUSH"),
}
_WITH_INLINE: Final = _SENDS | _WRITES | _opcodes("SEND_WITH_INV")

#: The opcodes of each type of queue pair that sends.
OPCODES: Final = {_RC: _RELIABLE, _UC: _UNRELIABLE, _UD: _SENDS, _XRC_SEND: _RELIABLE}


class Unfit(Exception):
    """A request cannot be posted."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.errno = number
        self.reason = reason


def require_send(wr: SendWR, kind: int, max_sge: int, max_inline: int) -> None:
    """Raise Unfit for a send request this queue cannot take."""
    if wr.is_known_to_fit(kind, max_sge, max_inline):
        return
    opcode = wr.opcode
    if opcode not in OPCODES[kind]:
        if opcode in _NOT_OF_THIS_DEVICE.get(kind, ()):
            raise Unfit(errno.EOPNOTSUPP, f"the device does not do {_name(opcode)}")
        raise Unfit(errno.EINVAL, f"{_name(opcode)} is not for {_type(kind)} queue pairs")
    if wr.send_flags & _IP_CSUM:
        raise Unfit(errno.EOPNOTSUPP, "the device computes no checksums")
    if opcode in _LOCAL and wr.num_sge:
        raise Unfit(errno.EINVAL, f"{_name(opcode)} takes no scatter/gather elements")
    length = wr.total_length
    if length > _MOST_BYTES:
        raise Unfit(errno.EINVAL, f"{length} bytes are more than a message of {_MOST_BYTES}")
    if wr.send_flags & _INLINE:
        if opcode not in _WITH_INLINE:
            raise Unfit(errno.EINVAL, f"{_name(opcode)} cannot have IBV_SEND_INLINE")
        if length > max_inline:
            raise Unfit(errno.EINVAL, f"{length} bytes are more than max_inline_data {max_inline}")
    elif wr.num_sge > max_sge:
        raise Unfit(errno.EINVAL, f"num_sge {wr.num_sge} is more than max_send_sge {max_sge}")
    if opcode in _ATOMICS:
        if length != _ATOMIC_BYTES:
            raise Unfit(errno.EINVAL, f"an atomic has 8 bytes, not {length}")
        if wr.remote_addr % _ATOMIC_BYTES:
            raise Unfit(errno.EINVAL, f"remote address {wr.remote_addr:#x} is not a multiple of 8")
    if kind == _UD and wr.ah is None:
        raise Unfit(errno.EINVAL, "a datagram needs an address handle: call set_wr_ud")
    if opcode == _BIND_MW and not wr.is_by_bind_mw:
        _require_type_2(wr)
    wr.note_fit(kind, max_sge, max_inline)


def _require_type_2(wr: SendWR) -> None:
    if not wr.window_type:
        raise Unfit(errno.EINVAL, "a bind needs a window: call set_bind_wr")
    if wr.window_type != _TYPE_2:
        raise Unfit(errno.EINVAL, "windows of type 1 are bound by QP.bind_mw")


def require_bind(mw: MW, info: MWBindInfo) -> None:
    """Raise Unfit for what QP.bind_mw cannot bind."""
    if mw.type != _TYPE_1:
        raise Unfit(errno.EINVAL, "windows of type 2 are bound by IBV_WR_BIND_MW requests")
    if info.mw_access_flags & _ZERO_BASED:
        raise Unfit(errno.EINVAL, "windows of type 1 cannot have IBV_ACCESS_ZERO_BASED")
    if info.mr.pd.handle != mw.pd.handle:
        raise Unfit(errno.EPERM, "the region is of another protection domain than the window")


def require_receive(wr: RecvWR, max_sge: int) -> None:
    """Raise Unfit for a receive request this queue cannot take."""
    if wr.num_sge > max_sge:
        raise Unfit(errno.EINVAL, f"num_sge {wr.num_sge} is more than {max_sge}")


def post_sends(
    ring: SendRing,
    first: SendWR,
    bad: SendWR | None,
    check: Callable[[SendWR], None],
    text: str = "Failed to post send",
) -> None:
    """Post a chain to a send queue."""
    wr: SendWR | None = first
    put = 0
    with ring.lock:
        try:
            while wr is not None:
                check(wr)
                _require_room(ring)
                ring.put(wr.wr_id, wr.entry())
                put += 1
                wr = wr.next_wr
        except Unfit as unfit:
            if bad is not None and wr is not None:
                bad.take_over(wr)
            raise PyverbsRDMAError(text, unfit.errno, reason=unfit.reason) from unfit
        finally:
            if put:
                ring.publish()


def post_receives(
    ring: SendRing | SharedReceiveRing,
    first: RecvWR,
    bad: RecvWR | None,
    max_sge: int,
    text: str,
) -> None:
    """Post a chain to a receive queue."""
    wr: RecvWR | None = first
    put = 0
    with ring.lock:
        try:
            while wr is not None:
                require_receive(wr, max_sge)
                _require_room(ring)
                ring.put(wr.wr_id, wr.entry())
                put += 1
                wr = wr.next_wr
        except Unfit as unfit:
            if bad is not None and wr is not None:
                bad.take_over(wr)
            raise PyverbsRDMAError(text, unfit.errno, reason=unfit.reason) from unfit
        finally:
            if put:
                ring.publish()


def _require_room(ring: SendRing | SharedReceiveRing) -> None:
    if ring.released:
        raise Unfit(errno.EINVAL, "the queue has just been closed")
    if ring.is_full:
        raise Unfit(
            errno.ENOMEM,
            f"the queue holds {ring.limit} requests whose completions have not been polled",
        )


def _name(opcode: int) -> str:
    try:
        return ibv_wr_opcode(opcode).name
    except ValueError:
        return f"opcode {opcode}"


def _type(kind: int) -> str:
    return qp_type(kind).name.removeprefix("IBV_QPT_")
