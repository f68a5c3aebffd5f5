"""Which lock lets a thread wait for a request of its own, and how it is named when it does not."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.io_build import build_device_io_control_request
from kernel_proc.io_manager.irp import IoStatusBlock, Irp, mark_irp_pending
from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_IOMANAGER_VIOLATION, BugCheck
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.guarded_mutex import GuardedMutex
from kernel_proc.scheduling.irql import APC_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Deadlock, Processor
from shared.ioctl_codes import ctl_code
from shared.nt_status import STATUS_PENDING, STATUS_SUCCESS

CODE = ctl_code(0x8003, 0x800, 0, 0)

Release = Callable[[], object]


def nothing(processor: Processor) -> Release:
    return lambda: None


def critical_region(processor: Processor) -> Release:
    thread = processor.current_thread
    assert thread is not None
    thread.enter_critical_region()
    return thread.leave_critical_region


def kernel_mutex(processor: Processor) -> Release:
    mutex = Mutex(processor)
    mutex.wait()
    return mutex.release


def unsafe_fast_mutex(processor: Processor) -> Release:
    leave = critical_region(processor)
    mutex = FastMutex(processor)
    mutex.acquire_unsafe()
    return lambda: (mutex.release_unsafe(), leave())


def event_as_lock(processor: Processor) -> Release:
    lock = Event(processor, notification=False, signaled=True)
    lock.wait()
    return lock.set


def guarded_region(processor: Processor) -> Release:
    thread = processor.current_thread
    assert thread is not None
    thread.enter_guarded_region()
    return thread.leave_guarded_region


def guarded_mutex_2003(processor: Processor) -> Release:
    mutex = GuardedMutex(processor, "lock")
    mutex.acquire()
    return mutex.release


def guarded_mutex_windows_8(processor: Processor) -> Release:
    processor.guarded_mutexes_at_apc_level = True
    return guarded_mutex_2003(processor)


def fast_mutex(processor: Processor) -> Release:
    mutex = FastMutex(processor, "lock")
    mutex.acquire()
    return mutex.release


def raised_level(processor: Processor) -> Release:
    processor.raise_irql(APC_LEVEL)
    return lambda: processor.lower_irql(PASSIVE_LEVEL)


WORKS = [nothing, critical_region, kernel_mutex, unsafe_fast_mutex, event_as_lock]
HANGS = [
    (guarded_region, "in a guarded region,"),
    (guarded_mutex_2003, "in a guarded region, holding guarded mutex 'lock'"),
    (guarded_mutex_windows_8, "at APC_LEVEL, holding guarded mutex 'lock'"),
    (fast_mutex, "at APC_LEVEL, holding fast mutex 'lock'"),
    (raised_level, "at APC_LEVEL,"),
]


class Client:
    """Holds something, sends a request of its own thread, and waits for its end."""

    def __init__(self, machine: Any, hold: Callable[[Processor], Release]) -> None:
        self.machine = machine
        self.hold = hold
        self.kept: list[Irp] = []
        machine.scripted.on_control = self.pend

    def pend(self, device: Any, irp: Irp) -> int:
        mark_irp_pending(irp)
        self.kept.append(irp)
        return STATUS_PENDING

    def complete(self, *_: Any) -> None:
        """The device has finished: its DPC completes the request."""
        irp = self.kept[-1]
        irp.status = STATUS_SUCCESS
        complete_request(irp)

    def ask(self) -> int:
        processor = self.machine.processor
        event, iosb = Event(processor, notification=True), IoStatusBlock(0xFFFF, 0)
        release = self.hold(processor)
        device = self.machine.scripted.device
        irp = build_device_io_control_request(CODE, device, b"x", 1, b"", 0, False, event, iosb)
        assert irp is not None
        assert call_driver(device, irp) == STATUS_PENDING
        event.wait()
        release()
        return iosb.status


@pytest.mark.parametrize("hold", WORKS)
@pytest.mark.parametrize("verifier", [False, True])
def test_with_special_apcs_on_it_works(new_machine: Any, hold: Any, verifier: bool):
    machine = new_machine(verifier=verifier)
    client = Client(machine, hold)
    thread = create_system_thread(machine.processor, lambda: statuses.append(client.ask()))
    statuses: list[int] = []
    machine.processor.run_until(lambda: bool(client.kept))
    machine.in_kernel(Dpc(machine.processor, client.complete).insert)
    machine.processor.run_until(lambda: thread.ended)
    assert statuses == [STATUS_SUCCESS]


@pytest.mark.parametrize(("hold", "place"), HANGS)
@pytest.mark.parametrize("completed", [False, True])
def test_with_special_apcs_off_it_hangs_and_is_named(
    machine: Any, hold: Any, place: str, completed: bool
):
    processor = machine.processor
    client = Client(machine, hold)
    thread = create_system_thread(processor, client.ask, name="client")
    processor.run_until(lambda: thread.is_waiting)
    if completed:
        machine.in_kernel(Dpc(processor, client.complete).insert)
    with pytest.raises(Deadlock) as caught:
        processor.run_until(lambda: thread.ended)
    (line,) = caught.value.threads
    irp = client.kept[0]
    assert line.startswith(f"{thread} waiting for Event(state 0)")
    assert f"it can never wake: {place}" in line
    assert line.endswith(f"it waits for {irp}{' (completed)' if completed else ''}")
    assert "DEVICE_CONTROL" in line or completed
    (stuck,) = machine.processor.dispatcher.inspect()["stuck"]
    assert stuck.startswith(f"{thread} can never wake")


@pytest.mark.parametrize("hold", [hold for hold, place in HANGS if "APC_LEVEL" in place])
def test_verifier_stops_it_at_apc_level_before_it_hangs(verified: Any, hold: Any):
    with pytest.raises(BugCheck) as caught:
        verified.in_kernel(Client(verified, hold).ask)
    assert caught.value.code == DRIVER_VERIFIER_IOMANAGER_VIOLATION
    assert caught.value.parameters[0] == 0x302


@pytest.mark.parametrize("hold", [guarded_region, guarded_mutex_2003])
def test_verifier_has_no_word_for_guarded_regions_but_the_deadlock_has(verified: Any, hold: Any):
    with pytest.raises(Deadlock, match="it can never wake: in a guarded region"):
        verified.in_kernel(Client(verified, hold).ask)
