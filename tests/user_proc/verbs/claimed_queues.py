"""What the fields of the device that tell of queues stand for; as claimed_limits.py has it."""

import errno
from collections.abc import Callable
from typing import Any, Final

from tests.user_proc.verbs.claims import OK, Check, Claims
from tests.user_proc.verbs.extended_program import refused
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR


def filled(make: Callable[[], Any], most: int) -> None:
    """Make so many; one more is ENOMEM, until one of them is closed."""
    made = [make() for _ in range(most)]
    assert refused(make) == errno.ENOMEM
    made.pop().close()
    made.append(make())
    for one in made:
        one.close()


def made_or(make: Callable[[int], Any], most: int, number: int = errno.EINVAL) -> None:
    """Make one of the largest size; a larger one is refused."""
    make(most).close()
    assert refused(lambda: make(most + 1)) == number


def queue_pair(c: Claims, cap: QPCap, kind: int = e.IBV_QPT_RC) -> QP:
    return QP(c.pd, QPInitAttr(int(kind), scq=c.cq, rcq=c.cq, cap=cap))


def max_qp(c: Claims) -> None:
    filled(lambda: queue_pair(c, QPCap(1, 1), e.IBV_QPT_UD), c.device.max_qp)


def max_qp_wr(c: Claims) -> None:
    most = c.device.max_qp_wr
    made_or(lambda count: queue_pair(c, QPCap(count, 1)), most)
    made_or(lambda count: queue_pair(c, QPCap(1, count)), most)
    qp = queue_pair(c, QPCap(1, most))
    qp.to_init(QPAttr())
    for _ in range(most):
        c.receive(qp)
    assert refused(lambda: c.receive(qp)) == errno.ENOMEM
    qp.close()


def _elements(c: Claims, count: int) -> list[SGE]:
    return [c.element(2, 2 * number) for number in range(count)]


def max_sge(c: Claims) -> None:
    _of_elements(c, c.device.max_sge, e.IBV_WR_SEND)


def max_sge_rd(c: Claims) -> None:
    _of_elements(c, c.device.max_sge_rd, e.IBV_WR_RDMA_READ)


def _of_elements(c: Claims, most: int, opcode: int) -> None:
    for cap in (QPCap(1, 1, most + 1, 1), QPCap(1, 1, 1, most + 1)):
        assert refused(lambda cap=cap: queue_pair(c, cap)) == errno.EINVAL
    qp = queue_pair(c, QPCap(2, 2, most, most))
    qp.to_rts(c.attributes(qp.qp_num))
    c.mr.write(bytes(8192), 8192)
    c.mr.write(b"0123456789" * 30, 300, 4096 if opcode == e.IBV_WR_RDMA_READ else 0)
    apart = [SGE(c.mr.buf + 6000 + 8 * n, 2, c.mr.lkey) for n in range(most)]
    near = _elements(c, most)
    if opcode == e.IBV_WR_SEND:
        qp.post_recv(RecvWR(7, most, apart))
    request = SendWR(5, num_sge=most, sg=apart if opcode != e.IBV_WR_SEND else near)
    request.opcode = int(opcode)
    request.set_wr_rdma(c.mr.rkey, c.mr.buf + 4096)
    qp.post_send(request)
    assert set(c.statuses(2 if opcode == e.IBV_WR_SEND else 1)) == {OK}
    text = (b"0123456789" * 30)[: 2 * most]
    assert b"".join(c.mr.read(2, 6000 + 8 * n) for n in range(most)) == text
    more = SendWR(5, num_sge=most + 1, sg=_elements(c, most + 1), opcode=int(opcode))
    assert refused(lambda: qp.post_send(more)) == errno.EINVAL
    qp.close()


def max_cq(c: Claims) -> None:
    filled(lambda: CQ(c.context, 1), c.device.max_cq - 1)  # beside the one of the checks


def max_cqe(c: Claims) -> None:
    """The largest queue holds so many completions without an overrun."""
    most = c.device.max_cqe
    made_or(lambda count: CQ(c.context, count), most)
    cq = CQ(c.context, most)
    attr = QPInitAttr(int(e.IBV_QPT_UD), scq=cq, rcq=cq, cap=QPCap(1, most))
    qp = QP(c.pd, attr)
    qp.to_init(QPAttr())
    for _ in range(most):
        c.receive(qp)
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert len(c.completions(most, cq)) == most
    for one in (qp, cq):
        one.close()


def max_srq(c: Claims) -> None:
    filled(lambda: SRQ(c.pd, SrqInitAttr(SrqAttr(1, 1))), c.device.max_srq)


def max_srq_wr(c: Claims) -> None:
    most = c.device.max_srq_wr
    made_or(lambda count: SRQ(c.pd, SrqInitAttr(SrqAttr(count, 1))), most)
    srq = SRQ(c.pd, SrqInitAttr(SrqAttr(most, 1)))
    for _ in range(most):
        c.receive(srq)
    assert refused(lambda: c.receive(srq)) == errno.ENOMEM
    srq.close()


def max_srq_sge(c: Claims) -> None:
    most = c.device.max_srq_sge
    made_or(lambda count: SRQ(c.pd, SrqInitAttr(SrqAttr(1, count))), most)
    srq = SRQ(c.pd, SrqInitAttr(SrqAttr(1, most)))
    assert refused(lambda: srq.post_recv(RecvWR(7, most + 1, _elements(c, most + 1))))
    srq.post_recv(RecvWR(7, most, _elements(c, most)))
    srq.close()


QUEUES: Final[dict[str, Check]] = {
    "max_qp": max_qp,
    "max_qp_wr": max_qp_wr,
    "max_sge": max_sge,
    "max_sge_rd": max_sge_rd,
    "max_cq": max_cq,
    "max_cqe": max_cqe,
    "max_srq": max_srq,
    "max_srq_wr": max_srq_wr,
    "max_srq_sge": max_srq_sge,
}
