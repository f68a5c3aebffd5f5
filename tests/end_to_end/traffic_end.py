"""One end of a connection between two processes: it says who it is and does what it is told.

Its words are KERNEL [private]. It prints its queue pair's
number and its region's address and key, then reads lines of commands and answers each with one
line of JSON.
"""

import ctypes
import json
import mmap
import os
import random
import signal
import sys
import time
from types import FrameType
from typing import Any

from shared.verbs_enums import ibv_qp_type, ibv_send_flags, ibv_wr_opcode
from user_proc.verbs.addr import AH, AHAttr, GlobalRoute
from user_proc.verbs.completion import WC
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

LENGTH = 4 << 20
ALL_ACCESS = 1 | 2 | 4 | 8
PATIENCE_S = 15.0


class End:
    """A queue pair, its region, and where they complete."""

    def __init__(self, kernel: str, private: bool = False) -> None:
        self.context = Context(name="mthca0", kernel=kernel)
        self.pd = PD(self.context)
        self.foreign_pd = PD(self.context)
        self.extras: list[MR] = []
        self.cq = CQ(self.context, 600)
        if private:
            self.map = mmap.mmap(-1, LENGTH)
            address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
            self.mr = MR(self.pd, LENGTH, ALL_ACCESS, address)
        else:
            self.mr = MR(self.pd, LENGTH, ALL_ACCESS)
        cap = QPCap(256, 256, 4, 4, 64)
        kind = int(ibv_qp_type.IBV_QPT_RC)
        attr = QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap)
        self.qp = QP(self.pd, attr)
        self.srq: SRQ | None = None

    def renew(self, kind: str = "RC", shared: bool = False) -> int:
        """Have a fresh queue pair instead of the one that failed; return its number.

        `shared`: its receives come from a shared queue, fresh as well.
        """
        self.qp.close()
        if self.srq is not None:
            self.srq.close()
        while self.cq.poll(16)[0]:
            pass
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(64, 4))) if shared else None
        number = int(ibv_qp_type[f"IBV_QPT_{kind}"])
        cap = QPCap(64, 0 if shared else 64, 4, 4, 64)
        attr = QPInitAttr(qp_type=number, scq=self.cq, rcq=self.cq, srq=self.srq, cap=cap)
        self.qp = QP(self.pd, attr)
        return self.qp.qp_num

    def extra(self, access: int, foreign: bool = False) -> tuple[int, int]:
        """Register the region's second half once more, as said; return address and key."""
        domain = self.foreign_pd if foreign else self.pd
        made = MR(domain, LENGTH // 2, access, self.mr.buf + LENGTH // 2)
        self.extras.append(made)
        return self.mr.buf + LENGTH // 2, made.rkey

    def connect(
        self, peer: int, rnr_retry: int = 7, access: int = ALL_ACCESS, rd_atomic: int = 4
    ) -> None:
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        attr.path_mtu = 3
        attr.dest_qp_num = peer
        attr.max_dest_rd_atomic = attr.max_rd_atomic = rd_atomic
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, 8, 3, rnr_retry
        attr.ah_attr = AHAttr(dlid=1, port_num=1)
        self.qp.to_rts(attr)

    def open_datagrams(self, qkey: int = 0x1234) -> None:
        attr = QPAttr(port_num=1)
        attr.qkey = qkey
        self.qp.to_rts(attr)

    def send_datagram(
        self, start: int, length: int, qpn: int, *, qkey: int = 0x1234, dlid: int = 1,
        is_global: bool = False, name: str = "SEND", lkey: int | None = None,
        pd: PD | None = None,
    ) -> None:  # fmt: skip
        route = None
        if is_global:
            gid = self.context.query_gid(1, 0)
            route = GlobalRoute(dgid=gid, sgid_index=0)
        attr = AHAttr(dlid=dlid, port_num=1, is_global=int(is_global), gr=route)
        key = self.mr.lkey if lkey is None else lkey
        opcode = int(ibv_wr_opcode[f"IBV_WR_{name}"])
        wr = SendWR(9, opcode, 1, 0x11223344, [SGE(self.mr.buf + start, length, key)])
        wr.set_wr_ud(AH(pd or self.pd, attr=attr), qpn, qkey)
        self.qp.post_send(wr)

    def receive_at(self, address: int, length: int, key: int) -> None:
        (self.srq or self.qp).post_recv(RecvWR(7, 1, [SGE(address, length, key)]))

    def state(self) -> int:
        return self.qp.query(1)[0].qp_state

    def lengths(self, count: int = 1) -> list[list[int]]:
        return [[one.status, one.byte_len, one.wc_flags] for one in self.poll(count)]

    def nothing_came(self) -> bool:
        return self.cq.poll(1)[0] == 0

    def fill(self, seed: int, start: int, length: int) -> int:
        data = random.Random(seed).randbytes(length)
        ctypes.memmove(self.mr.buf + start, data, length)
        return int.from_bytes(data[-8:], "little")

    def read(self, start: int, length: int) -> bytes:
        return ctypes.string_at(self.mr.buf + start, length)

    def receive(self, start: int, length: int, count: int = 1) -> None:
        for _ in range(count):
            self.qp.post_recv(RecvWR(7, 1, [SGE(self.mr.buf + start, length, self.mr.lkey)]))

    def send(
        self, name: str, start: int, length: int, remote: tuple[int, int] = (0, 0), *,
        operands: tuple[int, int] = (0, 0), lkey: int | None = None,
    ) -> None:  # fmt: skip
        key = self.mr.lkey if lkey is None else lkey
        opcode = int(ibv_wr_opcode[f"IBV_WR_{name}"])
        flags = int(ibv_send_flags.IBV_SEND_SIGNALED)
        element = SGE(self.mr.buf + start, length, key)
        wr = SendWR(9, opcode, 1, 0x11223344, [element], flags)
        if name.startswith("ATOMIC"):
            wr.set_wr_atomic(remote[1], remote[0], *operands)
        elif name.startswith("RDMA"):
            wr.set_wr_rdma(remote[1], remote[0])
        self.qp.post_send(wr)

    def send_many(
        self, count: int, name: str, start: int, length: int, remote: tuple[int, int]
    ) -> None:
        for _ in range(count):
            self.send(name, start, length, remote)

    def die_in_post(self, lines: int, start: int, length: int) -> None:
        """Post a send three times; be killed when the last has taken so many lines of code."""
        left = lines

        def traced(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            if "user_proc" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return traced

        wr = SendWR(9, sg=[SGE(self.mr.buf + start, length, self.mr.lkey)], num_sge=1)
        for _ in range(2):  # what it looks like is known then
            self.qp.post_send(wr)
        assert self.statuses(2) == [0, 0]
        sys.settrace(traced)
        self.qp.post_send(wr)
        sys.settrace(None)
        os._exit(0)

    def give_up_region(self) -> str:
        self.mr.close()
        return "gone"

    def become_another(self) -> None:
        """Be another program from now on, which ends with its input."""
        os.execv("/bin/cat", ["cat"])

    def poll(self, count: int = 1) -> list[WC]:
        return self.poll_of(self.cq, count)

    @staticmethod
    def poll_of(cq: CQ, count: int) -> list[WC]:
        found: list[WC] = []
        end = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < end:
            got, completions = cq.poll(16)
            found += completions
            if not got:
                os.sched_yield()
        return found

    def statuses(self, count: int = 1) -> list[int]:
        return [completion.status for completion in self.poll(count)]


def serve(end: End) -> None:
    """Say who it is, and do what it is told."""
    print(json.dumps([end.qp.qp_num, end.mr.buf, end.mr.rkey]), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer = getattr(end, name)(*arguments)
        print(json.dumps(answer.hex() if isinstance(answer, bytes) else answer), flush=True)
    os._exit(0)


def main() -> None:
    """Be the other process of a test."""
    serve(End(sys.argv[1], private="private" in sys.argv))
