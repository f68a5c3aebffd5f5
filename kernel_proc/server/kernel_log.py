"""The kernel's log: one line an event, written at once, never at the price of waiting.

Rules: main OS thread; not on the path of a request.
"""

import os
import select
import sys
import time

_LONGEST_LINE = select.PIPE_BUF  # a pipe that is writable has room for this much


class KernelLog:
    """A file that is appended to, or the standard error of the process."""

    def __init__(self, path: str | None = None) -> None:
        self.lost_lines = 0
        self._owned = path is not None
        if path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
            self._descriptor = os.open(path, flags | os.O_NONBLOCK, 0o600)
        else:
            self._descriptor = sys.stderr.fileno()
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def line(self, text: str) -> None:
        """Write one line with the time in front; drop and count it where nobody reads."""
        now = time.time_ns() // 1_000_000
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now // 1000))
        plain = text.replace("\n", "\\n")
        record = f"{stamp}.{now % 1000:03d} {plain}\n".encode(errors="backslashreplace")
        if len(record) > _LONGEST_LINE:
            record = record[: _LONGEST_LINE - 4] + b"...\n"
        ready = self._poll.poll(0)
        if not ready or not ready[0][1] & select.POLLOUT:
            self.lost_lines += 1
            return
        try:
            os.write(self._descriptor, record)
        except OSError:  # a full disk or a reader that went away
            self.lost_lines += 1

    def close(self) -> None:
        """Close the file; standard error stays open."""
        if self._owned:
            os.close(self._descriptor)
