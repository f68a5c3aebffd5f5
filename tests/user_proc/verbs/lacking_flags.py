"""What the device does not tell of: one check a bit, which gives the errno of the refusal."""

import errno
from collections.abc import Callable
from typing import Any, Final

from tests.user_proc.verbs.claimed_flags import mem_window_type_2b
from tests.user_proc.verbs.claims import (
    QKEY,
    Claims,
)
from tests.user_proc.verbs.extended_program import refused
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH
from user_proc.verbs.qp import QPAttr
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr


def _modify(mask: int, state: int = e.IBV_QPS_RTS, **values: Any) -> Callable[[Claims], int]:
    def check(c: Claims) -> int:
        one, _ = c.pair()
        attr = QPAttr(qp_state=int(state))
        for name, value in values.items():
            setattr(attr, name, value)
        return refused(lambda: one.modify(attr, e.IBV_QP_STATE | mask))

    return check


def _raw(c: Claims) -> int:
    return refused(lambda: c.queue_pair(e.IBV_QPT_RAW_PACKET))


def _srq_resize(c: Claims) -> int:
    srq = SRQ(c.pd, SrqInitAttr(SrqAttr(8, 1)))
    found = refused(lambda: srq.modify(SrqAttr(16), e.IBV_SRQ_MAX_WR))
    assert srq.query().max_wr == 8
    return found


def _checksum(kind: int) -> Callable[[Claims], int]:
    def check(c: Claims) -> int:
        qp = c.datagrams() if kind == e.IBV_QPT_UD else c.pair()[0]
        request = c.send(qp, send_flags=int(e.IBV_SEND_IP_CSUM))
        if kind == e.IBV_QPT_UD:
            request.set_wr_ud(AH(c.pd, attr=c.local()), 5, QKEY)
        return refused(lambda: qp.post_send(request))

    return check


def _missing(owner: str) -> Callable[[Claims], int]:
    """Give the check of something the library has no name for."""

    def check(c: Claims) -> int:
        module, _, name = owner.rpartition(".")
        found = __import__(f"user_proc.verbs.{module}", fromlist=["x"])
        return 0 if hasattr(found, name) else errno.EOPNOTSUPP

    return check


def _type_2a(c: Claims) -> int:
    """A window of type 2A would be reached through any queue pair of its domain."""
    mem_window_type_2b(c)
    return errno.EOPNOTSUPP


def _shut_down(c: Claims) -> int:
    return errno.EOPNOTSUPP if not hasattr(c.context, "modify_port") else 0


def _init_type(c: Claims) -> int:
    return errno.EOPNOTSUPP if c.context.query_port(1).init_type_reply == 0 else 0


def _n_notify(c: Claims) -> int:
    try:
        c.cq.req_notify(False, 5)  # type: ignore[call-arg]
    except TypeError:
        return errno.EOPNOTSUPP
    return 0


#: errno with which each is refused; what has no call of its own at all counts as EOPNOTSUPP.
LACKING: Final[dict[str, tuple[Callable[[Claims], int], int]]] = {
    "RESIZE_MAX_WR": (_modify(e.IBV_QP_CAP), errno.EINVAL),
    "RAW_MULTI": (_raw, errno.EOPNOTSUPP),
    "AUTO_PATH_MIG": (_modify(e.IBV_QP_PATH_MIG_STATE), errno.EOPNOTSUPP),
    "CURR_QP_STATE_MOD": (
        _modify(e.IBV_QP_CUR_STATE, cur_qp_state=int(e.IBV_QPS_SQE)), errno.EINVAL,
    ),
    "SHUTDOWN_PORT": (_shut_down, errno.EOPNOTSUPP),
    "INIT_TYPE": (_init_type, errno.EOPNOTSUPP),
    "SRQ_RESIZE": (_srq_resize, errno.EOPNOTSUPP),
    "N_NOTIFY_CQ": (_n_notify, errno.EOPNOTSUPP),
    "UD_IP_CSUM": (_checksum(e.IBV_QPT_UD), errno.EOPNOTSUPP),
    "RC_IP_CSUM": (_checksum(e.IBV_QPT_RC), errno.EOPNOTSUPP),
    "RAW_IP_CSUM": (_raw, errno.EOPNOTSUPP),
    "MEM_WINDOW_TYPE_2A": (_type_2a, errno.EOPNOTSUPP),
    "MANAGED_FLOW_STEERING": (_missing("qp.Flow"), errno.EOPNOTSUPP),
}  # fmt: skip
