"""Device queues: a busy flag, and the requests that wait for the device to be free.

The first insertion into an idle queue makes it busy and inserts nothing: the caller is to serve
that request at once. A removal that finds nothing makes it idle again.

Rules: == DISPATCH_LEVEL for insertions and removals of the next entry, <= DISPATCH_LEVEL for
`remove_entry`. A free build raises the IRQL itself, as the queue's spin lock does; the verifier
says 0xC4/0x20003.
Spec: WDK, Device Queue Objects; KeInsertDeviceQueue.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DETECTED_VIOLATION
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.spinlock import SpinLock

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

DEVICE_QUEUE_OBJECT_TYPE: Final = 0x14  # NT's DeviceQueueObject
SIZE_OF_DEVICE_QUEUE: Final = 0x28  # bytes of a KDEVICE_QUEUE on x64

_NOT_AT_DISPATCH: Final = 0x20003  # verifier 0xC4, rule IrqlDispatch
_ABOVE_DISPATCH: Final = 0x20011  # rule IrqlKeDispatchLte


class DeviceQueueEntry:
    """What stands in a queue (WDK: KDEVICE_QUEUE_ENTRY); `owner` is whatever it is part of."""

    __slots__ = ("inserted", "owner", "sort_key")

    def __init__(self, owner: Any = None) -> None:
        self.owner = owner
        self.sort_key = 0
        self.inserted = False


class DeviceQueue:
    """A KDEVICE_QUEUE."""

    __slots__ = ("_lock", "busy", "entries", "processor")

    type: Final = DEVICE_QUEUE_OBJECT_TYPE
    size: Final = SIZE_OF_DEVICE_QUEUE

    def __init__(self, processor: "Processor", name: str = "device queue") -> None:
        self.processor = processor
        self.entries: deque[DeviceQueueEntry] = deque()
        self.busy = False
        self._lock = SpinLock(processor, name)

    def insert(self, entry: DeviceQueueEntry) -> bool:
        """Put `entry` at the tail; False, and only made busy, if idle (KeInsertDeviceQueue)."""
        irql = self._enter("KeInsertDeviceQueue")
        entry.inserted = self.busy
        if self.busy:
            self.entries.append(entry)
        return self._leave_busy(irql, entry)

    def insert_by_key(self, entry: DeviceQueueEntry, sort_key: int) -> bool:
        """Put `entry` behind all of the same or a lower key (WDK: KeInsertByKeyDeviceQueue)."""
        irql = self._enter("KeInsertByKeyDeviceQueue")
        entry.sort_key = sort_key
        entry.inserted = self.busy
        if self.busy:
            self._insert_sorted(entry)
        return self._leave_busy(irql, entry)

    def remove(self) -> DeviceQueueEntry | None:
        """Return the first entry; None, and made idle, if there is none (KeRemoveDeviceQueue)."""
        irql = self._enter("KeRemoveDeviceQueue")
        return self._leave_with(irql, 0)

    def remove_by_key(self, sort_key: int) -> DeviceQueueEntry | None:
        """Return the first entry of at least this key, else the first (KeRemoveByKeyDeviceQueue).

        None, and made idle, if there is none.
        """
        irql = self._enter("KeRemoveByKeyDeviceQueue")
        keys = (index for index, entry in enumerate(self.entries) if entry.sort_key >= sort_key)
        return self._leave_with(irql, next(keys, 0))

    def remove_entry(self, entry: DeviceQueueEntry) -> bool:
        """Take `entry` out; False if it is not in. Busy stays (WDK: KeRemoveEntryDeviceQueue)."""
        processor = self.processor
        processor.require_irql(DISPATCH_LEVEL, "KeRemoveEntryDeviceQueue", _ABOVE_DISPATCH)
        irql = self._lock.acquire()
        was_in = entry.inserted
        if was_in:
            self.entries.remove(entry)
            entry.inserted = False
        self._lock.release(irql)
        return was_in

    def inspect(self) -> dict[str, Any]:
        """Return busy flag and entries."""
        return {
            "busy": self.busy,
            "entries": [(entry.sort_key, str(entry.owner)) for entry in self.entries],
        }

    def _enter(self, routine: str) -> int:
        processor = self.processor
        if processor.verifier and processor.irql != DISPATCH_LEVEL:
            processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION,
                _NOT_AT_DISPATCH,
                processor.irql,
                detail=f"{routine} at {processor.level_name()}",
            )
        return self._lock.acquire()

    def _leave_busy(self, irql: int, entry: DeviceQueueEntry) -> bool:
        inserted = entry.inserted
        self.busy = True
        self._lock.release(irql)
        return inserted

    def _leave_with(self, irql: int, index: int) -> DeviceQueueEntry | None:
        entry = None
        if self.entries:
            entry = self.entries[index]
            del self.entries[index]
            entry.inserted = False
        else:
            self.busy = False
        self._lock.release(irql)
        return entry

    def _insert_sorted(self, entry: DeviceQueueEntry) -> None:
        # Looked for from the tail only when it is the place: NT's order even if entries without
        # keys of their own stand between.
        entries = self.entries
        key = entry.sort_key
        if not entries or entries[-1].sort_key <= key:
            entries.append(entry)
            return
        place = next(index for index, other in enumerate(entries) if other.sort_key > key)
        entries.insert(place, entry)
