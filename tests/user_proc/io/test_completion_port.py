"""Completion ports through the door: W8, order, threads, and what cannot report to a port."""

import threading
from collections import Counter
from typing import Any

import pytest

from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    METHOD_NEITHER,
    noop_code,
    noop_fail_code,
    noop_fast_code,
)
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_BUFFER_OVERFLOW,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_HANDLE,
    STATUS_INVALID_PARAMETER,
    STATUS_NOT_IMPLEMENTED,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
)
from tests.drivers.gate import AWAIT, KEEP, word
from user_proc.errors import NtStatusError
from user_proc.io.completion_port import CompletionPacket
from user_proc.process import UserProcess

COMPLETIONS = (COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE)
KEY = 0xFEDC_BA98_7654_3210
CONTEXT = 0x8000_0000_0000_0001


@pytest.fixture
def process(any_process: UserProcess) -> UserProcess:
    return any_process


@pytest.fixture
def port(process: UserProcess):
    with process.create_completion_port() as made:
        yield made


@pytest.fixture
def device(process: UserProcess, port: Any):
    with process.open_device("noop", overlapped=True) as opened:
        port.associate(opened, KEY)
        yield opened


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_NEITHER])
def test_w8_a_packet_for_a_request_with_a_context(
    device: Any, port: Any, method: int, completion: int
):
    code, output = noop_code(method, completion), bytearray(3)
    request = device.start(code, b"abc", output, CONTEXT)
    assert port.get(10) == CompletionPacket(KEY, CONTEXT, STATUS_SUCCESS, 3)
    assert (request.done, request.wait(0), output) == (True, 3, b"abc")
    device.start(code, b"abc", output).wait(10)
    assert port.get(0) is None


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("status", [STATUS_BUFFER_OVERFLOW, STATUS_NOT_IMPLEMENTED])
def test_w8_failures_report_unless_they_were_never_pended(
    device: Any, port: Any, status: int, completion: int
):
    code = noop_fail_code(METHOD_BUFFERED, completion)
    if completion == COMPLETION_INLINE and status == STATUS_NOT_IMPLEMENTED:
        with pytest.raises(NtStatusError):
            device.start(code, word(status), None, CONTEXT)
        assert port.get(0) is None
    else:
        request = device.start(code, word(status), None, CONTEXT)
        assert port.get(10) == (KEY, CONTEXT, status, 0)
        assert (request.done, request.status) == (True, status)


def test_w8_fast_io_reports_too(process: UserProcess, port: Any):
    with process.open_device("noop_fast", overlapped=True) as device:
        port.associate(device, 1)
        output = bytearray(4)
        request = device.start(noop_fast_code(METHOD_BUFFERED), b"fast", output, 2, raw=True)
        assert (request.returned, output) == (STATUS_SUCCESS, b"fast")
        assert port.get(0) == (1, 2, STATUS_SUCCESS, 4)
        assert request.wait(0) == 4


def test_packets_of_ones_own_come_in_order(port: Any):
    packets = [CompletionPacket(n, 2 * n, 0xC000_0000 + n, KEY) for n in range(5)]
    for packet in packets:
        port.post(*packet)
    assert port.get() == packets[0]
    assert port.remove(2) == (STATUS_SUCCESS, packets[1:3])
    assert port.remove(1 << 40, 5) == (STATUS_SUCCESS, packets[3:])
    assert port.remove(9, 0.001) == (STATUS_TIMEOUT, [])
    port.post()
    assert port.get(None) == (0, 0, STATUS_SUCCESS, 0)
    with pytest.raises(ValueError, match="at least one packet"):
        port.remove(0)


def test_which_files_can_report(process: UserProcess, port: Any, device: Any):
    with process.open_device("noop") as synchronous:
        assert refused(port.associate, synchronous, 1) == STATUS_INVALID_PARAMETER
    with process.create_completion_port() as second:
        assert refused(second.associate, device, 1) == STATUS_INVALID_PARAMETER
    with process.create_event() as event:
        assert refused(port.associate, event) == STATUS_OBJECT_TYPE_MISMATCH
    assert refused(port.wait, 0) == STATUS_OBJECT_TYPE_MISMATCH
    port.close()
    assert refused(port.get, 0) == STATUS_INVALID_HANDLE


def test_a_file_that_reports_queues_no_apc(device: Any):
    ran: list[Any] = []
    code = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
    assert refused(device.start, code, b"", None, 1, None, ran.append) == STATUS_INVALID_PARAMETER
    assert device.start(code, b"x").wait(10) == 1
    assert ran == []


