"""Processes that all connect at the same moment, as many as the words KERNEL N say.

Each opens the device, does a verb, and says "in MILLISECONDS", or "refused SENTENCE"; anything else
is told as "failed". They stay until the input ends.
"""

import gc
import os
import signal
import sys
import time
import traceback

from user_proc.errors import KernelRefused
from user_proc.process import UserProcess
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD

_LIFE_SECONDS = 120


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def come_in(kernel: str) -> None:
    begin = time.monotonic()
    try:
        process = UserProcess.connect(kernel)
    except KernelRefused as error:
        say("refused", error)
        return
    context = Context(name="mthca0", process=process)
    PD(context)
    say("in", round((time.monotonic() - begin) * 1000))
    os.read(0, 1)
    context.close()
    process.close()


def main() -> None:
    """Fork them, let them begin together, and wait for them."""
    kernel, count = sys.argv[1], int(sys.argv[2])
    begin, let_begin = os.pipe()
    gc.freeze()
    for _ in range(count):
        if not os.fork():
            signal.alarm(_LIFE_SECONDS)
            try:
                os.close(let_begin)
                os.read(begin, 1)
                come_in(kernel)
                os._exit(0)
            except BaseException as error:
                say("failed", type(error).__name__, error)
                traceback.print_exc()
                os._exit(1)
    os.close(let_begin)
    for _ in range(count):
        os.wait()
