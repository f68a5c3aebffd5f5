"""A user program that forks: what its child may do with what it inherited, and what not.

The program, whose word is KERNEL, says "good" when everything was as it should be.
"""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable

from tests.end_to_end.verbs_holdings import everything_held, wait_for_nothing_more
from tests.end_to_end.verbs_things import GROUP, MLID, Things
from tests.user_proc.verbs.self_connected import run
from user_proc.transport.kernel_control import kernel_state
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.qp import QP, QPAttr
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

WORDS = "made before fork and belongs to the parent"


def uses(t: Things) -> dict[str, Callable[[], object]]:
    """Every use of an inherited object that needs the kernel, the device, or a queue."""
    element = SGE(t.mr.buf, 8, t.mr.lkey)
    return {
        "query_device": t.context.query_device,
        "query_port": lambda: t.context.query_port(1),
        "query_gid": lambda: t.context.query_gid(1, 0),
        "get_async_event": t.context.get_async_event,
        "async_fd": lambda: t.context.async_fd,
        "PD": lambda: PD(t.context),
        "MR": lambda: MR(t.pd, 64, 1),
        "AH": lambda: AH(t.pd, attr=AHAttr(dlid=1)),
        "CompChannel": lambda: CompChannel(t.context),
        "CQ": lambda: CQ(t.context, 4),
        "SRQ": lambda: SRQ(t.pd, SrqInitAttr(SrqAttr(4, 1))),
        "QP": lambda: QP(t.pd, t.qp_attributes()),
        "XRCD": lambda: XRCD(t.context, XRCDInitAttr(3, os.O_CREAT, -1)),
        "rereg": lambda: t.mr.rereg(4, access=0),
        "poll": t.cq.poll,
        "req_notify": t.cq.req_notify,
        "resize": lambda: t.cq.resize(8),
        "get_cq_event": lambda: t.channel.get_cq_event(t.cq),
        "srq.query": t.srq.query,
        "srq.modify": lambda: t.srq.modify(SrqAttr(srq_limit=1), e.IBV_SRQ_LIMIT),
        "srq.post_recv": lambda: t.srq.post_recv(RecvWR(1, 1, [element])),
        "qp.query": lambda: t.init.query(e.IBV_QP_STATE),
        "qp.modify": lambda: t.init.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE),
        "post_recv": lambda: t.init.post_recv(RecvWR(1, 1, [element])),
        "post_send": lambda: t.sqd.post_send(SendWR(num_sge=1, sg=[element])),
        "attach": lambda: t.ud.attach_mcast(GROUP, MLID),
        "detach": lambda: t.ud.detach_mcast(GROUP, MLID),
        **{f"close {type(one).__name__}": one.close for one in (
            t.mr, t.ah, t.init, t.srq, t.cq, t.channel, t.xrcd, t.pd, t.context)},
    }  # fmt: skip


def child(things: Things, kernel: str) -> None:
    """Use everything that was inherited, then a context of one's own."""
    for name, use in uses(things).items():
        answer = "nothing was raised"
        try:
            use()
        except PyverbsUserError as error:
            answer = str(error)
        assert WORDS in answer, (name, answer)
    assert things.mr.read(5, 0) == b"hello"
    with Context(name="mthca0", kernel=kernel) as own:
        run(own)
        things.mr.write(b"world", 5)
    del things
    gc.collect()


def main() -> None:
    """Fork in several ways; nothing of the parent's may change."""
    kernel = sys.argv[1]
    context = Context(name="mthca0", kernel=kernel)
    things = Things(context)
    things.mr.write(b"hello", 5)
    before = everything_held(kernel_state(kernel))
    pid = os.fork()
    if not pid:
        try:
            child(things, kernel)
            sys.exit(0)  # through every finaliser
        except Exception:
            traceback.print_exc()
            os._exit(9)
    assert os.waitpid(pid, 0)[1] == 0
    assert things.mr.read(5, 0) == b"world"
    # A child that is killed, having used nothing.
    pid = os.fork()
    if not pid:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_for_nothing_more(kernel, before)
    assert things.init.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_INIT
    for number in range(2):
        things.init.post_recv(RecvWR(number))
    things.cq.req_notify()
    things.init.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    things.channel.get_cq_event(things.cq)
    found: list[int] = []
    while len(found) < 2:
        found += [wc.wr_id for wc in things.cq.poll(2)[1]]
    assert found == [0, 1]
    things.ud.detach_mcast(GROUP, MLID)
    context.close()
    print("good", flush=True)
