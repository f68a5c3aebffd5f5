"""User APCs through the door: who runs them, when, in which order, and when there is none."""

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
    STATUS_BUFFER_OVERFLOW,
    STATUS_CANCELLED,
    STATUS_NOT_IMPLEMENTED,
    STATUS_PENDING,
    STATUS_QUOTA_EXCEEDED,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    STATUS_USER_APC,
)
from tests.drivers.gate import AWAIT, KEEP, RELEASE, word
from user_proc.errors import NtStatusError
from user_proc.io.io_status import IoStatusBlock
from user_proc.process import UserProcess

COMPLETIONS = (COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE)
INLINE = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)


@pytest.fixture
def process(any_process: UserProcess) -> UserProcess:
    return any_process


@pytest.fixture
def device(process: UserProcess):
    with process.open_device("noop", overlapped=True) as opened:
        yield opened


@pytest.fixture
def gate(process: UserProcess):
    with process.open_device("gate", overlapped=True) as opened:
        yield opened


def expected(process: UserProcess) -> dict[int, Any]:
    return process.channel.port().apcs._expected


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_NEITHER])
def test_w5_the_routine_runs_in_an_alertable_wait_with_the_result_there(
    process: UserProcess, device: Any, method: int, completion: int
):
    seen: list[Any] = []
    output = bytearray(3)

    def routine(request: Any) -> None:
        seen.append((request, request.done, request.information, bytes(output)))

    request = device.start(noop_code(method, completion), b"abc", output, apc=routine)
    assert request.wait(10) == 3
    assert seen == []  # nobody has waited alertably yet
    with process.create_event(signaled=True) as event:
        assert event.wait(0)
        assert event.wait_alertable(0) == STATUS_SUCCESS  # the object comes first
        assert seen == []
    assert process.sleep_alertable(10)
    assert seen == [(request, True, 3, b"abc")]
    assert not process.sleep_alertable(0)
    assert expected(process) == {}


def test_every_kind_of_alertable_wait_ends(process: UserProcess, device: Any):
    ran: list[int] = []
    with process.create_event() as event, process.create_completion_port() as port:
        waits = (
            lambda: event.wait_alertable(10),
            lambda: device.wait_alertable(10),
            lambda: process.wait_for_multiple([event, event], timeout=10, alertable=True),
            lambda: process.wait_for_multiple([event], wait_all=True, alertable=True),
            lambda: port.remove(1, None, alertable=True)[0],
        )
        for number, wait in enumerate(waits):
            device.start(INLINE, b"x", None, 0, event, lambda _, n=number: ran.append(n)).wait(10)
            event.reset()
            assert wait() == STATUS_USER_APC
            assert ran[-1] == number
        assert ran == list(range(len(waits)))
        assert event.wait_alertable(0.001) == STATUS_TIMEOUT


def test_apcs_run_in_the_order_of_the_ends(process: UserProcess, device: Any, gate: Any):
    ran: list[int] = []
    kept = [gate.start(KEEP, b"x", None, apc=lambda _, n=n: ran.append(n)) for n in range(3)]
    device.start(INLINE, b"x", apc=lambda _: ran.append(9))
    assert gate.cancel_ex(kept[1])
    for _ in range(2):
        gate.device_io_control(RELEASE, word(0))
    assert not kept[0].wait(10)
    assert process.sleep_alertable(10)
    while process.sleep_alertable(0):
        pass
    assert ran == [9, 1, 0, 2]


@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("status", [STATUS_BUFFER_OVERFLOW, STATUS_NOT_IMPLEMENTED])
def test_w5_failures_queue_one_unless_they_were_never_pended(
    process: UserProcess, device: Any, status: int, completion: int
):
    seen: list[int] = []
    code = noop_fail_code(METHOD_BUFFERED, completion)

    def start() -> None:
        device.start(code, word(status), None, apc=lambda request: seen.append(request.status))

    if completion == COMPLETION_INLINE and status == STATUS_NOT_IMPLEMENTED:
        with pytest.raises(NtStatusError):
            start()
        assert not process.sleep_alertable(0)
    else:
        start()
        assert process.sleep_alertable(10)
        assert seen == [status]
    assert expected(process) == {}


def test_fast_io_queues_none(process: UserProcess):
    with process.open_device("noop_fast", overlapped=True) as device:
        code, ran = noop_fast_code(METHOD_BUFFERED), []
        assert device.start(code, b"x", None, apc=ran.append, raw=True).wait(0) == 1
        assert not process.sleep_alertable(0)
        assert device.start(code, b"x", None, apc=ran.append).wait(0) == 1  # an IRP
        assert process.sleep_alertable(0)
        assert len(ran) == 1
        assert expected(process) == {}


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_the_native_call_has_context_and_status_block(
    process: UserProcess, completion: int, overlapped: bool
):
    seen: list[Any] = []
    iosb = IoStatusBlock()
    with process.open_device("noop", overlapped=overlapped) as handle:
        returned = handle.nt_device_io_control(
            noop_code(METHOD_NEITHER, completion),
            iosb,
            apc_context=77,
            apc=lambda context, block: seen.append((context, block, block.status)),
        )
        assert returned in (STATUS_SUCCESS, STATUS_PENDING)
        assert process.sleep_alertable(10)
        assert seen == [(77, iosb, STATUS_SUCCESS)]
        failing = noop_fail_code(METHOD_NEITHER, COMPLETION_INLINE)
        assert handle.nt_device_io_control(failing, iosb, apc=seen.append) == 0xC000_000D
        assert expected(process) == {}


