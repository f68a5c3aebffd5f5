"""The kernel whose device is opened: which one, this process's connection to it, its doorbells.

All contexts of a process on one kernel share one connection, made by the first and closed with
the last. A process given by the program is the program's to close.

Rules: any thread. A forked child makes its own connections.
Spec: shared/doorbell_layout.py: one segment a session, written by one writer.
"""

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from shared.connection_file import DEFAULT_INSTANCE
from shared.nt_status import STATUS_OBJECT_NAME_NOT_FOUND
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.io.device_handle import DeviceHandle
from user_proc.process import UserProcess
from user_proc.provider.doorbell_writer import DoorbellWriter

NAME_VARIABLE: Final = "SOFTHCA_NAME"

_lock = threading.Lock()
_shared: "dict[str, KernelConnection]" = {}
_writers: "weakref.WeakKeyDictionary[UserProcess, DoorbellWriter]" = weakref.WeakKeyDictionary()
_forgotten: "deque[tuple[KernelConnection, Callable[[], None]]]" = deque()
_connections: "weakref.WeakSet[KernelConnection]" = weakref.WeakSet()


def _forget_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for connection in list(_connections):
        connection.inherited = True
    _shared.clear()
    _writers.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class KernelConnection:
    """A connection some contexts share."""

    def __init__(self, process: UserProcess, owned_as: str | None) -> None:
        self.process: Final = process
        self.inherited = False
        self.users = 0
        self._owned_as: Final = owned_as
        _connections.add(self)

    def open_device(self, name: str) -> tuple[DeviceHandle, DoorbellWriter]:
        """Open a device for verbs; give the file, and the writer its queues are rung by.

        The file comes first: while the HCA is reset opening it waits, and afterwards the segment is
        that of the HCA the file was opened on.
        """
        try:
            device = self.process.open_device(name, overlapped=True)
        except NtStatusError as error:
            if error.status == STATUS_OBJECT_NAME_NOT_FOUND:
                self.doorbells()  # a kernel without an HCA says so when it is asked for this
            raise
        try:
            return device, self.doorbells()
        except BaseException:
            with contextlib.suppress(SofthcaError):  # why it failed is what counts
                device.close()
            raise

    def doorbells(self) -> DoorbellWriter:
        """Give the writer of the session's doorbell segment."""
        with _lock:
            writer = _writers.get(self.process)
            # A segment has one writer in a process. After a reset of the HCA there is another
            # segment; what was opened before goes on with the old one, whose HCA is dead.
            if writer is None or writer.device_is_dead:
                granted = self.process.open_doorbells()
                writer = DoorbellWriter(granted.segment, granted.status_page, granted.poke_fd)
                _writers[self.process] = writer
                weakref.finalize(writer, granted.close).atexit = False
            return writer

    def forget(self, close: Callable[[], None]) -> None:
        """Have the next context that is opened close one that went out of reach.

        Without a lock or a call, as a finaliser must.
        """
        _forgotten.append((self, close))

    def leave(self) -> None:
        """Have one context fewer; the last one closes a connection of our own."""
        if self.inherited:
            return
        with _lock:
            self.users -= 1
            last = self.users == 0 and self._owned_as is not None
            if last and _shared.get(self._owned_as or "") is self:
                del _shared[self._owned_as or ""]
        if last:
            with _lock:
                _writers.pop(self.process, None)  # its descriptors go with what was opened
            self.process.close()


def kernel_name(kernel: str | None = None) -> str:
    """Give the kernel meant: the one named, that of SOFTHCA_NAME, or the default one."""
    return kernel or os.environ.get(NAME_VARIABLE) or DEFAULT_INSTANCE


def join_kernel(kernel: str | None, process: UserProcess | None) -> KernelConnection:
    """Give this process's connection, with one more context; raise SofthcaError if there is none.

    With a process, the connection is that one.
    """
    with _lock:
        connection = _present(kernel, process)
        connection.users += 1
    _close_forgotten()
    return connection


def _close_forgotten() -> None:
    while _forgotten:
        connection, close = _forgotten.popleft()
        if not connection.inherited:
            with contextlib.suppress(SofthcaError):
                close()
            connection.leave()


def _present(kernel: str | None, process: UserProcess | None) -> KernelConnection:
    if process is not None:
        return KernelConnection(process, None)
    name = kernel_name(kernel)
    found = _shared.get(name)
    if found is None or not _is_alive(found.process):
        found = _shared[name] = KernelConnection(UserProcess.connect(name), name)
    return found


def _is_alive(process: UserProcess) -> bool:
    """Tell whether a connection still leads to a kernel."""
    if process.closed:
        return False
    try:
        process.channel.watch.look()
    except SofthcaError:
        return False
    return True
