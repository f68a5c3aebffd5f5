"""Every exception of the user side, and the one table from NTSTATUS to errno and words.

Each message is one sentence, with the cure where there is one.

Spec: MS-ERREF section 2.3; errno(3).
"""

import errno
from typing import Final

from shared import nt_status as nt
from shared.connection_file import InstanceNameError, RuntimeFolderError
from shared.nt_status import status_name


class SofthcaError(Exception):
    """The root: whatever SoftHCA raises on purpose."""


class KernelNotRunning(SofthcaError):
    """There is no kernel of that name to talk to, or to stop.

    `folder` is the runtime folder that was looked into.
    """

    def __init__(self, name: str, folder: object = "", advice: str = "") -> None:
        where = f" in {folder}" if str(folder) else ""
        cure = advice or f"start it with 'softhca kernel start --name {name}'"
        super().__init__(f"no kernel named {name!r} is running{where}: {cure}")
        self.name = name


class KernelDied(SofthcaError):
    """The kernel ended, or closed this session; nothing of the session is left."""

    def __init__(self, name: str, how: str = "has ended") -> None:
        super().__init__(f"the kernel {name!r} {how}: connect again when it runs")
        self.name = name


class KernelNotResponding(SofthcaError):
    """The kernel lives but takes no messages, or does not answer what it answers at once."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(
            f"the kernel {name!r} lives but has not responded for {seconds:g} s: it is stopped or "
            "overloaded; look at its log"
        )
        self.name = name


class ConnectionLost(SofthcaError):
    """The kernel cut the connection a thread waited on; its session goes on, and so can it.

    Nobody can tell whether the request was done.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the kernel {name!r} has cut this thread's connection, and the answer with it: let "
            "fewer threads call at a time (max_threads_per_session)"
        )
        self.name = name


class ProcessExhausted(SofthcaError):
    """The system gives this process no more threads, descriptors or memory."""

    def __init__(self, what_failed: str, error: Exception) -> None:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        super().__init__(f"{what_failed}: {reason}; raise this process's limits (ulimit -a)")


class KernelStartFailed(SofthcaError):
    """A kernel process was started but did not become ready."""


class WrongUsage(SofthcaError, ValueError):
    """What is asked for cannot be asked for as it is written; see its text."""


class WrongKernelSetting(KernelStartFailed, ValueError):
    """A kernel was given a setting it does not have, or a value it cannot have; see its text."""


class RuntimeFolderUnusable(SofthcaError):
    """The folder of sockets cannot be used as it is."""


class InvalidInstanceName(SofthcaError, ValueError):
    """No kernel can have such a name; the text says which it can have."""


def folder_error(error: RuntimeFolderError) -> SofthcaError:
    """Give the user side's error for what `shared.connection_file` complains of."""
    if isinstance(error, InstanceNameError):
        return InvalidInstanceName(str(error))
    return RuntimeFolderUnusable(str(error))


class ConnectionClosed(SofthcaError):
    """A call on a connection that this process has closed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the connection to the kernel {name!r} is closed: connect again")


class ForkedProcess(SofthcaError):
    """A connection was used in a forked child: it belongs to the parent alone."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the connection to the kernel {name!r} was made before fork and belongs to the "
            "parent: call UserProcess.connect again in the child"
        )


class CallInProgress(SofthcaError):
    """A signal handler or finaliser tried a call inside a call of the same thread."""

    def __init__(self) -> None:
        super().__init__(
            "this thread is inside a call to the kernel already: let signal handlers and "
            "finalisers set a flag instead of calling"
        )


class ProtocolError(SofthcaError):
    """The kernel sent what cannot be understood; a mix of versions is the usual cause."""


_UNKNOWN: Final = (errno.EIO, "the driver completed the request with this status")

