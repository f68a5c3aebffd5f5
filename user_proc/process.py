"""A program's connection to a kernel: from here come handles of all kinds and arena buffers.

    with UserProcess.connect() as process, process.open_device("noop") as device:
        device.device_io_control(code, b"input", output)

Rules: any thread. The connection belongs to the process that made it: a forked child connects
again. It is closed by `close`, by the `with` statement, or when the interpreter ends; the kernel
then closes every handle and cancels every request of the session.
"""

import errno
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from shared.connection_file import (
    DEFAULT_INSTANCE,
    InstancePaths,
    RuntimeFolderError,
    instance_paths,
)
from shared.envelope import FLAG_SYNCHRONOUS, KIND_CANCEL
from shared.ioctl_codes import FILE_READ_ACCESS, FILE_WRITE_ACCESS
from shared.messages import Welcome
from shared.nt_status import STATUS_IO_TIMEOUT, STATUS_NOT_FOUND
from user_proc.errors import KernelRefused, ProcessExhausted, SofthcaError, folder_error
from user_proc.io.completion_port import CompletionPort, create_completion_port
from user_proc.io.device_handle import DeviceHandle, open_device
from user_proc.io.event_handle import EventHandle, create_event
from user_proc.io.kernel_object import KernelObject, checked
from user_proc.io.waiting import sleep_in_kernel, wait_for_handles
from user_proc.memory.arena import ArenaAllocator, ArenaBuffer
from user_proc.memory.arena import Lifeline as ArenaLifeline
from user_proc.memory.mapped_doorbells import MappedDoorbells
from user_proc.memory.private_memory import OwnMemory, PinnedBuffer, open_own_memory
from user_proc.transport.inproc_channel import InprocChannel, InprocDoor, InprocLifeline
from user_proc.transport.kernel_channel import ChannelCounters, KernelChannel
from user_proc.transport.lifeline_channel import LifelineChannel, OpenedDoorbells

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_FURTHER_TRIES: Final = 4  # of a Hello that came too late


class SessionLifeline(ArenaLifeline, Protocol):
    """What a session lives by: it says who the kernel is, grants arenas and doorbells, and ends."""

    @property
    def welcome(self) -> Welcome:
        """The session's numbers."""

    def open_doorbells(self) -> OpenedDoorbells:
        """Give the session's way to the HCA; the descriptors are the receiver's to close."""

    def close(self, *, to_the_end: bool = False) -> bool:
        """End the session; True if the kernel is known to be done with this process's memory."""


