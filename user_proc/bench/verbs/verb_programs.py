"""The programs of verbs that are timed: every verb once, a registration alone, the control mix.

A program is bytes: user processes perform it by IOCTLs, the kernel client by direct calls. The
set-up makes one object of each kind that stays, as in any process at work: without it every
creation would be the first of its kind, and map a chunk of the HCA's tables.

The control mix: PD, 4 KiB MR, CQ, RC QP to RTS, query, all destroyed.

Spec: docs/benchmark-verbs.md.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from shared import verb_codes as codes
from shared import verb_messages as m
from shared.verb_program import VerbStep
from shared.verbs_enums import (
    ibv_access_flags,
    ibv_mtu,
    ibv_mw_type,
    ibv_qp_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
    ibv_rereg_mr_flags,
    ibv_srq_attr_mask,
)

# Registers with the addresses of a user's memory; a kernel client's is made by the driver.
REGION, CQ_MEMORY, OTHER_CQ_MEMORY, SRQ_MEMORY, QP_MEMORY, UD_MEMORY = range(6)
KEPT_CQ_MEMORY, KEPT_SRQ_MEMORY, KEPT_QP_MEMORY = 6, 7, 8
MEMORY_REGISTERS: Final = range(CQ_MEMORY, KEPT_QP_MEMORY + 1)
QUEUE_BYTES: Final = 64 << 10
REGION_BYTES: Final = 4096

# Registers with handles and numbers.
_LID, _PD, _MR, _MW, _AH, _CQ, _SRQ, _QP, _QPN, _UD, _XRCD, _DM = range(16, 28)
_KEPT_PD, _KEPT_MR, _KEPT_CQ, _KEPT_SRQ, _KEPT_QP = range(32, 37)

_HANDLE, _QPN_FIELD, _LID_FIELD = 0, 1, 9
_CQE, _OTHER_CQE, _DEPTH = 127, 255, 32
_PORT: Final = 1
_ACCESS: Final = int(
    ibv_access_flags.IBV_ACCESS_LOCAL_WRITE
    | ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
    | ibv_access_flags.IBV_ACCESS_REMOTE_READ
)
_LOCAL_ONLY: Final = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
_GID: Final = bytes((0xFF, 0x12, 0xA0, 0x1B, *bytes(11), 1))
_GROUP_LID: Final = 0xC001
_MW_TYPE: Final = int(ibv_mw_type.IBV_MW_TYPE_2)
_QKEY: Final = 0x11111111


class TimedStep(NamedTuple):
    """A step, and the name of the row its time belongs to; none if it is there for the others."""

    row: str
    step: VerbStep


class Program(NamedTuple):
    """What is done once, and what is done and timed again and again."""

    setup: tuple[VerbStep, ...]
    steps: tuple[TimedStep, ...]

    def for_client(self, client: str) -> "Program":
        """Leave out what the client does not have: rereg_mr is a user's."""
        if client == "user":
            return self
        steps = (one for one in self.steps if one.step.code != codes.IOCTL_REREG_MR)
        return Program(self.setup, tuple(steps))

    @property
    def rows(self) -> list[str]:
        """Return the rows it has, in order."""
        return [one.row for one in self.steps if one.row]


def _step(
    code: int,
    message: Any = None,
    uses: Mapping[str, int] | None = None,
    gives: Mapping[int, int] | None = None,
) -> VerbStep:
    """Make a step; `uses` names fields of the request, `gives` counts those of the answer."""
    names = message._fields if message is not None else ()
    places = tuple((names.index(name), register) for name, register in (uses or {}).items())
    return VerbStep(code, message, places, tuple((gives or {}).items()))


def _named(step: VerbStep) -> TimedStep:
    return TimedStep(step.name, step)


def _make(code: int, message: Any, register: int, **uses: int) -> VerbStep:
    return _step(code, message, uses, {_HANDLE: register})


def _destroy(code: int, register: int) -> VerbStep:
    return _step(code, m.Object(0), {"handle": register})


def _alloc_pd(register: int = _PD) -> VerbStep:
    return _step(codes.IOCTL_ALLOC_PD, None, None, {_HANDLE: register})


def _reg_mr(length: int, pd: int = _PD, register: int = _MR) -> VerbStep:
    message = m.RegMr(0, 0, length, 0, _ACCESS)
    return _make(codes.IOCTL_REG_MR, message, register, pd=pd, address=REGION, iova=REGION)


def _create_cq(register: int = _CQ, memory: int = CQ_MEMORY) -> VerbStep:
    message = m.CreateCq(_CQE, 0, 0, 0, 0, QUEUE_BYTES)
    return _make(codes.IOCTL_CREATE_CQ, message, register, buffer=memory)


def _create_srq(register: int = _SRQ, memory: int = SRQ_MEMORY, pd: int = _PD) -> VerbStep:
    message = m.CreateSrq(0, 0, _DEPTH, 1, 0, 0, 0, QUEUE_BYTES)
    return _make(codes.IOCTL_CREATE_SRQ, message, register, pd=pd, buffer=memory)


