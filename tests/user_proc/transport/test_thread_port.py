"""One thread's requests: answered, interrupted at every point, refused, ended from elsewhere."""

import gc
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zmq

from shared.envelope import (
    FLAG_OUTPUT_INLINE,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_CLOSE,
    KIND_DEVICE_CONTROL,
    KIND_REPLY,
    KIND_THREAD_EXIT,
    REQUEST_ID_SHIFT,
)
from user_proc.errors import (
    CallInProgress,
    ConnectionClosed,
    ConnectionLost,
    KernelDied,
    KernelNotResponding,
    ProtocolError,
    SofthcaError,
)
from user_proc.transport import kernel_channel, thread_port


class Interrupt(Exception):
    """Stands for KeyboardInterrupt where a real one would end the test run."""


@pytest.fixture
def interrupt():
    """Let SIGUSR1 raise in the main thread, as SIGINT does; give what sends it."""

    def raise_it(*_: object) -> None:
        raise Interrupt

    old = signal.signal(signal.SIGUSR1, raise_it)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, old)


@pytest.fixture
def helper():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def call_and_reply(fake: Any, helper: Any, port: Any) -> Any:
    """Make one ordinary call and give its answer."""
    answered = helper.submit(lambda: fake.reply(fake.next_request(), b"good", flags=2, status=5))
    answer, body = port.call(KIND_CLOSE, 0, 3)
    answered.result()
    return answer[6], body


def test_fields_of_request_and_answer(fake: Any, helper: Any, channel: Any):
    port = channel.port()
    fields = (KIND_DEVICE_CONTROL, 3, 4, 0x80012000, 6, 7, 8, 9, 10, 11, 12)
    call = helper.submit(fake.next_request)
    reply = helper.submit(
        lambda: fake.reply(
            call.result(), b"out", flags=FLAG_OUTPUT_INLINE, status=1, sequence=2, information=3,
            iosb_status=4, file_handle=5, apc_context=6,
        )
    )  # fmt: skip
    answer, body = port.call(*fields, payload=b"input")
    reply.result()
    _, header, payload = call.result()
    assert payload == b"input"
    assert (
        header.kind, header.flags, header.file_handle, header.control_code, header.event_handle,
        header.input_address, header.output_address, header.input_length, header.output_length,
        header.apc_context, header.information,
    ) == fields  # fmt: skip
    assert (header.session, header.epoch, header.thread) == (7, 0x1234567890ABCDEF, 1)
    assert header.request_id == 1 << REQUEST_ID_SHIFT | 1
    assert body == b"out"
    assert answer[1:4] == (KIND_REPLY, FLAG_OUTPUT_INLINE, 5)
    assert answer[5:] == (6, 1, 2, 3, 4)


@pytest.mark.parametrize("payload", [b"", b"x", bytes(65536), bytearray(b"abc"), memoryview(b"de")])
def test_echo_and_its_count(channel: Any, payload: Any):
    assert channel.echo(payload) == bytes(payload)
    counters = channel.counters()
    assert (counters.messages_sent, counters.messages_received) == (1, 1)
    assert counters.bytes_sent == counters.bytes_received == 104 + len(payload)


def test_interrupted_wait_leaves_the_port_usable(
    fake: Any, channel: Any, interrupt: Any, helper: Any
):
    """The late answer is dropped by its id, and until then the caller's buffer is kept."""

    class Buffer:
        pass

    port = channel.port()
    taken = helper.submit(lambda: (fake.next_request(), interrupt())[0])
    buffer = Buffer()
    alive = weakref.ref(buffer)
    with pytest.raises(Interrupt):
        port.call(KIND_DEVICE_CONTROL, 0, 3, keep=buffer)
    del buffer
    abandoned = taken.result()
    _, cancel, _ = fake.next_request()
    assert cancel.kind == KIND_CANCEL_SYNCHRONOUS
    assert cancel.request_id == abandoned[1].request_id
    assert alive() is not None
    fake.reply(abandoned, b"late", flags=FLAG_OUTPUT_INLINE, status=0xC0000120)
    assert call_and_reply(fake, helper, port) == (5, b"good")
    assert alive() is None
    assert channel.counters().late_answers == 1
    assert channel.echo(b"again") == b"again"


