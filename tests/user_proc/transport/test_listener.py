"""Overlapped completions: in any order against the answer, counted, never awaited in vain."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.envelope import (
    FLAG_COMPLETION_FOLLOWS,
    FLAG_IOSB_WRITTEN,
    FLAG_OUTPUT_INLINE,
    KIND_DEVICE_CONTROL,
    make_header,
    parse_header,
)
from shared.nt_status import STATUS_PENDING
from user_proc.errors import (
    ConnectionClosed,
    KernelDied,
    ProtocolError,
    SofthcaError,
)
from user_proc.transport import completion_table, kernel_watch

WRITTEN = FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE


class Pending:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.result: Any = None

    def complete(self, *result: Any) -> None:
        self.result = result
        self.done.set()

    def fail(self, error: SofthcaError) -> None:
        self.result = error
        self.done.set()

    def wait(self) -> Any:
        assert self.done.wait(10)
        return self.result


@pytest.fixture
def helper():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def submit(fake: Any, channel: Any, helper: Any) -> tuple[Any, Pending]:
    """Send an overlapped request that stays pending; give its header and who waits for it."""
    listener = channel.listener()
    port = channel.port()
    pending = Pending()
    request_id = port.take_request_id()
    listener.expect(request_id, pending)
    taken = helper.submit(fake.next_request)
    taken.add_done_callback(
        lambda request: fake.reply(
            request.result(), flags=FLAG_COMPLETION_FOLLOWS, status=STATUS_PENDING
        )
    )
    answer, _ = port.call(KIND_DEVICE_CONTROL, 0, 3, request_id=request_id)
    assert (answer[2], answer[4], answer[6]) == (
        FLAG_COMPLETION_FOLLOWS,
        request_id,
        STATUS_PENDING,
    )
    return taken.result()[1], pending


def test_completion_is_delivered_and_counted(fake: Any, channel: Any, helper: Any):
    header, pending = submit(fake, channel, helper)
    fake.complete(header, b"out", flags=WRITTEN, iosb_status=0x103, information=3)
    assert pending.wait() == (WRITTEN, 0x103, 3, b"out")
    channel.listener().catch_up(1)
    assert channel.credit.taken == 1
    assert channel.outstanding == {}
    assert channel.counters().messages_received == 2
    _, pending = submit(fake, channel, helper)
    assert not pending.done.is_set()


def test_trace_points(fake: Any, channel: Any, helper: Any, monkeypatch: pytest.MonkeyPatch):
    trace = completion_table.trace
    trace.clear()
    monkeypatch.setattr(trace, "enabled", True)
    header, pending = submit(fake, channel, helper)
    fake.complete(header, flags=FLAG_IOSB_WRITTEN)
    pending.wait()
    points = [(point.point, point.id) for point in trace.last()]
    names = ("user sending", "user sent", "user answered", "user completion")
    assert points == [(name, header.request_id) for name in names]
    trace.clear()


def test_credit_travels_with_the_next_request(fake: Any, channel: Any, helper: Any):
    header, pending = submit(fake, channel, helper)
    assert header.sequence == 0
    fake.complete(header, flags=FLAG_IOSB_WRITTEN)
    pending.wait()
    channel.listener().catch_up(1)
    header, _ = submit(fake, channel, helper)
    assert header.sequence == 1


def test_completion_before_the_answer(fake: Any, channel: Any, helper: Any):
    listener, port, pending = channel.listener(), channel.port(), Pending()
    request_id = port.take_request_id()
    listener.expect(request_id, pending)

    def complete_first() -> None:
        request = fake.next_request()
        fake.complete(request[1], flags=FLAG_IOSB_WRITTEN, information=9)
        assert pending.wait() == (FLAG_IOSB_WRITTEN, 0, 9, None)
        fake.reply(request, flags=FLAG_COMPLETION_FOLLOWS, status=STATUS_PENDING)

    done = helper.submit(complete_first)
    port.call(KIND_DEVICE_CONTROL, 0, 3, request_id=request_id)
    done.result()


def test_catch_up_waits_for_what_was_sent_before(fake: Any, channel: Any, helper: Any):
    header, pending = submit(fake, channel, helper)
    caught_up = helper.submit(lambda: (channel.catch_up(2), pending.done.is_set()))
    fake.complete(header, flags=FLAG_IOSB_WRITTEN)
    pending.wait()
    assert not caught_up.done()
    second, last = submit_from_here(fake, channel)
    fake.complete(second, flags=FLAG_IOSB_WRITTEN)
    assert caught_up.result(timeout=10) == (None, True)
    assert last.done.is_set()


def submit_from_here(fake: Any, channel: Any) -> tuple[Any, Pending]:
    with ThreadPoolExecutor(1) as pool:
        return submit(fake, channel, pool)


def test_counts_wrap_around(fake: Any, channel: Any, helper: Any):
    channel.listener()
    channel.credit.taken = (1 << 32) - 1
    header, pending = submit(fake, channel, helper)
    assert header.sequence == (1 << 32) - 1
    fake.complete(header, flags=FLAG_IOSB_WRITTEN)
    pending.wait()
    channel.catch_up(0)
    assert channel.credit.taken == 0
    channel.catch_up((1 << 32) - 1)  # what was taken long ago is not waited for


def test_completion_nobody_expects_is_dropped(fake: Any, channel: Any, helper: Any):
    header, pending = submit(fake, channel, helper)
    fake.complete(header._replace(request_id=header.request_id + 5), flags=FLAG_IOSB_WRITTEN)
    channel.catch_up(1)
    assert not pending.done.is_set()
    fake.complete(header, flags=FLAG_IOSB_WRITTEN)
    pending.wait()


def test_late_answer_without_completion_forgets_the_abandoned_request(
    fake: Any, channel: Any, helper: Any
):
    listener, port = channel.listener(), channel.port()
    request_id = port.take_request_id()
    listener.expect(request_id, Pending())
    plain_recv = port._recv

    def interrupted() -> bytes:
        port._recv = plain_recv
        raise InterruptedError

    port._recv = interrupted
    with pytest.raises(InterruptedError):
        port.call(KIND_DEVICE_CONTROL, 0, 3, request_id=request_id)
    request = fake.next_request()
    assert request_id in channel.outstanding
    fake.reply(request, flags=FLAG_IOSB_WRITTEN)
    channel.echo(b"x")
    assert channel.outstanding == {}


def test_close_fails_what_is_outstanding(fake: Any, channel: Any, helper: Any):
    _, pending = submit(fake, channel, helper)
    listener = channel.listener()
    channel.close()
    assert isinstance(pending.wait(), ConnectionClosed)
    with pytest.raises(ConnectionClosed):
        listener.expect(99, Pending())
    assert channel.outstanding == {}
    assert not listener._thread.is_alive()


def test_end_of_the_session_fails_what_is_outstanding(fake: Any, channel: Any, helper: Any):
    _, pending = submit(fake, channel, helper)
    behind = helper.submit(channel.catch_up, 5)
    fake.hang_up()
    assert isinstance(pending.wait(), KernelDied)
    with pytest.raises(KernelDied):
        behind.result(timeout=10)
    with pytest.raises(KernelDied):
        channel.listener().expect(99, Pending())


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"short", "5 bytes"),
        (bytes(104), "kind 0"),
        (bytes(104 + (1 << 16) + 1), f"{104 + (1 << 16) + 1} bytes"),
        (bytes(104 + (1 << 16) + 9), f"{104 + (1 << 16) + 1} bytes"),
    ],
)
def test_bytes_nobody_understands_end_the_listener(
    fake: Any, channel: Any, helper: Any, packet: bytes, reason: str
):
    _, pending = submit(fake, channel, helper)
    fake.completions.send(packet)
    error = pending.wait()
    assert isinstance(error, ProtocolError)
    assert reason in str(error)


def test_the_longest_output_arrives(fake: Any, channel: Any, helper: Any):
    header, pending = submit(fake, channel, helper)
    payload = bytes(range(256)) * 256
    fake.complete(header, payload, flags=WRITTEN, information=len(payload))
    assert pending.wait()[3] == payload


def test_what_was_sent_before_the_listener_began_is_taken(fake: Any, channel: Any, helper: Any):
    request_id = channel.port().take_request_id()
    pending = Pending()
    channel.outstanding[request_id] = pending
    header = make_header(0, request_id=request_id)
    fake.complete(parse_header(header), flags=FLAG_IOSB_WRITTEN, information=7)
    assert not pending.done.is_set()
    channel.listener()
    assert pending.wait()[2] == 7


def test_a_kernel_that_only_ends_the_completions_is_dead(
    fake: Any, channel: Any, helper: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kernel_watch, "_END_MS", 50)
    _, pending = submit(fake, channel, helper)
    fake.completions.shutdown(socket.SHUT_RDWR)
    error = pending.wait()
    assert isinstance(error, KernelDied)
    assert "sends no more completions" in str(error)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unforeseen_failure_of_the_thread_fails_what_is_outstanding(
    fake: Any, channel: Any, helper: Any, monkeypatch: pytest.MonkeyPatch
):
    header, pending = submit(fake, channel, helper)
    monkeypatch.setattr(completion_table, "ANSWER", None)
    fake.complete(header)
    assert "the listener failed" in str(pending.wait())
