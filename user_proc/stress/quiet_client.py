"""The client that measures: a control verb and an echo in turn, while others load the kernel.

An echo is answered by the kernel's own loop with the same frames, so it is the floor.
"""

from typing import Final

from shared.clock import now_ns
from user_proc.process import UserProcess
from user_proc.stress.client_line import Line, Words
from user_proc.stress.client_world import DEVICE
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD

_PAUSE_S: Final = 0.002
_TELL_NS: Final = 200_000_000
_PAYLOAD: Final = bytes(64)
_FIRST: Final = 20  # not measured: sockets, caches


def be_quiet(line: Line, kernel: str, told: list[Words]) -> None:
    """Measure until told to stop, and tell the samples, in nanoseconds, now and then.

    `told` is what has been said already.
    """
    process = UserProcess.connect(kernel)
    context = Context(name=DEVICE, process=process)
    for _ in range(_FIRST):
        PD(context).close()
        process.echo(_PAYLOAD)
    line.tell({"say": "ready"})
    control: list[int] = []
    floor: list[int] = []
    told_ns = now_ns()
    while not any(words["do"] == "stop" for words in told):
        begin = now_ns()
        process.echo(_PAYLOAD)
        after_echo = now_ns()
        domain = PD(context)
        after_verb = now_ns()
        floor.append(after_echo - begin)
        control.append(after_verb - after_echo)
        domain.close()
        if now_ns() - told_ns > _TELL_NS:
            line.tell({"say": "samples", "control": control, "floor": floor})
            control, floor, told_ns = [], [], now_ns()
        told = line.wait(_PAUSE_S)
    line.tell({"say": "samples", "control": control, "floor": floor})
    context.close()
    process.close()
    line.tell({"say": "done", "operations": 0, "completions": 0})
