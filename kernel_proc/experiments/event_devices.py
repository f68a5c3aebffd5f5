"""Two devices that stand between the HCA's callbacks and a program, instead of pended requests.

Both are kernel clients of the HCA's driver: their CQs call them back at DISPATCH_LEVEL.

* The middleman keeps a list of records. A get that finds none is pended; the next
  get acknowledges the record before it, and only then is that record free again. Destroying an
  object waits until no record of it is with the program.
* The blocking device counts the events of each object. A get waits for one in its dispatch
  routine, in the caller's thread.

Each serves one program.

Rules: `tell` at DISPATCH_LEVEL; everything else at PASSIVE_LEVEL in the caller's thread.
Spec: the mail "[RFC v2] Kernel Async Verbs" names the middleman; WinOF core/al/kernel/al_proxy.c
and al_dev.c have one.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final

from kernel_proc.io_manager import wdm
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.scheduling.wait import KERNEL_MODE, USER_MODE

DEVICE_TYPE: Final = 0x8101
#: Input: the object asked for, which the middleman does not look at. Output: object and count.
IOCTL_GET: Final = wdm.ctl_code(DEVICE_TYPE, 0x800, wdm.METHOD_BUFFERED, wdm.FILE_ANY_ACCESS)
#: Input: the object; no event of it is delivered after the request has ended.
IOCTL_DESTROY: Final = wdm.ctl_code(DEVICE_TYPE, 0x801, wdm.METHOD_BUFFERED, wdm.FILE_ANY_ACCESS)
OBJECT: Final = Struct("<I")
EVENT: Final = Struct("<II")
MOST_RECORDS: Final = 64

Destroy = Callable[[int], None]


class _Device(ABC):
    """What the two have in common: one program's files, and the dispatch table.

    `destroy` ends a CQ.
    """

    def __init__(self, io: IoManager, name: str, destroy: Destroy) -> None:
        self.processor = io.processor
        self.destroy_object = destroy
        self._files = 0
        driver = wdm.DriverObject(io.processor, name)
        driver.major_function[wdm.IRP_MJ_CREATE] = self._create
        driver.major_function[wdm.IRP_MJ_CLEANUP] = self._cleanup
        driver.major_function[wdm.IRP_MJ_CLOSE] = _succeed
        driver.major_function[wdm.IRP_MJ_DEVICE_CONTROL] = self._control
        wdm.create_device(driver, name, DEVICE_TYPE)

    def _control(self, device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        location = wdm.get_current_irp_stack_location(irp)
        code = location.io_control_code
        if code not in (IOCTL_GET, IOCTL_DESTROY):
            return wdm.finish_request(irp, wdm.STATUS_INVALID_DEVICE_REQUEST)
        if location.input_buffer_length != OBJECT.size:
            return wdm.finish_request(irp, wdm.STATUS_INVALID_PARAMETER)
        (number,) = OBJECT.unpack_from(irp.system_buffer)
        if code == IOCTL_DESTROY:
            return wdm.finish_request(irp, self.destroy(number))
        if location.output_buffer_length < EVENT.size:
            return wdm.finish_request(irp, wdm.STATUS_BUFFER_TOO_SMALL)
        return self.get(irp, number)

    def _create(self, device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        self._files += 1
        return wdm.finish_request(irp, wdm.STATUS_SUCCESS)

    def _cleanup(self, device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        self._files -= 1
        if not self._files:
            self.closed()
        return wdm.finish_request(irp, wdm.STATUS_SUCCESS)

    @abstractmethod
    def tell(self, number: int) -> None:
        """Take an event of an object from the HCA's driver."""

    @abstractmethod
    def get(self, irp: wdm.Irp, number: int) -> int:
        """Answer with an event, now or later."""

    @abstractmethod
    def destroy(self, number: int) -> int:
        """End an object."""

    @abstractmethod
    def closed(self) -> None:
        """The program has closed its last file, or is dead."""

    @abstractmethod
    def inspect(self) -> dict[str, int]:
        """Return what is held for the program."""


