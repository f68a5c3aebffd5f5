"""Notification requests kept pended in the driver, and their events handed to whom they concern.

The events of one kind are asked for with handle 0, any object of the context, once somebody wants
them. Of one kind there is one request; of completions there are two, and twice as many each time
half of them have ended, up to a bound. The listener hands an event over and leaves it to a thread
of its own to ask again, when half have ended, since a listener must not wait. With a kernel in this
very process there are no threads: whoever waits asks again.

Rules: `Sink` is called by the listener and neither waits nor raises.
Spec: docs/notification.md; WinOF core/al/kernel/al_proxy_verbs.c.
"""

import queue
import struct
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from shared.envelope import (
    FLAG_COMPLETION_FOLLOWS,
    FLAG_INPUT_INLINE,
    FLAG_IOSB_WRITTEN,
    FLAG_OUTPUT_INLINE,
    KIND_DEVICE_CONTROL,
)
from shared.message_codec import MessageError, decode_as, encode
from shared.nt_status import nt_success, status_name
from shared.verb_codes import VERB_NAMES, VERB_RESULT
from shared.verb_messages import Event, Object
from shared.verb_reasons import VerbReason
from user_proc.errors import CallInProgress, SofthcaError
from user_proc.transport.burst_port import MOST_AT_ONCE
from user_proc.transport.field_limits import UnpackableField
from user_proc.transport.inproc_channel import InprocChannel
from user_proc.transport.own_limits import start_thread
from user_proc.transport.thread_port import Answer
from user_proc.verbs.reasons import reason_text
from user_proc.verbs.verb_session import VerbSession

#: Takes an event.
Sink = Callable[[Event], None]

_OUTPUT_LENGTH: Final = 64
_MOST_AHEAD: Final = 16  # requests of one kind
_SHARE: Final = 4  # one part in so many of what the process may have pended is enough for this
_ANY_OBJECT: Final = encode(Object(0))
_KNOWN_ANSWERS: Final = 256


@lru_cache(_KNOWN_ANSWERS)
def _read(output: bytes) -> tuple[Event | None, int, int, int]:
    """Read an answer: the event, or why there is none; most are like one before."""
    number, reason, about, detail = VERB_RESULT.unpack_from(output)
    event = None if number else decode_as(Event, output[VERB_RESULT.size :])
    return event, reason, about, detail


class _Stream:
    """The events of one kind: how many requests are out, and who gets what comes."""

    __slots__ = ("code", "depth", "out", "over", "sink")

    def __init__(self, code: int, depth: int, sink: Sink) -> None:
        self.code: Final = code
        self.depth = depth
        self.sink: Final = sink
        self.out = 0
        self.over = False


class _EventRequest:
    """One pended request; what the table of completions calls."""

    __slots__ = ("_pump", "_stream")

    def __init__(self, pump: "EventPump", stream: _Stream) -> None:
        self._pump: Final = pump
        self._stream: Final = stream

    def complete(
        self, flags: int, iosb_status: int, information: int, output: bytes | None
    ) -> None:
        """Take the result."""
        self._pump.take(self._stream, iosb_status, output or b"")

    def fail(self, error: SofthcaError) -> object:
        """Take the end of the connection."""
        self._stream.over = True
        self._pump.lost(error)
        return None