def _create_qp(kind: int, register: int, memory: int, pd: int = _PD, cq: int = _CQ) -> VerbStep:
    message = m.CreateQp(
        qp_type=kind,
        pd=0,
        send_cq=0,
        receive_cq=0,
        srq=0,
        xrcd=0,
        max_send_wr=_DEPTH,
        max_recv_wr=_DEPTH,
        max_send_sge=1,
        max_recv_sge=1,
        max_inline_data=0,
        sq_sig_all=0,
        create_flags=0,
        send_ops_flags=0,
        buffer=0,
        buffer_length=QUEUE_BYTES,
    )
    uses = {"pd": pd, "send_cq": cq, "receive_cq": cq, "buffer": memory}
    gives = {_HANDLE: register}
    if register == _QP:
        gives[_QPN_FIELD] = _QPN
    return _step(codes.IOCTL_CREATE_QP, message, uses, gives)


def _modify_qp(register: int, state: int, mask: int, **values: int) -> VerbStep:
    zeros: dict[str, Any] = dict.fromkeys(m.ModifyQp._fields, 0)
    zeros.update(ah_dgid=b"", qp_state=state, mask=mask | int(_MASK.IBV_QP_STATE), **values)
    uses = {"handle": register}
    if state == _RTR:
        uses.update(dest_qp_num=_QPN, ah_dlid=_LID)
    return _step(codes.IOCTL_MODIFY_QP, m.ModifyQp(**zeros), uses)


_MASK = ibv_qp_attr_mask
_INIT, _RTR, _RTS = (
    int(state)
    for state in (ibv_qp_state.IBV_QPS_INIT, ibv_qp_state.IBV_QPS_RTR, ibv_qp_state.IBV_QPS_RTS)
)
_RC, _UD_TYPE = int(ibv_qp_type.IBV_QPT_RC), int(ibv_qp_type.IBV_QPT_UD)
_INIT_MASK = int(_MASK.IBV_QP_PKEY_INDEX | _MASK.IBV_QP_PORT | _MASK.IBV_QP_ACCESS_FLAGS)
_UD_MASK = int(_MASK.IBV_QP_PKEY_INDEX | _MASK.IBV_QP_PORT | _MASK.IBV_QP_QKEY)
_RTR_MASK = int(
    _MASK.IBV_QP_AV
    | _MASK.IBV_QP_PATH_MTU
    | _MASK.IBV_QP_DEST_QPN
    | _MASK.IBV_QP_RQ_PSN
    | _MASK.IBV_QP_MAX_DEST_RD_ATOMIC
    | _MASK.IBV_QP_MIN_RNR_TIMER
)
_RTS_MASK = int(
    _MASK.IBV_QP_SQ_PSN
    | _MASK.IBV_QP_TIMEOUT
    | _MASK.IBV_QP_RETRY_CNT
    | _MASK.IBV_QP_RNR_RETRY
    | _MASK.IBV_QP_MAX_QP_RD_ATOMIC
)


def _to_init() -> VerbStep:
    return _modify_qp(_QP, _INIT, _INIT_MASK, port_num=_PORT, qp_access_flags=_ACCESS)


def _to_rtr() -> VerbStep:
    return _modify_qp(
        _QP,
        _RTR,
        _RTR_MASK,
        path_mtu=int(ibv_mtu.IBV_MTU_1024),
        max_dest_rd_atomic=1,
        min_rnr_timer=12,
        ah_port_num=_PORT,
    )


def _to_rts() -> VerbStep:
    return _modify_qp(_QP, _RTS, _RTS_MASK, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=1)


def _query_port() -> VerbStep:
    port = m.PortQuery(_PORT)
    return _step(codes.IOCTL_QUERY_PORT, port, None, {_LID_FIELD: _LID})


_QUERY_QP: Final = _destroy(codes.IOCTL_QUERY_QP, _QP)
_DESTROY_QP: Final = _destroy(codes.IOCTL_DESTROY_QP, _QP)
_DESTROY_CQ: Final = _destroy(codes.IOCTL_DESTROY_CQ, _CQ)
_DEALLOC_PD: Final = _destroy(codes.IOCTL_DEALLOC_PD, _PD)
_DEREG_MR: Final = _destroy(codes.IOCTL_DEREG_MR, _MR)
_FIND_LID: Final = (_query_port(),)
_CONNECTION: Final = (
    TimedStep("create_qp", _create_qp(_RC, _QP, QP_MEMORY)),
    TimedStep("modify_qp_init", _to_init()),
    TimedStep("modify_qp_rtr", _to_rtr()),
    TimedStep("modify_qp_rts", _to_rts()),
    TimedStep("query_qp", _QUERY_QP),
    TimedStep("destroy_qp", _DESTROY_QP),
)


