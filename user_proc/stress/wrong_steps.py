"""Calls that are wrong on purpose, each with the errno it must be refused with.

Some are about nothing in particular, some about a connection in use: none may harm anything.
"""

import errno
from collections.abc import Callable
from typing import Final

from shared import verb_codes as codes
from shared.verb_messages import AllocMw, Object, RegMr
from shared.verbs_enums import ibv_qp_attr_mask
from user_proc.stress.client_world import World
from user_proc.stress.connection import Connection, attributes
from user_proc.stress.connection_end import AREA_SEND, End
from user_proc.stress.findings import NothingToDo
from user_proc.stress.shapes import ADD, READ, REMOTE_WRITE, RTR, SEND, UD
from user_proc.verbs.addr import AH, GID, AHAttr
from user_proc.verbs.cq import CQ
from user_proc.verbs.mr import MR
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

_NO_ERRNO: Final = -1  # what pyverbs raises without one
_NOBODY: Final = 0xFFFF_FFF0
_STATE: Final = int(ibv_qp_attr_mask.IBV_QP_STATE)
_INLINE: Final = 8
_GID: Final = "ff12:0000:0000:0000:0000:0000:0000:0001"

Wrong = tuple[Callable[[World], object], int]


#: What is wrong in itself, by name.
CALLS: Final[dict[str, Wrong]] = {
    "mr with remote but without local write": (
        lambda w: MR(w.pd, 4096, REMOTE_WRITE), errno.EINVAL),
    "mr with unknown access": (lambda w: MR(w.pd, 4096, 1 << 30), errno.EINVAL),
    "mr at an address nothing is at": (lambda w: MR(w.pd, 4096, 1, 4096), errno.EFAULT),
    "mr past the end of the address space": (
        lambda w: MR(w.pd, 4096, 0, (1 << 64) - 4096), errno.EFAULT),
    "cq of no entries": (lambda w: CQ(w.context, 0), errno.EINVAL),
    "cq too large": (lambda w: CQ(w.context, 1 << 20), errno.EINVAL),
    "cq with an unknown vector": (lambda w: CQ(w.context, 8, None, None, 99), errno.EINVAL),
    "srq of no entries": (lambda w: SRQ(w.pd, SrqInitAttr(SrqAttr(0, 1))), errno.EINVAL),
    "srq too large": (lambda w: SRQ(w.pd, SrqInitAttr(SrqAttr(1 << 20, 1))), errno.EINVAL),
    "window of an unknown type": (
        lambda w: w.session.do(codes.IOCTL_ALLOC_MW, AllocMw(w.pd.handle, 7)), errno.EINVAL),
    "query of port 0": (lambda w: w.context.query_port(0), errno.EINVAL),
    "query of port 9": (lambda w: w.context.query_port(9), errno.EINVAL),
    "query of GID 200": (lambda w: w.context.query_gid(1, 200), _NO_ERRNO),
    "address handle at port 9": (lambda w: _address_handle(w, 9), errno.EINVAL),
    "dealloc_pd of nobody's": (
        lambda w: w.session.do(codes.IOCTL_DEALLOC_PD, Object(_NOBODY)), errno.EINVAL),
    "dereg_mr of nobody's": (
        lambda w: w.session.do(codes.IOCTL_DEREG_MR, Object(_NOBODY)), errno.EINVAL),
    "destroy_cq of nobody's": (
        lambda w: w.session.do(codes.IOCTL_DESTROY_CQ, Object(_NOBODY)), errno.EINVAL),
    "destroy_qp of nobody's": (
        lambda w: w.session.do(codes.IOCTL_DESTROY_QP, Object(_NOBODY)), errno.EINVAL),
    "destroy_qp of a domain": (
        lambda w: w.session.do(codes.IOCTL_DESTROY_QP, Object(w.pd.handle)), errno.EINVAL),
    "query_srq of a domain": (
        lambda w: w.session.do(codes.IOCTL_QUERY_SRQ, Object(w.pd.handle)), errno.EINVAL),
    "reg_mr in nobody's domain": (
        lambda w: w.session.do(codes.IOCTL_REG_MR, RegMr(_NOBODY, 4096, 8, 4096, 1)),
        errno.EINVAL),
}  # fmt: skip


def _address_handle(world: World, port: int) -> object:
    return AH(world.pd, attr=AHAttr(dlid=world.lid, port_num=port))


def wrong_call(world: World, name: str) -> None:
    """Do something that is wrong in itself."""
    call, number = CALLS[name]
    world.call(name, lambda: call(world), number)


def _wr(end: End, opcode: int, length: int = 8, pieces: int = 1, flags: int = 2) -> SendWR:
    address = end.region.at(AREA_SEND, 0)
    elements = [SGE(address, length, end.region.mr.lkey)] * pieces
    wr = SendWR(0, opcode, pieces, 0, elements, flags)
    if opcode in (ADD, READ):
        wr.set_wr_atomic(end.region.mr.rkey, end.region.word(0) + 4, 1)
    return wr


