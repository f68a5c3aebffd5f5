"""A user process with full queues, unread events and locked memory that stops itself when told.

The program, whose word is KERNEL, says "ready", and after each line it reads
leaves some hundred requests under way, stops (SIGSTOP), and when it goes on takes their ends and
says how many there were.
"""

import ctypes
import mmap
import os
import signal
import sys

from shared.nt_status import STATUS_CANCELLED
from tests.holder_driver import HOLD
from user_proc.errors import NtStatusError
from user_proc.io.device_handle import DeviceHandle
from user_proc.io.overlapped import Overlapped
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, SendWR

ENTRIES = 16
LOCKED_BYTES = 4 << 20
REQUESTS = 150
ENDING = 60
RIGHTS = int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)


class Held:
    """What the process holds while it stands still."""

    def __init__(self, context: Context) -> None:
        self.pd = PD(context)
        self.pages = mmap.mmap(-1, LOCKED_BYTES)
        self.locked = MR(self.pd, LOCKED_BYTES, RIGHTS, address=address_of(self.pages))
        self.channel = CompChannel(context)
        self.full = CQ(context, ENTRIES, None, self.channel)
        self.full.req_notify()
        self.writer, self.sender = self.connected(), self.connected()
        element = SGE(self.locked.buf, 64, self.locked.lkey)
        for number in range(ENTRIES):  # a completion each: the queue is full of them
            write = SendWR(number, e.IBV_WR_RDMA_WRITE, 1, sg=[element])
            write.set_wr_rdma(self.locked.rkey, self.locked.buf + 4096)
            self.writer.post_send(write)
        for number in range(ENTRIES):  # nobody posts a receive: tried again for ever
            self.sender.post_send(SendWR(number, num_sge=1, sg=[element], send_flags=0))

    def connected(self) -> QP:
        """A queue pair that is its own peer."""
        made = QPInitAttr(
            e.IBV_QPT_RC, scq=self.full, rcq=self.full, cap=QPCap(ENTRIES, 1, 1, 1), sq_sig_all=0
        )
        qp = QP(self.pd, made)
        attr = QPAttr()
        attr.dest_qp_num, attr.ah_attr = qp.qp_num, AHAttr(dlid=1)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 20
        attr.qp_access_flags = RIGHTS
        qp.to_rts(attr)
        return qp


def address_of(pages: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


def start_all(device: DeviceHandle, count: int) -> list[Overlapped]:
    return [device.start(HOLD) for _ in range(count)]


def was_cancelled(started: Overlapped) -> bool:
    try:
        started.wait(20.0)
    except NtStatusError as error:
        return error.status == STATUS_CANCELLED
    return False


def main() -> None:
    """Hold everything, then stop again and again."""
    signal.alarm(60)
    process = UserProcess.connect(sys.argv[1])
    context = Context(name="mthca0", process=process)
    held = Held(context)
    kept, given_up = (process.open_device("holder", overlapped=True) for _ in range(2))
    print("ready", flush=True)
    while sys.stdin.readline():
        pended = start_all(kept, REQUESTS)
        ending = start_all(given_up, ENDING)
        given_up.cancel_ex()
        os.kill(os.getpid(), signal.SIGSTOP)  # with most of those ends unread
        kept.cancel()
        print(sum(map(was_cancelled, pended + ending)), flush=True)
    assert held.locked.length == LOCKED_BYTES
