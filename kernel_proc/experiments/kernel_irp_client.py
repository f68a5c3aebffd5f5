"""A kernel client that learns of events by the requests users have, instead of a callback.

Its thread builds two IRPs for the event of any CQ of its file, waits for their events and sends
them again. The driver's dispatch routine, its latches and its queues are those of a user's request.

Rules: as in `notification_clients`. A built IRP ends by an APC in the thread that built it, which
therefore cancels it at APC_LEVEL: it cannot be freed between the look at its event and the call.
Spec: "[RFC v2] Kernel Async Verbs"; WDK, IoBuildDeviceIoControlRequest, IoCancelIrp.
"""

from typing import Any, Final, NamedTuple

from kernel_proc.channel_interface.verbs_table import VerbsTable
from kernel_proc.clients.verb_steps import do, require
from kernel_proc.clients.verbs_connection import open_verbs
from kernel_proc.experiments.notification_clients import GET_CODE, OBJECTS, Client
from kernel_proc.io_manager import wdm
from kernel_proc.machine import Machine
from kernel_proc.scheduling.kthread import KThread
from shared import verb_codes as codes
from shared.message_codec import decode_as, encode
from shared.nt_status import STATUS_SUCCESS
from shared.verb_codes import VERB_OUTPUT_LENGTH, VERB_RESULT
from shared.verb_messages import CreateCq, Event, Object

_CQE: Final = 15
_PENDED: Final = 2
_ANY: Final = encode(Object(0))


class _Request(NamedTuple):
    irp: wdm.Irp
    event: wdm.Event
    iosb: wdm.IoStatusBlock
    output: bytearray


class KernelIrps(Client):
    """A driver's thread with two requests in flight, and an event to stop it."""

    def __init__(self, machine: Machine, kind: str) -> None:
        super().__init__(machine, kind)
        self._processor = machine.processor
        self._handles: list[int] = []
        self._thread: KThread | None = None
        self._stop = wdm.Event(machine.processor, notification=False)
        self._pended = 0
        machine.processor.run_thread(self._set_up)

    def _set_up(self) -> None:
        self._file, self._table = open_verbs(self.machine.io)
        table: VerbsTable = self._table
        for _ in range(OBJECTS):
            request = CreateCq(_CQE, 0, 1, 0, 0, 0)
            made = require(table.call(codes.IOCTL_CREATE_CQ, request), "create_cq").reply
            self._handles.append(made.handle)
            self.cqns.append(made.cqn)

    @property
    def threads(self) -> list[KThread]:
        """Return the thread that waits."""
        return [self._thread] if self._thread is not None else []

    def ask(self) -> None:
        """Have a thread send the requests and serve them until it is stopped."""
        self.asking = True
        self._thread = wdm.create_system_thread(self._processor, self._serve, name="events")

    def _serve(self) -> None:
        live = [self._send() for _ in range(_PENDED)]
        while True:
            index = wdm.wait_for_multiple([self._stop, *(one.event for one in live)], False)
            if index == 0:
                break
            self._take(live[index - 1])
            live[index - 1] = self._send()
        for one in live:
            self._cancel(one)
        self.asking = False

    def _send(self) -> _Request:
        device = self._file.device
        event, iosb = wdm.Event(self._processor, notification=True), wdm.IoStatusBlock()
        output = bytearray(VERB_OUTPUT_LENGTH)
        code = GET_CODE[self.kind]
        irp = wdm.build_device_io_control_request(
            code, device, _ANY, len(_ANY), output, len(output), False, event, iosb
        )
        assert irp is not None
        wdm.get_next_irp_stack_location(irp).file_object = self._file
        self._pended += 1
        wdm.call_driver(device, irp)
        return _Request(irp, event, iosb, output)

    def _take(self, request: _Request) -> None:
        """Handle the answer of a request that has ended; one that was cancelled has none."""
        self._pended -= 1
        answer: Any = request.output
        if request.iosb.status != STATUS_SUCCESS or VERB_RESULT.unpack_from(answer)[0]:
            return
        event = decode_as(Event, bytes(answer[VERB_RESULT.size : request.iosb.information]))
        self.hears(self._handles.index(event.object), event.count)

    def _cancel(self, request: _Request) -> None:
        """Cancel a request unless it has ended, and wait for its end."""
        old = self._processor.raise_irql(wdm.APC_LEVEL)
        if not request.event.read_state():
            wdm.cancel_irp(request.irp)
        self._processor.lower_irql(old)
        request.event.wait()
        self._take(request)

    def cancel(self) -> str:
        """Have the thread cancel its IRPs."""
        self._stop.set()
        return "IoCancelIrp"

    def destroy(self, number: int) -> None:
        """Destroy a CQ by its verb."""
        do(self._table, codes.IOCTL_DESTROY_CQ, Object(self._handles[number]))

    def end(self) -> None:
        """Cancel what is in flight and close the file, as a driver does that is unloaded."""
        if self.asking:
            self._stop.set()
            self._processor.run_until(lambda: not self.asking)
        self._processor.run_thread(self._file.dereference)

    def left(self) -> int:
        """Return how many of its IRPs have not ended."""
        return self._pended
