"""The state of the device put into a file that the kernel handed over, piece by piece.

Rules: one thread, between rounds; `step` takes about as long as it is told. Nothing is mapped: a
file without room is an error, not a signal.
Spec: kernel_proc/hca_abi/inspection_text.py; docs/hca-process.md.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kernel_proc.hca_abi.inspection_text import LEFT_OUT, LENGTH, Part, line_of

_SPARE: Final = 64  # for the line that counts what was left out


class Inspection:
    """Writes parts; `descriptor` and `answer` (an eventfd) are its own from now on."""

    def __init__(self, parts: Iterable[Part], descriptor: int, answer: int, room: int) -> None:
        self._lines: Final = _lines(parts, room - LENGTH.size - _SPARE)
        self._descriptor: Final = descriptor
        self._answer: Final = answer
        self._length = LENGTH.size

    def step(self, clock_ns: Callable[[], int], length_ns: int) -> bool:
        """Write for a while; True when everything is written and told."""
        until = clock_ns() + length_ns
        piece = []
        done = True
        try:
            for line in self._lines:
                piece.append(line)
                if clock_ns() >= until:
                    done = False
                    break
            self._write(b"".join(piece))
            if done:
                os.pwrite(self._descriptor, LENGTH.pack(self._length), 0)
        except OSError:
            done = True  # no room for it: the length says that nothing is there
        if done:
            os.close(self._descriptor)
            with contextlib.suppress(OSError):
                os.eventfd_write(self._answer, 1)
            os.close(self._answer)
        return done

    def close(self) -> None:
        """Give up before the end: nothing is told."""
        os.close(self._descriptor)
        os.close(self._answer)

    def _write(self, piece: bytes) -> None:
        while piece:
            written = os.pwrite(self._descriptor, piece, self._length)
            self._length += written
            piece = piece[written:]


def _lines(parts: Iterable[Part], room: int) -> Iterator[bytes]:
    """Give the lines there is room for; empty ones for those that have none."""
    left_out = 0
    for part in parts:
        line = line_of(part)
        if len(line) > room:
            left_out += 1
            yield b""
        else:
            room -= len(line)
            yield line
    if left_out:
        yield line_of(((LEFT_OUT,), left_out))