class UserProcess:
    """One session of this process with one kernel."""

    def __init__(self, channel: KernelChannel, lifeline: SessionLifeline) -> None:
        self.name: Final = lifeline.name
        self.channel: Final = channel
        self._lifeline: Final = lifeline
        self._arenas: Final = ArenaAllocator(lifeline)
        # Holds nothing of this object, so that it also runs for one that was forgotten.
        self._finalizer = weakref.finalize(self, _close, self.channel, self._lifeline, self._arenas)

    @classmethod
    def connect(cls, name: str = DEFAULT_INSTANCE) -> Self:
        """Become a user of the kernel named `name`."""
        try:
            paths = instance_paths(name)
        except RuntimeFolderError as error:
            raise folder_error(error) from error
        memory = _own_memory()
        try:
            lifeline = _introduce(paths, memory)
        finally:
            memory.close()
        channel = KernelChannel(
            lifeline.name,
            paths.endpoint,
            lifeline.welcome,
            lifeline.watch,
            lifeline.completions,
        )
        return cls(channel, lifeline)

    @classmethod
    def in_process(cls, door: InprocDoor, name: str = "in-process") -> Self:
        """Become a user of a kernel that lives in this process, and runs while this one waits."""
        return cls(InprocChannel(name, door), InprocLifeline(name, door))

    @property
    def session(self) -> int:
        """The number the kernel knows this session by."""
        return self.channel.session

    @property
    def kernel_pid(self) -> int:
        """The kernel's process id."""
        return self._lifeline.welcome.kernel_pid

    @property
    def closed(self) -> bool:
        """Tell whether the connection has been closed."""
        return not self._finalizer.alive

    def open_device(
        self,
        name: str,
        overlapped: bool = False,
        access: int = FILE_READ_ACCESS | FILE_WRITE_ACCESS,
        *,
        alertable: bool = False,
    ) -> DeviceHandle:
        """Open a device by name, for synchronous I/O unless `overlapped`.

        User APCs of the calling thread break off the requests of an `alertable` one.
        """
        return open_device(
            self.channel,
            name,
            overlapped=overlapped,
            access=access,
            pin=PinnedBuffer,
            alertable=alertable,
        )

    def create_event(self, manual_reset: bool = True, signaled: bool = False) -> EventHandle:
        """Make an event for requests to set."""
        return create_event(self.channel, manual_reset, signaled)

    def create_completion_port(self) -> CompletionPort:
        """Make a port for overlapped files to report to."""
        return create_completion_port(self.channel)

    def wait_for_multiple(
        self,
        objects: Sequence[KernelObject],
        *,
        wait_all: bool = False,
        timeout: float | None = None,
        alertable: bool = False,
    ) -> int:
        """Wait for one of up to 64 objects, or for all at the same time; give the wait's status.

        The index of the object, 0 for all, STATUS_TIMEOUT, or STATUS_USER_APC after user APCs
        have been run.
        """
        handles = [waited.handle for waited in objects]
        return wait_for_handles(self.channel, handles, wait_all, timeout, alertable)

    def sleep_alertable(self, seconds: float | None = None) -> bool:
        """Sleep, for ever when None, or until user APCs of this thread have been run: then True.

        With 0, run those that have come (SleepEx, NtTestAlert).
        """
        return sleep_in_kernel(self.channel, seconds, True)

    def cancel_synchronous_io(self, thread: threading.Thread) -> bool:
        """Cancel the request on a synchronous file that another thread is in, and do not wait.

        False if it is in none that could still be cancelled (CancelSynchronousIo).
        """
        number = self.channel.thread_number(thread.ident or 0)
        if number is None:
            return False
        answer, _ = self.channel.port().call(KIND_CANCEL, FLAG_SYNCHRONOUS, information=number)
        if answer[6] == STATUS_NOT_FOUND:
            return False
        checked(answer)
        return True

    def allocate(self, length: int, *, page_aligned: bool = False) -> ArenaBuffer:
        """Cut a buffer from memory shared with the kernel."""
        return self._arenas.allocate(length, page_aligned=page_aligned)

    def arena_view(self, address: int, length: int) -> memoryview | None:
        """Give memory by its address if it lies in one segment shared with the kernel."""
        return self._arenas.view(address, length)

    def open_doorbells(self) -> MappedDoorbells:
        """Map this session's doorbell segment and the HCA's status page; the caller closes both.

        The segment is the same one each time until the HCA is reset. KernelRefused when the
        kernel has no HCA, or the HCA is dead.
        """
        granted = self._lifeline.open_doorbells()
        try:
            return MappedDoorbells.map(*granted)
        except OSError as error:
            raise ProcessExhausted("the doorbells cannot be mapped", error) from error

    def echo(self, payload: bytes | bytearray | memoryview = b"") -> bytes:
        """Have the kernel's loop send the payload back: what every call costs at least."""
        return self.channel.echo(payload)

    def counters(self) -> ChannelCounters:
        """Give what has gone over this process's sockets so far."""
        return self.channel.counters()

    def close(self) -> None:
        """End the session; what other threads wait for ends with ConnectionClosed."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _introduce(paths: InstancePaths, memory: OwnMemory) -> LifelineChannel:
    """Connect; again, some times, if the kernel had no patience because so many connect at once."""
    for _ in range(_FURTHER_TRIES):
        try:
            return _open_lifeline(paths, memory)
        except KernelRefused as refused:
            if refused.status != STATUS_IO_TIMEOUT:
                raise
    return _open_lifeline(paths, memory)


def _open_lifeline(paths: InstancePaths, memory: OwnMemory) -> LifelineChannel:
    try:
        return LifelineChannel(paths, memory)
    except SofthcaError:  # of which some are OSErrors
        raise
    except OSError as error:
        if error.errno not in _EXHAUSTED:
            raise
        raise ProcessExhausted("no connection can be made", error) from error


def _own_memory() -> OwnMemory:
    try:
        return open_own_memory()
    except OSError as error:
        raise SofthcaError(
            f"cannot open this process's own {error.filename} ({error.strerror}): /proc must be "
            "mounted and the process dumpable"
        ) from error


def _close(channel: KernelChannel, lifeline: SessionLifeline, arenas: ArenaAllocator) -> None:
    """Close from the top down; the lifeline's end is the session's end."""
    try:
        arenas.close()
        channel.close()
    finally:  # also when a signal handler raises: the session must not stay
        channel.let_go(lifeline.close(to_the_end=channel.holds_memory))
