"""Three ways in which a user program learns of events: its threads and what they ask.

`PendedIrps` uses the driver's requests; `MiddlemanClient` and `BlockingClient` the devices of
`event_devices`.

Rules: as in `notification_clients`.
Spec: docs/notification.md.
"""

from abc import abstractmethod
from typing import Final

from kernel_proc.experiments.event_devices import (
    EVENT,
    IOCTL_DESTROY,
    IOCTL_GET,
    MOST_RECORDS,
    OBJECT,
    BlockingDevice,
    Middleman,
)
from kernel_proc.experiments.notification_clients import (
    GET_CODE,
    OBJECTS,
    QUEUE_BYTES,
    Client,
    KernelCqs,
)
from kernel_proc.io_manager import wdm
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    cancel_io_file,
    cancel_synchronous_io,
    create_event,
    set_event,
    waitable_objects,
)
from kernel_proc.machine import Machine
from kernel_proc.scheduling.kthread import KThread
from kernel_proc.scheduling.wait import USER_MODE
from shared import verb_codes as codes
from shared.message_codec import decode_as, encode
from shared.nt_status import STATUS_SUCCESS
from shared.verb_codes import HCA_DEVICE, VERB_OUTPUT_LENGTH, VERB_RESULT
from shared.verb_messages import CreateCq, Event, Object

_MIDDLEMAN: Final = "middleman"
_BLOCKING: Final = "blocking"
_CQE: Final = 15
_ANY: Final = 0
_PENDED: Final = 2


class Overlapped(Client):
    """One thread with requests in flight, each with an event, and one more event to stop it."""

    def __init__(self, machine: Machine, kind: str) -> None:
        super().__init__(machine, kind)
        self._handle = 0
        self._stop = 0
        self._events: list[int] = []

    def _make_events(self, count: int) -> None:
        io, thread = self.machine.io, self.program.thread
        made = [create_event(io, thread, False, False) for _ in range(count + 1)]
        self._stop, *self._events = (handle for _, handle in made)

    @abstractmethod
    def requests(self) -> list[DeviceControlRequest]:
        """Return the requests to keep in flight."""

    @abstractmethod
    def answered(self, request: DeviceControlRequest) -> bytes | None:
        """Note the answer of a request; return the input to send it with again, or None."""

    def ask(self) -> None:
        """Have the thread send its requests and serve them until it is stopped."""
        self.asking = True
        self.program.thread.enter_kernel(self._serve)

    def _serve(self) -> None:
        program, thread = self.program, self.program.thread
        live = self.requests()
        for request in live:
            program.control(request)
        while live:
            handles = [self._stop, *(request.event_handle for request in live)]
            status, objects = waitable_objects(thread, handles)
            if status != STATUS_SUCCESS:
                return  # the process is ending
            index = wdm.wait_for_multiple(objects, False, mode=USER_MODE)
            if index == 0:
                break
            if index >= len(handles):
                return
            request = live[index - 1]
            again = self.answered(request)
            if again is None:
                live.remove(request)
                continue
            request.reset()
            request.input = again
            program.control(request)
        cancel_io_file(self.machine.io, thread, self._handle)
        self.asking = False

    def cancel(self) -> str:
        """Have the thread that sent them call CancelIo."""
        set_event(self.machine.io, self.program.thread, self._stop)
        return "CancelIo"


class PendedIrps(Overlapped):
    """Two of the driver's requests, each for the event of any CQ, as the user library has them."""

    def __init__(self, machine: Machine, kind: str) -> None:
        super().__init__(machine, kind)
        self._cqs: list[int] = []
        self.program.call(self._set_up)

    def _set_up(self) -> None:
        program = self.program
        self._handle = program.open(HCA_DEVICE)
        for number in range(OBJECTS):
            buffer = program.address + number * QUEUE_BYTES
            request = CreateCq(_CQE, 0, 1, 0, buffer, QUEUE_BYTES)
            created = program.verb(self._handle, codes.IOCTL_CREATE_CQ, request)
            self._cqs.append(created.handle)
            self.cqns.append(created.cqn)
        self._make_events(_PENDED)

    def requests(self) -> list[DeviceControlRequest]:
        """Return the requests, all alike."""
        return [
            DeviceControlRequest(
                self._handle,
                GET_CODE[self.kind],
                encode(Object(_ANY)),
                output_length=VERB_OUTPUT_LENGTH,
                output_inline=True,
                event_handle=event,
            )
            for event in self._events
        ]

    def answered(self, request: DeviceControlRequest) -> bytes | None:
        """Take the event; a request that was cancelled is not sent again."""
        output = request.output or b""
        if request.iosb_status != STATUS_SUCCESS or VERB_RESULT.unpack_from(output)[0]:
            return None
        event = decode_as(Event, output[VERB_RESULT.size :])
        self.hears(self._cqs.index(event.object), event.count)
        return encode(Object(_ANY))

    def destroy(self, number: int) -> None:
        """Destroy a CQ by its verb."""
        self.program.verb(self._handle, codes.IOCTL_DESTROY_CQ, Object(self._cqs[number]))


