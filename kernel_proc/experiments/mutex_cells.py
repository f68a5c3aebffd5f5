"""What the experiment `mutex` does under each lock, one thing to a machine.

The call-back is shaped like that of the IPoIB driver of 2005 at the HCA's arrival: it takes the
component library's mutex and makes CQ, QP and region by the verbs of the HCA's driver, under it.

Rules: each returns what goes into its row. A bug check is the machine's end and the cell's result.
Spec: "Using of fast mutexes in WinIb" (openib-windows, November 2005); docs/cl-mutex.md.
"""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Final

from kernel_proc.channel_interface.verbs_table import VerbsTable
from kernel_proc.clients import verb_steps
from kernel_proc.clients.verbs_connection import opened_verbs
from kernel_proc.experiments.experiment import DONE
from kernel_proc.experiments.scheduling_ways import Device, by_dpc
from kernel_proc.io_manager import wdm
from kernel_proc.machine import Machine
from kernel_proc.memory.mdl import allocate_mdl, build_for_nonpaged_pool
from kernel_proc.scheduling.cl_mutex import ClMutex
from kernel_proc.scheduling.dispatcher import Deadlock
from kernel_proc.scheduling.irql import irql_name
from kernel_proc.scheduling.kthread import create_system_thread
from shared import verb_codes as codes
from shared.clock import now_ns
from shared.ioctl_codes import METHOD_BUFFERED, ctl_code
from shared.nt_status import STATUS_PENDING
from shared.verb_messages import Object, PortQuery
from shared.verbs_enums import ibv_access_flags

HANGS: Final = "hangs"
CALL_BACK: Final = "IPoIB-like PnP call-back"

Found = Mapping[str, Any]
Body = Callable[[Machine, ClMutex], Found]
Verb = Callable[[], object]

_PORT: Final = 1
_WRITABLE: Final = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
_SENDS, _RECEIVES = 64, 128
_PAGE: Final = 4096
_OWN_REQUEST: Final = ctl_code(0x8100, 0x800, METHOD_BUFFERED, 0)
_BLOCKS: Final = 9


def _acquired(machine: Machine, kind: str) -> ClMutex:
    mutex = ClMutex(machine.processor, kind)
    mutex.init()
    return mutex


def under(machine: Machine, kind: str, body: Body) -> Found:
    """Run `body` in a thread, with a mutex of this kind that is ready and not taken yet."""
    result: Found = machine.processor.run_thread(body, machine, _acquired(machine, kind))
    return result


# Inside


def look_inside(machine: Machine, mutex: ClMutex) -> Found:
    """Tell the level inside, and which APCs would still come."""
    processor = machine.processor
    mutex.acquire()
    thread = processor.current_thread
    assert thread is not None
    special = processor.irql == wdm.PASSIVE_LEVEL and thread.special_apc_disable == 0
    found = {
        "irql": irql_name(processor.irql),
        "as_told": processor.irql == mutex.irql_inside,
        "special_apcs": special,
        "normal_apcs": special and not thread.are_apcs_disabled(),
    }
    mutex.release()
    return found


# Verbs


class _Objects:
    """What a client of the HCA has when it takes the mutex."""

    def __init__(self, machine: Machine, table: VerbsTable) -> None:
        self._machine = machine
        self.table = table
        self.pd = verb_steps.do(table, codes.IOCTL_ALLOC_PD).handle
        self.cq = verb_steps.make_cq(table, _SENDS)
        self.qp = self.make_qp()
        hca = machine.hca
        assert hca is not None
        self._page = hca.memory.allocate_contiguous(_PAGE)
        assert self._page is not None

    def make_qp(self, **sizes: int) -> int:
        """Make a datagram QP."""
        request = verb_steps.qp_request(verb_steps.UD, self.pd, (self.cq, self.cq), **sizes)
        handle: int = verb_steps.do(self.table, codes.IOCTL_CREATE_QP, request).handle
        return handle

    def register_memory(self, length: int = _PAGE) -> None:
        """Have the driver make memory and register it."""
        answer = self.table.register_memory(self.pd, length, _WRITABLE)
        verb_steps.require(answer, "register_memory")

    def register_mdl(self) -> None:
        """Register memory of one's own."""
        assert self._page is not None
        mdl = allocate_mdl(self._machine.processor, self._page, _PAGE)
        assert mdl is not None
        build_for_nonpaged_pool(mdl)
        verb_steps.require(self.table.register_mdl(self.pd, mdl, _WRITABLE), "register_mdl")

    def destroy_cq(self) -> None:
        """Destroy the CQ, which has no QP any more."""
        verb_steps.do(self.table, codes.IOCTL_DESTROY_CQ, Object(self.cq))

    def call_back(self) -> None:
        """Make everything an interface needs."""
        self.cq = verb_steps.make_cq(self.table, _SENDS + _RECEIVES)
        qp = self.make_qp(max_send_wr=_SENDS, max_recv_wr=_RECEIVES)
        self.register_memory((_SENDS + _RECEIVES) * _PAGE)
        verb_steps.start_datagrams(self.table, qp, _PORT, 0x0B1B)


