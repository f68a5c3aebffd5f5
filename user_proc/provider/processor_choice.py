"""A thread that polls leaves the processor the HCA runs on to it, if there is another one.

Where both share a processor each turn of a message waits until the other yields. Where the thread
runs afterwards is the scheduler's matter: it may run on all it might run on before.

Rules: any thread; for itself alone.
Spec: sched_setaffinity(2): a thread that may not stay where it is goes at once.
"""

import contextlib
import os

from shared.processor_number import current_processor


def leave_processor(number: int) -> bool:
    """Go to another processor if the calling thread is on this one; False if it is not, or alone.

    A change of its affinity by somebody else at this very moment is lost.
    """
    if current_processor() != number:
        return False
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        allowed = os.sched_getaffinity(0)
        others = allowed - {number}
        if others:
            os.sched_setaffinity(0, others)
            os.sched_setaffinity(0, allowed)
            return True
    return False
