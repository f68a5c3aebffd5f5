"""User processes that carry out random verbs for ever, to be killed anywhere.

The program, whose words are KERNEL FILE, forks a child for each seed it reads; the child connects,
opens the device, and writes a byte before each verb. What is done follows from the seed; two
threads do it, on shared objects. FILE is what its XRC domains are shared by.
"""

import contextlib
import ctypes
import mmap
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from shared import verb_codes as codes
from shared.verb_messages import Object, PortQuery, RegMr
from tests.end_to_end.verbs_raw import Pended, RawVerbs
from user_proc.errors import SofthcaError
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID, AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

THREADS = 2
MOST = 12  # of each kind
XRCD_MASK = int(e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS)
KINDS = (e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD)


def attributes() -> QPAttr:
    attr = QPAttr()
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.ah_attr = AHAttr(dlid=1)
    return attr


class Victim:
    """One process's random verbs."""

    def __init__(self, kernel: str, descriptor: int) -> None:
        self.process = UserProcess.connect(kernel)
        self.context = Context(name="mthca0", process=self.process)
        self.channel = CompChannel(self.context)
        self.descriptor = descriptor
        self.raw = RawVerbs(self.process, self.context.session().device)
        self.started: list[Pended] = []
        self.had: dict[str, list[Any]] = {}
        self.pages = mmap.mmap(-1, 1 << 16)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.had["pd"] = [PD(self.context)]
        self.had["cq"] = [CQ(self.context, 32, None, self.channel)]
        self.verbs: list[Callable[[random.Random], object]] = [
            self.make_pd, self.make_mr, self.make_private_mr, self.make_cq, self.make_srq,
            self.make_qp, self.make_qp, self.make_ah, self.make_xrcd, self.make_target,
            self.move_qp, self.move_qp, self.move_qp, self.query_qp, self.attach, self.detach,
            self.resize, self.rereg, self.post, self.post, self.arm, self.poll, self.limit,
            self.query_port, self.another_context, self.destroy, self.destroy, self.drop,
            self.start_and_forget, self.start_and_forget,
        ]  # fmt: skip

    def run(self, seed: int) -> None:
        """Go on for ever."""
        chance = random.Random(seed)
        while True:
            verb = chance.choice(self.verbs)
            os.write(1, b".")
            with contextlib.suppress(PyverbsError, SofthcaError, LookupError):  # refused
                verb(chance)

    def one(self, kind: str, chance: random.Random) -> Any:
        return chance.choice(self.had[kind])

    def keep(self, kind: str, made: Any, chance: random.Random) -> None:
        them = self.had.setdefault(kind, [])
        them.append(made)
        if len(them) > MOST:
            them.pop(chance.randrange(1, len(them))).close()

    def make_pd(self, chance: random.Random) -> None:
        self.keep("pd", PD(self.context), chance)

    def make_mr(self, chance: random.Random) -> None:
        length = chance.choice([1, 4096, 100_000, 3 << 20])
        self.keep("mr", MR(self.one("pd", chance), length, 7), chance)

    def make_private_mr(self, chance: random.Random) -> None:
        start = chance.randrange(1 << 15)
        region = MR(self.one("pd", chance), chance.randrange(1, 1 << 15), 1, self.address + start)
        self.keep("mr", region, chance)

    def make_cq(self, chance: random.Random) -> None:
        size = chance.choice([1, 15, 500])
        self.keep("cq", CQ(self.context, size, None, chance.choice([None, self.channel])), chance)

    def make_srq(self, chance: random.Random) -> None:
        self.keep("srq", SRQ(self.one("pd", chance), SrqInitAttr(SrqAttr(8, 1))), chance)

    def make_qp(self, chance: random.Random) -> None:
        srq = chance.choice([None, *self.had.get("srq", [])])
        init = QPInitAttr(
            int(chance.choice(KINDS)), scq=self.one("cq", chance), rcq=self.one("cq", chance),
            srq=srq, cap=QPCap(8, 8, 1, 1),
        )  # fmt: skip
        self.keep("qp", QP(self.one("pd", chance), init), chance)

    def make_ah(self, chance: random.Random) -> None:
        self.keep("ah", AH(self.one("pd", chance), attr=AHAttr(dlid=3)), chance)

    def make_xrcd(self, chance: random.Random) -> None:
        descriptor = chance.choice([-1, self.descriptor])
        made = XRCD(self.context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, descriptor))
        self.keep("xrcd", made, chance)

    def make_target(self, chance: random.Random) -> None:
        init = QPInitAttrEx(
            int(e.IBV_QPT_XRC_RECV), xrcd=self.one("xrcd", chance),
            comp_mask=int(e.IBV_QP_INIT_ATTR_XRCD),
        )  # fmt: skip
        self.keep("qp", QP(self.context, init), chance)

    def move_qp(self, chance: random.Random) -> None:
        qp = self.one("qp", chance)
        way = chance.randrange(6)
        if way < 3:
            (qp.to_init, qp.to_rtr, qp.to_rts)[way](attributes())
        else:
            state = (e.IBV_QPS_ERR, e.IBV_QPS_RESET, e.IBV_QPS_SQD)[way - 3]
            qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)

    def query_qp(self, chance: random.Random) -> None:
        self.one("qp", chance).query(e.IBV_QP_STATE)

    def group(self, chance: random.Random) -> tuple[GID, int]:
        return GID(f"ff12:0000:0000:0000:0000:0000:0000:000{chance.randrange(9)}"), 0xC001

    def attach(self, chance: random.Random) -> None:
        self.one("qp", chance).attach_mcast(*self.group(chance))

    def detach(self, chance: random.Random) -> None:
        self.one("qp", chance).detach_mcast(*self.group(chance))

    def resize(self, chance: random.Random) -> None:
        self.one("cq", chance).resize(chance.choice([1, 20, 300]))

    def rereg(self, chance: random.Random) -> None:
        self.one("mr", chance).rereg(3, self.one("pd", chance), self.address, 5000)

    def post(self, chance: random.Random) -> None:
        region = self.one("mr", chance)
        target = self.one(chance.choice(["qp", "srq"]), chance)
        target.post_recv(RecvWR(1, 1, [SGE(region.buf, 1, region.lkey)]))

    def arm(self, chance: random.Random) -> None:
        self.one("cq", chance).req_notify(chance.choice([True, False]))

    def poll(self, chance: random.Random) -> None:
        self.one("cq", chance).poll(8)

    def limit(self, chance: random.Random) -> None:
        self.one("srq", chance).modify(SrqAttr(srq_limit=3), e.IBV_SRQ_LIMIT)

    def query_port(self, chance: random.Random) -> None:
        self.context.query_port(1)

    def another_context(self, chance: random.Random) -> None:
        context = Context(name="mthca0", process=self.process)
        PD(context), CQ(context, 3, None, CompChannel(context))
        self.keep("context", context, chance)

    def start_and_forget(self, chance: random.Random) -> None:
        """Have several verbs under way that nobody waits for."""
        pd, cq = self.one("pd", chance).handle, self.one("cq", chance).handle
        for _ in range(4):
            code, message = chance.choice(
                [
                    (codes.IOCTL_ALLOC_PD, None),
                    (codes.IOCTL_REG_MR, RegMr(pd, self.address, 1 << 14, self.address, 1)),
                    (codes.IOCTL_GET_CQ_COMP_EVENT, Object(cq)),
                    (codes.IOCTL_GET_SRQ_ASYNC_EVENT, Object(0)),
                    (codes.IOCTL_QUERY_PORT, PortQuery(2)),
                ]
            )
            self.started.append(self.raw.pend(code, message))

    def destroy(self, chance: random.Random) -> None:
        kind = chance.choice([kind for kind in self.had if kind not in ("pd", "cq")])
        self.had[kind].pop().close()

    def drop(self, chance: random.Random) -> None:
        """Leave one to the finaliser."""
        kind = chance.choice([kind for kind in self.had if kind not in ("pd", "cq")])
        self.had[kind].pop()


def be_a_victim(kernel: str, descriptor: int, seed: int) -> None:
    """Run random verbs in several threads until killed."""
    victim = Victim(kernel, descriptor)

    def run(number: int) -> None:
        try:
            victim.run(seed * THREADS + number)
        except BaseException:
            traceback.print_exc()
            os._exit(3)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, THREADS)]
    for thread in threads:
        thread.start()
    run(0)


def main() -> None:
    """Fork a victim for each seed."""
    kernel, path = sys.argv[1:]
    descriptor = os.open(path, os.O_RDONLY)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            try:
                be_a_victim(kernel, descriptor, int(line))
            finally:
                os._exit(4)
        os.write(1, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(1, f"\nended {os.waitstatus_to_exitcode(status)}\n".encode())
