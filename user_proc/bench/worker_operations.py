"""What a benchmark's user process asks the kernel for beside its rows: echoes and kernel runs.

Rules: one thread. What is sent is made beforehand, so that only the operation is timed.
"""

import ctypes
import os
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
    IOCTL_TRACE_CONTROL,
    IOCTL_TRACE_FETCH,
)
from shared.message_codec import decode_as, encode
from shared.messages import COUNTERS_MAX_LENGTH, BenchmarkRun, Counters
from shared.nt_status import STATUS_SUCCESS
from shared.trace_points import POINT_SIZE, TracePoint, by_request, trace, unpack_points
from user_proc.bench.row_plan import FloorSpec, RowSpec
from user_proc.bench.timed_loops import Operation, Taken, Window, empty_samples, take
from user_proc.errors import NtStatusError
from user_proc.io.io_status import IoStatusBlock

if TYPE_CHECKING:
    from user_proc.process import UserProcess

# The echo goes over a socket of its own, which the kernel takes for one more calling thread.
_ECHO_THREAD: Final = 1 << 20
_SNDMORE: Final = int(zmq.SNDMORE)


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

    def take(self, floor: FloorSpec, window: Window) -> Taken:
        """Perform a block of echoes, as many at a time as the floor says."""
        payload = os.urandom(floor.payload)
        if floor.depth > 1:
            return self._stream(payload, floor.depth, window)
        return take(self.operation(payload), window)

    def operation(self, payload: bytes) -> Operation:
        """Return a round trip of a header and, if there is one, a payload frame both ways."""
        return partial(self._with_payload, payload) if payload else self._header_only

    def _header_only(self) -> None:
        self._send(self._header)
        self._recv()

    def _with_payload(self, payload: bytes) -> None:
        self._send(self._header, _SNDMORE)
        self._send(payload)
        self._recv()
        self._recv()

    def _stream(self, payload: bytes, depth: int, window: Window) -> Taken:
        """Keep so many echoes under way; they come back in the order in which they were sent."""
        for _ in range(window.warmup):
            self.operation(payload)()
        count, now = window.count, now_ns
        samples = empty_samples(count)
        first = end = now()
        deadline = first + window.limit_ns
        given = 0
        for index in range(count):
            while given < count and given - index < depth:
                samples[given] = now()
                self._give(payload)
                given += 1
            self._recv()
            if payload:
                self._recv()
            end = now()
            samples[index] = end - samples[index]
            if end > deadline:
                count = given
            if index + 1 == count:
                break
        del samples[count:]
        return Taken(samples, end - first)

    def _give(self, payload: bytes) -> None:
        if payload:
            self._send(self._header, _SNDMORE)
            self._send(payload)
        else:
            self._send(self._header)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(linger=0)


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
        totals = totals._replace(
            copies=totals.copies - self._own_copies,
            bytes_copied=totals.bytes_copied - self._own_bytes,
            wire_bytes=totals.wire_bytes - self._own_wire_bytes - HEADER.size,
        )
        self._count_call(0, length)
        return totals

    def trace_on(self) -> None:
        """Empty both processes' trace rings and switch them on."""
        self._handle.device_io_control(IOCTL_TRACE_CONTROL, (1).to_bytes(4, "little"))
        trace.clear()
        trace.enabled = True

    def trace_off(self) -> dict[int, list[TracePoint]]:
        """Switch them off; return the points of both by the request they belong to."""
        trace.enabled = False
        self._handle.device_io_control(IOCTL_TRACE_CONTROL, (0).to_bytes(4, "little"))
        room = bytearray(POINT_SIZE * trace.capacity)
        length = self._handle.device_io_control(IOCTL_TRACE_FETCH, None, room)
        return by_request([*trace.last(), *unpack_points(room[:length])])

    def take_row(self, row: RowSpec, window: Window) -> Taken:
        """Perform a block of a kernel row."""
        completion = COMPLETION_NAMES.index(row.completion)
        return self.run(row.path, completion, row.payload, window, row.depth)

    def take_floor(self, floor: FloorSpec, window: Window) -> Taken:
        """Perform a block of a floor inside the kernel."""
        if floor.name == "private_copy":
            return self._run_private_copy(floor.payload, window)
        return self.run(f"floor_{floor.name}", 0, floor.payload, window)

    def run(
        self, path: str, completion: int, payload: int, window: Window, depth: int = 1
    ) -> Taken:
        """Have the kernel perform a run."""
        plan = encode(BenchmarkRun(path, completion, payload, window.count, window.warmup, depth))
        answer = empty_samples(window.count + 1)
        length = self._handle.device_io_control(IOCTL_BENCHMARK_RUN, plan, answer)
        self._count_call(len(plan), length)
        elapsed = answer.pop()
        return Taken(answer, elapsed)

    def _run_private_copy(self, payload: int, window: Window) -> Taken:
        """Have the kernel read this process's private memory.

        The call is made with raw addresses, so that the driver sees where the output buffer lies.
        """
        plan = ctypes.create_string_buffer(
            encode(BenchmarkRun("floor_private_copy", 0, payload, window.count, window.warmup))
        )
        samples = empty_samples(max(window.count + 1, (payload + 7) // 8))
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
        del samples[iosb.information // 8 :]
        elapsed = samples.pop()
        return Taken(samples, elapsed)

    def _count_call(self, input_length: int, output_length: int) -> None:
        self._own_copies += bool(input_length) + bool(output_length)
        self._own_bytes += input_length + output_length
        self._own_wire_bytes += 2 * HEADER.size + input_length + output_length

    def close(self) -> None:
        """Close the device."""
        self._handle.close()
