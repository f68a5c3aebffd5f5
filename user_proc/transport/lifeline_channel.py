"""The lifeline: the one connection that makes this process a user of a kernel, for its life.

It carries Hello and Welcome, descriptors, and the few requests about arenas and doorbells; its
end, by death, exec or close, is the end of the session. A forked child closes its copy at once,
so that the parent's death is still seen.

Rules: any thread; one request at a time; never in a forked child.
Spec: unix(7), SOCK_SEQPACKET and SCM_RIGHTS; `shared/messages.py`.
"""

import contextlib
import os
import socket
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from shared import envelope
from shared.connection_file import InstancePaths, RuntimeFolderError, read_record
from shared.message_codec import Message, MessageError, decode, encode
from shared.messages import (
    AllocateArena,
    ArenaGranted,
    ArenaMapped,
    Done,
    DoorbellsGranted,
    FreeArena,
    Hello,
    OpenDoorbells,
    Refused,
    Welcome,
)
from shared.nt_status import nt_success
from user_proc.errors import (
    ConnectionClosed,
    ForkedProcess,
    KernelDied,
    KernelNotResponding,
    KernelNotRunning,
    KernelRefused,
    ProcessExhausted,
    ProtocolError,
    SofthcaError,
    folder_error,
)
from user_proc.transport.kernel_watch import KernelWatch
from user_proc.transport.lifeline_packet import DescriptorsLost, close_all, receive_packet
from user_proc.transport.whole_call import call_whole

#: What a process is called in a kernel's log and lists, if not by its program.
PROCESS_VARIABLE: Final = "SOFTHCA_PROCESS"

_ANSWER_SECONDS: Final = 30.0  # reserving the pages of a large arena takes a while
_END_SECONDS: Final = 5.0  # run-down takes less than a millisecond unless a page is stuck
_REQUEST_MASK: Final = 0xFFFFFFFF
_NAME_LENGTH: Final = 64

_open: "weakref.WeakSet[LifelineChannel]" = weakref.WeakSet()

_A = TypeVar("_A", ArenaGranted, Done, DoorbellsGranted)
_Request = type[AllocateArena | ArenaMapped | FreeArena | OpenDoorbells]
_DOORBELL_DESCRIPTORS: Final = 3


class OpenedDoorbells(NamedTuple):
    """This session's way to the HCA; the descriptors are the receiver's to close.

    The doorbell segment `number` (UAR) of `length` bytes, the HCA's status page, which can only be
    read, and the eventfd that wakes the HCA.
    """

    number: int
    doorbell_fd: int
    status_fd: int
    poke_fd: int
    length: int
    status_length: int


def _close_in_child() -> None:
    for lifeline in list(_open):
        lifeline.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)


