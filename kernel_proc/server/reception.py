"""How a process becomes a session: its objects are made, it is told, and then it is let in.

Everything that can fail is done before the session is published, and a failure leaves nothing.

Rules: dispatcher's OS thread; never waits.
Spec: shared/messages.py (Hello, Welcome, Refused).
"""

import os
import socket
from collections.abc import Callable

from kernel_proc.io_manager.handle_table import HandleTable
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.arenas import ArenaTable
from kernel_proc.memory.bus import Bus
from kernel_proc.memory.private_memory import PrivateMemory
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.server.completion_socket import CompletionSocket
from kernel_proc.server.hello import Greeting
from kernel_proc.server.lifeline import Lifeline
from kernel_proc.server.packet import send_packet
from kernel_proc.server.peer import Peer
from kernel_proc.server.rundown import Rundown
from kernel_proc.server.session import CompletionWay, Session, SessionTable
from kernel_proc.settings import KernelSettings
from shared.envelope import MAX_PAYLOAD, VERSION
from shared.messages import Refused, Welcome
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_TOO_MANY_SESSIONS,
)
from shared.segment import PAGE_SIZE

_LONGEST_NAME = 64

MakeLane = Callable[[str], Lane]


class Reception:
    """Makes sessions within the kernel's limits."""

    def __init__(
        self,
        io: IoManager,
        settings: KernelSettings,
        sessions: SessionTable,
        rundown: Rundown,
        make_lane: MakeLane,
        log: Callable[[str], object],
        arenas: int,
        bus: Bus | None = None,
    ) -> None:
        self.arena_total = MemoryQuota(settings.arena_bytes_total)
        self.arena_places = MemoryQuota(arenas)
        self.opened = 0
        self._bus = bus
        self._io = io
        self._settings = settings
        self._sessions = sessions
        self._rundown = rundown
        self._make_lane = make_lane
        self._log = log

    def admit(
        self, connection: socket.socket, peer: Peer, greeting: Greeting, lane: Lane
    ) -> Refused | None:
        """Make a session of a connection, or say why not.

        Takes both descriptors over in any case; connection, peer and lane only if it succeeds.
        """
        self._retire_former(peer)
        try:
            private = PrivateMemory(greeting.memory, greeting.maps)
        except OSError as error:
            return Refused(STATUS_ACCESS_DENIED, f"its memory cannot be reached: {error.strerror}")
        if self._sessions.is_full:
            private.close()
            count = len(self._sessions)
            return Refused(STATUS_TOO_MANY_SESSIONS, f"the kernel serves {count} processes already")
        try:
            completions = CompletionSocket(self._io.processor)
        except OSError as error:
            private.close()
            reason = f"the kernel has no socket for its completions: {error.strerror}"
            return Refused(STATUS_INSUFFICIENT_RESOURCES, reason)
        session = self.open(greeting.hello.process_name, peer.pid, private, completions, peer, lane)
        session.lifeline = Lifeline(
            connection, session, self._rundown.begin, self._rundown.doorbells
        )
        self._log(f"{session} opened")
        end = completions.user_end.fileno()
        if not send_packet(connection, self.welcome(session), [end]):
            self._rundown.begin(session, "it left before it was welcomed")
        completions.passed_on()
        return None

    def open(
        self,
        name: str,
        pid: int,
        private: PrivateMemory | None,
        completions: CompletionWay,
        peer: Peer | None = None,
        lane: Lane | None = None,
    ) -> Session:
        """Make a session's objects and let it in."""
        settings = self._settings
        printable = "".join(c if c.isprintable() else "?" for c in name)[:_LONGEST_NAME]
        number = self._sessions.next_number()
        process = KProcess(
            self._io.processor,
            printable,
            pid,
            settings.pool_bytes_per_process,
            settings.locked_bytes_per_process // PAGE_SIZE,
        )
        lane = lane or self._make_lane(f"lane {number}")
        space = AddressSpace(process, lane, private=private, bus=self._bus)
        process.address_space = space
        process.handle_table = HandleTable(settings.max_handles_per_session)
        arenas = ArenaTable(
            space,
            lane,
            self.arena_total,
            settings.arena_bytes_per_process,
            places=self.arena_places,
        )
        most = settings.max_requests_per_session
        session = Session(number, process, space, arenas, lane, most, completions, peer)
        self._sessions.add(session)
        self._rundown.none_left.clear()
        self.opened += 1
        return session

    def welcome(self, session: Session) -> Welcome:
        """Say what a new session is told."""
        settings = self._settings
        return Welcome(
            session.number,
            session.epoch,
            os.getpid(),
            VERSION,
            MAX_PAYLOAD,
            session.max_requests,
            settings.max_threads_per_session,
            settings.arena_bytes_per_process,
        )

    def _retire_former(self, peer: Peer) -> None:
        # The pid has been given to a new process, so its former owner has ended, whether or not
        # that has been noticed yet. Or the process has replaced its program while a child that
        # it forked holds the lifeline open: there is no sign of that, so it is looked for when it
        # matters, by the new program and when places are short.
        for session in self._sessions:
            former = session.peer
            if former is None:
                continue
            if former.pid == peer.pid and former.start_ticks != peer.start_ticks:
                self._rundown.begin(session, "its process id belongs to another process now")
            elif (
                former.pid == peer.pid or self._sessions.is_full
            ) and former.runs_another_program():
                self._rundown.begin(session, "its process runs another program now")
