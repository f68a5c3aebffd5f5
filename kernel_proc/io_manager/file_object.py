"""File objects: one opening of a device.

Handles and IRPs hold references; the last handle sends IRP_MJ_CLEANUP, the last reference
IRP_MJ_CLOSE.

Spec: WDK, FILE_OBJECT; IRP_MJ_CLEANUP; IRP_MJ_CLOSE.
"""

from typing import TYPE_CHECKING, Any

from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.wait import USER_MODE

if TYPE_CHECKING:
    from kernel_proc.io_manager.completion_port import CompletionPort
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.scheduling.process import KProcess


class FileObject:
    """An open device.

    `fs_context` and `fs_context2` are the driver's. A synchronous file serialises its requests
    by a lock, and remembers the status of the last one in `final_status`.
    """

    __slots__ = (
        "alertable",
        "busy",
        "completion_key",
        "completion_port",
        "device",
        "event",
        "final_status",
        "fs_context",
        "fs_context2",
        "handle_count",
        "lock_event",
        "lock_waiters",
        "process",
        "references",
        "synchronous",
    )

    def __init__(
        self,
        device: "DeviceObject",
        process: "KProcess | None",
        synchronous: bool,
        alertable: bool = False,
    ) -> None:
        self.device = device
        self.process = process
        self.synchronous = synchronous
        self.alertable = alertable
        self.event = Event(device.processor, notification=True)
        self.final_status = 0
        self.references = 1
        self.handle_count = 0
        self.fs_context: Any = None
        self.fs_context2: Any = None
        self.busy = False
        self.lock_waiters = 0
        self.lock_event = Event(device.processor, notification=False)
        self.completion_port: CompletionPort | None = None
        self.completion_key = 0

    def __str__(self) -> str:
        mode = "synchronous" if self.synchronous else "overlapped"
        return f"{mode} file of {self.device}"

    def lock(self) -> int:
        """Wait for the file lock; return what broke the wait off, or 0."""
        while self.busy:
            self.lock_waiters += 1
            status = self.lock_event.wait(alertable=self.alertable, mode=USER_MODE)
            self.lock_waiters -= 1
            if status:
                return status
        self.busy = True
        return 0

    def unlock(self) -> None:
        """Let the next request of a synchronous file in."""
        self.busy = False
        if self.lock_waiters:
            self.lock_event.set()

    def reference(self) -> None:
        """Keep the file from being closed."""
        self.references += 1

    def dereference(self) -> None:
        """Undo one `reference`; the last one has the device told."""
        self.references -= 1
        if not self.references:
            self.device.io.delete_file(self)

    def inspect(self) -> dict[str, Any]:
        """Return device, mode and counts."""
        return {
            "device": self.device.name,
            "synchronous": self.synchronous,
            "handles": self.handle_count,
            "references": self.references,
            "busy": self.busy,
        }