def _fresh_qp(end: End) -> QP:
    init = QPInitAttr(UD, scq=end.source.cq, rcq=end.source.cq, cap=QPCap(4, 4, 1, 1))
    return QP(end.world.pd, init)


def _post_in_reset(end: End) -> None:
    qp = _fresh_qp(end)
    try:
        qp.post_send(_wr(end, SEND))
    finally:
        qp.close()


def _skip_init(end: End) -> None:
    qp = _fresh_qp(end)
    try:
        qp.modify(QPAttr(qp_state=RTR), _STATE)
    finally:
        qp.close()


def _detach_nothing(end: End) -> None:
    qp = _fresh_qp(end)
    try:
        qp.detach_mcast(GID(_GID), 0xC001)
    finally:
        qp.close()


def _raw(code: int, handle: Callable[[End], int]) -> Callable[[End], object]:
    return lambda end: end.world.session.do(code, Object(handle(end)))


#: What is wrong about an end of a connection that works, by name: how, and the errno.
ABOUT_ENDS: Final[dict[str, tuple[Callable[[End], object], int]]] = {
    "too many elements": (lambda end: end.qp.post_send(_wr(end, SEND, 8, 20)), errno.EINVAL),
    "too much inline": (
        lambda end: end.qp.post_send(_wr(end, SEND, 2000, 1, 2 | _INLINE)), errno.EINVAL),
    "an unknown opcode": (lambda end: end.qp.post_send(_wr(end, 77)), errno.EINVAL),
    "an atomic of 4 bytes": (lambda end: end.qp.post_send(_wr(end, ADD, 4)), errno.EINVAL),
    "a misaligned atomic": (lambda end: end.qp.post_send(_wr(end, ADD, 8)), errno.EINVAL),
    "a receive of too many elements": (
        lambda end: end.qp.post_recv(
            RecvWR(0, 20, [SGE(end.region.base, 8, end.region.mr.lkey)] * 20)), errno.EINVAL),
    "a send in RESET": (_post_in_reset, errno.EINVAL),
    "RESET to RTR": (_skip_init, errno.EINVAL),
    "RTS to RTR": (
        lambda end: end.qp.modify(QPAttr(qp_state=RTR), _STATE), errno.EINVAL),
    "detach of what is not attached": (_detach_nothing, errno.EINVAL),
    "resize to nothing": (lambda end: _resize(end, 0), errno.EINVAL),
    "destroy_cq in use": (
        _raw(codes.IOCTL_DESTROY_CQ, lambda end: end.source.cq.handle), errno.EBUSY),
    "dealloc_pd in use": (
        _raw(codes.IOCTL_DEALLOC_PD, lambda end: end.world.pd.handle), errno.EBUSY),
    "destroy_srq in use": (
        _raw(codes.IOCTL_DESTROY_SRQ, lambda end: _srq(end).handle), errno.EBUSY),
}  # fmt: skip


def _srq(end: End) -> SRQ:
    if end.srq is None or not end.sends_requests:
        raise NothingToDo("there is no shared queue that is in use")
    return end.srq


def _resize(end: End, cqe: int) -> None:
    if not isinstance(end.source.cq, CQ):
        raise NothingToDo("a CQEX is not resized")
    end.source.cq.resize(cqe)


def wrong_use(world: World, name: str, end: int, how: str) -> None:
    """Use an end of a connection wrongly; it goes on as if nothing had happened."""
    connection = world.one(name, Connection)
    connection.require_whole()
    one = connection.ends[end]
    if not one.sends_requests:
        raise NothingToDo("an XRC target posts nothing")
    call, number = ABOUT_ENDS[how]
    world.call(how, lambda: call(one), number)


def fill_up(world: World, name: str) -> None:
    """Post receives until the queue is full, and one more."""
    connection = world.one(name, Connection)
    connection.require_whole()
    end = connection.ends[1]
    if end.shape.kind == "xrc" or end.srq is not None:
        raise NothingToDo("the size of a shared queue is the device's choice")
    connection.settle()
    end.post_receives(end.shape.depth)
    full = RecvWR(0, 0, [])
    if len(end.receives) == end.shape.depth:
        world.call("post_recv to a full queue", lambda: end.qp.post_recv(full), errno.ENOMEM)


def change_nothing(world: World, name: str) -> None:
    """Have a modify refused in RTS for one bad value among good ones: nothing may change."""
    connection = world.one(name, Connection)
    connection.require_whole()
    end = connection.ends[0]
    attr = attributes(world, connection.shape, end.qp.qp_num)
    attr.path_mtu = 9
    mask = int(ibv_qp_attr_mask.IBV_QP_PATH_MTU)
    world.call("modify_qp with MTU code 9", lambda: end.qp.modify(attr, mask), errno.EINVAL)
