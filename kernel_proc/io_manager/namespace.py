"""The I/O manager of one machine: its devices by name, its counters and its cancel spin lock.

Rules: one for each processor.
Spec: WDK, Windows Kernel-Mode I/O Manager.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.io_manager.buffering import CopyCounters
from kernel_proc.io_manager.create_close import delete_file
from kernel_proc.io_manager.irp_look_aside import IrpLookAside
from kernel_proc.io_manager.irp_table import inspect_irps
from kernel_proc.io_manager.irp_verifier import IrpVerifier
from kernel_proc.io_manager.registry import register_io_manager
from kernel_proc.memory.pool import PoolAllocator
from kernel_proc.scheduling.spinlock import SpinLock

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.io_manager.handle_table import HandleTable
    from kernel_proc.scheduling.event import Event
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

_NOTES_KEPT: Final = 256


class IoManager:
    """Everything the routines of this room share.

    `devices` is keyed by the lower-case name. `verifier` is None in free mode: the routines ask
    for it once and are otherwise as short as they can be. `irp_watches` and `close_watches` hold
    the events of those who wait for a thread's IRPs or a process's files to go away. `pool` is
    where drivers allocate.
    """

    __slots__ = (
        "__weakref__",
        "cancel_lock",
        "close_watches",
        "copy_counters",
        "delete_file",
        "detached_irps",
        "devices",
        "information_violations",
        "irp_look_aside",
        "irp_watches",
        "irps_allocated",
        "notes",
        "pool",
        "processor",
        "verifier",
    )

    def __init__(self, processor: "Processor") -> None:
        self.processor = processor
        self.pool = PoolAllocator(processor)
        self.devices: dict[str, DeviceObject] = {}
        self.copy_counters = CopyCounters()
        self.irps_allocated = 0
        self.irp_look_aside = IrpLookAside()
        self.information_violations = 0
        self.detached_irps = 0
        self.notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self.cancel_lock = SpinLock(processor, "cancel spin lock")
        self.irp_watches: dict[KThread, Event] = {}
        self.close_watches: dict[HandleTable, Event] = {}
        self.delete_file: Callable[[FileObject], None] = delete_file
        self.verifier = IrpVerifier(processor) if processor.verifier else None
        register_io_manager(self)

    def note(self, text: str) -> None:
        """Keep a line for the log: something a driver did that NT would log."""
        self.notes.append(text)

    def inspect(self) -> dict[str, Any]:
        """Return devices, counters and the latest notes."""
        return {
            "devices": {name: device.inspect() for name, device in self.devices.items()},
            "irps_allocated": self.irps_allocated,
            "irps": inspect_irps(self.processor.dispatcher.threads),
            "irp_look_aside": self.irp_look_aside.inspect(),
            "copies": self.copy_counters.copies,
            "bytes_copied": self.copy_counters.bytes_copied,
            "information_violations": self.information_violations,
            "detached_irps": self.detached_irps,
            "pool": self.pool.inspect(),
            "notes": list(self.notes),
        }
