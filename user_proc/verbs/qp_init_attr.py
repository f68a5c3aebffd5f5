"""What a queue pair is asked to be; creating one updates it with what was granted.

`cap` is read as a copy: a change counts when it is assigned back.

Spec: rdma-core, pyverbs/qp.pyx; ibv_create_qp(3).
"""

from typing import Any, Final

from shared.verbs_enums import ibv_qp_type
from user_proc.verbs.argument_types import optional
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_int, to_u32
from user_proc.verbs.completion_queue import CompletionQueue
from user_proc.verbs.object_fields import CopiedField, ObjectField
from user_proc.verbs.printing import Line, lines
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.qp_capabilities import QPCap
from user_proc.verbs.srq import SRQ
from user_proc.verbs.utils import qp_type_to_str

UD: Final = int(ibv_qp_type.IBV_QPT_UD)


def _cq(name: str, value: Any) -> CompletionQueue | None:
    """Take a completion queue or None."""
    if value is None or isinstance(value, CompletionQueue):
        return value
    if isinstance(value, PyverbsObject):
        raise PyverbsUserError(f"Expected CQ/CQEX, got {type(value)}")
    raise TypeError(
        f"Argument '{name}' has incorrect type (expected pyverbs.cq.CQ, got {type(value).__name__})"
    )


class InitAttributes(PyverbsObject):
    """What both kinds of init attributes have."""

    qp_type = CField(to_int)
    sq_sig_all = CField(to_int)
    srq = ObjectField(SRQ)
    cap = CopiedField(QPCap)
    max_send_wr = CField(to_u32, inside="_cap")
    max_recv_wr = CField(to_u32, inside="_cap")
    max_send_sge = CField(to_u32, inside="_cap")
    max_recv_sge = CField(to_u32, inside="_cap")
    max_inline_data = CField(to_u32, inside="_cap")

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
    def send_cq(self) -> CompletionQueue | None:
        """Where sends complete."""
        return self._send_cq

    @send_cq.setter
    def send_cq(self, val: Any) -> None:
        self._send_cq = _cq("val", val)

    @property
    def recv_cq(self) -> CompletionQueue | None:
        """Where receives complete."""
        return self._recv_cq

    @recv_cq.setter
    def recv_cq(self, val: Any) -> None:
        self._recv_cq = _cq("val", val)

    def __str__(self) -> str:
        fields: list[Line] = [
            ("QP type", qp_type_to_str(self.qp_type)),
            ("SQ sig. all", self.sq_sig_all),
        ]
        caps = lines(20, self._cap.shown("WR", "SGE"), indent=2)
        return lines(20, fields) + "QP caps:\n" + caps


class QPInitAttr(InitAttributes):
    """ibv_qp_init_attr; without `cap` all capabilities are 0."""

    def __init__(
        self,
        qp_type: IntLike = UD,
        qp_context: object = None,
        scq: Any = None,
        rcq: Any = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: IntLike = 1,
    ) -> None:
        super().__init__(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)
