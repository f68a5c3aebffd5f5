"""The user side over a kernel in this process: the same code, no process, no waiting in vain."""

from typing import Any

import pytest

from kernel_proc.scheduling.processor import Deadlock
from shared.ioctl_codes import COMPLETION_DEVICE, METHOD_BUFFERED, METHOD_NEITHER, noop_code
from shared.nt_status import STATUS_QUOTA_EXCEEDED
from tests.drivers.gate import KEEP
from user_proc.errors import ConnectionClosed, KernelRefused, SofthcaError

CODE = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)


def test_users_of_one_kernel_are_apart(inside: Any):
    kernel = inside()
    with kernel.connect() as first, kernel.connect() as second:
        assert first.session != second.session
        assert first.name == "in-process"
        event = first.create_event(signaled=True)
        assert event.wait(0)
        assert second.echo(b"x" * 1000) == b"x" * 1000
        answer, _ = second.channel.port().call(6, 0, event.handle)
        assert answer[6] == 0xC000_0008  # no handle of theirs
        assert first.counters().threads == 1


def test_a_wait_that_can_never_end_is_told(inside: Any):
    with inside().connect() as process, process.open_device("gate", overlapped=True) as gate:
        request = gate.start(KEEP, b"x")
        with pytest.raises(TimeoutError):
            request.wait(5)
        with pytest.raises(Deadlock):
            request.wait()
        event = process.create_event()
        with pytest.raises(Deadlock, match="waiting for Event"):
            event.wait()
        assert process.echo(b"usable") == b"usable"
        assert gate.cancel_ex(request)
        with pytest.raises(SofthcaError):
            request.wait(1)


def test_arenas_are_shared_with_the_kernel_and_bounded(inside: Any):
    kernel = inside(arena_bytes_per_process=4 << 20)
    with kernel.connect() as process, process.open_device("noop") as device:
        source, target = process.allocate(100), process.allocate(100)
        source.view[:] = bytes(range(100))
        before = kernel.machine.io.copy_counters.copies
        code = noop_code(METHOD_NEITHER, COMPLETION_DEVICE)
        assert device.device_io_control(code, source, target) == 100
        assert bytes(target.view) == bytes(range(100))
        assert kernel.machine.io.copy_counters.copies == before
        with pytest.raises(KernelRefused) as caught:
            process.allocate(8 << 20)
        assert caught.value.status == STATUS_QUOTA_EXCEEDED
        large = process.allocate(1 << 20)
        large.release()
    assert kernel.machine.reception.arena_total.used == 0


def test_close_ends_what_is_outstanding(inside: Any):
    kernel = inside()
    process = kernel.connect()
    gate = process.open_device("gate", overlapped=True)
    request = gate.start(KEEP, b"x")
    buffer = process.allocate(64)
    process.close()
    process.close()
    with pytest.raises(ConnectionClosed):
        request.wait(1)
    for use in (process.echo, process.create_event, lambda: gate.start(KEEP)):
        with pytest.raises(ConnectionClosed):
            use()
    buffer.release()
    gate.close()


def test_another_thread_is_another_to_the_kernel(inside: Any):
    kernel = inside()
    with kernel.connect() as process:
        process.echo()
        (session,) = kernel.machine.sessions
        with process.channel.another_thread() as port:
            assert process.channel.port() is port
            process.create_event().close()
            assert sorted(session.threads) == [1, 2]
        process.create_event().close()
        kernel.machine.processor.run_until(lambda: sorted(session.threads) == [1])
        with process.channel.another_thread() as third:
            assert third.number == 3
            process.echo()


def test_there_is_no_socket(inside: Any):
    with inside().connect() as process, pytest.raises(SofthcaError, match="has no socket"):
        process.channel.make_socket()


def test_a_run_can_be_repeated(inside: Any):
    def run() -> tuple[Any, ...]:
        kernel = inside(seed=9)
        with kernel.connect() as process, process.open_device("noop", overlapped=True) as device:
            with process.create_completion_port() as port:
                port.associate(device)
                for number in range(1, 20):
                    device.start(noop_code(METHOD_BUFFERED, number % 3), b"x", None, number)
                packets = [packet.apc_context for packet in port.remove(99, 1)[1]]
            process.sleep_alertable(0.5)
        dispatcher = kernel.machine.processor.dispatcher
        return packets, kernel.machine.processor.clock.now_ns(), dispatcher.switches

    assert run() == run()
