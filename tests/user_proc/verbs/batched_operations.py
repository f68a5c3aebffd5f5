"""The operations of QPEx: how each is built, and the request `post_send` takes for it."""

import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MW, MWBindInfo
from user_proc.verbs.pd import PD
from user_proc.verbs.posting import OPCODES
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttrEx
from user_proc.verbs.wr import SGE, SendWR

RC, UC, UD, XRC = (
    int(kind) for kind in (e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD, e.IBV_QPT_XRC_SEND)
)
TYPES = {RC: "RC", UC: "UC", UD: "UD", XRC: "XRC_SEND"}
MOST_SGE, MOST_INLINE, MOST_WR = 4, 64, 8
MASK = int(e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
LACKING = ("TSO", "FLUSH", "ATOMIC_WRITE")


class Values(NamedTuple):
    """The numbers a request is made of."""

    rkey: int = 0x11223344
    address: int = 0x7F0000001000
    imm: int = 0x01020304
    compare: int = 5
    swap: int = 6


class Objects(NamedTuple):
    """What an address and a bind need."""

    ah: AH
    window: MW
    bind: MWBindInfo


class Row(NamedTuple):
    """One operation: its flag and opcode, how it is built, and what a SendWR is told instead."""

    flag: str
    opcode: int
    build: Callable[[QPEx, Values, Objects], None]
    tell: Callable[[SendWR, Values, Objects], object] = lambda wr, v, o: None
    imm: Callable[[Values], int] = lambda v: 0
    data: bool = True
    inline: bool = True
    length: int | None = None


def htonl(v: Values) -> int:
    return socket.htonl(v.imm)


def to_memory(wr: SendWR, v: Values, _: Objects) -> None:
    wr.set_wr_rdma(v.rkey, v.address)


ROWS = [
    Row("SEND", e.IBV_WR_SEND, lambda q, v, o: q.wr_send()),
    Row("SEND_WITH_IMM", e.IBV_WR_SEND_WITH_IMM, lambda q, v, o: q.wr_send_imm(v.imm), imm=htonl),
    Row(
        "SEND_WITH_INV",
        e.IBV_WR_SEND_WITH_INV,
        lambda q, v, o: q.wr_send_inv(v.rkey),
        imm=lambda v: v.rkey,
    ),
    Row(
        "RDMA_WRITE",
        e.IBV_WR_RDMA_WRITE,
        lambda q, v, o: q.wr_rdma_write(v.rkey, v.address),
        to_memory,
    ),
    Row(
        "RDMA_WRITE_WITH_IMM",
        e.IBV_WR_RDMA_WRITE_WITH_IMM,
        lambda q, v, o: q.wr_rdma_write_imm(v.rkey, v.address, v.imm),
        to_memory,
        htonl,
    ),
    Row(
        "RDMA_READ",
        e.IBV_WR_RDMA_READ,
        lambda q, v, o: q.wr_rdma_read(v.rkey, v.address),
        to_memory,
        inline=False,
    ),
    Row(
        "ATOMIC_CMP_AND_SWP",
        e.IBV_WR_ATOMIC_CMP_AND_SWP,
        lambda q, v, o: q.wr_atomic_cmp_swp(v.rkey, v.address, v.compare, v.swap),
        lambda wr, v, o: wr.set_wr_atomic(v.rkey, v.address, v.compare, v.swap),
        inline=False,
        length=8,
    ),
    Row(
        "ATOMIC_FETCH_AND_ADD",
        e.IBV_WR_ATOMIC_FETCH_AND_ADD,
        lambda q, v, o: q.wr_atomic_fetch_add(v.rkey, v.address, v.compare),
        lambda wr, v, o: wr.set_wr_atomic(v.rkey, v.address, v.compare),
        inline=False,
        length=8,
    ),
    Row(
        "LOCAL_INV",
        e.IBV_WR_LOCAL_INV,
        lambda q, v, o: q.wr_local_inv(v.rkey),
        imm=lambda v: v.rkey,
        data=False,
    ),
    Row(
        "BIND_MW",
        e.IBV_WR_BIND_MW,
        lambda q, v, o: q.wr_bind_mw(o.window, o.window.rkey + 1, o.bind),
        lambda wr, v, o: wr.set_bind_wr(o.window, o.bind),
        data=False,
    ),
]
PAIRS = [
    pytest.param(kind, row, id=f"{TYPES[kind]}-{row.flag}")
    for kind in TYPES
    for row in ROWS
    if row.opcode in OPCODES[kind]
]


def flags_of(kind: int) -> int:
    """Every operation of a type of queue pair."""
    rows = [row for row in ROWS if row.opcode in OPCODES[kind]]
    return sum(int(getattr(e, f"IBV_QP_EX_WITH_{row.flag}")) for row in rows)


def extended(context: Context, pd: PD, cq: CQ, kind: int, operations: int | None = None) -> QPEx:
    made = QPEx(
        context,
        QPInitAttrEx(
            kind,
            scq=cq,
            rcq=cq,
            cap=QPCap(MOST_WR, 1, MOST_SGE, 1, MOST_INLINE),
            comp_mask=MASK,
            pd=pd,
            send_ops_flags=flags_of(kind) if operations is None else operations,
        ),
    )
    made.modify(QPAttr(qp_state=int(e.IBV_QPS_RTS)), e.IBV_QP_STATE)
    return made


def ring_of(qp: QP) -> Any:
    return qp._rings.send


def entries(qp: QP) -> list[bytes]:
    """The entries that were put, whole, and the wr_ids with them."""
    ring = ring_of(qp)
    stride = ring._stride
    return [
        bytes(ring._view[(at & ring._mask) * stride :][:stride])
        + ring._wr_ids[at & ring._mask].to_bytes(8, "little")
        for at in range(ring._tail, ring.head)
    ]


def finish(kind: int, qp: QPEx, objects: Objects) -> None:
    if kind == UD:
        qp.wr_set_ud_addr(objects.ah, 77, 88)
    if kind == XRC:
        qp.wr_set_xrc_srqn(99)


def classic(kind: int, row: Row, v: Values, objects: Objects, pieces: list[SGE]) -> SendWR:
    number = len(pieces)
    wr = SendWR(7, e.IBV_WR_SEND_WITH_INV, number, row.imm(v), pieces, e.IBV_SEND_FENCE)
    wr.opcode = row.opcode
    row.tell(wr, v, objects)
    if kind == UD:
        wr.set_wr_ud(objects.ah, 77, 88)
    if kind == XRC:
        wr.set_qp_type_xrc(99)
    return wr
