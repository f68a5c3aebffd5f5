"""The lifeline of an open session: memory messages, and the sign that its process lives.

Messages are served one at a time on a KTHREAD of the session, because making memory may take
long; meanwhile the next ones wait in the socket. The end of the connection (death or exec), a
goodbye, or the end of the process is the end of the session. It is told at once, by shutting down
one direction; the connection is closed when nothing of the process's memory can be reached from
here any more, so that it knows when to give up buffers of requests it will get no answer to.

Rules: callbacks run in the dispatcher and never wait; messages are taken by the session's lane.
Spec: shared/messages.py.
"""

import contextlib
import socket
from collections.abc import Callable

from kernel_proc.channel_interface.doorbell_grant import DoorbellIssuer
from kernel_proc.scheduling.kthread import create_user_thread
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.server.packet import (
    PacketError,
    close_all,
    has_ended,
    receive_packet,
    send_packet,
)
from kernel_proc.server.session import Session
from shared.message_codec import MessageError, decode
from shared.messages import (
    AllocateArena,
    ArenaGranted,
    ArenaMapped,
    Done,
    DoorbellsGranted,
    FreeArena,
    Message,
    OpenDoorbells,
)
from shared.nt_status import (
    STATUS_INVALID_PARAMETER,
    STATUS_NO_SUCH_DEVICE,
    STATUS_SUCCESS,
)

Depart = Callable[[Session, str], object]


class Lifeline:
    """One connection with its session; `doorbells` issues its way to the HCA, if there is one."""

    def __init__(
        self,
        connection: socket.socket,
        session: Session,
        depart: Depart,
        doorbells: DoorbellIssuer | None = None,
    ) -> None:
        process = session.process
        self._connection = connection
        self._session = session
        self._depart = depart
        self._doorbells = doorbells
        self._processor = process.processor
        self._thread = create_user_thread(self._processor, process, f"{process.name}/lifeline")
        self._is_open = True
        self._processor.add_source(connection, self._readable)
        if session.peer is not None:
            self._processor.add_source(session.peer.pidfd, self._process_ended)

    def end(self) -> None:
        """Tell that the session ends; what is being served ends without an answer."""
        if not self._is_open:
            return
        self._is_open = False
        self._processor.remove_source(self._connection)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        if self._session.peer is not None:
            self._processor.remove_source(self._session.peer.pidfd)

    def hang_up(self) -> None:
        """Close the connection, behind the last work in the session's lane."""
        self._session.lane.later(self._connection.close)

    def _process_ended(self) -> None:
        # Asked again: the event may be that of an earlier owner of the descriptor's number.
        peer = self._session.peer
        if peer is not None and not peer.is_alive():
            self._depart(self._session, "its process has ended")

    def _readable(self) -> None:
        # The end is looked for here, since the lane can be stuck.
        if has_ended(self._connection):
            self._depart(self._session, "its lifeline has ended")
            return
        self._processor.remove_source(self._connection)
        self._thread.enter_kernel(self._serve)

    def _serve(self) -> None:
        # On the session's KTHREAD.
        try:
            data = self._session.lane.run(_take_message, self._connection)
        except PacketError as error:
            self._answer(Done(0, error.status, str(error)))
        except RaisedStatus:
            return  # the session is being run down
        else:
            if data:
                self._serve_message(data)
        if self._is_open:
            self._processor.add_source(self._connection, self._readable)

    def _serve_message(self, data: bytes) -> None:
        try:
            message = decode(data)
        except MessageError as error:
            self._answer(Done(0, STATUS_INVALID_PARAMETER, str(error)[:1000]))
            return
        arenas = self._session.arenas
        if isinstance(message, AllocateArena):
            self._allocate(message)
        elif isinstance(message, ArenaMapped):
            reason = f"arena {message.arena} cannot be at {message.base:#x}, or lies elsewhere"
            self._done(message.request, arenas.mapped(message.arena, message.base), reason)
        elif isinstance(message, FreeArena):
            reason = f"this process has no arena {message.arena}"
            self._done(message.request, arenas.free(message.arena), reason)
        elif isinstance(message, OpenDoorbells):
            self._open_doorbells(message.request)
        else:
            reason = f"{type(message).__name__} has no place on an open lifeline"
            self._answer(Done(0, STATUS_INVALID_PARAMETER, reason))

    def _allocate(self, message: AllocateArena) -> None:
        grant = self._session.arenas.allocate(message.length)
        if grant.status != STATUS_SUCCESS:
            self._done(message.request, grant.status, grant.reason)
            return
        granted = ArenaGranted(message.request, grant.arena_id, grant.length)
        try:
            self._answer(granted, grant.descriptor)
        finally:
            close_all([grant.descriptor])

    def _open_doorbells(self, request: int) -> None:
        if self._doorbells is None:
            self._done(request, STATUS_NO_SUCH_DEVICE, "this kernel runs without an HCA")
            return
        grant = self._doorbells.open(self._session.process, self._session.lane)
        if grant.status != STATUS_SUCCESS:
            self._done(request, grant.status, grant.reason)
            return
        granted = DoorbellsGranted(request, grant.number, grant.length, grant.status_length)
        try:
            self._answer(granted, *grant.descriptors)
        finally:
            close_all(grant.descriptors)

    def _done(self, request: int, status: int, reason: str) -> None:
        self._answer(Done(request, status, "" if status == STATUS_SUCCESS else reason))

    def _answer(self, message: Message, *descriptors: int) -> None:
        if self._is_open and not send_packet(self._connection, message, descriptors):
            self._depart(self._session, "it does not read its lifeline")


def _take_message(connection: socket.socket) -> bytes:
    """Take the next message, in the lane; no bytes if there is none."""
    packet = receive_packet(connection)
    if packet is None:
        return b""
    close_all(packet.descriptors)
    if packet.descriptors:
        raise PacketError("no descriptors were expected")
    return packet.data
