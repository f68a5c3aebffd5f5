"""The context in which a device is used, and its asynchronous events.

The kernel is the one named by `kernel`, by the environment variable SOFTHCA_NAME, or the default
one; `process` is a connection the program has already.

Rules: any thread. After a fork the child opens a context of its own.
Spec: rdma-core, pyverbs/device.pyx; ibv_open_device(3), ibv_get_async_event(3); docs/verbs.md.
"""

import contextlib
import errno
import os
from typing import ClassVar, Final, NoReturn

from shared.nt_status import (
    STATUS_CONNECTION_DISCONNECTED,
    STATUS_INVALID_CONNECTION,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_IO_DEVICE_ERROR,
    STATUS_NO_SUCH_DEVICE,
    STATUS_OBJECT_NAME_NOT_FOUND,
)
from shared.verb_codes import IOCTL_EXPORT_CONTEXT, IOCTL_IMPORT_CONTEXT
from shared.verb_messages import ImportByDescriptor
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.process import UserProcess
from user_proc.verbs.argument_types import optional
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import IntLike, to_int
from user_proc.verbs.context_export import read_export, write_export
from user_proc.verbs.device_queries import DeviceQueries
from user_proc.verbs.device_strings import translate_event_type
from user_proc.verbs.kernel_connection import join_kernel
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.session_events import AsynchronousEvent, SessionEvents
from user_proc.verbs.verb_session import FORKED, VerbRefusal, VerbSession

#: How opening a dead HCA's device is refused, and its doorbells.
_DEAD: Final = (STATUS_IO_DEVICE_ERROR, STATUS_CONNECTION_DISCONNECTED)
_NOT_THERE: Final = (STATUS_OBJECT_NAME_NOT_FOUND, STATUS_INVALID_DEVICE_REQUEST)


class AsyncEvent(PyverbsObject):
    """An asynchronous event; destroying the object it names waits until it is acknowledged."""

    def __init__(self, event_type: IntLike = 0) -> None:
        super().__init__()
        self.event_type: Final = to_int(event_type)
        self._unread: AsynchronousEvent | None = None

    def ack(self) -> None:
        """Acknowledge it; a second time changes nothing."""
        event, self._unread = self._unread, None
        if event is not None and event.about is not None:
            event.about.asynchronous.acknowledge(1)

    @classmethod
    def of(cls, event: AsynchronousEvent) -> "AsyncEvent":
        """Make what the program gets of a queued event."""
        made = cls(event.event_type)
        made._unread = event
        return made

    def __str__(self) -> str:
        return lines(24, [("Event Type", translate_event_type(self.event_type))])


