"""A calling thread's port that can have several requests under way at once.

Requests that do not depend on each other cost both processes one wake-up together instead of one
each. The kernel serves them one after the other, and their answers come in that order.

Rules: the owning thread only. At most MOST_AT_ONCE, which is what libzmq takes for the kernel from
one thread.
Spec: `shared/envelope.py`; user_proc/transport/thread_port.py.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from shared.envelope import ANSWER, HEADER, MAGIC, VERSION
from shared.trace_points import USER_ANSWERED, USER_SENDING, USER_SENT, trace
from user_proc.errors import CallInProgress
from user_proc.transport.thread_port import Answer, ThreadPort

MOST_AT_ONCE: Final = 8

_SNDMORE: Final = int(zmq.SNDMORE)
_RCVMORE: Final = int(zmq.RCVMORE)

#: Takes the answer to a request: its id, the answer and what it carries.
TakeAnswer = Callable[[int, Answer, bytes | None], object]


class BurstPort(ThreadPort):
    """A ThreadPort with `call_each`."""

    __slots__ = ()

    def call_each(
        self,
        request_ids: Sequence[int],
        kind: int,
        flags: int,
        file_handle: int,
        control_code: int,
        output_length: int,
        payload: bytes,
        take: TakeAnswer,
    ) -> None:
        """Send the same request under each of these ids, then give every answer to `take`.

        What breaks a call off leaves all that are unanswered abandoned, as `call` leaves its one.
        """
        if self._in_call:
            raise CallInProgress
        if len(request_ids) > MOST_AT_ONCE:
            raise ValueError(f"{len(request_ids)} requests at once, of at most {MOST_AT_ONCE}")
        unanswered = deque(request_ids)
        self._in_call = True
        whole = False
        answers: list[tuple[int, Answer, bytes | None]] = []
        try:
            for request_id in request_ids:
                whole = False
                self._send_one(
                    HEADER.pack(
                        MAGIC, VERSION, kind, flags, self._session, self._epoch, self.number,
                        file_handle, request_id, control_code, 0, 0, 0, len(payload),
                        output_length, 0, 0, self._credit.taken, 0, 0,
                    ), payload, request_id,
                )  # fmt: skip
                whole = True
            while unanswered:
                answers.append((unanswered[0], *self._receive_one(unanswered[0])))
                unanswered.popleft()
        except BaseException as error:
            last = unanswered.pop()
            self._abandoned.update(dict.fromkeys(unanswered))
            self._break_off(error, last, None, whole)
            raise
        finally:
            self._in_call = False
            if self._closing:  # the connection was closed meanwhile, and left this to us
                self._close_socket(0)
        for request_id, answer, body in answers:
            take(request_id, answer, body)

    def _send_one(self, header: bytes, payload: bytes, request_id: int) -> None:
        if trace.enabled:
            trace.record(USER_SENDING, request_id)
        try:
            self._send(header, _SNDMORE)
            self._send(payload)
            self.bytes_sent += len(header) + len(payload)
        except zmq.Again:
            self._send_patiently(header, payload)
        self.messages_sent += 1
        if trace.enabled:
            trace.record(USER_SENT, request_id)

    def _receive_one(self, request_id: int) -> tuple[Answer, bytes | None]:
        try:
            frame = self._recv()
        except zmq.Again:
            frame = self._wait()
        body = self._recv() if self._more(_RCVMORE) else None
        answer: Answer = ANSWER.unpack(frame)
        if answer[4] != request_id or answer[0] != MAGIC or self._abandoned:
            answer, body = self._sift(request_id, answer, body)
        if trace.enabled:
            trace.record(USER_ANSWERED, request_id)
        self.messages_received += 1
        self.bytes_received += len(frame) + len(body or b"")
        return answer, body
