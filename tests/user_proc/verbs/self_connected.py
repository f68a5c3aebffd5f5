"""A whole program: a queue pair that is connected to itself, queried, flushed, and closed."""

from user_proc.verbs import enums as e
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR


def run(context: Context) -> None:
    """Go through the life of a queue pair."""
    pd = PD(context)
    mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
    channel = CompChannel(context)
    cq = CQ(context, 16, None, channel)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(8, 8, 1, 1)))
    attr = QPAttr()
    attr.dest_qp_num, attr.ah_attr = qp.qp_num, AHAttr(dlid=context.query_port(1).lid)
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
    qp.to_rts(attr)
    found, init = qp.query(e.IBV_QP_STATE)
    assert (found.qp_state, found.dest_qp_num) == (e.IBV_QPS_RTS, qp.qp_num)
    assert init.cap.max_send_wr == 8
    for number in range(3):
        qp.post_recv(RecvWR(number, 1, [SGE(mr.buf, 64, mr.lkey)]))
    cq.req_notify()
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    channel.get_cq_event(cq)
    qp.post_send(SendWR(9, num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)]))
    flushed = []
    while len(flushed) < 4:
        flushed += cq.poll(4)[1]
    assert sorted(wc.wr_id for wc in flushed) == [0, 1, 2, 9]
    assert {wc.status for wc in flushed} == {e.IBV_WC_WR_FLUSH_ERR}
    cq.resize(100)
    qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    channel.close()  # closes the queues on it first
    mr.close()
    pd.close()


if __name__ == "__main__":
    with Context(name="mthca0") as opened:
        run(opened)
    print("done")