class Context(DeviceQueries):
    """An opening of a device: what all other objects are made on."""

    KIND: ClassVar[str] = "Context"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = (
        "QP",
        "CompChannel",
        "CQ",
        "CQEX",
        "DM",
        "PD",
        "SRQ",
        "XRCD",
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        cmd_fd: IntLike | None = None,
        kernel: str | None = None,
        process: UserProcess | None = None,
    ) -> None:
        imported = None if cmd_fd is None else to_int(cmd_fd)
        if imported is not None:
            kernel, name = _read_import(imported)
        super().__init__(str(name))
        if name is None:
            raise PyverbsUserError("Device name must be provided")
        optional("process", process, UserProcess)
        self._export = -1
        try:
            self._connection: Final = join_kernel(kernel, process)
        except SofthcaError as error:
            raise PyverbsRDMAError(f"Failed to open device {name}", reason=str(error)) from error
        try:
            self._open()
        except BaseException:
            self._connection.leave()
            raise
        if imported is not None:
            self._import(imported)
        self.logger.debug("Opened device %s", name)

    def _open(self) -> None:
        name, process = self.name, self._connection.process
        try:
            device, doorbells = self._connection.open_device(name)
        except NtStatusError as error:
            self._refuse(error.status, error)
        except SofthcaError as error:
            raise PyverbsRDMAError(
                f"Failed to open device {name}", errno.EIO, reason=str(error)
            ) from error
        try:
            try:
                session = VerbSession(process, device, doorbells)
                self.events = SessionEvents(session)
            except VerbRefusal as refusal:
                if isinstance(refusal.__cause__, NtStatusError):
                    self._refuse(refusal.__cause__.status, refusal.__cause__)
                raise refusal.error(f"Failed to open device {name}") from refusal
        except BaseException:
            with contextlib.suppress(SofthcaError):  # why it failed is what counts
                device.close()
            raise
        self._session = session

    def _import(self, descriptor: int) -> None:
        """Take the right to the domains of the context that was exported."""
        try:
            self.session().do(IOCTL_IMPORT_CONTEXT, ImportByDescriptor(descriptor & 0xFFFF_FFFF))
        except VerbRefusal as refusal:
            self.close()
            raise refusal.error("Failed to import device") from refusal

    @property
    def cmd_fd(self) -> int:
        """A descriptor by which who is given it imports the context; it is closed with it."""
        with self._closing:
            session = self.session()
            if self._export < 0:
                made = write_export(session.process.name, self.name)
                try:
                    session.do(IOCTL_EXPORT_CONTEXT, ImportByDescriptor(made))
                except BaseException as error:
                    os.close(made)
                    if isinstance(error, VerbRefusal):
                        raise error.error("Failed to export device") from error
                    raise
                self._export = made
            return self._export

    def _refuse(self, status: int, error: NtStatusError) -> NoReturn:
        """Raise for a device that cannot be opened, or is no HCA."""
        if status in _NOT_THERE:
            raise PyverbsRDMAError(f"Failed to find device {self.name}") from error
        if status == STATUS_NO_SUCH_DEVICE:
            raise PyverbsRDMAError(
                f"Failed to find device {self.name}", reason=str(error)
            ) from error
        if status in _DEAD:
            raise PyverbsRDMAError(
                f"Failed to open device {self.name}",
                errno.EIO,
                reason="the device has failed and has not been reset",
            ) from error
        over = status == STATUS_INVALID_CONNECTION  # the kernel is just stopping
        number = errno.EIO if over else error.errno or errno.EIO
        raise PyverbsRDMAError(
            f"Failed to open device {self.name}", number, reason=str(error)
        ) from error

    @property
    def context(self) -> int:
        """The kernel's handle of the file: there is no C structure with an address."""
        return self.session().device.handle

    @property
    def num_comp_vectors(self) -> int:
        """Completion vectors."""
        return self.session().opened.completion_vectors

    def __str__(self) -> str:
        session = self._session
        if session is None:
            return f"{self.KIND} (closed)\n"
        return f"{self.KIND}\n" + lines(
            22, [("Device", self.name), ("Kernel", session.process.name)]
        )

    # Asynchronous events

    @property
    def async_fd(self) -> int:
        """A descriptor that is readable exactly while an asynchronous event waits."""
        session = self.session()
        if session.trouble and not session.dead:
            raise session.trouble_error("Failed to get async event")
        self._want_events()
        return self.events.asynchronous.fd

    def get_async_event(self) -> AsyncEvent:
        """Take the oldest asynchronous event, waiting for one; it must be acknowledged.

        With `async_fd` set non-blocking, EAGAIN when none waits.
        """
        session, text = self.session(), "Failed to get async event"
        if session.trouble and not session.dead:
            raise session.trouble_error(text)
        self._want_events()
        queue = self.events.asynchronous
        event = queue.take()
        if event is None and not os.get_blocking(queue.fd):
            raise PyverbsRDMAError(text, errno.EAGAIN, reason="no event waits")
        if event is None:
            event = self.events.wait_for(queue)
        if event is None:
            raise session.trouble_error(text)
        return AsyncEvent.of(event)

    def _want_events(self) -> None:
        if self.session().dead:
            return  # what has come can still be taken
        try:
            self.events.want_asynchronous()
        except VerbRefusal as refusal:
            raise refusal.error("Failed to get async event") from refusal

    # The end

    def close(self) -> None:
        """Close every object of the context, then the device."""
        with self._closing:
            session = self._session
            if session is None:
                return
            if session.trouble == FORKED:
                raise PyverbsUserError(f"the Context cannot be closed: {FORKED}")
            self._close_children()
            self.events.close()
            try:
                session.close()
            except SofthcaError as error:
                raise PyverbsRDMAError(
                    f"Failed to close device {self.name}", errno.EIO, reason=str(error)
                ) from error
            self._session = None
            self._close_export()
            self.events.release()
            self._connection.leave()
            self.logger.debug("Closed device %s", self.name)

    def _close_export(self) -> None:
        descriptor, self._export = self._export, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and session.trouble != FORKED:
            self._session = None
            self._close_export()
            events = self.events
            events.pump.abandon()

            def close() -> None:
                session.close()
                events.release()

            self._connection.forget(close)


def _read_import(descriptor: int) -> tuple[str, str]:
    try:
        return read_export(descriptor)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) and error.errno else errno.EBADF
        raise PyverbsRDMAError("Failed to import device", number, reason=str(error)) from error