def test_the_files_go_on_reporting_when_the_ports_handle_is_closed(port: Any, device: Any):
    port.close()
    request = device.start(noop_code(METHOD_BUFFERED, COMPLETION_DPC), b"x", bytearray(1), 7)
    assert request.wait(10) == 1


def test_a_posting_needs_the_right_to_change(process: UserProcess, port: Any):
    synchronize = 0x0010_0000
    answer, _ = process.channel.port().call(3, 0, port.handle, synchronize)
    weak = type(port)(process.channel, answer[3])
    assert refused(weak.post) == STATUS_ACCESS_DENIED
    assert refused(weak.get, 0) == STATUS_ACCESS_DENIED
    weak.close()


def test_packets_are_charged_until_they_are_taken(inside: Any):
    kernel = inside(pool_bytes_per_process=64 << 10)
    with kernel.connect() as process, process.create_completion_port() as port:
        for number in range((64 << 10) // 0x40):
            port.post(number)
        assert refused(port.post) == STATUS_INSUFFICIENT_RESOURCES
        assert [packet.key for packet in port.remove(2)[1]] == [0, 1]
        port.post()
        with process.open_device("noop", overlapped=True) as device:
            port.remove(1000)
            port.associate(device)
            for _ in range(10):
                device.start(noop_code(METHOD_BUFFERED, 0), b"x" * 100, None, 1)
            (charged,) = {session.process.pool_charged for session in kernel.machine.sessions}
            assert 10 * 280 <= charged < 10 * 280 + 1000 * 0x40  # the IRPs, not their buffers
            assert refused(device.start, noop_code(METHOD_BUFFERED, 0), b"x" * 64000) == 0xC0000044
            port.close()
        (charged,) = {session.process.pool_charged for session in kernel.machine.sessions}
        assert charged == 0


def test_packets_for_an_interrupted_caller_go_to_the_next(process: UserProcess, port: Any):
    channel_port = process.channel.port()
    plain = channel_port._recv

    def interrupted() -> bytes:
        channel_port._recv = plain
        raise KeyboardInterrupt

    port.post(1)
    port.post(2)
    channel_port._recv = interrupted
    with pytest.raises(KeyboardInterrupt):
        port.get(5)
    process.echo()  # the late answer comes before this one
    assert [port.get(5), port.get(5)] == [(1, 0, 0, 0), (2, 0, 0, 0)]
    assert port.get(0) is None


def refused(call: Any, *arguments: Any) -> int:
    with pytest.raises(NtStatusError) as caught:
        call(*arguments)
    return caught.value.status


@pytest.mark.processes
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_several_threads_share_a_port(kernel: Any, threads: Any, completion: int):
    """Each packet goes to one thread, which finds the output of the request stored."""
    count, code = 120, noop_code(METHOD_BUFFERED, completion)
    outputs = [bytearray(2) for _ in range(count)]
    begun = threading.Barrier(4)

    def take(port: Any) -> list[tuple[int, bytes]]:
        begun.wait()
        taken = []
        while (packet := port.get(10)).key:
            taken.append((packet.apc_context, bytes(outputs[packet.apc_context - 1])))
        return taken

    with (
        UserProcess.connect(kernel.name) as process,
        process.create_completion_port() as port,
        process.open_device("noop", overlapped=True) as device,
    ):
        port.associate(device, KEY)
        takers = [threads(take, port) for _ in range(3)]
        begun.wait()
        for number in range(1, count + 1):
            device.start(code, number.to_bytes(2, "little"), outputs[number - 1], number)
        for _ in takers:
            port.post()
        taken = [one for taker in takers for one in taker.join()]
    assert Counter(taken) == Counter((n, n.to_bytes(2, "little")) for n in range(1, count + 1))


@pytest.mark.processes
def test_a_thread_waits_for_a_request_of_another(kernel: Any, threads: Any):
    with (
        UserProcess.connect(kernel.name) as process,
        process.create_completion_port() as port,
        process.open_device("gate", overlapped=True) as gate,
    ):
        port.associate(gate, 3)
        waiting = threads(port.get, 10)
        held = gate.start(KEEP, b"kept", bytearray(4), 4)
        gate.device_io_control(AWAIT, word(1))
        assert gate.cancel_ex(held)
        assert waiting.join() == (3, 4, 0xC000_0120, 0)
        assert held.done
