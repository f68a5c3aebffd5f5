"""A session with a kernel that lives in this very process, for tests and for looking inside.

The door is handed in by whoever made the kernel. Ports and listener are those of real sessions,
down to the frames; only the socket's place is taken by calls, and nothing runs at the same time:
the kernel goes on while somebody here waits, on its virtual clock, so that a run can be repeated.
What could never end is the kernel's own exception, not a hang.

Rules: one OS thread. `another_thread` lends it the identity of a second user thread.
Spec: `shared/envelope.py`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn, Protocol

import zmq

from shared.envelope import KIND_THREAD_EXIT
from shared.messages import Welcome
from shared.nt_status import nt_success
from user_proc.errors import ConnectionClosed, KernelRefused, SofthcaError
from user_proc.transport.burst_port import BurstPort
from user_proc.transport.completion_table import CompletionTable, Flag
from user_proc.transport.kernel_channel import KernelChannel
from user_proc.transport.lifeline_channel import OpenedDoorbells
from user_proc.transport.thread_port import Payload, ThreadPort

_SNDMORE: Final = int(zmq.SNDMORE)
_SECOND: Final = 1_000_000_000


class Grant(Protocol):
    """The answer to a request for an arena; the descriptor is the receiver's to close."""

    @property
    def status(self) -> int:
        """Why there is none, or success."""

    @property
    def reason(self) -> str:
        """The same in words."""

    @property
    def arena_id(self) -> int:
        """Its number."""

    @property
    def descriptor(self) -> int:
        """Its memory."""


class DoorbellGrant(Protocol):
    """The answer to a request for doorbells; the descriptors are the receiver's to close."""

    @property
    def status(self) -> int:
        """Why there are none, or success."""

    @property
    def reason(self) -> str:
        """The same in words."""

    @property
    def number(self) -> int:
        """The segment's number (UAR)."""

    @property
    def length(self) -> int:
        """The segment's length."""

    @property
    def status_length(self) -> int:
        """The status page's length."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The segment, the status page, the eventfd that wakes the HCA."""