class LifelineChannel:
    """An open session on its lifeline: `welcome` tells its numbers, `watch` whether it lives.

    `completions` is the socket its completions come by.

    `memory` are descriptors of this process's own /proc/self/mem and /proc/self/maps; the kernel
    gets them with Hello, and the caller may close its own afterwards.
    """

    def __init__(self, paths: InstancePaths, memory: Sequence[int]) -> None:
        self.name: Final = paths.name
        self._pid: Final = os.getpid()
        self._lock = threading.Lock()
        self._last_request = 0
        self._abandoned: list[int] = []  # arenas granted to requests nobody waits for any more
        self._socket: Final = _connect(paths)
        try:
            self.watch: Final = KernelWatch(self.name, self._socket)
            try:
                self.welcome, self.completions = self._introduce(memory)
            except BaseException:
                self.watch.close()
                raise
        except BaseException:
            self._socket.close()
            raise
        _open.add(self)

    def allocate_arena(self, length: int) -> tuple[int, int]:
        """Ask for an arena of `length` bytes; give its number and its descriptor, now ours."""
        return call_whole(lambda: self._allocate_arena(length), self._give_back_arena)

    def _allocate_arena(self, length: int) -> tuple[int, int]:
        answer, descriptors = self._exchange(ArenaGranted, AllocateArena, length)
        if len(descriptors) != 1 or answer.length < length:
            close_all(descriptors)
            raise ProtocolError(
                f"the kernel granted {answer.length} bytes in {len(descriptors)} descriptors "
                f"where {length} bytes in one were asked for"
            )
        return answer.arena, descriptors[0]

    def _give_back_arena(self, granted: tuple[int, int]) -> None:
        os.close(granted[1])
        with contextlib.suppress(SofthcaError):
            self.free_arena(granted[0])

    def arena_mapped(self, arena_id: int, base: int) -> None:
        """Tell where this process mapped an arena."""
        self._exchange(Done, ArenaMapped, arena_id, base)

    def free_arena(self, arena_id: int) -> None:
        """Give an arena back, after it was unmapped here; the end of the session did so too."""
        with contextlib.suppress(ConnectionClosed, KernelDied):
            self._exchange(Done, FreeArena, arena_id)

    def open_doorbells(self) -> OpenedDoorbells:
        """Ask for this session's doorbell segment; the same one while the HCA lives."""
        return call_whole(
            self._open_doorbells,
            lambda opened: close_all((opened.doorbell_fd, opened.status_fd, opened.poke_fd)),
        )

    def _open_doorbells(self) -> OpenedDoorbells:
        answer, descriptors = self._exchange(DoorbellsGranted, OpenDoorbells)
        if len(descriptors) != _DOORBELL_DESCRIPTORS:
            close_all(descriptors)
            raise ProtocolError(f"the kernel granted doorbells with {len(descriptors)} descriptors")
        doorbell, status, poke = descriptors
        return OpenedDoorbells(
            answer.number, doorbell, status, poke, answer.length, answer.status_length
        )

    def close(self, *, to_the_end: bool = False) -> bool:
        """End the session; the kernel runs down what it held.

        With `to_the_end`, wait for a while until the kernel is known to reach no memory of this
        process any more; False if that is not known.
        """
        if os.getpid() != self._pid:
            self.close_in_child()
            return True
        _open.discard(self)
        done = False
        try:
            if to_the_end:
                done = self._say_goodbye()
        finally:
            # Not under the lock: a thread that waits for an answer is woken by the shutdown.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self.completions.close()
            self.watch.close()
        return done

    def _say_goodbye(self) -> bool:
        """Send the empty packet; the kernel closes its end when the session is run down."""
        if self._socket.fileno() < 0:
            return False
        with contextlib.suppress(OSError):  # it may have gone, or have ended the session already
            self._socket.send(b"", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return self.watch.wait_for_the_end(_END_SECONDS)

    def close_in_child(self) -> None:
        """Drop the forked copy of the descriptors without a word to the kernel."""
        self._socket.close()
        self.completions.close()
        self.watch.close()

    def _introduce(self, memory: Sequence[int]) -> tuple[Welcome, socket.socket]:
        """Send Hello with the descriptors of our memory; give what the kernel welcomes us with."""
        hello = Hello(envelope.MIN_VERSION, envelope.VERSION, _process_name())
        with contextlib.suppress(KernelDied):  # refused unheard: the reason is there to be read
            self._send(hello, memory)
        answer, descriptors = self._receive_first()
        try:
            return _checked_welcome(answer, descriptors), socket.socket(fileno=descriptors.pop())
        finally:
            close_all(descriptors)

    def _receive_first(self) -> tuple[Message, list[int]]:
        """Take the answer to Hello, also if the kernel hung up without having read it."""
        try:
            return self._receive()
        except KernelDied as error:
            if not isinstance(error.__cause__, ConnectionResetError):
                raise
            return self._receive()  # the reset is told first, then what was sent before it

    def _exchange(self, kind: type[_A], request: _Request, *fields: int) -> tuple[_A, list[int]]:
        """Send one request and wait for its answer, which must be `kind` and a success."""
        if os.getpid() != self._pid:
            raise ForkedProcess(self.name)
        with self._lock:
            answer, descriptors = self._ask(request, *fields)
            while self._abandoned:
                close_all(self._ask(FreeArena, self._abandoned.pop())[1])
        if isinstance(answer, Done) and not nt_success(answer.status):
            close_all(descriptors)
            raise KernelRefused(answer.status, answer.reason)
        if not isinstance(answer, kind):
            close_all(descriptors)
            raise ProtocolError(
                f"the kernel answered {request.__name__} with {type(answer).__name__}"
            )
        return answer, descriptors

    def _ask(self, request: _Request, *fields: int) -> tuple[Message, list[int]]:
        """Send a numbered request; skip the answers to requests that were interrupted."""
        number = self._last_request = (self._last_request + 1) & _REQUEST_MASK
        try:
            message = request(number, *fields)
            self._send(message, ())
        except MessageError as error:
            raise ValueError(str(error)) from error
        while True:
            answer, descriptors = self._receive()
            if not isinstance(answer, ArenaGranted | Done | DoorbellsGranted):
                close_all(descriptors)
                raise ProtocolError(f"the kernel sent {type(answer).__name__} unasked")
            if answer.request == number:
                return answer, descriptors
            close_all(descriptors)
            if isinstance(answer, ArenaGranted):
                self._abandoned.append(answer.arena)

    def _send(self, message: Message, descriptors: Sequence[int]) -> None:
        data = encode(message)
        try:
            socket.send_fds(self._socket, [data], descriptors)
        except TimeoutError:
            raise KernelNotResponding(self.name, _ANSWER_SECONDS) from None
        except OSError as error:
            raise self._ended() from error

    def _receive(self) -> tuple[Message, list[int]]:
        """Take one message and its descriptors."""
        try:
            data, descriptors = receive_packet(self._socket)
        except TimeoutError:
            raise KernelNotResponding(self.name, _ANSWER_SECONDS) from None
        except OSError as error:
            raise self._ended() from error
        except DescriptorsLost as error:
            answer = self._decoded(error.data)
            if isinstance(answer, ArenaGranted):
                self._abandoned.append(answer.arena)
            raise ProcessExhausted("what the kernel granted cannot be taken", error) from error
        except MessageError as error:
            raise ProtocolError(f"the kernel's message is malformed: {error}") from error
        if not data:
            raise self._ended()
        try:
            return self._decoded(data), descriptors
        except ProtocolError:
            close_all(descriptors)
            raise

    @staticmethod
    def _decoded(data: bytes) -> Message:
        try:
            return decode(data)
        except MessageError as error:
            raise ProtocolError(f"the kernel's message is malformed: {error}") from error

    def _ended(self) -> SofthcaError:
        """Tell whose end of the lifeline is closed."""
        if self._socket.fileno() < 0:
            return ConnectionClosed(self.name)
        try:
            self.watch.look()
        except SofthcaError as error:
            return error
        return KernelDied(self.name, "has closed this session")


def _checked_welcome(answer: Message, descriptors: Sequence[int]) -> Welcome:
    """Give the Welcome if it is one; raise why it is none."""
    if isinstance(answer, Refused):
        raise KernelRefused(answer.status, answer.reason)
    if not isinstance(answer, Welcome):
        raise ProtocolError(f"the kernel answered Hello with {type(answer).__name__}")
    if not envelope.MIN_VERSION <= answer.protocol <= envelope.VERSION:
        raise ProtocolError(f"the kernel chose version {answer.protocol} of the protocol")
    if len(descriptors) != 1 or not stat.S_ISSOCK(os.fstat(descriptors[0]).st_mode):
        raise ProtocolError(f"the kernel's Welcome came with {len(descriptors)} descriptors")
    return answer


def _connect(paths: InstancePaths) -> socket.socket:
    """Connect to the lifeline socket of a kernel that says it is ready."""
    try:
        record = read_record(paths)
    except RuntimeFolderError as error:
        raise folder_error(error) from error
    if record is None:
        raise KernelNotRunning(paths.name, paths.folder.parent)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        # Blocking, with the limit in the socket: a non-blocking connect fails on a full backlog.
        limit = struct.pack("@ll", int(_ANSWER_SECONDS), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(str(paths.lifeline))
        connection.settimeout(_ANSWER_SECONDS)
    except BaseException as error:
        connection.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            raise KernelNotRunning(paths.name, paths.folder.parent) from None
        if isinstance(error, BlockingIOError):
            raise KernelNotResponding(paths.name, _ANSWER_SECONDS) from None
        raise
    return connection


def _process_name() -> str:
    """Name this process for the kernel's log and lists."""
    told = os.environ.get(PROCESS_VARIABLE, "")
    name = told or Path(sys.argv[0] if sys.argv else "").name or "python"
    return name.encode("utf-8", "replace").decode("utf-8")[:_NAME_LENGTH]
