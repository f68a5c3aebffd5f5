"""What the experiment `mutex` does under each lock, one thing to a machine.

The call-back is shaped like that of the IPoIB driver of 2005 at the HCA's arrival: it takes the
component library's mutex and makes CQ, QP and region by the verbs of the HCA's driver, under it.

Rules: each returns what goes into its row. A bug check is the machine's end and the cell's result.
Spec: "Using of fast mutexes in WinIb" (openib-windows, November 2005); docs/cl-mutex.md.
"""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Final

from kernel_proc.clients.verbs_connection import opened_verbs
from kernel_proc.experiments.control_verbs import Verbs
from kernel_proc.experiments.experiment import DONE
from kernel_proc.experiments.scheduling_ways import Device, by_dpc
from kernel_proc.io_manager import wdm
from kernel_proc.machine import Machine
from kernel_proc.scheduling.cl_mutex import ClMutex
from kernel_proc.scheduling.dispatcher import Deadlock
from kernel_proc.scheduling.irql import irql_name
from kernel_proc.scheduling.kthread import create_system_thread
from shared.clock import now_ns
from shared.ioctl_codes import METHOD_BUFFERED, ctl_code
from shared.nt_status import STATUS_PENDING

HANGS: Final = "hangs"

Found = Mapping[str, Any]
Body = Callable[[Machine, ClMutex], Found]

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


def call_verb(name: str) -> Body:
    """Return what calls one verb with the mutex held."""

    def body(machine: Machine, mutex: ClMutex) -> Found:
        with opened_verbs(machine.io) as table:
            verb = Verbs(machine, table).ready(name)
            mutex.acquire()
            verb()
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
