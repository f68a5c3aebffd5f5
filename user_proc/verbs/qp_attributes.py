"""What a queue pair is asked to be, and the attributes it has.

`cap`, `ah_attr` and `alt_ah_attr` are read as copies: a change counts when it is assigned back.

Spec: rdma-core, pyverbs/qp.pyx; ibv_create_qp(3), ibv_create_qp_ex(3), ibv_modify_qp(3).
"""

from typing import Any, Final

from shared.verbs_enums import ibv_mtu, ibv_qp_create_flags, ibv_qp_init_attr_mask
from shared.verbs_enums import ibv_qp_state as state
from shared.verbs_enums import ibv_qp_type as qp_type
from user_proc.verbs.address_attributes import AHAttr
from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_int, to_u8, to_u16, to_u32, to_u64
from user_proc.verbs.cq import CQ
from user_proc.verbs.pd import PD
from user_proc.verbs.printing import Line, lines
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.srq import SRQ
from user_proc.verbs.utils import (
    access_flags_to_str,
    mig_state_to_str,
    mtu_to_str,
    names_of_flags,
    qp_state_to_str,
    qp_type_to_str,
)
from user_proc.verbs.xrcd import XRCD

_UD: Final = int(qp_type.IBV_QPT_UD)


class QPCap(PyverbsObject):
    """ibv_qp_cap."""

    max_send_wr = CField(to_u32)
    max_recv_wr = CField(to_u32)
    max_send_sge = CField(to_u32)
    max_recv_sge = CField(to_u32)
    max_inline_data = CField(to_u32)

    def __init__(
        self,
        max_send_wr: IntLike = 1,
        max_recv_wr: IntLike = 10,
        max_send_sge: IntLike = 1,
        max_recv_sge: IntLike = 1,
        max_inline_data: IntLike = 0,
    ) -> None:
        super().__init__()
        self.max_send_wr = max_send_wr
        self.max_recv_wr = max_recv_wr
        self.max_send_sge = max_send_sge
        self.max_recv_sge = max_recv_sge
        self.max_inline_data = max_inline_data

    def copy(self) -> "QPCap":
        """Make an equal one."""
        return QPCap(
            self.max_send_wr,
            self.max_recv_wr,
            self.max_send_sge,
            self.max_recv_sge,
            self.max_inline_data,
        )

    def shown(self, one: str, many: str) -> list[Line]:
        """Give the fields with their labels; the words for requests and elements differ."""
        return [
            (f"max send {one}", self.max_send_wr),
            (f"max recv {one}", self.max_recv_wr),
            (f"max send {many}", self.max_send_sge),
            (f"max recv {many}", self.max_recv_sge),
            ("max inline data", self.max_inline_data),
        ]

    def __str__(self) -> str:
        return lines(20, self.shown("wrs", "sges"))


def _cq(name: str, value: Any) -> CQ | None:
    """Take a completion queue or None."""
    if value is None or isinstance(value, CQ):
        return value
    if isinstance(value, PyverbsObject):
        raise PyverbsUserError(f"Expected CQ/CQEX, got {type(value)}")
    raise TypeError(
        f"Argument '{name}' has incorrect type (expected pyverbs.cq.CQ, got {type(value).__name__})"
    )


