"""Sessions: one user process that has been let in, and everything it holds in the door.

A session has a number, never used again while the kernel runs, and an epoch, a secret 64-bit
token. Every message carries both, so that mail of a former session, or of somebody who guesses,
is recognised.

Rules: dispatcher's OS thread only.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.arenas import ArenaTable
from kernel_proc.scheduling.kthread import KThread
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.server.peer import Peer
from shared.envelope import HEADER, make_header

#: Where session, epoch and thread stand in a header: what binds a message to its caller.
CREDENTIALS: Final = slice(12, 28)

#: The number no thread has.
NO_THREAD: Final = 0

_MAX_SESSION_NUMBER: Final = (1 << 32) - 1


class UserThread:
    """A calling thread of a session: its socket's identity and its KTHREAD.

    `queued` holds the ids of its requests that have not been answered, the one being served
    first; `active` what that one is in, once it has begun: a device control request, or the
    objects of a wait; `abandoned` those given up before.
    A thread that is `leaving` has said so, and nothing more is taken from it. `bound_by` is the id
    of the request that came first on its present socket. `timed_id` is the request whose time is
    taken, -1 while none is, and `timed_from_ns` when it came.
    """

    __slots__ = (
        "abandoned",
        "active",
        "bound_by",
        "credentials",
        "identity",
        "kthread",
        "leaving",
        "number",
        "queued",
        "session",
        "spare",
        "timed_from_ns",
        "timed_id",
    )

    def __init__(self, session: "Session", number: int, identity: bytes, kthread: KThread) -> None:
        self.session = session
        self.number = number
        self.identity = identity
        self.kthread = kthread
        self.credentials = session.credentials(number)
        self.queued: deque[int] = deque()
        self.active: Any = None
        self.abandoned: set[int] = set()
        self.leaving = False
        self.bound_by = 0
        self.spare: Any = None
        self.timed_id = -1
        self.timed_from_ns = 0


class SessionConnection(Protocol):
    """What a session lives by."""

    def end(self) -> None:
        """Tell the process that the session ends."""

    def hang_up(self) -> None:
        """Tell it that nothing of its memory is reached any more."""


class CompletionWay(Protocol):
    """How completions reach the process; nothing of it waits."""

    def send(self, header: bytes, payload: bytes | None) -> int:
        """Hand one over: `answers.SENT`, FULL or GONE."""

    def when_room(self, call: Callable[[], object]) -> None:
        """Call once when one that found no room can be handed over."""

    def close(self) -> None:
        """Hand over no more; what was sent can still be read."""


class Session:
    """One user process inside the door.

    `in_flight` counts requests in the kernel; completions sent and not yet taken by the user
    count too against the limit (both numbers run modulo 2**32). `held_completions` are those for
    which `completions` had no room yet.
    """

    __slots__ = (
        "address_space",
        "arenas",
        "completions",
        "completions_sent",
        "completions_taken",
        "dropped_answers",
        "ending",
        "epoch",
        "held_completions",
        "in_flight",
        "lane",
        "last_thread",
        "lifeline",
        "max_requests",
        "number",
        "peer",
        "process",
        "refused_requests",
        "requests",
        "threads",
    )

    def __init__(
        self,
        number: int,
        process: KProcess,
        address_space: AddressSpace,
        arenas: ArenaTable,
        lane: Lane,
        max_requests: int,
        completions: CompletionWay,
        peer: Peer | None = None,
    ) -> None:
        self.number = number
        self.epoch = int.from_bytes(os.urandom(8), "little")
        self.process = process
        self.address_space = address_space
        self.arenas = arenas
        self.lane = lane
        self.peer = peer
        self.lifeline: SessionConnection | None = None
        self.max_requests = max_requests
        self.threads: dict[int, UserThread] = {}
        self.last_thread = 0
        self.completions = completions
        self.held_completions: deque[tuple[bytes, bytes | None]] = deque()
        self.ending = False
        self.in_flight = 0
        self.completions_sent = 0
        self.completions_taken = 0
        self.requests = 0
        self.refused_requests = 0
        self.dropped_answers = 0

    def __str__(self) -> str:
        return f"session {self.number} ({self.process.name!r}, pid {self.process.process_id})"

    def credentials(self, thread: int) -> bytes:
        """Return the part of a header that only messages of this thread carry."""
        header = make_header(0, session=self.number, epoch=self.epoch, thread=thread)
        assert len(header) == HEADER.size
        return header[CREDENTIALS]

    @property
    def outstanding(self) -> int:
        """Return what counts against the limit: requests inside, completions not taken."""
        unread = (self.completions_sent - self.completions_taken) & 0xFFFFFFFF
        return self.in_flight + unread

    def take_credit(self, taken: int) -> None:
        """Note how many completions the user says it has taken; nonsense is ignored."""
        unread = (self.completions_sent - self.completions_taken) & 0xFFFFFFFF
        unread -= len(self.held_completions)  # nobody can have taken what was not sent
        if (taken - self.completions_taken) & 0xFFFFFFFF <= unread:
            self.completions_taken = taken

    def inspect(self) -> dict[str, Any]:
        """Return plain figures."""
        return {
            "session": self.number,
            "process": self.process.name,
            "process_number": self.process.number,
            "pid": self.process.process_id,
            "ending": self.ending,
            "threads": sorted(self.threads),
            "in_flight": self.in_flight,
            "outstanding": self.outstanding,
            "requests": self.requests,
            "refused_requests": self.refused_requests,
            "dropped_answers": self.dropped_answers,
            "handles": len(self.process.handle_table.entries),
            "locked_pages": self.process.locked_pages,
            "pool_charged": self.process.pool_charged,
            "pool_quota": self.process.pool_quota,
            "arenas": self.arenas.inspect(),
        }


class SessionTable:
    """All sessions by number, those being run down included."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_number: dict[int, Session] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_number.values()))

    @property
    def is_full(self) -> bool:
        """Tell whether the next process must be refused."""
        return len(self._by_number) >= self.limit

    def next_number(self) -> int:
        """Return a number no session of this kernel has had before."""
        self._last_number += 1
        if self._last_number > _MAX_SESSION_NUMBER:
            raise OverflowError("this kernel has used up its session numbers")
        return self._last_number

    def add(self, session: Session) -> None:
        """Let a session in."""
        self._by_number[session.number] = session

    def get(self, number: int) -> Session | None:
        """Return the session of that number."""
        return self._by_number.get(number)

    def remove(self, session: Session) -> None:
        """Forget a session that has been run down."""
        self._by_number.pop(session.number, None)

    def processes(self) -> Counter[int]:
        """Count the sessions of each process, by process id; may be called in any OS thread."""
        sessions = list(self._by_number.values())
        return Counter(s.process.process_id for s in sessions if not s.ending)

    def inspect(self) -> list[dict[str, Any]]:
        """Return plain figures of every session."""
        return [session.inspect() for session in self]
