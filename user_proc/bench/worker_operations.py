"""What a benchmark's user process does again and again, as callables without arguments.

Rules: one thread. A callable performs one operation and raises if it did not succeed; buffers
and headers are made beforehand, so that only the operation is timed.
"""

import ctypes
import os
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import zmq

from shared.clock import now_ns
from shared.envelope import HEADER, KIND_ECHO, make_header
from shared.ioctl_codes import (
    BENCHMARK_DEVICE,
    COMPLETION_NAMES,
    IOCTL_BENCHMARK_RUN,
    IOCTL_QUERY_COUNTERS,
    METHOD_BUFFERED,
    METHOD_NEITHER,
    NOOP_DEVICE,
    noop_code,
)
from shared.message_codec import decode_as, encode
from shared.messages import COUNTERS_MAX_LENGTH, BenchmarkRun, Counters
from shared.nt_status import STATUS_SUCCESS
from user_proc.bench.row_plan import FloorSpec, RowSpec
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.io.io_status import IoStatusBlock

if TYPE_CHECKING:
    from user_proc.memory.arena import ArenaBuffer
    from user_proc.process import UserProcess

Operation = Callable[[], object]

# The echo goes over a socket of its own, which the kernel takes for one more calling thread.
_ECHO_THREAD: Final = 1 << 20
_SNDMORE: Final = int(zmq.SNDMORE)
_METHODS: Final = {"buffered": METHOD_BUFFERED, "neither": METHOD_NEITHER}


class WrongContent(SofthcaError):
    """A request succeeded, but the bytes it brought back are not those it was given."""


class EchoSocket:
    """A bare DEALER: the same frames as a row's, answered by the kernel's own loop."""

    def __init__(self, process: "UserProcess") -> None:
        channel = process.channel
        self._socket = channel.make_socket()
        plain: Any = super(zmq.Socket, self._socket)
        self._send: Any = plain.send
        self._recv: Any = plain.recv
        self._header = make_header(
            KIND_ECHO,
            session=channel.session,
            epoch=channel.epoch,
            thread=_ECHO_THREAD,
            request_id=_ECHO_THREAD << 32 | 1,
        )

    def operation(self, payload: int) -> Operation:
        """Return a round trip of a header and, above zero bytes, a payload frame both ways."""
        if payload:
            return partial(self._with_payload, os.urandom(payload))
        return self._header_only

    def _header_only(self) -> None:
        self._send(self._header)
        self._recv()

    def _with_payload(self, payload: bytes) -> None:
        self._send(self._header, _SNDMORE)
        self._send(payload)
        self._recv()
        self._recv()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(linger=0)


class RowBuffers:
    """Input and output of a row, where the row wants them; the input is random bytes.

    `source` and `target` are what a caller passes: arena buffers or bytearrays, None for none.
    """

    def __init__(self, process: "UserProcess", row: RowSpec) -> None:
        self.source: ArenaBuffer | bytearray | None = None
        self.target: ArenaBuffer | bytearray | None = None
        if not row.payload:
            return
        if row.memory == "private":
            self.source, self.target = bytearray(row.payload), bytearray(row.payload)
        else:
            self.source, self.target = process.allocate(row.payload), process.allocate(row.payload)
        _view(self.source)[:] = os.urandom(row.payload)

    def check(self) -> None:
        """Raise WrongContent unless the target holds what the source holds, then clear it."""
        if self.source is None or self.target is None:
            return
        found = _view(self.target)
        if found != _view(self.source):
            raise WrongContent("the bytes that came back are not those that were sent")
        found[:] = bytes(len(found))

    def release(self) -> None:
        """Give arena memory back."""
        for buffer in (self.source, self.target):
            if buffer is not None and not isinstance(buffer, bytearray):
                buffer.release()
        self.source = self.target = None


def _view(buffer: "ArenaBuffer | bytearray") -> memoryview:
    return memoryview(buffer) if isinstance(buffer, bytearray) else buffer.view


