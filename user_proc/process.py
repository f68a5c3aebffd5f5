"""A program's connection to a kernel: from here come device handles, events and arena buffers.

    with UserProcess.connect() as process, process.open_device("noop") as device:
        device.device_io_control(code, b"input", output)

Rules: any thread. The connection belongs to the process that made it: a forked child connects
again. It is closed by `close`, by the `with` statement, or when the interpreter ends; the kernel
then closes every handle and cancels every request of the session.
"""

import weakref
from types import TracebackType
from typing import Final, Self

from shared.connection_file import DEFAULT_INSTANCE, RuntimeFolderError, instance_paths
from shared.ioctl_codes import FILE_READ_ACCESS, FILE_WRITE_ACCESS
from user_proc.errors import RuntimeFolderUnusable, SofthcaError
from user_proc.io.device_handle import DeviceHandle, open_device
from user_proc.io.event_handle import EventHandle, create_event
from user_proc.memory.arena import ArenaAllocator, ArenaBuffer
from user_proc.memory.private_memory import OwnMemory, PinnedBuffer, open_own_memory
from user_proc.transport.kernel_channel import ChannelCounters, KernelChannel
from user_proc.transport.lifeline_channel import LifelineChannel


class UserProcess:
    """One session of this process with one kernel."""

    def __init__(self, lifeline: LifelineChannel, endpoint: str) -> None:
        self.name: Final = lifeline.name
        self.channel: Final = KernelChannel(
            lifeline.name, endpoint, lifeline.welcome, lifeline.watch
        )
        self._lifeline: Final = lifeline
        self._arenas: Final = ArenaAllocator(lifeline)
        # Holds nothing of this object, so that it also runs for one that was forgotten.
        self._finalizer = weakref.finalize(self, _close, self.channel, self._lifeline)

    @classmethod
    def connect(cls, name: str = DEFAULT_INSTANCE) -> Self:
        """Become a user of the kernel named `name`."""
        try:
            paths = instance_paths(name)
        except RuntimeFolderError as error:
            raise RuntimeFolderUnusable(str(error)) from error
        memory = _own_memory()
        try:
            lifeline = LifelineChannel(paths, memory)
        finally:
            memory.close()
        return cls(lifeline, paths.endpoint)

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
    ) -> DeviceHandle:
        """Open a device by name, for synchronous I/O unless `overlapped`."""
        return open_device(
            self.channel, name, overlapped=overlapped, access=access, pin=PinnedBuffer
        )

    def create_event(self, manual_reset: bool = True, signaled: bool = False) -> EventHandle:
        """Make an event for requests to set."""
        return create_event(self.channel, manual_reset, signaled)

    def allocate(self, length: int, *, page_aligned: bool = False) -> ArenaBuffer:
        """Cut a buffer from memory shared with the kernel."""
        return self._arenas.allocate(length, page_aligned=page_aligned)

    def echo(self, payload: bytes | bytearray | memoryview = b"") -> bytes:
        """Have the kernel's loop send the payload back: what every call costs at least."""
        return self.channel.echo(payload)

    def counters(self) -> ChannelCounters:
        """Give what has gone over this process's request sockets so far."""
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


def _own_memory() -> OwnMemory:
    try:
        return open_own_memory()
    except OSError as error:
        raise SofthcaError(
            f"cannot open this process's own {error.filename} ({error.strerror}): /proc must be "
            "mounted and the process dumpable"
        ) from error


def _close(channel: KernelChannel, lifeline: LifelineChannel) -> None:
    """Close from the top down; the lifeline's end is the session's end."""
    channel.close()
    lifeline.close()