def test_interrupted_again_while_another_is_abandoned(
    fake: Any, channel: Any, interrupt: Any, helper: Any
):
    port = channel.port()
    abandoned = []
    for count in range(3):
        taken = helper.submit(lambda: (fake.next_request(), interrupt())[0])
        with pytest.raises(Interrupt):
            port.call(KIND_DEVICE_CONTROL, 0, 3)
        abandoned.append(taken.result())
        cancelled = [fake.next_request()[1].request_id for _ in range(count + 1)]
        assert cancelled == [request[1].request_id for request in abandoned]
    for request in abandoned:
        fake.reply(request)
    assert call_and_reply(fake, helper, port) == (5, b"good")
    assert channel.counters().late_answers == 3


@pytest.mark.parametrize("parts_out", [0, 1, 2])
def test_interrupted_send_goes_on_with_a_new_socket(
    fake: Any, channel: Any, helper: Any, parts_out: int
):
    port = channel.port()
    plain_send = port._send
    left = [parts_out]

    def send(frame: bytes, flags: int = 0) -> None:
        if left[0]:
            plain_send(frame, flags)
            left[0] -= 1
        if not left[0]:
            raise Interrupt

    port._send = send
    with pytest.raises(Interrupt):
        port.call(KIND_DEVICE_CONTROL, 0, 3, payload=b"half")
    first_identity = fake.next_request()[0] if parts_out == 2 else None
    answered = helper.submit(lambda: [fake.next_request(), fake.next_request()])
    answered.add_done_callback(lambda done: fake.reply(done.result()[1], status=9))
    assert port.call(KIND_CLOSE, 0, 4)[0][6] == 9
    cancel, close = answered.result()
    assert (cancel[1].kind, close[1].kind) == (KIND_CANCEL_SYNCHRONOUS, KIND_CLOSE)
    assert cancel[1].request_id == close[1].request_id - 1
    assert cancel[0] == close[0] != first_identity
    assert channel.echo(b"again") == b"again"


def test_interrupted_between_the_frames_of_an_answer(fake: Any, channel: Any, helper: Any):
    port = channel.port()
    plain_recv = port._recv
    calls = []

    def recv() -> bytes:
        calls.append(None)
        if len(calls) == 2:
            port._recv = plain_recv
            raise Interrupt
        return plain_recv()

    port._recv = recv
    answered = helper.submit(lambda: fake.reply(fake.next_request(), b"lost", flags=2))
    with pytest.raises(Interrupt):
        port.call(KIND_DEVICE_CONTROL, 0, 3)
    answered.result()
    assert fake.next_request()[1].kind == KIND_CANCEL_SYNCHRONOUS
    assert call_and_reply(fake, helper, port) == (5, b"good")


def test_call_inside_a_call_is_refused(fake: Any, channel: Any, helper: Any):
    port = channel.port()
    refused = []

    def handler(*_: object) -> None:
        with pytest.raises(CallInProgress) as info:
            channel.echo(b"x")
        refused.append(info)
        fake.reply(taken.result())

    old = signal.signal(signal.SIGUSR1, handler)
    try:
        taken = helper.submit(fake.next_request)
        taken.add_done_callback(
            lambda _: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        )
        port.call(KIND_CLOSE, 0, 3)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert len(refused) == 1
    assert channel.echo(b"again") == b"again"


@pytest.mark.parametrize("answer", [b"", b"short", bytes(104), bytes(105)])
def test_answers_nobody_understands(fake: Any, channel: Any, helper: Any, answer: bytes):
    answered = helper.submit(lambda: fake.send(fake.next_request()[0], answer))
    with pytest.raises(ProtocolError):
        channel.port().call(KIND_CLOSE, 0, 3)
    answered.result()
    assert channel.echo(b"again") == b"again"


def test_answer_to_a_request_never_made(fake: Any, channel: Any, helper: Any):
    def answer() -> None:
        identity, header, payload = fake.next_request()
        fake.reply((identity, header._replace(request_id=header.request_id + 1), payload))

    answered = helper.submit(answer)
    with pytest.raises(ProtocolError, match="which was never made"):
        channel.port().call(KIND_CLOSE, 0, 3)
    answered.result()


