"""The kernel's log: one line an event, written at once, never at the price of waiting.

Rules: main OS thread; not on the path of a request.
"""

import os
import select
import sys
import time

_LONGEST_LINE = select.PIPE_BUF  # a pipe that is writable has room for this much


class KernelLog:
    """A file that is appended to, or the standard error of the process.

    With `take_output` the standard output and error of the process go to the file too.
    """

    def __init__(self, path: str | None = None, take_output: bool = False) -> None:
        self.lost_lines = 0
        self._ordinary_bytes = 0
        self._owned = path is not None
        if path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
            self._descriptor = os.open(path, flags | os.O_NONBLOCK, 0o600)
        else:
            self._descriptor = sys.stderr.fileno()
        self.began_empty = os.fstat(self._descriptor).st_size == 0
        if take_output and self._owned:
            for standard in (1, 2):
                os.dup2(self._descriptor, standard)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    @property
    def is_uneventful(self) -> bool:
        """Tell whether the file holds nothing but ordinary lines of this kernel."""
        return os.fstat(self._descriptor).st_size == self._ordinary_bytes

    def line(self, text: str) -> None:
        """Write one ordinary line with the time in front; drop and count it where nobody reads."""
        self._ordinary_bytes += self._write(text)

    def trouble(self, text: str) -> None:
        """Write a line that somebody should read: the log is then kept."""
        self._write(text)

    def _write(self, text: str) -> int:
        now = time.time_ns() // 1_000_000
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now // 1000))
        plain = text.replace("\n", "\\n")
        record = f"{stamp}.{now % 1000:03d} {plain}\n".encode(errors="backslashreplace")
        if len(record) > _LONGEST_LINE:
            record = record[: _LONGEST_LINE - 4] + b"...\n"
        ready = self._poll.poll(0)
        if not ready or not ready[0][1] & select.POLLOUT:
            self.lost_lines += 1
            return 0
        try:
            return os.write(self._descriptor, record)
        except OSError:  # a full disk or a reader that went away
            self.lost_lines += 1
            return 0

    def close(self) -> None:
        """Close the file; standard error stays open."""
        if self._owned:
            os.close(self._descriptor)