class Middleman(_Device):
    """Records in the order of their events; one is with the program until its next get."""

    def __init__(
        self, io: IoManager, name: str, destroy: Destroy, most_records: int = MOST_RECORDS
    ) -> None:
        super().__init__(io, name, destroy)
        self._lock = wdm.SpinLock(io.processor, "middleman")
        self._gets = wdm.CancelSafeQueue(io.processor, "middleman's gets")
        self._records: deque[int] = deque()
        self._free = most_records
        self._with_program: int | None = None
        self._acknowledged = wdm.Event(io.processor, notification=True)
        self.lost = 0

    def tell(self, number: int) -> None:
        """Make a record of the event, if there is a free one, and end a get that waits."""
        old = self._lock.acquire()
        if self._free:
            self._free -= 1
            self._records.append(number)
        else:
            self.lost += 1
        self._lock.release(old)
        self._match()

    def get(self, irp: wdm.Irp, number: int) -> int:
        """Acknowledge the record before, then give the next one or pend."""
        old = self._lock.acquire()
        if self._with_program is not None:
            self._with_program = None
            self._free += 1
            self._acknowledged.set()
        self._lock.release(old)
        self._gets.insert(irp)
        self._match()
        return wdm.STATUS_PENDING

    def _match(self) -> None:
        """Give the oldest record to a get that waits; at most one is with the program."""
        old = self._lock.acquire()
        irp, number = None, 0
        if self._records and self._with_program is None:
            irp = self._gets.remove_next()
            if irp is not None:
                number = self._with_program = self._records.popleft()
                self._acknowledged.clear()
        self._lock.release(old)
        if irp is not None:
            EVENT.pack_into(irp.system_buffer, 0, number, 1)
            wdm.finish_request(irp, wdm.STATUS_SUCCESS, EVENT.size)

    def destroy(self, number: int) -> int:
        """End the CQ, drop its records, and wait until the program has none of them."""
        self.destroy_object(number)
        old = self._lock.acquire()
        kept = [one for one in self._records if one != number]
        self._free += len(self._records) - len(kept)
        self._records = deque(kept)
        self._lock.release(old)
        status = wdm.STATUS_SUCCESS
        while self._with_program == number and status == wdm.STATUS_SUCCESS:
            status = self._acknowledged.wait(mode=USER_MODE)
        return status

    def closed(self) -> None:
        """Cancel what waits and drop every record."""
        while (irp := self._gets.remove_next()) is not None:
            self._gets.complete_canceled_irp(irp)
        old = self._lock.acquire()
        self._free += len(self._records)
        self._records.clear()
        self._with_program = None
        self._lock.release(old)

    def inspect(self) -> dict[str, int]:
        """Return how many records and gets there are."""
        return {"records": len(self._records), "requests": len(self._gets.irps)}


class BlockingDevice(_Device):
    """Counts by object.

    If it is `cancellable`, a get waits in user mode, so that the end of its thread breaks it off,
    and has a cancel routine, so that another thread can (CancelSynchronousIo). If not, it waits in
    kernel mode, and only an event ends it.
    """

    def __init__(
        self, io: IoManager, name: str, destroy: Destroy, cancellable: bool = True
    ) -> None:
        super().__init__(io, name, destroy)
        self._cancellable = cancellable
        self._counts: dict[int, int] = {}
        self._events: dict[int, wdm.Event] = {}
        self._ended: set[int] = set()
        self.waiting = 0

    def tell(self, number: int) -> None:
        """Count the event and wake who waits for it."""
        self._counts[number] = self._counts.get(number, 0) + 1
        self._event(number).set()

    def _event(self, number: int) -> wdm.Event:
        event = self._events.get(number)
        if event is None:
            event = self._events[number] = wdm.Event(self.processor, notification=False)
        return event

    def get(self, irp: wdm.Irp, number: int) -> int:
        """Wait for an event of the object in this very thread."""
        event = self._event(number)
        mode = KERNEL_MODE
        if self._cancellable:
            mode = USER_MODE
            wdm.set_cancel_routine(irp, lambda device, irp: self._cancel(irp, event))
        self.waiting += 1
        status = wdm.STATUS_SUCCESS
        while not self._counts.get(number) and number not in self._ended:
            if self._cancellable and irp.cancel:
                break
            status = event.wait(mode=mode)
            if status != wdm.STATUS_SUCCESS:
                break
        self.waiting -= 1
        wdm.set_cancel_routine(irp, None)
        count = self._counts.pop(number, 0)
        if not count:
            return wdm.finish_request(irp, wdm.STATUS_CANCELLED)
        EVENT.pack_into(irp.system_buffer, 0, number, count)
        return wdm.finish_request(irp, wdm.STATUS_SUCCESS, EVENT.size)

    @staticmethod
    def _cancel(irp: wdm.Irp, event: wdm.Event) -> None:
        wdm.release_cancel_spin_lock(irp.processor, irp.cancel_irql)
        event.set()

    def destroy(self, number: int) -> int:
        """End the CQ, forget its events, and end a get that waits for one."""
        self.destroy_object(number)
        self._ended.add(number)
        self._counts.pop(number, None)
        self._event(number).set()
        return wdm.STATUS_SUCCESS

    def closed(self) -> None:
        """Forget every event; nobody waits any more, or the file could not be closed."""
        self._counts.clear()

    def inspect(self) -> dict[str, int]:
        """Return how many objects have events, and who waits."""
        return {"records": len(self._counts), "requests": self.waiting}


def _succeed(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
    return wdm.finish_request(irp, wdm.STATUS_SUCCESS)