def every_verb() -> Program:
    """Return the program with a row for every control verb."""
    return Program(
        (
            *_FIND_LID,
            _alloc_pd(_KEPT_PD),
            _reg_mr(REGION_BYTES, _KEPT_PD, _KEPT_MR),
            _create_cq(_KEPT_CQ, KEPT_CQ_MEMORY),
            _create_srq(_KEPT_SRQ, KEPT_SRQ_MEMORY, _KEPT_PD),
            _create_qp(_RC, _KEPT_QP, KEPT_QP_MEMORY, _KEPT_PD, _KEPT_CQ),
        ),
        (
            *_of_device(),
            _named(_alloc_pd()),
            *_of_memory(),
            _named(_create_cq()),
            _named(_resize_cq()),
            *_of_srq(),
            *_CONNECTION,
            *_of_multicast(),
            *_of_xrc_domain(),
            _named(_DESTROY_CQ),
            _named(_DEALLOC_PD),
        ),
    )


def _of_device() -> tuple[TimedStep, ...]:
    entry = m.PortQuery(_PORT, 0)
    return (
        _named(_step(codes.IOCTL_QUERY_DEVICE)),
        _named(_step(codes.IOCTL_QUERY_DEVICE_EX)),
        _named(_step(codes.IOCTL_QUERY_CLOCK)),
        _named(_query_port()),
        _named(_step(codes.IOCTL_QUERY_GID, entry)),
        _named(_step(codes.IOCTL_QUERY_PKEY, entry)),
        _named(_step(codes.IOCTL_MODIFY_PORT, m.ModifyPort(_PORT, 0, 0, 0))),
    )


def _of_memory() -> tuple[TimedStep, ...]:
    change = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS)
    rereg = m.ReregMr(0, change, 0, 0, 0, _LOCAL_ONLY)
    address = m.CreateAh(0, _PORT, 1, 0, 0, 0, 0, b"", 0, 0, 0, 0)
    return (
        _named(_reg_mr(REGION_BYTES)),
        _named(_step(codes.IOCTL_REREG_MR, rereg, {"handle": _MR})),
        _named(_DEREG_MR),
        _named(_make(codes.IOCTL_ALLOC_MW, m.AllocMw(0, _MW_TYPE), _MW, pd=_PD)),
        _named(_destroy(codes.IOCTL_DEALLOC_MW, _MW)),
        _named(_make(codes.IOCTL_ALLOC_DM, m.AllocDm(REGION_BYTES, 0), _DM)),
        _named(_destroy(codes.IOCTL_FREE_DM, _DM)),
        _named(_make(codes.IOCTL_CREATE_AH, address, _AH, pd=_PD)),
        _named(_destroy(codes.IOCTL_DESTROY_AH, _AH)),
    )


def _resize_cq() -> VerbStep:
    message = m.ResizeCq(0, _OTHER_CQE, 0, QUEUE_BYTES)
    uses = {"handle": _CQ, "buffer": OTHER_CQ_MEMORY}
    return _step(codes.IOCTL_RESIZE_CQ, message, uses)


def _of_srq() -> tuple[TimedStep, ...]:
    limit = m.ModifySrq(0, int(ibv_srq_attr_mask.IBV_SRQ_LIMIT), 0, 1)
    return (
        _named(_create_srq()),
        _named(_step(codes.IOCTL_MODIFY_SRQ, limit, {"handle": _SRQ})),
        _named(_destroy(codes.IOCTL_QUERY_SRQ, _SRQ)),
        _named(_destroy(codes.IOCTL_DESTROY_SRQ, _SRQ)),
    )


def _of_multicast() -> tuple[TimedStep, ...]:
    group = m.Multicast(0, _GID, _GROUP_LID)
    return (
        TimedStep("", _create_qp(_UD_TYPE, _UD, UD_MEMORY)),
        TimedStep("", _modify_qp(_UD, _INIT, _UD_MASK, port_num=_PORT, qkey=_QKEY)),
        _named(_step(codes.IOCTL_ATTACH_MCAST, group, {"qp": _UD})),
        _named(_step(codes.IOCTL_DETACH_MCAST, group, {"qp": _UD})),
        TimedStep("", _destroy(codes.IOCTL_DESTROY_QP, _UD)),
    )


def _of_xrc_domain() -> tuple[TimedStep, ...]:
    domain = m.OpenXrcd(m.NO_FD, 0o100)  # O_CREAT
    return (
        _named(_make(codes.IOCTL_OPEN_XRCD, domain, _XRCD)),
        _named(_destroy(codes.IOCTL_CLOSE_XRCD, _XRCD)),
    )


def registration(length: int) -> Program:
    """Return the program that registers so many bytes and takes the registration back."""
    setup = (_alloc_pd(), _reg_mr(REGION_BYTES, _PD, _KEPT_MR))
    return Program(setup, (_named(_reg_mr(length)), _named(_DEREG_MR)))


def control_mix() -> Program:
    """Return the control mix; one pass is one mix."""
    return Program(
        _FIND_LID,
        (
            _named(_alloc_pd()),
            _named(_reg_mr(REGION_BYTES)),
            _named(_create_cq()),
            *_CONNECTION,
            _named(_DESTROY_CQ),
            _named(_DEREG_MR),
            _named(_DEALLOC_PD),
        ),
    )