class MiddlemanClient(Overlapped):
    """One get at a time, for all objects, which acknowledges the one before."""

    def __init__(self, machine: Machine, kind: str, most_records: int = MOST_RECORDS) -> None:
        super().__init__(machine, kind)
        self._cqs = KernelCqs(machine, kind, lambda number: self.device.tell(number), True)
        self.device = Middleman(machine.io, _MIDDLEMAN, self._cqs.destroy, most_records)
        self.cqns = self._cqs.cqns
        self.program.call(self._set_up)

    def _set_up(self) -> None:
        self._handle = self.program.open(_MIDDLEMAN)
        self._make_events(1)

    def requests(self) -> list[DeviceControlRequest]:
        """Return the one get."""
        return [_get(self._handle, 0, self._events[0])]

    def answered(self, request: DeviceControlRequest) -> bytes | None:
        """Take the record; asking again acknowledges it."""
        if request.iosb_status != STATUS_SUCCESS:
            return None
        self.hears(*EVENT.unpack_from(request.output or b""))
        return OBJECT.pack(0)

    def destroy(self, number: int) -> None:
        """Ask the middleman to destroy an object."""
        self.program.control(_destroy(self._handle, number))

    def left(self) -> int:
        """Return what the middleman keeps."""
        return sum(self.device.inspect().values())


class BlockingClient(Client):
    """A thread for each object, in a get that blocks."""

    def __init__(self, machine: Machine, kind: str, cancellable: bool = True) -> None:
        super().__init__(machine, kind)
        self._cqs = KernelCqs(machine, kind, lambda number: self.device.tell(number), True)
        self.device = BlockingDevice(machine.io, _BLOCKING, self._cqs.destroy, cancellable)
        self.cqns = self._cqs.cqns
        self._handle = self.program.call(self.program.open, _BLOCKING)
        self._threads = [self.program.new_thread(f"waiter {n}") for n in range(OBJECTS)]
        self._handles: dict[int, int] = {}  # one for each thread: a synchronous file serves one
        self._busy = 0

    @property
    def threads(self) -> list[KThread]:
        """Return the waiting threads."""
        return self._threads

    def ask(self) -> None:
        """Send every thread into its get."""
        self.asking = True
        for number, thread in enumerate(self._threads):
            self._busy += 1
            thread.enter_kernel(self._serve, number)

    def _serve(self, number: int) -> None:
        if number not in self._handles:
            self._handles[number] = self.program.open(_BLOCKING, synchronous=True)
        while True:
            request = _get(self._handles[number], number)
            if self.program.control(request) != STATUS_SUCCESS:
                break
            self.hears(*EVENT.unpack_from(request.output or b""))
        self._busy -= 1
        self.asking = self._busy > 0

    def cancel(self) -> str:
        """Have another thread call CancelSynchronousIo; those that wait can call nothing."""
        for thread in self._threads:
            cancel_synchronous_io(thread)
        return "CancelSynchronousIo"

    def destroy(self, number: int) -> None:
        """Ask the device to destroy an object."""
        self.program.control(_destroy(self._handle, number))

    def left(self) -> int:
        """Return what the device keeps."""
        return sum(self.device.inspect().values())


def _get(handle: int, number: int, event: int = 0) -> DeviceControlRequest:
    return DeviceControlRequest(
        handle,
        IOCTL_GET,
        OBJECT.pack(number),
        output_length=EVENT.size,
        output_inline=True,
        event_handle=event,
    )


def _destroy(handle: int, number: int) -> DeviceControlRequest:
    return DeviceControlRequest(handle, IOCTL_DESTROY, OBJECT.pack(number))