class _InitAttributes(PyverbsObject):
    """What both kinds of init attributes have."""

    qp_type = CField(to_int)
    sq_sig_all = CField(to_int)

    def __init__(
        self,
        kind: IntLike,
        qp_context: object,
        scq: Any,
        rcq: Any,
        srq: SRQ | None,
        cap: QPCap | None,
        sq_sig_all: IntLike,
    ) -> None:
        super().__init__()
        self.qp_type = kind
        self.sq_sig_all = sq_sig_all
        self.qp_context = qp_context
        self._send_cq = _cq("scq", scq)
        self._recv_cq = _cq("rcq", rcq)
        self._srq = optional("srq", srq, SRQ)
        given = optional("cap", cap, QPCap)
        self._cap = QPCap(0, 0, 0, 0, 0) if given is None else given.copy()

    @property
    def send_cq(self) -> CQ | None:
        """Where sends complete."""
        return self._send_cq

    @send_cq.setter
    def send_cq(self, val: Any) -> None:
        self._send_cq = _cq("val", val)

    @property
    def recv_cq(self) -> CQ | None:
        """Where receives complete."""
        return self._recv_cq

    @recv_cq.setter
    def recv_cq(self, val: Any) -> None:
        self._recv_cq = _cq("val", val)

    @property
    def srq(self) -> SRQ | None:
        """The shared receive queue."""
        return self._srq

    @srq.setter
    def srq(self, val: SRQ | None) -> None:
        self._srq = optional("val", val, SRQ)

    @property
    def cap(self) -> QPCap:
        """The capabilities, asked or granted: a copy."""
        return self._cap.copy()

    @cap.setter
    def cap(self, val: QPCap) -> None:
        self._cap = require("val", val, QPCap).copy()

    @property
    def max_send_wr(self) -> int:
        """Send requests outstanding."""
        return self._cap.max_send_wr

    @max_send_wr.setter
    def max_send_wr(self, val: IntLike) -> None:
        self._cap.max_send_wr = val

    @property
    def max_recv_wr(self) -> int:
        """Receive requests outstanding."""
        return self._cap.max_recv_wr

    @max_recv_wr.setter
    def max_recv_wr(self, val: IntLike) -> None:
        self._cap.max_recv_wr = val

    @property
    def max_send_sge(self) -> int:
        """Elements of a send request."""
        return self._cap.max_send_sge

    @max_send_sge.setter
    def max_send_sge(self, val: IntLike) -> None:
        self._cap.max_send_sge = val

    @property
    def max_recv_sge(self) -> int:
        """Elements of a receive request."""
        return self._cap.max_recv_sge

    @max_recv_sge.setter
    def max_recv_sge(self, val: IntLike) -> None:
        self._cap.max_recv_sge = val

    @property
    def max_inline_data(self) -> int:
        """Bytes a send request can carry itself."""
        return self._cap.max_inline_data

    @max_inline_data.setter
    def max_inline_data(self, val: IntLike) -> None:
        self._cap.max_inline_data = val

    def __str__(self) -> str:
        fields: list[Line] = [
            ("QP type", qp_type_to_str(self.qp_type)),
            ("SQ sig. all", self.sq_sig_all),
        ]
        caps = lines(20, self._cap.shown("WR", "SGE"), indent=2)
        return lines(20, fields) + "QP caps:\n" + caps


class QPInitAttr(_InitAttributes):
    """ibv_qp_init_attr; without `cap` all capabilities are 0."""

    def __init__(
        self,
        qp_type: IntLike = _UD,
        qp_context: object = None,
        scq: Any = None,
        rcq: Any = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: IntLike = 1,
    ) -> None:
        super().__init__(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)


class QPInitAttrEx(_InitAttributes):
    """ibv_qp_init_attr_ex; `comp_mask` says which of its further fields count."""

    comp_mask = CField(to_u32)
    create_flags = CField(to_u32)
    max_tso_header = CField(to_u16)
    source_qpn = CField(to_u32)
    send_ops_flags = CField(to_u64)

    def __init__(
        self,
        qp_type: IntLike = _UD,
        qp_context: object = None,
        scq: Any = None,
        rcq: Any = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: IntLike = 0,
        comp_mask: IntLike = 0,
        pd: PD | None = None,
        xrcd: XRCD | None = None,
        create_flags: IntLike = 0,
        max_tso_header: IntLike = 0,
        source_qpn: IntLike = 0,
        hash_conf: object = None,
        ind_table: object = None,
        send_ops_flags: IntLike = 0,
    ) -> None:
        super().__init__(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)
        if hash_conf is not None or ind_table is not None:
            raise PyverbsUserError("the device has no receive-side scaling")
        self.comp_mask = comp_mask
        self._pd = optional("pd", pd, PD)
        self._xrcd = optional("xrcd", xrcd, XRCD)
        self.create_flags = create_flags
        self.max_tso_header = max_tso_header
        self.source_qpn = source_qpn
        self.send_ops_flags = send_ops_flags

    @property
    def pd(self) -> PD | None:
        """The domain."""
        return self._pd

    @pd.setter
    def pd(self, val: PD | None) -> None:
        self._pd = optional("val", val, PD)

    @property
    def xrcd(self) -> XRCD | None:
        """The XRC domain."""
        return self._xrcd

    @xrcd.setter
    def xrcd(self, val: XRCD | None) -> None:
        self._xrcd = optional("val", val, XRCD)

    def mask_to_str(self, mask: IntLike) -> str:
        """List the bits of a mask."""
        return names_of_flags(to_u32(mask), ibv_qp_init_attr_mask)

    def flags_to_str(self, flags: IntLike) -> str:
        """List creation flags."""
        return names_of_flags(to_u32(flags), ibv_qp_create_flags)

    def __str__(self) -> str:
        return super().__str__() + lines(
            20,
            [
                ("comp mask", self.mask_to_str(self.comp_mask)),
                ("create flags", self.flags_to_str(self.create_flags)),
                ("max TSO header", self.max_tso_header),
                ("Source QPN", self.source_qpn),
            ],
        )