_WORDS: Final[dict[int, tuple[int, str]]] = {
    nt.STATUS_TIMEOUT: (errno.ETIMEDOUT, "the time given ran out"),
    nt.STATUS_ALERTED: (errno.EINTR, "the wait was interrupted"),
    nt.STATUS_USER_APC: (errno.EINTR, "a user APC came first"),
    nt.STATUS_BUFFER_OVERFLOW: (errno.EMSGSIZE, "there was more data than the output buffer holds"),
    nt.STATUS_DEVICE_BUSY: (errno.EBUSY, "the device is busy"),
    nt.STATUS_NOT_IMPLEMENTED: (errno.ENOSYS, "the driver does not implement this"),
    nt.STATUS_ACCESS_VIOLATION: (errno.EFAULT, "a buffer address is not mapped as needed"),
    nt.STATUS_INVALID_HANDLE: (errno.EBADF, "the handle is closed or was never given"),
    nt.STATUS_INVALID_PARAMETER: (errno.EINVAL, "an argument is out of range or malformed"),
    nt.STATUS_INVALID_PARAMETER_1: (errno.EINVAL, "an argument is out of range or malformed"),
    nt.STATUS_INVALID_PARAMETER_MIX: (errno.EINVAL, "the arguments do not go together"),
    nt.STATUS_NO_SUCH_DEVICE: (errno.ENODEV, "there is no such device"),
    nt.STATUS_INVALID_DEVICE_REQUEST: (errno.ENOTTY, "the device does not know this request"),
    nt.STATUS_NO_MEMORY: (errno.ENOMEM, "the kernel has no memory for this"),
    nt.STATUS_ACCESS_DENIED: (errno.EACCES, "the handle was not granted the access this needs"),
    nt.STATUS_BUFFER_TOO_SMALL: (errno.ENOSPC, "the output buffer is too small"),
    nt.STATUS_OBJECT_TYPE_MISMATCH: (errno.EBADF, "the handle is of another kind of object"),
    nt.STATUS_OBJECT_NAME_INVALID: (errno.EINVAL, "the name is malformed"),
    nt.STATUS_OBJECT_NAME_NOT_FOUND: (errno.ENOENT, "no device has this name"),
    nt.STATUS_OBJECT_PATH_NOT_FOUND: (errno.ENOENT, "no device has this name"),
    nt.STATUS_QUOTA_EXCEEDED: (
        errno.EDQUOT,
        "the requests of this process hold as much pool as they may (pool_bytes_per_process): "
        "let some end first, or send less at a time",
    ),
    nt.STATUS_INSUFFICIENT_RESOURCES: (
        errno.EAGAIN,
        "too much is outstanding or the kernel lacks resources; finish some requests first",
    ),
    nt.STATUS_NOT_SUPPORTED: (errno.EOPNOTSUPP, "this is not supported"),
    nt.STATUS_INVALID_USER_BUFFER: (errno.EFAULT, "a buffer cannot be used for this"),
    nt.STATUS_CANCELLED: (errno.ECANCELED, "the request was cancelled"),
    nt.STATUS_FILE_CLOSED: (errno.EBADF, "the handle was closed while the request ran"),
    nt.STATUS_DELETE_PENDING: (errno.ENODEV, "the device is being removed"),
    nt.STATUS_REVISION_MISMATCH: (errno.EPROTO, "the kernel speaks another version"),
    nt.STATUS_TOO_MANY_SESSIONS: (errno.EUSERS, "the kernel has as many users as it admits"),
    nt.STATUS_TOO_MANY_THREADS: (
        errno.EUSERS,
        "this process has as many calling threads as are admitted (max_threads_per_session)",
    ),
    nt.STATUS_TOO_MANY_OPENED_FILES: (
        errno.EMFILE,
        "this process has as many handles as it may (max_handles_per_session): close some",
    ),
    nt.STATUS_INVALID_CONNECTION: (errno.ENOTCONN, "the kernel does not know this session"),
    nt.STATUS_PROCESS_IS_TERMINATING: (errno.ESRCH, "the session is ending"),
    nt.STATUS_THREAD_IS_TERMINATING: (errno.ESRCH, "the thread is ending"),
    nt.STATUS_NOT_FOUND: (errno.ENOENT, "what the request names does not exist"),
    nt.STATUS_DEVICE_NOT_READY: (errno.EAGAIN, "the device is not ready"),
    nt.STATUS_IO_TIMEOUT: (errno.ETIMEDOUT, "the device did not answer in time"),
    nt.STATUS_CONNECTION_DISCONNECTED: (errno.ENOTCONN, "the connection has ended"),
}


class NtStatusError(SofthcaError, OSError):
    """A request ended with a status that is no success; an OSError, so `errno` is set too.

    `information` is what the IoStatusBlock said, for warnings that carry data.
    """

    def __init__(self, status: int, information: int = 0) -> None:
        number, words = _WORDS.get(status, _UNKNOWN)
        OSError.__init__(self, number, words)
        self.status = status
        self.information = information

    def __str__(self) -> str:
        name = status_name(self.status)
        number = f"0x{self.status:08X}"
        return f"{name if name == number else f'{name} ({number})'}: {self.strerror}"

    def __reduce__(self) -> tuple[type["NtStatusError"], tuple[int, int | str]]:
        return type(self), (self.status, self.information)


class KernelRefused(NtStatusError):
    """The kernel said no to a session or an arena, and gave its reason in words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status)
        self.reason = reason

    def __str__(self) -> str:
        return f"the kernel refused: {self.reason} [{status_name(self.status)}]"

    def __reduce__(self) -> tuple[type["KernelRefused"], tuple[int, int | str]]:
        return type(self), (self.status, self.reason)
