"""Every refusal of the verbs that a program can bring about, across processes.

Each row is one call: it must raise with that errno and say why, and nothing in the kernel may have
changed: no object, number, key, locked page, or memory of the HCA.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import struct
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.end_to_end.verbs_holdings import objects_held
from tests.end_to_end.verbs_things import (
    GROUP,
    MLID,
    PEER,
    XRC_SRQ_MASK,
    XRCD_MASK,
    Things,
    attributes,
    path,
)
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID, AHAttr
from user_proc.verbs.cq import CQ, WC
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

pytestmark = pytest.mark.processes

NAME = f"refusals-{uuid.uuid4().hex[:8]}"
EINVAL, EOPNOTSUPP, ENOMEM, EFAULT = errno.EINVAL, errno.EOPNOTSUPP, errno.ENOMEM, errno.EFAULT
STATE = int(e.IBV_QP_STATE)
TO_INIT = STATE | int(e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)
TO_RTR = STATE | 0x129180
TO_RTS = STATE | 0x12E00


class Row(NamedTuple):
    """A call, its errno (-1: pyverbs has none), and a part of what the error says."""

    name: str
    call: Callable[[Things], Any]
    code: int
    words: str


def _mr(name: str, access: int, code: int, words: str, length: int = 64) -> Row:
    return Row(f"MR {name}", lambda t: MR(t.pd, length, int(access)), code, words)


MEMORY = [
    _mr("of no bytes", 0, EINVAL, "the length is 0", 0),
    _mr("remote write alone", e.IBV_ACCESS_REMOTE_WRITE, EINVAL, "need IBV_ACCESS_LOCAL_WRITE"),
    _mr("remote atomic alone", e.IBV_ACCESS_REMOTE_ATOMIC, EINVAL, "need IBV_ACCESS_LOCAL_WRITE"),
    _mr("on demand", e.IBV_ACCESS_ON_DEMAND, EOPNOTSUPP, "does not support access bits 0x40"),
    _mr("flush global", e.IBV_ACCESS_FLUSH_GLOBAL, EOPNOTSUPP, "access bits 0x100"),
    _mr("flush persistent", e.IBV_ACCESS_FLUSH_PERSISTENT, EOPNOTSUPP, "access bits 0x200"),
    *(_mr(f"bit {bit}", 1 << bit, EINVAL, f"access bits {1 << bit:#x} are unknown")
      for bit in (*range(10, 20), 30)),
    Row("MR implicit", lambda t: MR(t.pd, implicit=True), EOPNOTSUPP, "access bits 0x40"),
    Row("MR not mapped", lambda t: MR(t.pd, 4096, 1, 4096), EFAULT, "0x1000"),
    Row("MR not writable", lambda t: MR(t.pd, 64, 1, read_only()), EFAULT, "cannot be written"),
    Row("MR past the end", lambda t: MR(t.pd, 1 << 20, 0, (1 << 64) - 4096), EINVAL, "reach past"),
    Row("MR of kernel addresses", lambda t: MR(t.pd, 64, 0, (1 << 64) - 4096), EFAULT,
        "is not mapped"),
    Row("rereg without flags", lambda t: t.mr.rereg(0), EINVAL, "REREG_MR_ERR_INPUT"),
    Row("rereg unknown flag", lambda t: t.mr.rereg(8), EINVAL, "flags 0x8"),
    Row("rereg without range", lambda t: t.mr.rereg(1), EINVAL, "needs an address and a length"),
    Row("rereg access without its flag", lambda t: t.mr.rereg(2, t.pd, access=1), EINVAL,
        "without IBV_REREG_MR_CHANGE_ACCESS"),
    Row("rereg bad access", lambda t: t.mr.rereg(4, access=2), EINVAL, "IBV_ACCESS_LOCAL_WRITE"),
    Row("rereg without PD", lambda t: t.mr.rereg(2), EINVAL, "the context has no object 0"),
    Row("rereg to memory that is not there", lambda t: t.mr.rereg(1, addr=4096, length=64), EFAULT,
        "0x1000"),
    Row("rereg to read-only memory", lambda t: t.mr.rereg(1, addr=read_only(), length=64), EFAULT,
        "cannot be written"),
]  # fmt: skip


def _ah(name: str, words: str, **changes: int) -> Row:
    return Row(f"AH {name}", lambda t: AH(t.pd, attr=path(**changes)), EINVAL, words)


def _answer(name: str, gid: GID) -> Row:
    """Answer a datagram whose GRH went to a GID this port does not have."""

    def call(things: Things) -> None:
        header = struct.pack(">IHBB16s16s", 6 << 28, 0, 27, 1, PEER.raw, gid.raw)
        buffer = ctypes.create_string_buffer(header, len(header))
        wc = WC(slid=9, wc_flags=int(e.IBV_WC_GRH))
        AH(things.pd, wc=wc, grh=ctypes.addressof(buffer), port_num=1)

    return Row(f"AH answering {name}", call, EINVAL, f"{gid}, which is no GID of port 1")


ADDRESSES = [
    _ah("port 0", "there is no port 0", port_num=0),
    _ah("port 3", "there is no port 3", port_num=3),
    _ah("sl 16", "sl 16 is not 0 to 15", sl=16),
    _ah("rate", "static_rate 64", static_rate=64),
    _ah("path bits", "src_path_bits 128", src_path_bits=128),
    _ah("sgid past the table", "no index 32: the table has 32", sgid_index=32),
    _ah("flow label", "flow_label 0x100000", flow_label=1 << 20),
    _ah("sgid empty", "there is no GID at sgid_index 31", sgid_index=31),
    _ah("sgid empty of port 2", "there is no GID at sgid_index 9", sgid_index=9, port_num=2),
    _answer("a group", GROUP),
    _answer("a stranger's GID", PEER),
]

QUERIES = [
    Row("query port 0", lambda t: t.context.query_port(0), EINVAL, "there is no port 0"),
    Row("query port 3", lambda t: t.context.query_port(3), EINVAL, "there is no port 3"),
    Row("query gid port", lambda t: t.context.query_gid(3, 0), -1, "there is no port 3"),
    Row("query gid index", lambda t: t.context.query_gid(1, 32), -1, "there is no index 32"),
    Row("query gid index -1", lambda t: t.context.query_gid(1, -1), -1, "there is no index"),
    Row("query gid ex port", lambda t: t.context.query_gid_ex(0, 0), EINVAL, "there is no port 0"),
    Row("query gid ex empty", lambda t: t.context.query_gid_ex(1, 31), errno.ENODATA, "is empty"),
    Row("query gid ex flags", lambda t: t.context.query_gid_ex(1, 0, 1), EINVAL, "must be 0"),
    Row("query gid table", lambda t: t.context.query_gid_table(0), -EINVAL, "more than 0"),
    Row("query gid table flags", lambda t: t.context.query_gid_table(9, 1), -EINVAL, "must be 0"),
    Row("query gid type", lambda t: t.context.query_gid_type(1, 32), EINVAL, "no index 32"),
    Row("query pkey port", lambda t: t.context.query_pkey(0, 0), -1, "there is no port 0"),
    Row("query pkey index", lambda t: t.context.query_pkey(1, 64), -1, "there is no index 64"),
    Row("pkey that is not there", lambda t: t.context.get_pkey_index(1, 0x1234), -1, "not hold it"),
    Row("pkey of no port", lambda t: t.context.get_pkey_index(9, 0xFFFF), -1, "no port 9"),
    Row("clock", lambda t: t.context.query_rt_values_ex(2), EOPNOTSUPP, "its raw clock"),
]

QUEUES = [
    *(Row(f"CQ of {cqe}", lambda t, cqe=cqe: CQ(t.context, cqe), EINVAL, "is not 1 to 131071")
      for cqe in (0, -1, 131072, 1 << 30)),
    *(Row(f"CQ vector {vector}", lambda t, vector=vector: CQ(t.context, 4, None, None, vector),
          EINVAL, "is not 0 to 0") for vector in (-1, 1, 100)),
    *(Row(f"resize to {cqe}", lambda t, cqe=cqe: t.cq.resize(cqe), EINVAL, "is not 1 to 131071")
      for cqe in (0, -5, 131072)),
    Row("SRQ of nothing", lambda t: SRQ(t.pd, SrqInitAttr(SrqAttr(0, 1))), EINVAL, "or is 0"),
    Row("SRQ too long", lambda t: SRQ(t.pd, SrqInitAttr(SrqAttr(16385, 1))), EINVAL, "16384"),
    Row("SRQ too wide", lambda t: SRQ(t.pd, SrqInitAttr(SrqAttr(4, 28))), EINVAL, "more than 27"),
    Row("SRQ type TM", lambda t: SRQ(t.context, t.xrc_srq_attributes(kind=2)), EOPNOTSUPP, "type"),
    Row("SRQ type 9", lambda t: SRQ(t.context, t.xrc_srq_attributes(kind=9)), EINVAL, "type 9"),
    Row("SRQ unknown mask", lambda t: SRQ(t.context, t.xrc_srq_attributes(1 << 20)), EOPNOTSUPP,
        "no tag matching"),
    *(Row(f"XRC SRQ without {name}", lambda t, bit=bit: SRQ(
          t.context, t.xrc_srq_attributes(XRC_SRQ_MASK & ~bit)), EINVAL, words)
      for name, bit, words in (
          ("PD", int(e.IBV_SRQ_INIT_ATTR_PD), "protection domain is needed"),
          ("domain", int(e.IBV_SRQ_INIT_ATTR_XRCD), "XRC"),
          ("CQ", int(e.IBV_SRQ_INIT_ATTR_CQ), "completion queue"))),
    Row("SRQ limit", lambda t: t.srq.modify(SrqAttr(srq_limit=9), e.IBV_SRQ_LIMIT), EINVAL,
        "srq_limit 9 is more than the 8"),
    Row("SRQ size", lambda t: t.srq.modify(SrqAttr(max_wr=16), e.IBV_SRQ_MAX_WR), EOPNOTSUPP,
        "cannot resize"),
    Row("SRQ limit with size", lambda t: t.srq.modify(SrqAttr(16, 1, 3), 3), EOPNOTSUPP,
        "cannot resize"),
    Row("SRQ unknown attribute", lambda t: t.srq.modify(SrqAttr(), 4), EINVAL, "0x4 are unknown"),
]  # fmt: skip


def _qp(name: str, code: int, words: str, kind: int = e.IBV_QPT_RC, **changes: Any) -> Row:
    return Row(f"QP {name}", lambda t: QP(t.pd, t.qp_attributes(kind, **changes)), code, words)


def _ex(name: str, code: int, words: str, kind: int = e.IBV_QPT_RC, **changes: Any) -> Row:
    return Row(
        f"QP extended {name}", lambda t: QP(t.context, t.extended(kind, **changes)), code, words
    )


OPS = int(e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
FLAGS = int(e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_CREATE_FLAGS)
CREATIONS = [
    *(_qp(f"type {kind}", EOPNOTSUPP, "does not support queue pairs of type", kind)
      for kind in (int(e.IBV_QPT_RAW_PACKET), int(e.IBV_QPT_DRIVER), 77)),
    _qp("send requests", EINVAL, "max_wr 16385 is more than 16384", cap=QPCap(16385, 1, 1, 1)),
    _qp("receive requests", EINVAL, "max_wr 16385 is more than 16384", cap=QPCap(1, 16385, 1, 1)),
    _qp("send elements", EINVAL, "max_sge 28 is more than 27", cap=QPCap(1, 1, 28, 1)),
    _qp("receive elements", EINVAL, "max_sge 28 is more than 27", cap=QPCap(1, 1, 1, 28)),
    _qp("inline", EINVAL, "max_inline_data 401 is more than 400", cap=QPCap(1, 1, 1, 1, 401)),
    _qp("everything huge", EINVAL, "is more than", cap=QPCap(*[0xFFFF_FFFF] * 5)),
    _qp("without send CQ", EINVAL, "(scq) is needed", scq=None),
    _qp("without receive CQ", EINVAL, "(rcq) is needed", rcq=None),
    _ex("without PD", EINVAL, "protection domain is needed", comp_mask=0),
    _ex("XRC_SEND without PD", EINVAL, "domain is needed", e.IBV_QPT_XRC_SEND, comp_mask=0),
    _ex("XRC_SEND without CQ", EINVAL, "(scq) is needed", e.IBV_QPT_XRC_SEND, scq=None),
    _ex("XRC_RECV without domain", EINVAL, "an XRC domain is needed", e.IBV_QPT_XRC_RECV),
    _ex("unknown mask", EOPNOTSUPP, "offload", comp_mask=1 << 9 | 1),
    _ex("segmentation", EOPNOTSUPP, "segmentation offload",
        comp_mask=int(e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_MAX_TSO_HEADER)),
    *(_ex(f"create flag {bit}", EOPNOTSUPP, f"create_flags {1 << bit:#x}", e.IBV_QPT_UD,
          comp_mask=FLAGS, create_flags=1 << bit) for bit in (5, 8, 9, 11, 31)),
    _ex("block loopback of RC", EINVAL, "create_flags 0x2", comp_mask=FLAGS, create_flags=2),
    *(_ex(f"operation {name} of {kind}", EOPNOTSUPP, "send_ops_flags",
          getattr(e, f"IBV_QPT_{kind}"), comp_mask=OPS,
          send_ops_flags=int(getattr(e, f"IBV_QP_EX_WITH_{name}")))
      for name, kind in (
          ("RDMA_WRITE", "UD"), ("TSO", "UD"), ("RDMA_READ", "UC"), ("ATOMIC_FETCH_AND_ADD", "UC"),
          ("FLUSH", "RC"), ("ATOMIC_WRITE", "RC"))),
    Row("QP with an SRQ of another kind",
        lambda t: QP(t.pd, t.qp_attributes(srq=t.xrc_srq)), EINVAL, "is not for a queue"),
]  # fmt: skip


def _step(
    name: str, mask: int, code: int, words: str, qp: str = "init", state: int = 2, **changes: Any
) -> Row:
    def call(things: Things) -> None:
        attr = attributes(qp_state=state, **{k: _made(v) for k, v in changes.items()})
        getattr(things, qp).modify(attr, mask)

    return Row(f"modify {name}", call, code, words)


def _made(value: Any) -> Any:
    return value() if callable(value) else value


def _to_rtr(name: str, words: str, **changes: Any) -> Row:
    return _step(f"to RTR {name}", TO_RTR, EINVAL, words, **changes)


def _to_rts(name: str, words: str, **changes: Any) -> Row:
    return _step(f"to RTS {name}", TO_RTS, EINVAL, words, "rtr", 3, **changes)


def _in_sqd(name: str, bits: int, words: str, **changes: Any) -> Row:
    return _step(f"in SQD {name}", int(bits), EINVAL, words, "sqd", 4, **changes)


STEPS = [
    *(_step(f"to state {state}", STATE, EINVAL, "is no state", state=state)
      for state in (7, -1, 99)),
    *(_step(f"from state {state}", STATE | 2, EINVAL, f"cur_qp_state {state} is no state", "rtr",
            3, cur_qp_state=state) for state in (7, 99)),
    _step("from another state", STATE | 2 | 0x12E00, EINVAL, "no transition INIT to RTS", "rtr", 3,
          cur_qp_state=1),
    *(_step(f"port {port}", TO_INIT, EINVAL, f"there is no port {port}", state=1, port_num=port)
      for port in (0, 3, 255)),
    *(_step(f"pkey {index}", TO_INIT, EINVAL, f"pkey_index {index} is not below 64", state=1,
            pkey_index=index) for index in (64, 65535)),
    _to_rtr("another port", "ah_attr.port_num is 2, the queue pair's port is 1",
            ah_attr=lambda: AHAttr(dlid=1, port_num=2)),
    _to_rtr("no port", "there is no port 3", ah_attr=lambda: AHAttr(dlid=1, port_num=3)),
    _to_rtr("service level", "sl 16", ah_attr=lambda: path(sl=16)),
    _to_rtr("path bits", "src_path_bits 128", ah_attr=lambda: path(src_path_bits=128)),
    _to_rtr("static rate", "static_rate 64", ah_attr=lambda: path(static_rate=64)),
    _to_rtr("flow label", "flow_label 0x100000", ah_attr=lambda: path(flow_label=1 << 20)),
    _to_rtr("sgid past the table", "sgid_index 32 is not below 32",
            ah_attr=lambda: path(sgid_index=32)),
    _to_rtr("sgid empty", "there is no GID at sgid_index 31", ah_attr=lambda: path(sgid_index=31)),
    *(_to_rtr(f"mtu {mtu}", f"path_mtu {mtu} is no ibv_mtu", path_mtu=mtu) for mtu in (0, 6, 99)),
    _to_rtr("responder reads", "max_dest_rd_atomic 5 is more than 4", max_dest_rd_atomic=5),
    _to_rtr("RNR timer", "min_rnr_timer 32 is more than 31", min_rnr_timer=32),
    _to_rts("reads", "max_rd_atomic 129 is more than 128", max_rd_atomic=129),
    _to_rts("timeout", "timeout 32 is more than 31", timeout=32),
    _to_rts("retries", "retry_cnt 8 is more than 7", retry_cnt=8),
    _to_rts("RNR retries", "rnr_retry 8 is more than 7", rnr_retry=8),
    _step("to RTS alternate path", TO_RTS | int(e.IBV_QP_ALT_PATH), EOPNOTSUPP, "IBV_QP_ALT_PATH",
          "rtr", 3),
    _step("to RTS migration", TO_RTS | int(e.IBV_QP_PATH_MIG_STATE), EOPNOTSUPP,
          "IBV_QP_PATH_MIG_STATE", "rtr", 3),
    _step("to RTS unknown", TO_RTS | 1 << 28, EOPNOTSUPP, "0x10000000 are unknown", "rtr", 3),
    _step("to RTS caps", TO_RTS | int(e.IBV_QP_CAP), EINVAL, "does not take IBV_QP_CAP", "rtr", 3),
    _in_sqd("port", e.IBV_QP_PORT, "there is no port 9", port_num=9),
    _in_sqd("path of another port", e.IBV_QP_PORT | e.IBV_QP_AV, "ah_attr.port_num is 1",
            port_num=2),
    _in_sqd("path of no port", e.IBV_QP_AV, "there is no port 0",
            ah_attr=lambda: AHAttr(dlid=1, port_num=0)),
    _in_sqd("pkey", e.IBV_QP_PKEY_INDEX, "pkey_index 64", pkey_index=64),
    _in_sqd("timeout", e.IBV_QP_TIMEOUT, "timeout 255", timeout=255),
    _in_sqd("qkey", e.IBV_QP_QKEY, "does not take IBV_QP_QKEY"),
    _step("privileged Q_Key", STATE | 0x70, errno.EPERM, "privileged", "ud", 1, qkey=1 << 31),
]  # fmt: skip


def _open(oflags: int, descriptor: int) -> Callable[[Things], XRCD]:
    return lambda t: XRCD(t.context, XRCDInitAttr(XRCD_MASK, oflags, descriptor))


def _open_file(oflags: int, *, twice: bool = False) -> Callable[[Things], None]:
    def call(things: Things) -> None:
        with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:
            if twice:
                stack.enter_context(_open(os.O_CREAT, file.fileno())(things))
            _open(oflags, file.fileno())(things)

    return call


def _group(name: str, code: int, words: str, *, qp: str = "ud", gid: Any = GROUP, lid: int = MLID,
           attach: bool = True) -> Row:  # fmt: skip
    def call(things: Things) -> None:
        queue = getattr(things, qp)
        (queue.attach_mcast if attach else queue.detach_mcast)(gid, lid)

    return Row(f"{'attach' if attach else 'detach'} {name}", call, code, words)


DOMAINS = [
    Row("XRCD bad descriptor", _open(os.O_CREAT, 12345), errno.EBADF, "is no open file"),
    Row("XRCD not made", _open_file(0), errno.EAGAIN, "has no XRC domain"),
    Row("XRCD exclusive", _open_file(os.O_CREAT | os.O_EXCL, twice=True), EINVAL, "already"),
    Row("XRCD private without O_CREAT", _open(0, -1), errno.EAGAIN, "O_CREAT"),
    Row("XRCD half a mask", lambda t: XRCD(t.context, XRCDInitAttr(1, os.O_CREAT, -1)), EINVAL,
        "both"),
    Row("XRCD unknown mask", lambda t: XRCD(t.context, XRCDInitAttr(7, os.O_CREAT, -1)),
        EOPNOTSUPP, "unknown bits"),
    _group("not UD", EINVAL, "multicast is for UD", qp="init"),
    _group("no multicast GID", EINVAL, "begins with 0xfe", gid=PEER),
    _group("LID too small", EINVAL, "LID 0xbfff", lid=0xBFFF),
    _group("LID permissive", EINVAL, "LID 0xffff", lid=0xFFFF),
    _group("not UD", EINVAL, "multicast is for UD", qp="init", attach=False),
    _group("never attached", EINVAL, "not attached", attach=False, qp="spare_ud"),
]  # fmt: skip

DESTROYS = [
    Row("QP in a group", lambda t: t.ud.close(), errno.EBUSY, "attached to 1 multicast group:"),
]


def _send(
    name: str, code: int, words: str, qp: str = "sqd", length: int = 8, **changes: Any
) -> Row:
    def call(things: Things) -> None:
        element = SGE(things.mr.buf, length, things.mr.lkey)
        getattr(things, qp).post_send(SendWR(**{"num_sge": 1, "sg": [element]} | changes))

    return Row(f"post_send {name}", call, code, words)


def _receive(name: str, words: str, qp: str, elements: int = 1) -> Row:
    def call(things: Things) -> None:
        element = SGE(things.mr.buf, 4, things.mr.lkey)
        getattr(things, qp).post_recv(RecvWR(0, elements, [element] * elements))

    return Row(f"post_recv {name}", call, EINVAL, words)


POSTS = [
    _send("in RESET", EINVAL, "in state Reset", "with_srq"),
    _send("in INIT", EINVAL, "in state Init", "init"),
    _send("in RTR", EINVAL, "in state RTR", "rtr"),
    _send("of XRC_RECV", EINVAL, "no send queue", "xrc_target"),
    _receive("in RESET", "in state Reset", "spare_ud"),
    _receive("with an SRQ", "by its SRQ", "with_srq"),
    _receive("of XRC_RECV", "no receive queue", "xrc_target"),
    _receive("too many elements", "num_sge 9", "init", 9),
    _receive("too many elements of an SRQ", "num_sge 9", "srq", 9),
    _send("too many elements", EINVAL, "num_sge 9", num_sge=9, sg=[SGE(0, 4, 0)] * 9),
    _send("unknown opcode", EINVAL, "opcode 77 is not for RC", opcode=77),
    _send("TSO", EINVAL, "is not for RC", opcode=int(e.IBV_WR_TSO)),
    _send("FLUSH", EOPNOTSUPP, "does not do IBV_WR_FLUSH", opcode=int(e.IBV_WR_FLUSH)),
    _send("ATOMIC_WRITE", EOPNOTSUPP, "does not do", opcode=int(e.IBV_WR_ATOMIC_WRITE)),
    _send("atomic of 4 bytes", EINVAL, "an atomic has 8 bytes", length=4,
          opcode=int(e.IBV_WR_ATOMIC_FETCH_AND_ADD)),
    _send("inline too long", EINVAL, "max_inline_data", length=401,
          send_flags=int(e.IBV_SEND_INLINE)),
    _send("inline read", EINVAL, "IBV_SEND_INLINE", opcode=int(e.IBV_WR_RDMA_READ),
          send_flags=int(e.IBV_SEND_INLINE)),
    _send("bind with data", EINVAL, "takes no scatter", opcode=int(e.IBV_WR_BIND_MW)),
    _send("too much", EINVAL, "more than a message", length=(1 << 31) + 1),
]  # fmt: skip

ROWS = [
    *MEMORY, *ADDRESSES, *QUERIES, *QUEUES, *CREATIONS, *STEPS, *DOMAINS, *DESTROYS, *POSTS,
]  # fmt: skip


_pages: list[mmap.mmap] = []


def read_only() -> int:
    """The address of a page that cannot be written."""
    if not _pages:
        _pages.append(mmap.mmap(-1, mmap.PAGESIZE))
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.c_char.from_buffer(_pages[0])
        where = ctypes.c_void_p(ctypes.addressof(buffer))
        assert libc.mprotect(where, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ) == 0
        read_only.address = where.value  # type: ignore[attr-defined]  # kept with the page
    return read_only.address  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(scope="module")
def things() -> Iterator[Things]:
    with (
        start_kernel(NAME, settings={"verifier": True}),
        Context(name="mthca0", kernel=NAME) as one,
    ):
        made = Things(one)
        yield made
        made.ud.detach_mcast(GROUP, MLID)


def attributes_of(qp: QP) -> str:
    attr, init = qp.query(STATE)
    return f"{attr}{init}"


def everything(things: Things) -> tuple[Any, ...]:
    """What a refusal must not change."""
    queues = [things.init, things.rtr, things.sqd, things.ud, things.xrc_target]
    attributes = [attributes_of(qp) for qp in queues]
    keys = things.mr.lkey, things.mr.rkey
    return objects_held(kernel_state(NAME)), attributes, things.srq.query().srq_limit, keys


@pytest.fixture(scope="module")
def seen(things: Things) -> list[tuple[Any, ...]]:
    """Everything, as it was after each row; nobody else does anything meanwhile."""
    return [everything(things)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_refusal_says_why_and_changes_nothing(
    things: Things, seen: list[tuple[Any, ...]], row: Row
):
    with pytest.raises(PyverbsRDMAError) as caught:
        row.call(things)
    error = caught.value
    assert error.error_code == row.code, error
    assert row.words in str(error)
    assert error.reason
    seen.append(everything(things))
    assert seen[-1] == seen[-2]


def test_a_cq_with_more_than_its_new_size_is_not_resized(things: Things):
    cq = CQ(things.context, 16)
    qp = QP(things.pd, things.qp_attributes(scq=cq, rcq=cq, cap=QPCap(4, 8, 1, 1)), QPAttr())
    for number in range(8):
        qp.post_recv(RecvWR(number))
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), STATE)
    found = cq.poll(1)[1]
    while not found:
        found = cq.poll(1)[1]
    before = objects_held(kernel_state(NAME))
    with pytest.raises(PyverbsRDMAError, match="more than 2 completions wait") as caught:
        cq.resize(2)
    assert caught.value.error_code == EINVAL
    assert objects_held(kernel_state(NAME)) == before
    while len(found) < 8:
        found += cq.poll(8)[1]
    assert [wc.wr_id for wc in found] == list(range(8))
    qp.close()
    cq.close()


def test_a_full_queue_takes_no_more(things: Things):
    qp = QP(things.pd, things.qp_attributes(), QPAttr())
    for number in range(4):
        qp.post_recv(RecvWR(number))
    bad = RecvWR(99)
    with pytest.raises(PyverbsRDMAError, match="the queue holds 4 requests") as caught:
        qp.post_recv(RecvWR(7, 0, None, RecvWR(8)), bad)
    assert (caught.value.error_code, bad.wr_id) == (ENOMEM, 7)
    qp.close()


#: One creation of each kind, on what a process has already.
MAKERS: list[tuple[str, Callable[[Context, PD, CQ, XRCD], Any]]] = [
    ("PD", lambda context, pd, cq, xrcd: PD(context)),
    ("MR", lambda context, pd, cq, xrcd: MR(pd, 64)),
    ("AH", lambda context, pd, cq, xrcd: AH(pd, attr=AHAttr(dlid=1))),
    ("AH with a GRH", lambda context, pd, cq, xrcd: AH(pd, attr=path())),
    ("CQ", lambda context, pd, cq, xrcd: CQ(context, 4)),
    ("SRQ", lambda context, pd, cq, xrcd: SRQ(pd, SrqInitAttr(SrqAttr(4, 1)))),
    ("QP", lambda context, pd, cq, xrcd: QP(
        pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1)))),
    ("XRC_RECV", lambda context, pd, cq, xrcd: QP(context, QPInitAttrEx(
        e.IBV_QPT_XRC_RECV, xrcd=xrcd, comp_mask=int(e.IBV_QP_INIT_ATTR_XRCD)))),
    ("XRCD", lambda context, pd, cq, xrcd: XRCD(
        context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, -1))),
]  # fmt: skip


def test_a_process_that_has_all_it_may_makes_no_object_of_any_kind():
    name, most = f"{NAME}-full", 6
    settings = {"verifier": True, "hca_objects_per_process": most}
    with start_kernel(name, settings=settings), Context(name="mthca0", kernel=name) as context:
        pd, cq = PD(context), CQ(context, 4)
        xrcd = XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, -1))
        fill = [PD(context) for _ in range(most - 3)]
        before = objects_held(kernel_state(name))
        for kind, make in MAKERS:
            with pytest.raises(PyverbsRDMAError, match=f"has {most} objects") as caught:
                make(context, pd, cq, xrcd)
            assert caught.value.error_code == ENOMEM, kind
            assert objects_held(kernel_state(name)) == before, kind
        fill.pop().close()
        for _, make in MAKERS:
            make(context, pd, cq, xrcd).close()
        with Context(name="mthca0", kernel=name) as second:  # what counts is the process
            last = PD(second)
            with pytest.raises(PyverbsRDMAError, match=f"has {most} objects"):
                PD(second)
            last.close()


def test_how_many_rows_there_are():
    print(f"{len(ROWS)} refusals through the API")
    assert len({row.name for row in ROWS}) == len(ROWS) >= 150
