"""What learns of events of four CQs, and the source of these events.

Every way stands on the same driver and is told by the same DPC. A kernel client is called back;
what stands in a user program is in `user_clients`.

Rules: `ask`, `fire` and `settle` from outside the machine. A program notes what it hears in
`heard`, with the time.
Spec: docs/notification.md; docs/kernel-verbs.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kernel_proc.channel_interface.verbs_table import VerbsTable
from kernel_proc.clients.verb_steps import do, require
from kernel_proc.clients.verbs_connection import open_verbs
from kernel_proc.driver import entry
from kernel_proc.experiments.user_program import UserProgram
from kernel_proc.io_manager import wdm
from kernel_proc.machine import Machine
from kernel_proc.scheduling.kthread import KThread
from shared import verb_codes as codes
from shared.clock import now_ns
from shared.verb_messages import CreateCq, Event, Object

OBJECTS: Final = 4
KINDS: Final = ("completion", "asynchronous")
#: The request for an event of each kind.
GET_CODE: Final = {
    "completion": codes.IOCTL_GET_CQ_COMP_EVENT,
    "asynchronous": codes.IOCTL_GET_CQ_ASYNC_EVENT,
}
_CQE: Final = 15
QUEUE_BYTES: Final = 4096
_SYNDROME: Final = 1


class Heard(NamedTuple):
    """One answer or call: of which object, how many events it stands for, and when."""

    number: int
    events: int
    at_ns: int


class Source:
    """The HCA's part: an interrupt, whose DPC tells the driver of events as its own DPC does."""

    def __init__(self, machine: Machine, kind: str) -> None:
        assert machine.hca is not None
        assert machine.hca.driver is not None
        self._processor = machine.processor
        self._sinks = entry.extension_of(machine.hca.driver).life.event_sinks
        self._completions = kind == "completion"
        self._dpc = wdm.Dpc(machine.processor, self._tell)
        self._interrupt = wdm.Interrupt(machine.processor, self._service)
        self._interrupt.connect()
        self._cqns: Sequence[int] = ()
        self.fired_ns = 0

    def fire(self, cqns: Sequence[int]) -> None:
        """Have one interrupt tell of an event of each of these CQs."""
        self._cqns = cqns
        self._processor.schedule_hardware(self._interrupt.request)

    def _service(self, interrupt: wdm.Interrupt, context: Any) -> bool:
        self._dpc.insert()
        return True

    def _tell(self, *_: Any) -> None:
        self.fired_ns = now_ns()
        for cqn in self._cqns:
            if self._completions:
                self._sinks.completion(cqn)
            else:
                self._sinks.cq_error(cqn, _SYNDROME)


class Client(ABC):
    """What learns of events; objects are numbered from 0, `cqns` are their numbers for the HCA.

    `on_heard` is called with each answer where the program handles it.
    """

    def __init__(self, machine: Machine, kind: str) -> None:
        self.machine = machine
        self.kind = kind
        self.program = UserProgram(machine, OBJECTS * QUEUE_BYTES)
        self.heard: list[Heard] = []
        self.cqns: list[int] = []
        self.on_heard: Callable[[int], object] = lambda number: None
        self.asking = False

    @property
    def threads(self) -> list[KThread]:
        """Return the program's threads that wait for events."""
        return [self.program.thread]

    def hears(self, number: int, events: int) -> None:
        """Note an answer and have the program handle it."""
        self.heard.append(Heard(number, events, now_ns()))
        self.on_heard(number)

    @abstractmethod
    def ask(self) -> None:
        """Begin to wait for events of every object."""

    @abstractmethod
    def cancel(self) -> str:
        """Stop waiting; say how it was done."""

    @abstractmethod
    def destroy(self, number: int) -> None:
        """Destroy an object; in a thread of the program, or of the kernel client."""

    def end(self) -> None:
        """Begin what its death begins, and return when that is over."""
        self.program.die()

    def left(self) -> int:
        """Return how many records and requests are held for it."""
        return 0


class KernelCqs:
    """The CQs of a kernel client of the driver, which calls `tell` with an object's number."""

    def __init__(
        self, machine: Machine, kind: str, tell: Callable[[int], object], at_dispatch_level: bool
    ) -> None:
        self._machine = machine
        self._tell = tell
        self._handles: list[int] = []
        self.cqns: list[int] = []
        machine.processor.run_thread(self._set_up, kind == "completion", at_dispatch_level)

    def _set_up(self, completions: bool, at_dispatch_level: bool) -> None:
        self._file, self._table = open_verbs(self._machine.io)
        table: VerbsTable = self._table
        for number in range(OBJECTS):
            request = CreateCq(_CQE, 0, int(completions), 0, 0, 0)
            routine = (lambda number=number: self._tell(number)) if completions else None
            made = require(table.call(codes.IOCTL_CREATE_CQ, request, routine), "create_cq").reply
            self._handles.append(made.handle)
            self.cqns.append(made.cqn)
        if not completions:
            table.set_event_routine(self._told, at_dispatch_level=at_dispatch_level)

    def _told(self, event: Event) -> None:
        self._tell(self._handles.index(event.object))

    def destroy(self, number: int) -> None:
        """Destroy a CQ; RaisedStatus if the driver refuses, as it does above PASSIVE_LEVEL."""
        do(self._table, codes.IOCTL_DESTROY_CQ, Object(self._handles[number]))

    def close(self) -> None:
        """Close the file: everything of the client is gone."""
        self._machine.processor.run_thread(self._file.dereference)


class CallbackClient(Client):
    """A kernel client: it is called, and waits nowhere."""

    def __init__(self, machine: Machine, kind: str) -> None:
        super().__init__(machine, kind)
        self._cqs = KernelCqs(machine, kind, lambda number: self.hears(number, 1), False)
        self.cqns = self._cqs.cqns
        self.asking = True

    @property
    def threads(self) -> list[KThread]:
        """Return no thread."""
        return []

    def ask(self) -> None:
        """Ask for nothing: it is called from the beginning."""

    def cancel(self) -> str:
        """Cancel nothing."""
        return "nothing to cancel"

    def destroy(self, number: int) -> None:
        """Destroy a CQ by its verb."""
        self._cqs.destroy(number)

    def end(self) -> None:
        """Close its file, as a driver does that is unloaded."""
        self._cqs.close()
