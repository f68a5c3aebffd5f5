"""User processes that are in every call at a time, and say how each of them ends.

The program, whose words are KERNEL PROCESSES, forks them. Each says "NUMBER ready"
when every thread is at work, then a line for each: its number, the call's name, the exception's
class, its errno, and when it was raised (CLOCK_MONOTONIC).
"""

import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from shared.verb_codes import IOCTL_GET_CQ_COMP_EVENT
from shared.verb_messages import Object
from tests.end_to_end.verbs_raw import RawVerbs
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr

BLOCKING = ("event", "async", "select", "select_async", "pended")
WAITS = ("verbs", "query", "open", "poll", "arm", *BLOCKING)


class Waiter:
    """The objects, and a routine for each way to wait."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.context = Context(name="mthca0", kernel=kernel)
        self.channel = CompChannel(self.context)
        self.quiet = CompChannel(self.context)
        self.cq = CQ(self.context, 16, None, self.channel)
        self.never = CQ(self.context, 4, None, self.quiet)
        self.pd = PD(self.context)
        self.cq.req_notify()
        session = self.context.session()
        raw = RawVerbs(session.process, session.device)
        self.request = raw.pend(IOCTL_GET_CQ_COMP_EVENT, Object(self.never.handle))
        self.fatal = 0

    def verbs(self) -> None:
        """The control mix, up to RTS and back."""
        pd = PD(self.context)
        cq = CQ(self.context, 4)
        region = MR(pd, 4096, 1)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1)))
        attr = QPAttr()
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.ah_attr = AHAttr(dlid=1)
        qp.to_rts(attr)
        for one in (qp, region, cq, pd):
            one.close()

    def query(self) -> None:
        self.context.query_device()

    def open(self) -> None:
        Context(name="mthca0", kernel=self.kernel).close()

    def poll(self) -> None:
        self.cq.poll(4)

    def event(self) -> None:
        self.channel.get_cq_event(self.cq)

    def async_(self) -> None:
        event = self.context.get_async_event()
        event.ack()
        self.fatal += event.event_type == e.IBV_EVENT_DEVICE_FATAL

    def select(self) -> None:
        select.select([self.quiet.fd], [], [])
        self.quiet.get_cq_event(self.never)

    def select_async(self) -> None:
        select.select([self.context.async_fd], [], [])
        raise EOFError  # the event, or the end, is the other thread's

    def pended(self) -> None:
        answer = self.request.answer(None)
        raise OSError(answer.errno, "the pended request has ended")

    def arm(self) -> None:
        self.cq.req_notify()
        os.sched_yield()


def say(*words: object) -> None:
    """Write a line at once, so that those of several processes do not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def wait_in_every_way(waiter: Waiter, number: int) -> None:
    """Go on until every call has ended with an error."""
    under_way = threading.Barrier(len(WAITS) + 1)

    def wait(name: str) -> None:
        routine: Callable[[], None] = getattr(waiter, {"async": "async_"}.get(name, name))
        try:
            if name not in BLOCKING:
                routine()
            under_way.wait()
            while True:
                routine()
        except Exception as error:
            code = getattr(error, "error_code", getattr(error, "errno", None))
            say(number, name, type(error).__name__, code, time.monotonic())

    threads = [threading.Thread(target=wait, args=(name,)) for name in WAITS]
    for thread in threads:
        thread.start()
    under_way.wait()
    say(number, "ready")
    for thread in threads:
        thread.join()
    say(number, "fatal", waiter.fatal)
    waiter.context.close()
    say(number, "closed")


def main() -> None:
    """Fork the processes, let them begin together, and wait for them."""
    kernel, count = sys.argv[1], int(sys.argv[2])
    connected, i_am_connected = os.pipe()
    begin, let_begin = os.pipe()
    for number in range(count):
        if not os.fork():
            signal.alarm(60)
            try:
                os.close(let_begin)
                waiter = Waiter(kernel)
                os.write(i_am_connected, b"!")
                os.read(begin, 1)
                wait_in_every_way(waiter, number)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
    os.close(i_am_connected)
    for _ in range(count):
        os.read(connected, 1)
    os.close(let_begin)
    for _ in range(count):
        _, status = os.wait()
        assert status == 0, status