class InprocDoor(Protocol):
    """A session as the kernel's side hands it out, lifeline and request socket in one."""

    welcome: Welcome

    def post(self, frames: Sequence[bytes]) -> None:
        """Take a message; nothing runs yet."""

    def take_answer(self, thread: int) -> list[bytes]:
        """Run until a message for that thread is there, and give it."""

    def take_completion(self) -> list[bytes] | None:
        """Give the next completion, if one is there now."""

    def run(self, predicate: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Run until the predicate holds; False when the kernel's time ran out."""

    def allocate_arena(self, length: int) -> Grant:
        """Make an arena."""

    def open_doorbells(self) -> DoorbellGrant:
        """Give the session's way to the HCA."""

    def arena_mapped(self, arena: int, base: int) -> int:
        """Take note of where it is mapped."""

    def free_arena(self, arena: int) -> int:
        """Take an arena back."""

    def close(self) -> None:
        """End the session and run it down."""


class InprocChannel(KernelChannel):
    """A channel whose ports call the kernel."""

    def __init__(self, name: str, door: InprocDoor) -> None:
        super().__init__(name, "", door.welcome, _NoWatch(), None)
        self.door: Final = door

    def make_socket(self) -> "zmq.Socket[bytes]":
        """Refuse: there is no socket to a kernel in this process."""
        raise SofthcaError(f"the kernel {self.name!r} lives in this process and has no socket")

    @contextmanager
    def another_thread(self) -> Iterator[ThreadPort]:
        """Be another user thread until the end of the block, where that thread ends."""
        present = self._local.__dict__.pop("port", None)
        try:
            port = self.port()
            yield port
        finally:
            self._local.__dict__.pop("port", None)
            port.close()
            if present is not None:
                self._local.port = present

    def take_completions(self) -> None:
        """Hand what has come to whoever expects it."""
        while self._listener is not None and (frames := self.door.take_completion()) is not None:
            self._listener.take(frames[0], frames[1] if frames[1:] else None)

    def close(self) -> None:
        """End every port; what is outstanding ends with ConnectionClosed."""
        super().close()
        for port in list(self._ports):
            port.close()
        if self._listener is not None:
            self._listener.end(ConnectionClosed(self.name))

    def _make_port(self, number: int) -> BurstPort:
        return InprocPort(self, number)

    def _make_listener(self) -> CompletionTable:
        return InprocListener(self)


class InprocPort(BurstPort):
    """A port whose socket is a pair of queues."""

    __slots__ = ("_answer", "_begun")

    def __init__(self, channel: InprocChannel, number: int) -> None:
        self._begun: list[bytes] = []
        self._answer: deque[bytes] = deque()
        super().__init__(channel, number)

    def _open(self) -> None:
        channel = self._channel
        assert isinstance(channel, InprocChannel)
        door, number, begun, answer = channel.door, self.number, self._begun, self._answer

        def send(frame: Payload, flags: int = 0) -> None:
            begun.append(bytes(frame))
            if not flags & _SNDMORE:
                message = begun[:]
                begun.clear()
                door.post(message)

        def receive() -> bytes:
            if not answer:
                answer.extend(door.take_answer(number))
                channel.take_completions()
            return answer.popleft()

        self._send, self._recv, self._more = send, receive, lambda option: len(answer)
        self._closed = False

    def close(self) -> bool:
        """Say that the thread ends, unless the whole session does."""
        if not self._closed and not self._channel.closed:
            self._send(self._note(KIND_THREAD_EXIT, 0))
        return super().close()

    def _close_socket(self, linger_ms: int) -> None:
        self._closed = True
        self._abandoned.clear()
        self._begun.clear()
        self._answer.clear()


class InprocListener(CompletionTable):
    """A listener without a thread: it is handed its messages."""

    def __init__(self, channel: InprocChannel) -> None:
        super().__init__(channel)
        self._made_for: Final = channel

    def new_flag(self) -> Flag:
        """Make a flag whose waiting runs the kernel."""
        return _RunningFlag(self._made_for)

    def catch_up(self, sequence: int) -> None:
        """Take what has been sent: everything is here already."""
        self._made_for.take_completions()
        super().catch_up(sequence)


class _RunningFlag:
    """Set by the kernel's doing, which is done while somebody waits."""

    def __init__(self, channel: InprocChannel) -> None:
        self._channel: Final = channel
        self._is_set = False

    def is_set(self) -> bool:
        """Tell whether it is set."""
        self._channel.take_completions()
        return self._is_set

    def set(self) -> None:
        """Set it."""
        self._is_set = True

    def wait(self, timeout: float | None = None) -> bool:
        """Run the kernel until it is set, or its clock has gone on by `timeout` seconds."""
        limit = None if timeout is None else max(0, round(timeout * _SECOND))
        return self.is_set() or self._channel.door.run(self.is_set, limit)


class _NoWatch:
    """A kernel in this process does not die alone."""

    def look(self) -> None:
        """Nothing can have happened."""

    def look_for_the_end(self) -> NoReturn:
        """Refuse: there is no end."""
        raise SofthcaError("a kernel in this process has no socket that could end")


class InprocLifeline:
    """What the lifeline carries, by calls."""

    def __init__(self, name: str, door: InprocDoor) -> None:
        self.name: Final = name
        self.welcome: Final = door.welcome
        self._door: Final = door
        self._closed = False

    def allocate_arena(self, length: int) -> tuple[int, int]:
        """Return the id and the descriptor of a new segment."""
        grant = self._door.allocate_arena(length)
        if not nt_success(grant.status):
            raise KernelRefused(grant.status, grant.reason)
        return grant.arena_id, grant.descriptor

    def open_doorbells(self) -> OpenedDoorbells:
        """Return the session's way to the HCA."""
        grant = self._door.open_doorbells()
        if not nt_success(grant.status):
            raise KernelRefused(grant.status, grant.reason)
        doorbell, status, poke = grant.descriptors
        return OpenedDoorbells(
            grant.number, doorbell, status, poke, grant.length, grant.status_length
        )

    def arena_mapped(self, arena_id: int, base: int) -> None:
        """Tell the kernel where the segment is mapped here."""
        status = self._door.arena_mapped(arena_id, base)
        if not nt_success(status):
            raise KernelRefused(status, f"arena {arena_id} cannot be at {base:#x}")

    def free_arena(self, arena_id: int) -> None:
        """Give a segment back; no error if the session has ended."""
        if not self._closed:
            self._door.free_arena(arena_id)

    def close(self, *, to_the_end: bool = False) -> bool:
        """End the session; the kernel runs it down before this returns."""
        if not self._closed:
            self._closed = True
            self._door.close()
        return True
