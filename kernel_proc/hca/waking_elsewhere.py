"""Waking a thread that sleeps on another processor than the waker's.

Spec: sched_setaffinity(2): a thread's may be changed by who has its user's rights.
"""

import contextlib
import os
from collections.abc import Callable

from shared.processor_number import current_processor


def wake_elsewhere(thread: int, wake: Callable[[], object]) -> None:
    """Call `wake`, which wakes a thread that sleeps, and have it wake on another processor.

    The scheduler often puts who is woken beside its waker, where one waits for the other. Where it
    may run is as before when this returns; a change of that by somebody else meanwhile is lost.
    """
    try:
        allowed = os.sched_getaffinity(thread)
        others = allowed - {current_processor()}
        if others:
            os.sched_setaffinity(thread, others)
    except OSError:  # a sandbox may forbid it
        others = set()
    wake()
    if others:
        with contextlib.suppress(OSError):  # it may be gone
            os.sched_setaffinity(thread, allowed)