def test_a_kernel_that_takes_no_messages(channel: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(thread_port, "_SEND_NS", 1)
    port = channel.port()
    plain_send = port._send

    def full(frame: bytes, flags: int = 0) -> None:
        raise zmq.Again

    port._send = full
    with pytest.raises(KernelNotResponding, match="lives but has not responded"):
        port.call(KIND_CLOSE, 0, 3)
    assert plain_send is not port._send
    assert channel.echo(b"again") == b"again"


def test_a_full_pipe_is_waited_for(fake: Any, channel: Any):
    port = channel.port()
    plain_send = port._send
    refusals = [zmq.Again(), zmq.Again()]

    def busy(frame: bytes, flags: int = 0) -> None:
        if refusals:
            raise refusals.pop()
        plain_send(frame, flags)

    port._send = busy
    assert channel.echo(b"x") == b"x"
    assert channel.counters().bytes_sent == 105


def test_a_wait_whose_connection_was_cut_ends_and_the_thread_goes_on(
    fake: Any, channel: Any, helper: Any
):
    port = channel.port()

    def cut() -> Any:
        request = fake.next_request()
        fake.cut(request)
        return request

    lost = helper.submit(cut)
    with pytest.raises(ConnectionLost, match="has cut this thread's connection"):
        port.call(KIND_CLOSE, 0, 3)
    assert call_after_a_lost_one(fake, helper, port, lost.result()) == (5, b"good")
    assert channel.echo(b"again") == b"again"


def test_a_connection_that_was_cut_meanwhile_is_replaced_by_the_next_send(
    fake: Any, channel: Any, helper: Any
):
    port = channel.port()
    answered = helper.submit(lambda: (fake.reply(request := fake.next_request()), request)[1])
    port.call(KIND_CLOSE, 0, 3)
    fake.cut(answered.result())
    while port._more(zmq.EVENTS) & zmq.POLLOUT:
        pass
    assert call_and_reply(fake, helper, port) == (5, b"good")


def call_after_a_lost_one(fake: Any, helper: Any, port: Any, lost: Any) -> Any:
    """Make a call, which says before that the lost one is given up, and give its answer."""

    def serve() -> tuple[Any, Any]:
        cancel, request = fake.next_request(), fake.next_request()
        fake.reply(request, b"good", flags=2, status=5)
        return cancel, request

    served = helper.submit(serve)
    answer, body = port.call(KIND_CLOSE, 0, 3)
    cancel, request = served.result()
    assert (cancel[1].kind, cancel[1].request_id) == (
        KIND_CANCEL_SYNCHRONOUS,
        lost[1].request_id,
    )
    assert request[0] == cancel[0] != lost[0]
    return answer[6], body


def test_session_closed_by_the_kernel_ends_the_wait(fake: Any, channel: Any, helper: Any):
    port = channel.port()
    done = helper.submit(lambda: (fake.next_request(), fake.hang_up()))
    with pytest.raises(KernelDied, match="has closed this session"):
        port.call(KIND_CLOSE, 0, 3)
    done.result()
    with pytest.raises(KernelDied):
        port.call(KIND_CLOSE, 0, 3)


def test_close_ends_a_wait_in_another_thread(fake: Any, channel: Any):
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(lambda: channel.port().call(KIND_CLOSE, 0, 3)) for _ in range(2)]
        fake.next_request()
        fake.next_request()
        channel.close()
        for wait in waits:
            with pytest.raises(ConnectionClosed):
                wait.result(timeout=5)
    channel.close()


def test_close_does_not_wait_for_a_thread_whose_call_has_ended_meanwhile(
    fake: Any, channel: Any, helper: Any
):
    answered, stay = threading.Event(), threading.Event()

    def call_and_do_something_else() -> int:
        answer, _ = channel.port().call(KIND_CLOSE, 0, 3)
        answered.set()
        stay.wait(20)
        return answer[6]

    caller = helper.submit(call_and_do_something_else)
    request = fake.next_request()
    (port,) = channel._ports
    # What close does first; the answer comes before the context is ended.
    channel.closed = True
    port.close()
    fake.reply(request, status=5)
    assert answered.wait(5)
    channel.closed = False
    with ThreadPoolExecutor(1) as pool:
        pool.submit(channel.close).result(timeout=5)
    stay.set()
    assert caller.result() == 5


@pytest.mark.parametrize("how", ["closed", "killed", "broken off"])
def test_a_port_goes_with_its_thread_whatever_has_become_of_it(fake: Any, channel: Any, how: str):
    ports: list[weakref.ref[Any]] = []

    def use() -> None:
        port = channel.port()
        ports.append(weakref.ref(port))
        if how == "closed":
            port.close()
        elif how == "killed":
            port._break_off(KernelDied("fake"), 0, None, True)
        else:
            port._break_off(ProtocolError("nonsense"), 0, None, True)

    gc.disable()
    try:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(5)
        assert ports[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["close", "the kernel's death", "the thread's end"])
