"""The rows of a user process: one request at a time on a synchronous handle, or many overlapped.

Rules: one thread. Buffers are made beforehand and the bytes that come back are checked before
anything is timed, so that only the operation is.
"""

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from shared.clock import now_ns
from shared.ioctl_codes import (
    COMPLETION_NAMES,
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
    NOOP_DEVICE,
    NOOP_FAST_DEVICE,
    NOOP_FILL,
    noop_blocking_code,
    noop_code,
    noop_fast_code,
)
from user_proc.bench.row_plan import RowSpec
from user_proc.bench.timed_loops import Operation, Taken, Window, empty_samples, take
from user_proc.errors import SofthcaError

if TYPE_CHECKING:
    from user_proc.io.overlapped import Overlapped
    from user_proc.memory.arena import ArenaBuffer
    from user_proc.process import UserProcess

_METHODS: Final = {
    "buffered": METHOD_BUFFERED,
    "in_direct": METHOD_IN_DIRECT,
    "out_direct": METHOD_OUT_DIRECT,
    "neither": METHOD_NEITHER,
}


class WrongContent(SofthcaError):
    """A request succeeded, but the bytes it brought back are not those it was given."""


def control_code(row: RowSpec) -> int:
    """Return the no-op device's code for a row."""
    method, completion = _METHODS[row.method], COMPLETION_NAMES.index(row.completion)
    if row.path == "fast_io":
        return noop_fast_code(method, completion)
    if row.path == "blocking":
        return noop_blocking_code(method, completion)
    return noop_code(method, completion)


class RowBuffers:
    """Input and output of a row, where the row wants them; the input is random bytes.

    `source` and `target` are what a caller passes: arena buffers or bytearrays, None for none.
    The direct methods have the one large buffer in the output's place.
    """

    def __init__(self, process: "UserProcess", row: RowSpec) -> None:
        self._row = row
        self._pattern = os.urandom(row.payload)
        self.source: ArenaBuffer | bytearray | None = None
        self.target: ArenaBuffer | bytearray | None = None
        if not row.payload:
            return
        if row.method not in ("in_direct", "out_direct"):
            self.source = self._make(process)
            _view(self.source)[:] = self._pattern
        self.target = self._make(process)
        if row.method == "in_direct":
            _view(self.target)[:] = self._pattern

    def _make(self, process: "UserProcess") -> "ArenaBuffer | bytearray":
        if self._row.memory == "private":
            return bytearray(self._row.payload)
        return process.allocate(self._row.payload)

    def check(self) -> None:
        """Raise WrongContent unless the target holds what it should; clear what was written."""
        if self.target is None:
            return
        found = _view(self.target)
        expected = self._pattern
        if self._row.method == "out_direct":
            expected = bytes([NOOP_FILL]) * len(expected)
        if found != expected:
            raise WrongContent("the bytes that came back are not those that were sent")
        if self._row.method != "in_direct":
            found[:] = bytes(len(found))

    def release(self) -> None:
        """Give arena memory back."""
        for buffer in (self.source, self.target):
            if buffer is not None and not isinstance(buffer, bytearray):
                buffer.release()
        self.source = self.target = None


def _view(buffer: "ArenaBuffer | bytearray") -> memoryview:
    return memoryview(buffer) if isinstance(buffer, bytearray) else buffer.view


def _check_moved(moved: int, row: RowSpec) -> None:
    if moved != row.payload:
        raise WrongContent(f"{moved} bytes moved instead of {row.payload}")


class SingleRow:
    """One blocking DeviceIoControl after another."""

    def __init__(self, process: "UserProcess", row: RowSpec) -> None:
        self._buffers = RowBuffers(process, row)
        # Only that one's driver offers fast I/O, so that no other row pays for being offered it.
        name = NOOP_FAST_DEVICE if row.path == "fast_io" else NOOP_DEVICE
        self._handle = process.open_device(name)
        self.operation: Operation = partial(
            self._handle.device_io_control,
            control_code(row),
            self._buffers.source,
            self._buffers.target,
        )
        moved = self._handle.device_io_control(
            control_code(row), self._buffers.source, self._buffers.target
        )
        _check_moved(moved, row)
        self._buffers.check()

    def take(self, window: Window) -> Taken:
        """Perform a block."""
        return take(self.operation, window)

    def close(self) -> None:
        """Close the device and give the buffers back."""
        self._handle.close()
        del self.operation
        self._buffers.release()


class OverlappedRow:
    """As many overlapped requests in flight as the row's depth; the oldest is waited for.

    A request's time ends when this thread has its result, in the order in which they were given.
    """

    def __init__(self, process: "UserProcess", row: RowSpec) -> None:
        self._depth = row.depth
        self._code = control_code(row)
        self._slots = [RowBuffers(process, row) for _ in range(row.depth)]
        self._handle = process.open_device(NOOP_DEVICE, overlapped=True)
        started = [self._start(slot) for slot in range(row.depth)]
        for overlapped, buffers in zip(started, self._slots, strict=True):
            _check_moved(overlapped.wait(), row)
            buffers.check()

    def _start(self, slot: int) -> "Overlapped":
        buffers = self._slots[slot]
        return self._handle.start(self._code, buffers.source, buffers.target)

    def take(self, window: Window) -> Taken:
        """Perform a block in a closed loop."""
        self._stream(Window(window.warmup))
        return self._stream(window)

    def _stream(self, window: Window) -> Taken:
        depth, count, now = self._depth, window.count, now_ns
        samples = empty_samples(count)
        begins = [0] * depth
        pending: list[Overlapped] = []
        first = end = now()
        deadline = first + window.limit_ns
        given = 0
        for index in range(count):
            while given < count and given - index < depth:
                slot = given % depth
                begins[slot] = now()
                overlapped = self._start(slot)
                if given < depth:
                    pending.append(overlapped)
                else:
                    pending[slot] = overlapped
                given += 1
            pending[index % depth].wait()
            end = now()
            samples[index] = end - begins[index % depth]
            if end > deadline:
                count = given  # no more are given; those under way are waited for
            if index + 1 == count:
                break
        del samples[count:]
        return Taken(samples, end - first)

    def close(self) -> None:
        """Close the device and give the buffers back."""
        self._handle.close()
        for buffers in self._slots:
            buffers.release()


UserRow = SingleRow | OverlappedRow


def make_user_row(process: "UserProcess", row: RowSpec) -> UserRow:
    """Return the row, ready to be taken."""
    return OverlappedRow(process, row) if row.depth > 1 else SingleRow(process, row)