def test_one_that_raises_leaves_the_others_for_the_next_wait(process: UserProcess, device: Any):
    ran: list[int] = []

    def fail(request: Any) -> None:
        raise ZeroDivisionError

    device.start(INLINE, b"x", apc=fail)
    device.start(INLINE, b"x", apc=lambda _: ran.append(1))
    with pytest.raises(ZeroDivisionError):
        process.sleep_alertable(10)
    assert ran == []
    assert process.sleep_alertable(10)
    assert ran == [1]


def test_a_routine_may_itself_wait_alertably(process: UserProcess, device: Any):
    ran: list[str] = []

    def outer(request: Any) -> None:
        ran.append("outer")
        device.start(INLINE, b"x", apc=lambda _: ran.append("inner"))
        assert process.sleep_alertable(10)
        ran.append("outer ends")

    device.start(INLINE, b"x", apc=outer)
    assert process.sleep_alertable(10)
    assert ran == ["outer", "inner", "outer ends"]


def test_an_alertable_file_is_broken_off(process: UserProcess, device: Any):
    ran: list[int] = []
    with process.open_device("gate", alertable=True) as gate:
        device.start(INLINE, b"x", apc=lambda _: ran.append(1))
        with pytest.raises(NtStatusError) as caught:
            gate.device_io_control(KEEP, b"x")
        assert caught.value.status == STATUS_CANCELLED
        assert ran == [1]
        device.start(INLINE, b"x", apc=lambda _: ran.append(2))
        iosb = IoStatusBlock(0x11111111)
        assert gate.nt_device_io_control(KEEP, iosb) == STATUS_CANCELLED
        assert (iosb.status, ran) == (0x11111111, [1, 2])
        with gate.duplicate() as second:
            device.start(INLINE, b"x", apc=lambda _: ran.append(3))
            with pytest.raises(NtStatusError):
                second.device_io_control(KEEP, b"x")
        assert ran == [1, 2, 3]
        with pytest.raises(NtStatusError):
            gate.device_io_control(0x80210000)
    with pytest.raises(ValueError, match="synchronous"):
        process.open_device("gate", overlapped=True, alertable=True)


def test_an_interrupted_wait_loses_none(process: UserProcess, device: Any):
    ran: list[int] = []
    port = process.channel.port()
    plain = port._recv

    def interrupted() -> bytes:
        port._recv = plain
        raise KeyboardInterrupt

    device.start(INLINE, b"x", apc=lambda _: ran.append(1))
    port._recv = interrupted
    with pytest.raises(KeyboardInterrupt):
        process.sleep_alertable(10)
    process.echo()
    assert ran == []
    assert process.sleep_alertable(10)
    assert ran == [1]


def test_apcs_nobody_takes_are_charged(inside: Any):
    kernel = inside(pool_bytes_per_process=64 << 10)
    with kernel.connect() as process, process.open_device("noop", overlapped=True) as device:
        ran: list[Any] = []
        for _ in range((64 << 10) // 280):
            device.start(INLINE, apc=ran.append)
        with pytest.raises(NtStatusError) as caught:
            device.start(INLINE, apc=ran.append)
        assert caught.value.status == STATUS_QUOTA_EXCEEDED
        assert process.sleep_alertable(0)
        assert len(ran) == (64 << 10) // 280
        (session,) = kernel.machine.sessions
        assert session.process.pool_charged == 0
        with process.channel.another_thread():  # one that ends without having looked
            device.start(INLINE, apc=ran.append)
        process.echo()
        kernel.machine.processor.run_until(lambda: len(session.threads) == 1)
        assert session.process.pool_charged == 0
        assert len(ran) == (64 << 10) // 280


def test_more_than_one_reply_holds(inside: Any):
    kernel = inside()
    with kernel.connect() as process, process.open_device("noop", overlapped=True) as device:
        ran: list[int] = []
        for number in range(1030):
            device.start(INLINE, apc=lambda _, n=number: ran.append(n))
        assert process.sleep_alertable(0)
        assert len(ran) == 1024
        assert process.sleep_alertable(0)
        assert ran == list(range(1030))


@pytest.mark.processes
def test_only_the_thread_that_asked_runs_it(kernel: Any, threads: Any):
    with (
        UserProcess.connect(kernel.name) as process,
        process.open_device("gate", overlapped=True) as gate,
    ):
        ran: list[str] = []
        other = threads(process.sleep_alertable, 0.05)
        held = gate.start(KEEP, b"x", apc=lambda _: ran.append("mine"))
        gate.device_io_control(AWAIT, word(1))
        releaser = threads(gate.device_io_control, RELEASE, word(0))
        assert process.sleep_alertable(10)
        assert ran == ["mine"]
        assert held.wait(0) == 0
        assert other.join() is False
        releaser.join()