def test_what_the_kernel_may_still_write_to_is_held_until_it_is_done(
    fake: Any, channel: Any, helper: Any, end: str
):
    memory = Memory()
    kept = weakref.ref(memory)

    def call(keep: Any) -> None:
        with pytest.raises((ConnectionClosed, KernelDied, Interrupt)):
            channel.port().call(KIND_DEVICE_CONTROL, 0, 3, keep=keep)

    if end == "the thread's end":

        def interrupted() -> Any:
            fake.next_request()
            raise Interrupt

        channel.port()._recv = interrupted
        call(memory)
        del channel._local.port
    else:
        thread = threading.Thread(target=call, args=(memory,))
        thread.start()
        fake.next_request()
        if end == "close":
            channel.close()
        else:
            fake.hang_up()
        thread.join(5)
        del thread
    del memory
    assert kept() is not None
    assert channel.holds_memory
    channel.let_go(kernel_is_done=True)
    assert kept() is None


def test_what_nobody_can_tell_of_is_held_for_ever(channel: Any, monkeypatch: pytest.MonkeyPatch):
    for_ever: list[object] = []
    monkeypatch.setattr(kernel_channel, "_never_let_go", for_ever)
    memory = Memory()
    channel.hold(memory, None)
    channel.let_go(kernel_is_done=False)
    assert for_ever == [memory]
    channel.hold(memory)  # later calls were refused before they were sent
    assert not channel.holds_memory


class Memory:
    """A buffer, as far as a channel is concerned."""


def test_close_by_a_signal_handler_inside_a_call(fake: Any, channel: Any, helper: Any):
    old = signal.signal(signal.SIGUSR1, lambda *_: channel.close())
    try:
        taken = helper.submit(fake.next_request)
        taken.add_done_callback(
            lambda _: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        )
        with pytest.raises(ConnectionClosed):
            channel.port().call(KIND_CLOSE, 0, 3)
    finally:
        signal.signal(signal.SIGUSR1, old)
    for thread in threading.enumerate():
        if thread.name == "softhca-close":
            thread.join(5)
            assert not thread.is_alive()


def test_interrupted_call_on_a_channel_closed_meanwhile(fake: Any, channel: Any, interrupt: Any):
    port = channel.port()

    def recv() -> bytes:
        channel.closed = True
        raise Interrupt

    port._recv = recv
    with pytest.raises(Interrupt):
        port.call(KIND_CLOSE, 0, 3)
    channel.closed = False  # so that the fixture closes the context


def test_thread_exit_is_told(fake: Any, channel: Any):
    thread = threading.Thread(target=channel.echo, args=(b"x",))
    thread.start()
    thread.join()
    _, header, _ = fake.next_request()
    assert (header.kind, header.thread) == (KIND_THREAD_EXIT, 1)
    assert channel.counters().messages_sent == 1
    assert channel.counters().threads == 0


def test_many_threads_get_their_own_answers(fake: Any, channel: Any):
    def work(number: int) -> set[bytes]:
        return {channel.echo(b"%d" % number) for _ in range(50)}

    with ThreadPoolExecutor(8) as pool:
        for number, answers in enumerate(pool.map(work, range(8))):
            assert answers == {b"%d" % number}


def test_counters_outlive_many_threads(channel: Any):
    for _ in range(70):
        thread = threading.Thread(target=channel.echo)
        thread.start()
        thread.join()
    assert channel.counters().messages_received == 70
    channel.echo()
    assert channel.counters().messages_sent == 71
    assert len(channel._retired) < 70


def test_other_socket_errors_are_said(channel: Any):
    port = channel.port()

    def broken(frame: bytes, flags: int = 0) -> None:
        raise zmq.ZMQError(22)

    port._send = broken
    with pytest.raises(SofthcaError, match="the request socket failed"):
        port.call(KIND_CLOSE, 0, 3)
    assert channel.echo(b"again") == b"again"


def test_use_after_close(channel: Any):
    port = channel.port()
    channel.echo()
    channel.close()
    for call in (channel.echo, lambda: port.call(KIND_CLOSE), channel.listener):
        with pytest.raises(ConnectionClosed, match="is closed: connect again"):
            call()
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConnectionClosed):
        pool.submit(channel.echo).result()