def verbs_of(objects: _Objects) -> Mapping[str, Verb]:
    """Return every verb that is tried, by name."""
    table = objects.table
    return {
        "alloc_pd": lambda: verb_steps.do(table, codes.IOCTL_ALLOC_PD),
        "query_port": lambda: verb_steps.do(table, codes.IOCTL_QUERY_PORT, PortQuery(_PORT)),
        "create_cq": lambda: verb_steps.make_cq(table, _SENDS),
        "create_qp": objects.make_qp,
        "modify_qp": lambda: verb_steps.start_datagrams(table, objects.qp, _PORT, 1),
        "reg_mr of new memory": objects.register_memory,
        "reg_mr of an MDL": objects.register_mdl,
        "destroy_cq": objects.destroy_cq,
        CALL_BACK: objects.call_back,
    }


VERBS: Final = (
    "alloc_pd", "query_port", "create_cq", "create_qp", "modify_qp", "reg_mr of new memory",
    "reg_mr of an MDL", "destroy_cq", CALL_BACK,
)  # fmt: skip


def call_verb(name: str) -> Body:
    """Return what calls one verb with the mutex held."""

    def body(machine: Machine, mutex: ClMutex) -> Found:
        with opened_verbs(machine.io) as table:
            objects = _Objects(machine, table)
            if name == "destroy_cq":
                verb_steps.do(table, codes.IOCTL_DESTROY_QP, Object(objects.qp))
            mutex.acquire()
            verbs_of(objects)[name]()
            mutex.release()
        return {}

    return body


# Waiting inside


def _or_hangs(machine: Machine, kind: str, body: Body) -> Found:
    try:
        return under(machine, kind, body)
    except Deadlock as end:
        return {"outcome": HANGS, "report": end.threads}


def own_request(machine: Machine, kind: str) -> Found:
    """Send a request of the thread's own under the mutex, and wait for its event."""
    device = Device(machine, by_dpc)

    def body(machine: Machine, mutex: ClMutex) -> Found:
        event = wdm.Event(machine.processor, notification=True)
        mutex.acquire()
        irp = wdm.build_device_io_control_request(
            _OWN_REQUEST, device.device, b"", 0, b"", 0, True, event, wdm.IoStatusBlock()
        )
        assert irp is not None
        if wdm.call_driver(device.device, irp) == STATUS_PENDING:
            event.wait()
        mutex.release()
        return {}

    return _or_hangs(machine, kind, body)


def once_more(machine: Machine, kind: str) -> Found:
    """Take the mutex twice in one thread."""

    def body(machine: Machine, mutex: ClMutex) -> Found:
        mutex.acquire()
        mutex.acquire()
        mutex.release()
        mutex.release()
        return {}

    return _or_hangs(machine, kind, body)


# Cost


def alone(count: int) -> Body:
    """Return what takes and gives the mutex so often with nobody else about."""

    def body(machine: Machine, mutex: ClMutex) -> Found:
        blocks = []
        for _ in range(_BLOCKS):
            began = now_ns()
            for _ in range(count):
                mutex.acquire()
                mutex.release()
            blocks.append((now_ns() - began) / count)
        return {"emulator_ns": round(median(blocks)), "switches": 0}

    return body


def contended(machine: Machine, kind: str, count: int) -> Found:
    """Have two threads take turns: each yields inside, so that the other comes and waits."""
    processor, mutex = machine.processor, _acquired(machine, kind)

    def take_turns() -> None:
        for _ in range(count):
            mutex.acquire()
            processor.dispatcher.yield_execution()
            mutex.release()

    blocks, before = [], processor.thread_switches
    for _ in range(_BLOCKS):
        began = now_ns()
        threads = [create_system_thread(processor, take_turns) for _ in range(2)]
        processor.run_until(lambda: all(thread.ended for thread in threads))  # noqa: B023
        blocks.append((now_ns() - began) / (2 * count))
    switches = (processor.thread_switches - before) / (2 * count * _BLOCKS)
    return {"emulator_ns": round(median(blocks)), "switches": round(switches, 2), "outcome": DONE}