class EventPump:
    """The notification requests of one context."""

    def __init__(self, session: VerbSession) -> None:
        self._session: Final = session
        self._channel: Final = session.process.channel
        self.in_process: Final = isinstance(self._channel, InprocChannel)
        self._streams: Final[dict[int, _Stream]] = {}
        self._lock: Final = threading.Lock()
        self._wanted: Final[queue.SimpleQueue[_Stream | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def want(self, code: int, sink: Sink, *, depth: int = 1, once: bool = False) -> None:
        """Have requests of a kind pended from now on; `once`, the event is the last.

        ProcessExhausted if there is no thread that could ask again; then nothing has begun.
        """
        with self._lock:
            if code in self._streams or self._closed:
                return
            if not once and not self.in_process and self._thread is None:
                thread = threading.Thread(target=self._run, name="softhca-events", daemon=True)
                start_thread(thread)
                self._thread = thread
            stream = self._streams[code] = _Stream(code, depth, sink)
        self._fill(stream)
        if once:
            stream.over = True  # not asked for again

    def fill(self) -> None:
        """Ask again for what has come; for those who wait on a kernel in this process."""
        if self.in_process:
            for stream in list(self._streams.values()):
                self._fill(stream)

    def take(self, stream: _Stream, status: int, output: bytes) -> None:
        """Take the end of a request, in the listener or in the thread that asked."""
        self._count(stream, -1)
        if not nt_success(status):  # cancelled: the file is being closed
            stream.over = True
            return
        try:
            event, reason, about, detail = _read(output)
        except (MessageError, struct.error) as error:
            stream.over = True
            self._session.die(f"{VERB_NAMES[stream.code]} was answered with {error}")
            return
        if event is None:
            stream.over = True
            failed = reason == VerbReason.DEVICE_FATAL
            self._session.die(reason_text(reason, about, detail), device_failed=failed)
            return
        stream.sink(event)
        if not self.in_process and not stream.over and stream.out == stream.depth // 2:
            self._wanted.put(stream)

    def lost(self, error: SofthcaError) -> None:
        """Take the end of the connection, unless it is one's own doing."""
        if not self._closed:
            self._session.die(str(error))

    def abandon(self) -> None:
        """Ask no more; without a lock, as a finaliser must."""
        self._closed = True
        self._wanted.put(None)

    def close(self) -> None:
        """Ask no more, and wait for the thread; what is pended ends with the file."""
        self.abandon()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            self._streams.clear()  # their sinks keep the session, and its descriptors

    def _run(self) -> None:
        """Ask again, whenever something has come, until the end."""
        while (stream := self._wanted.get()) is not None:
            try:
                self._grow(stream)
                self._fill(stream)
            except SofthcaError as error:
                self.lost(error)
                return

    def _grow(self, stream: _Stream) -> None:
        """Have more pended of what comes fast: asking again in a burst costs others less."""
        channel, twice = self._channel, 2 * stream.depth
        if isinstance(channel, InprocChannel) or not 1 < stream.depth < _MOST_AHEAD:
            return
        if _SHARE * (len(channel.outstanding) + twice) <= channel.max_requests:
            stream.depth = twice

    def _count(self, stream: _Stream, change: int) -> None:
        with self._lock:
            stream.out += change

    def _fill(self, stream: _Stream) -> None:
        while (lacking := stream.depth - stream.out) > 0 and not stream.over and not self._closed:
            self._submit(stream, min(lacking, MOST_AT_ONCE))

    def _submit(self, stream: _Stream, number: int) -> None:
        """Send so many requests; their answers, or else the listener, complete them."""
        port = self._channel.port()
        listener = self._channel.listener()
        request = _EventRequest(self, stream)
        request_ids = [port.take_request_id() for _ in range(number)]
        expected: list[int] = []
        self._count(stream, number)
        # Before they are sent: a completion may be here before the answer is.
        try:
            for request_id in request_ids:
                listener.expect(request_id, request)
                expected.append(request_id)
        except BaseException:
            self._take_back(stream, number, expected)
            raise
        try:
            port.call_each(
                request_ids, KIND_DEVICE_CONTROL, FLAG_INPUT_INLINE | FLAG_OUTPUT_INLINE,
                self._session.device.handle, stream.code, _OUTPUT_LENGTH, _ANY_OBJECT,
                lambda *answered: self._answered(stream, *answered),
            )  # fmt: skip
        except (CallInProgress, UnpackableField):  # nothing was sent
            self._take_back(stream, number, request_ids)
            raise

    def _take_back(self, stream: _Stream, number: int, expected: list[int]) -> None:
        """Undo the preparations of requests that were not sent."""
        for request_id in expected:
            self._channel.listener().forget(request_id)
        self._count(stream, -number)

    def _answered(
        self, stream: _Stream, request_id: int, answer: Answer, body: bytes | None
    ) -> None:
        """Take the first answer to a request; most are pended."""
        if answer[2] & FLAG_COMPLETION_FOLLOWS:
            return
        self._channel.listener().forget(request_id)
        if answer[2] & FLAG_IOSB_WRITTEN:
            self.take(stream, answer[9], body or b"")
        else:
            self._count(stream, -1)
            stream.over = True
            self._session.die(f"{VERB_NAMES[stream.code]}: {status_name(answer[6])}")
