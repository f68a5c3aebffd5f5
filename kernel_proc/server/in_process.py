"""The door without processes: the same frames, handed over by a call.

For tests and for looking inside: there is no socket and no other process, the kernel's virtual
clock advances when it is idle, and a run can be repeated exactly.

Rules: one OS thread, which runs the processor inside `exchange`.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence

from kernel_proc.channel_interface.doorbell_grant import DoorbellGrant
from kernel_proc.memory.arenas import ArenaGrant
from kernel_proc.memory.private_memory import PrivateMemory
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer
from kernel_proc.server.answers import GONE, SENT, UNANSWERED
from kernel_proc.server.reception import Reception
from kernel_proc.server.rundown import Rundown
from kernel_proc.server.session import Session
from kernel_proc.server.session_server import SessionServer
from shared.envelope import parse_header
from shared.messages import Welcome
from shared.nt_status import STATUS_NO_SUCH_DEVICE


class Outboxes:
    """Answers by socket identity, as a ROUTER would queue them."""

    def __init__(self) -> None:
        self._queues: dict[bytes, deque[list[bytes]]] = {}

    def open(self, identity: bytes) -> deque[list[bytes]]:
        """Return the queue of a socket, made at its first message."""
        return self._queues.setdefault(identity, deque())

    def close(self, prefix: bytes) -> None:
        """Drop every queue whose identity begins so: the peer has gone."""
        for identity in [key for key in self._queues if key.startswith(prefix)]:
            del self._queues[identity]

    def send(self, identity: bytes, header: bytes, payload: bytes | None) -> int:
        """Queue an answer."""
        queue = self._queues.get(identity)
        if queue is None:
            return GONE
        queue.append([header, payload] if payload else [header])
        return SENT


class InProcessCompletions:
    """Completions as the user's end of a socket would hold them."""

    def __init__(self) -> None:
        self.arrived: deque[list[bytes]] = deque()

    def send(self, header: bytes, payload: bytes | None) -> int:
        """Queue a completion."""
        self.arrived.append([header, payload] if payload else [header])
        return SENT

    def when_room(self, call: Callable[[], object]) -> None:
        """Call at once: there always is."""
        call()

    def close(self) -> None:
        """Keep what has come."""


class InProcessSession:
    """A session of the calling process itself, private memory included."""

    def __init__(
        self,
        processor: Processor,
        server: SessionServer,
        reception: Reception,
        rundown: Rundown,
        outboxes: Outboxes,
        name: str,
    ) -> None:
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        maps = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
        private = PrivateMemory(memory, maps)
        self.completions = InProcessCompletions()
        self.session: Session = reception.open(name, os.getpid(), private, self.completions)
        self.welcome: Welcome = reception.welcome(self.session)
        self._processor = processor
        self._server = server
        self._rundown = rundown
        self._outboxes = outboxes

    def exchange(self, frames: Sequence[bytes]) -> list[bytes]:
        """Send one message and run the kernel until its answer is there.

        A message that is not answered is served to its end and gives no frames. Deadlock is
        raised if the answer can never come.
        """
        header = parse_header(frames[0])
        identity = self._identity(header.thread)
        inbox = self._outboxes.open(identity)
        self._server.receive(identity, frames)
        if header.kind in UNANSWERED:
            self._processor.run_until(lambda: not self._is_busy(header.thread))
            return []
        self._processor.run_until(lambda: bool(inbox))
        return inbox.popleft()

    def post(self, frames: Sequence[bytes]) -> None:
        """Send one message and let nothing run yet."""
        identity = self._identity(parse_header(frames[0]).thread)
        self._outboxes.open(identity)
        self._server.receive(identity, frames)

    def take_answer(self, thread: int) -> list[bytes]:
        """Run the kernel until a message for that thread is there, and take it."""
        inbox = self._outboxes.open(self._identity(thread))
        self._processor.run_until(lambda: bool(inbox))
        return inbox.popleft()

    def take_completion(self) -> list[bytes] | None:
        """Take the next completion, if one is there now."""
        arrived = self.completions.arrived
        return arrived.popleft() if arrived else None

    def run(self, predicate: Callable[[], bool], timeout_ns: int | None = None) -> bool:
        """Run the kernel until the predicate holds; False when its clock passed the limit."""
        if timeout_ns is None:
            self._processor.run_until(predicate)
            return True
        limit = Timer(self._processor)
        limit.set(timeout_ns)
        self._processor.run_until(lambda: predicate() or bool(limit.signal_state))
        limit.cancel()
        return predicate()

    # What the lifeline carries

    def allocate_arena(self, length: int) -> ArenaGrant:
        """Make an arena; the descriptor is the caller's."""
        grant: ArenaGrant = self._processor.run_thread(self.session.arenas.allocate, length)
        return grant

    def open_doorbells(self) -> DoorbellGrant:
        """Give the session's way to the HCA; the descriptors are the caller's."""
        doorbells = self._rundown.doorbells
        if doorbells is None:
            return DoorbellGrant(STATUS_NO_SUCH_DEVICE, reason="this kernel runs without an HCA")
        session = self.session
        grant: DoorbellGrant = self._processor.run_thread(
            doorbells.open, session.process, session.lane
        )
        return grant

    def arena_mapped(self, arena: int, base: int) -> int:
        """Tell where an arena has been mapped."""
        status: int = self._processor.run_thread(self.session.arenas.mapped, arena, base)
        return status

    def free_arena(self, arena: int) -> int:
        """Give an arena back."""
        status: int = self._processor.run_thread(self.session.arenas.free, arena)
        return status

    def close(self) -> None:
        """End the session as the death of its process would, and run it down."""
        number = self.session.number
        self._outboxes.close(b"%d/" % number)
        self._rundown.begin(self.session, "it was closed")
        self._processor.run_until(lambda: self._server.sessions.get(number) is None)

    def _identity(self, thread: int) -> bytes:
        return b"%d/%d" % (self.session.number, thread)

    def _is_busy(self, thread: int) -> bool:
        caller = self.session.threads.get(thread)
        return caller is not None and not caller.kthread.in_user_mode
