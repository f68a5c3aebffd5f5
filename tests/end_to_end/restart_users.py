"""User processes that outlive their kernels: each opens the next one of the name.

The program, whose word is KERNEL, forks one for each role. For each byte read a user opens the
device, says "ROLE up DESCRIPTORS" when it is at work, then "ROLE died CLASS ERRNO WHEN"
(CLOCK_MONOTONIC) once, closes all it has, and says "ROLE closed WHEN".
"""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from shared.verb_codes import IOCTL_GET_CQ_COMP_EVENT
from shared.verb_messages import Object
from tests.end_to_end.verbs_raw import RawVerbs
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD

ROLES = ("poll", "event", "verbs", "pended")
_LIFE_SECONDS = 60


class Life:
    """What a user has of one kernel."""

    def __init__(self, kernel: str) -> None:
        self.context = Context(name="mthca0", kernel=kernel)
        self.channel = CompChannel(self.context)
        self.cq = CQ(self.context, 8, None, self.channel)
        self.cq.req_notify()
        self.region = MR(PD(self.context), 8192, 1)

    def poll(self) -> None:
        self.cq.poll(4)

    def event(self) -> None:
        self.channel.get_cq_event(self.cq)

    def verbs(self) -> None:
        pd = PD(self.context)
        MR(pd, 4096, 1).close()
        pd.close()

    def pended(self) -> None:
        session = self.context.session()
        quiet = CQ(self.context, 4, None, CompChannel(self.context))
        request = RawVerbs(session.process, session.device).pend(
            IOCTL_GET_CQ_COMP_EVENT, Object(quiet.handle)
        )
        say("pended", "up", descriptors())
        raise OSError(request.answer(None).errno, "the pended request has ended")


def descriptors() -> int:
    gc.collect()  # an error that was raised keeps what its traceback names until then
    return len(os.listdir("/proc/self/fd"))


def say(*words: object) -> None:
    """Write a line at once, so that those of several processes do not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def live(kernel: str, role: str) -> None:
    """Be at work until it ends with an error, and close."""
    life = Life(kernel)
    work: Callable[[], None] = getattr(life, role)
    try:
        if role == "poll":
            work()
        if role != "pended":
            say(role, "up", descriptors())
        while True:
            work()
    except Exception as error:
        code = getattr(error, "error_code", getattr(error, "errno", None))
        say(role, "died", type(error).__name__, code, time.monotonic())
    life.context.close()
    say(role, "closed", time.monotonic())


def main() -> None:
    """Fork a user for each role and wait for them; the end of the input is their end."""
    for role in ROLES:
        if not os.fork():
            try:
                signal.alarm(_LIFE_SECONDS)
                while os.read(0, 1):
                    signal.alarm(_LIFE_SECONDS)  # of each life
                    live(sys.argv[1], role)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
    for _ in ROLES:
        _, status = os.wait()
        assert status == 0, status
