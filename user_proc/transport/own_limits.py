"""What the system may refuse this process: threads and descriptors.

libzmq ends the process when it finds no descriptor for its own threads, so whoever makes a
context sees to it first that there are some.

Rules: any thread.
Spec: getrlimit(2); eventfd(2).
"""

import os
import threading

from user_proc.errors import ProcessExhausted


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; ProcessExhausted if the system has none."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ProcessExhausted("a thread cannot be started", error) from error


def require_descriptors(count: int) -> None:
    """Raise ProcessExhausted unless so many descriptors can be made now."""
    made: list[int] = []
    try:
        made.extend(os.eventfd(0, os.EFD_CLOEXEC) for _ in range(count))
    except OSError as error:
        raise ProcessExhausted("a request socket cannot be made", error) from error
    finally:
        for descriptor in made:
            os.close(descriptor)