class QPAttr(PyverbsObject):
    """ibv_qp_attr."""

    qp_state = CField(to_int)
    cur_qp_state = CField(to_int)
    path_mtu = CField(to_int)
    path_mig_state = CField(to_int)
    qkey = CField(to_u32)
    rq_psn = CField(to_u32)
    sq_psn = CField(to_u32)
    dest_qp_num = CField(to_u32)
    qp_access_flags = CField(to_u32)
    pkey_index = CField(to_u16)
    alt_pkey_index = CField(to_u16)
    en_sqd_async_notify = CField(to_u8)
    sq_draining = CField(to_u8)
    max_rd_atomic = CField(to_u8)
    max_dest_rd_atomic = CField(to_u8)
    min_rnr_timer = CField(to_u8)
    port_num = CField(to_u8)
    timeout = CField(to_u8)
    retry_cnt = CField(to_u8)
    rnr_retry = CField(to_u8)
    alt_port_num = CField(to_u8)
    alt_timeout = CField(to_u8)
    rate_limit = CField(to_u32)

    def __init__(
        self,
        qp_state: IntLike = int(state.IBV_QPS_INIT),
        cur_qp_state: IntLike = int(state.IBV_QPS_RESET),
        port_num: IntLike = 1,
        path_mtu: IntLike = int(ibv_mtu.IBV_MTU_1024),
    ) -> None:
        super().__init__()
        for name in _ATTRIBUTES:
            setattr(self, name, 0)
        self.qp_state = qp_state
        self.cur_qp_state = cur_qp_state
        self.port_num = port_num
        self.path_mtu = path_mtu
        self._cap = QPCap(0, 0, 0, 0, 0)
        self._ah_attr = AHAttr(port_num=0)
        self._alt_ah_attr = AHAttr(port_num=0)

    @property
    def cap(self) -> QPCap:
        """The capabilities: a copy."""
        return self._cap.copy()

    @cap.setter
    def cap(self, val: QPCap) -> None:
        self._cap = require("val", val, QPCap).copy()

    @property
    def ah_attr(self) -> AHAttr:
        """The path: a copy."""
        return self._ah_attr.copy()

    @ah_attr.setter
    def ah_attr(self, val: AHAttr) -> None:
        self._ah_attr = require("val", val, AHAttr).copy()

    @property
    def alt_ah_attr(self) -> AHAttr:
        """The alternate path: a copy."""
        return self._alt_ah_attr.copy()

    @alt_ah_attr.setter
    def alt_ah_attr(self, val: AHAttr) -> None:
        self._alt_ah_attr = require("val", val, AHAttr).copy()

    def __str__(self) -> str:
        before: list[Line] = [
            ("QP state", qp_state_to_str(self.qp_state)),
            ("QP current state", qp_state_to_str(self.cur_qp_state)),
            ("Path MTU", mtu_to_str(self.path_mtu)),
            ("Path mig. state", mig_state_to_str(self.path_mig_state)),
            ("QKey", self.qkey),
            ("RQ PSN", self.rq_psn),
            ("SQ PSN", self.sq_psn),
            ("Dest QP number", self.dest_qp_num),
            ("QP access flags", access_flags_to_str(self.qp_access_flags)),
        ]
        after: list[Line] = [
            ("PKey index", self.pkey_index),
            ("Alt. PKey index", self.alt_pkey_index),
            ("En. SQD async notify", self.en_sqd_async_notify),
            ("SQ draining", self.sq_draining),
            ("Max RD atomic", self.max_rd_atomic),
            ("Max dest. RD atomic", self.max_dest_rd_atomic),
            ("Min RNR timer", self.min_rnr_timer),
            ("Port number", self.port_num),
            ("Timeout", self.timeout),
            ("Retry counter", self.retry_cnt),
            ("RNR retry", self.rnr_retry),
            ("Alt. port number", self.alt_port_num),
            ("Alt. timeout", self.alt_timeout),
            ("Rate limit", self.rate_limit),
        ]
        return "".join(
            [
                lines(22, before),
                "QP caps:\n",
                lines(20, self._cap.shown("WR", "SGE"), indent=2),
                "AH Attr:\n",
                str(self._ah_attr),
                "Alt. AH Attr:\n",
                str(self._alt_ah_attr),
                lines(22, after),
            ]
        )


_ATTRIBUTES: Final = tuple(name for name, kind in vars(QPAttr).items() if isinstance(kind, CField))
