"""Several requests of one thread under way at once."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.envelope import (
    FLAG_COMPLETION_FOLLOWS,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_CLOSE,
    KIND_DEVICE_CONTROL,
)
from user_proc.errors import CallInProgress, KernelDied, ProtocolError
from user_proc.transport.burst_port import MOST_AT_ONCE


class Interrupt(Exception):
    """Stands for KeyboardInterrupt where a real one would end the test run."""


@pytest.fixture
def helper() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def burst(port: Any, number: int) -> list[tuple[int, int, bytes | None]]:
    """Make so many requests at once; return id, status and body of each answer."""
    taken: list[tuple[int, int, bytes | None]] = []
    port.call_each(
        [port.take_request_id() for _ in range(number)], KIND_DEVICE_CONTROL, 3, 4, 0x80012000,
        64, b"input", lambda request_id, answer, body: taken.append((request_id, answer[6], body)),
    )  # fmt: skip
    return taken


def test_all_are_sent_before_the_first_is_answered(fake: Any, helper: Any, channel: Any):
    def serve() -> list[Any]:
        requests = [fake.next_request() for _ in range(MOST_AT_ONCE)]
        for status, request in enumerate(requests):
            body = b"" if status % 2 else b"out"
            fake.reply(request, body, status=status, flags=FLAG_COMPLETION_FOLLOWS)
        return requests

    served = helper.submit(serve)
    port = channel.port()
    taken = burst(port, MOST_AT_ONCE)
    requests = served.result()
    assert [header.request_id for _, header, _ in requests] == [one[0] for one in taken]
    assert [one[1] for one in taken] == list(range(MOST_AT_ONCE))
    assert [one[2] for one in taken] == [b"out", None] * (MOST_AT_ONCE // 2)
    assert {payload for _, _, payload in requests} == {b"input"}
    assert {(h.control_code, h.file_handle, h.output_length) for _, h, _ in requests} == {
        (0x80012000, 4, 64)
    }
    assert port.messages_sent == port.messages_received == MOST_AT_ONCE


def test_more_than_the_kernel_takes_is_refused_before_anything_is_sent(fake: Any, channel: Any):
    with pytest.raises(ValueError, match="9 requests at once"):
        burst(channel.port(), MOST_AT_ONCE + 1)
    assert fake.requests.empty()


def test_a_burst_inside_a_call_is_refused(fake: Any, helper: Any, channel: Any):
    port, refused = channel.port(), threading.Event()

    def inside(*_: object) -> None:
        with pytest.raises(CallInProgress):
            burst(port, 1)
        refused.set()

    def serve() -> None:
        requests = [fake.next_request() for _ in range(2)]
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        assert refused.wait(10)
        for request in requests:
            fake.reply(request)

    old = signal.signal(signal.SIGUSR1, inside)
    try:
        served = helper.submit(serve)
        assert len(burst(port, 2)) == 2
    finally:
        signal.signal(signal.SIGUSR1, old)
    served.result()


def test_an_interrupted_burst_abandons_what_is_unanswered(fake: Any, helper: Any, channel: Any):
    port = channel.port()
    socket = port._socket

    def raise_it(*_: object) -> None:
        raise Interrupt

    def serve() -> list[Any]:
        requests = [fake.next_request() for _ in range(3)]
        fake.reply(requests[0], status=1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        cancelled = {fake.next_request()[1].request_id for _ in range(2)}
        assert all(header.kind == KIND_DEVICE_CONTROL for _, header, _ in requests)
        assert cancelled <= {header.request_id for _, header, _ in requests}
        return requests

    old = signal.signal(signal.SIGUSR1, raise_it)
    try:
        served = helper.submit(serve)
        with pytest.raises(Interrupt):
            burst(port, 3)
    finally:
        signal.signal(signal.SIGUSR1, old)
    for request in served.result()[1:]:
        fake.reply(request, status=2)

    def close() -> None:
        request = fake.next_request()
        while request[1].kind == KIND_CANCEL_SYNCHRONOUS:  # the first may be abandoned, too
            request = fake.next_request()
        fake.reply(request, b"good", status=5)

    late = helper.submit(close)
    answer, body = port.call(KIND_CLOSE, 0, 3)
    late.result()
    assert (answer[6], body) == (5, b"good")
    # Interrupted just after the last message went out, it went on with a new socket.
    assert port.late_answers >= 2 or port._socket is not socket


def test_answers_out_of_order_are_a_breach(fake: Any, helper: Any, channel: Any):
    def serve() -> None:
        first, second = fake.next_request(), fake.next_request()
        fake.reply(second)
        fake.reply(first)

    served = helper.submit(serve)
    with pytest.raises(ProtocolError):
        burst(channel.port(), 2)
    served.result()


def test_the_kernels_end_ends_a_burst(fake: Any, helper: Any, channel: Any):
    def serve() -> None:
        for _ in range(2):
            fake.next_request()
        fake.hang_up()

    served = helper.submit(serve)
    with pytest.raises(KernelDied):
        burst(channel.port(), 2)
    served.result()