class KernelBench:
    """The benchmark device: runs inside the kernel, and its counters without this class's share.

    What measuring itself adds to the kernel's counters is known exactly, call by call, and taken
    off: input of n bytes is one copy, output of n bytes another, each call two headers.
    """

    def __init__(self, process: "UserProcess") -> None:
        self._handle = process.open_device(BENCHMARK_DEVICE)
        self._counters = bytearray(COUNTERS_MAX_LENGTH)
        self._own_copies = self._own_bytes = self._own_wire_bytes = 0

    def counters(self) -> Counters:
        """Return the kernel's running totals, calls by this class left out."""
        length = self._handle.device_io_control(IOCTL_QUERY_COUNTERS, None, self._counters)
        totals = decode_as(Counters, self._counters[:length])
        # When the kernel took the figures it had received this request and not yet answered it.
        totals = replace(
            totals,
            copies=totals.copies - self._own_copies,
            bytes_copied=totals.bytes_copied - self._own_bytes,
            wire_bytes=totals.wire_bytes - self._own_wire_bytes - HEADER.size,
        )
        self._count_call(0, length)
        return totals

    def run(
        self, path: str, completion: int, payload: int, count: int, warmup: int
    ) -> "array[int]":
        """Have the kernel perform a run; return its samples."""
        plan = encode(BenchmarkRun(path, completion, payload, count, warmup))
        samples = array("Q", bytes(8 * count))
        length = self._handle.device_io_control(IOCTL_BENCHMARK_RUN, plan, samples)
        self._count_call(len(plan), length)
        return samples[: length // 8]

    def run_private_copy(self, payload: int, count: int, warmup: int) -> "array[int]":
        """Have the kernel read this process's private memory; return its samples.

        The call is made with raw addresses, so that the driver sees where the output buffer lies.
        """
        plan = ctypes.create_string_buffer(
            encode(BenchmarkRun("floor_private_copy", 0, payload, count, warmup))
        )
        samples = array("Q", bytes(max(8 * count, payload + 8 - payload % 8)))
        address, items = samples.buffer_info()
        iosb = IoStatusBlock()
        status = self._handle.nt_device_io_control(
            IOCTL_BENCHMARK_RUN,
            iosb,
            input_address=ctypes.addressof(plan),
            input_length=len(plan) - 1,
            output_address=address,
            output_length=8 * items,
            keep=(plan, samples),
        )
        if status != STATUS_SUCCESS:
            raise NtStatusError(status)
        return samples[: iosb.information // 8]

    def _count_call(self, input_length: int, output_length: int) -> None:
        self._own_copies += bool(input_length) + bool(output_length)
        self._own_bytes += input_length + output_length
        self._own_wire_bytes += 2 * HEADER.size + input_length + output_length

    def run_row(self, row: RowSpec, count: int, warmup: int) -> "array[int]":
        """Perform a kernel row's operations."""
        completion = COMPLETION_NAMES.index(row.completion)
        return self.run(row.path, completion, row.payload, count, warmup)

    def run_floor(self, floor: FloorSpec, count: int, warmup: int) -> "array[int]":
        """Perform a floor's operations inside the kernel."""
        if floor.name == "private_copy":
            return self.run_private_copy(floor.payload, count, warmup)
        return self.run(f"floor_{floor.name}", 0, floor.payload, count, warmup)

    def close(self) -> None:
        """Close the device."""
        self._handle.close()


class UserRow:
    """The operation of a user row, checked once before it is timed."""

    def __init__(self, process: "UserProcess", row: RowSpec) -> None:
        self.buffers = RowBuffers(process, row)
        self._handle = process.open_device(NOOP_DEVICE)
        code = noop_code(_METHODS[row.method], COMPLETION_NAMES.index(row.completion))
        self.operation: Operation = partial(
            self._handle.device_io_control, code, self.buffers.source, self.buffers.target
        )
        moved = self.operation()
        if moved != row.payload:
            raise WrongContent(f"{moved} bytes moved instead of {row.payload}")
        self.buffers.check()

    def close(self) -> None:
        """Close the device and give the buffers back."""
        self._handle.close()
        del self.operation
        self.buffers.release()


def timed(operation: Operation, count: int, warmup: int, limit_ns: int) -> "array[int]":
    """Time operations one by one after a few that are not timed.

    `count` of them, or fewer when the time is up, but at least five.
    """
    samples = array("Q", bytes(8 * count))
    now = now_ns
    for _ in range(warmup):
        operation()
    deadline = now() + limit_ns
    for index in range(count):
        begin = now()
        operation()
        end = now()
        samples[index] = end - begin
        if end > deadline and index >= 4:
            del samples[index + 1 :]
            break
    return samples


def sample_store(count: int) -> "array[int]":
    """Return what storing one sample takes, each figure the mean of a hundred."""
    samples = array("Q", bytes(8 * count))
    scratch = array("Q", bytes(800))
    hundred = range(100)
    now = now_ns
    for index in range(count):
        begin = now()
        for position in hundred:
            scratch[position] = begin
        samples[index] = (now() - begin) // 100
    return samples
