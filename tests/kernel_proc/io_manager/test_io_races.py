"""Completion, cancel, close, thread exit and process death in every order.

Nothing runs when a rule puts it in: it is queued, and other rules let the machine make a few
steps. With the verifier a seed also switches between threads of equal priority. Whatever the
order: each request ends exactly once, no list or charge is left, every file is closed.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_as_test

from kernel_proc.io_manager.cancel_safe_queue import CancelSafeQueue
from kernel_proc.io_manager.cancellation import cancel_irp
from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.irp import Irp, get_current_irp_stack_location, mark_irp_pending
from kernel_proc.io_manager.irp_flags import IRP_MJ_CLEANUP
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    cancel_io_file,
    cancel_io_file_ex,
    close_handle,
    create_file,
    device_io_control_file,
    duplicate_handle,
    run_down_process,
    run_down_thread,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.kthread import create_system_thread
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_OUT_DIRECT, ctl_code
from shared.nt_status import STATUS_CANCELLED, STATUS_FILE_CLOSED, STATUS_PENDING, STATUS_SUCCESS

ARENA = 0x7000_0000_0000
DATA = b"payload"
QUEUED, STUBBORN, INLINE = range(3)  # cancel-safe; ends at cleanup; at once, though pended


class RacingDriver:
    """The scripted device; every IRP it got is in `held` until it completed it, once."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.held: dict[Irp, Any] = {}
        self.stubborn: dict[Irp, Any] = {}
        self.refused: set[Any] = set()
        self.completions = 0
        driver = self

        class Queue(CancelSafeQueue):
            def complete_canceled_irp(self, irp: Irp) -> None:
                driver.complete(irp, STATUS_CANCELLED)

        self.queue = Queue(machine.processor)
        self.dpc = Dpc(machine.processor, lambda *_: self.complete_next())
        machine.scripted.on_control = self.control
        machine.scripted.on[IRP_MJ_CLEANUP] = self.cleanup

    def control(self, device: Any, irp: Irp) -> int:
        location = get_current_irp_stack_location(irp)
        file = location.file_object
        self.held[irp] = file
        if file in self.refused:
            return self.complete(irp, STATUS_FILE_CLOSED)
        kind = location.io_control_code >> 2 & 3
        if kind == QUEUED:
            self.queue.insert(irp)
            return STATUS_PENDING
        mark_irp_pending(irp)
        if kind == STUBBORN:
            self.stubborn[irp] = file
        else:
            self.complete(irp, STATUS_SUCCESS)
        return STATUS_PENDING

    def cleanup(self, device: Any, irp: Irp) -> int:
        file = get_current_irp_stack_location(irp).file_object
        self.refused.add(file)
        for pending in [i for i, owner in self.stubborn.items() if owner is file]:
            del self.stubborn[pending]
            self.complete(pending, STATUS_CANCELLED)
        irp.status = STATUS_SUCCESS
        complete_request(irp)
        return STATUS_SUCCESS

    def complete_next(self) -> None:
        irp = self.queue.remove_next()
        if irp is not None:
            self.complete(irp, STATUS_SUCCESS)
        elif self.stubborn:
            irp = next(iter(self.stubborn))
            del self.stubborn[irp]
            self.complete(irp, STATUS_SUCCESS)

    def complete(self, irp: Irp, status: int) -> int:
        del self.held[irp]
        self.completions += 1
        irp.status = status
        irp.information = len(DATA) if status == STATUS_SUCCESS else 0
        complete_request(irp)
        return status


class Races(RuleBasedStateMachine):
    """The machine hypothesis drives."""

    new_machine: Any
    threads_each = 3

    @initialize(verifier=st.booleans(), seed=st.integers(0, 1000))
    def start(self, verifier: bool, seed: int) -> None:
        self.machine = machine = self.new_machine(verifier=verifier, seed=seed)
        self.driver = RacingDriver(machine)
        self.processes = [machine.process, machine.new_process("second")[0]]
        self.threads = [machine.new_thread(process) for process in self.processes for _ in range(3)]
        self.handles: list[list[int]] = [[], []]
        for number in range(2):
            for synchronous in (False, True):
                handle = machine.call(
                    create_file, "scripted", 3, synchronous, thread=self.threads[3 * number]
                )[1]
                self.handles[number].append(handle)
        self.requests: list[tuple[DeviceControlRequest, list[Any], list[int]]] = []
        self.deaths: list[Any] = []

    def pick(self, number: int) -> tuple[Any, list[int]] | None:
        thread = self.threads[number]
        return None if thread.ended else (thread, self.handles[number // 3])

    def enter(self, number: int, service: Any, *arguments: Any) -> None:
        thread = self.threads[number]
        if not thread.ended:
            thread.enter_kernel(service, self.machine.io, thread, *arguments)

    @rule(
        number=st.integers(0, 5),
        which=st.integers(0, 3),
        kind=st.sampled_from([QUEUED, QUEUED, STUBBORN, INLINE]),
        method=st.sampled_from([METHOD_BUFFERED, METHOD_OUT_DIRECT]),
    )
    def issue(self, number: int, which: int, kind: int, method: int) -> None:
        """A device control on a file of the thread's process."""
        picked = self.pick(number)
        if picked is None:
            return
        thread, handles = picked
        calls: list[Any] = []
        returned: list[int] = []
        request = DeviceControlRequest(
            handles[which % len(handles)],
            ctl_code(0x8003, kind, method, 0),
            DATA,
            output_address=ARENA if method else 0,
            output_length=len(DATA),
            output_inline=not method,
            on_finished=calls.append,
        )
        self.requests.append((request, calls, returned))
        thread.enter_kernel(
            lambda: returned.append(device_io_control_file(self.machine.io, thread, request))
        )

    @rule(passes=st.integers(1, 4))
    def run_a_little(self, passes: int) -> None:
        """Let the machine make some steps, without time passing."""
        processor = self.machine.processor
        dispatcher = processor.dispatcher
        end = dispatcher.passes + passes
        processor.run_until(
            lambda: dispatcher.passes >= end or not (dispatcher.ready_queue.summary)
        )

    @rule()
    def run_until_quiet(self) -> None:
        """Let it run until nobody can."""
        self.machine.settle()

    @rule()
    def complete_in_a_dpc(self) -> None:
        """The device is done with one."""
        self.driver.dpc.insert()

    @rule()
    def complete_in_a_thread(self) -> None:
        """A thread of the driver ends one."""
        create_system_thread(self.machine.processor, self.driver.complete_next)

    @rule(number=st.integers(0, 5), which=st.integers(0, 3), wait=st.booleans())
    def cancel_a_file(self, number: int, which: int, wait: bool) -> None:
        """CancelIo or CancelIoEx."""
        handles = self.handles[number // 3]
        service = cancel_io_file if wait else cancel_io_file_ex
        self.enter(number, service, handles[which % len(handles)])

    @precondition(lambda self: self.driver.held)
    @rule(data=st.data())
    def cancel_one(self, data: Any) -> None:
        """The dispatcher cancels a request, as for NtCancelSynchronousIoFile."""
        cancel_irp(data.draw(st.sampled_from(list(self.driver.held))))

    @rule(number=st.integers(0, 5), which=st.integers(0, 3))
    def close(self, number: int, which: int) -> None:
        """Close a handle, perhaps one that is closed already."""
        handles = self.handles[number // 3]
        self.enter(number, close_handle, handles[which % len(handles)])

    @rule(number=st.integers(0, 5), synchronous=st.booleans())
    def open_another(self, number: int, synchronous: bool) -> None:
        """Open the device again."""
        picked = self.pick(number)
        if picked is not None:
            thread, handles = picked
            thread.enter_kernel(
                lambda: handles.append(
                    create_file(self.machine.io, thread, "scripted", 3, synchronous)[1]
                )
            )

    @rule(number=st.integers(0, 5), which=st.integers(0, 3))
    def duplicate(self, number: int, which: int) -> None:
        """Duplicate a handle."""
        picked = self.pick(number)
        if picked is not None:
            thread, handles = picked
            thread.enter_kernel(
                lambda: handles.append(
                    duplicate_handle(self.machine.io, thread, handles[which % len(handles)])[1]
                )
            )

    @rule(number=st.integers(0, 5))
    def alert(self, number: int) -> None:
        """Alert a thread."""
        self.threads[number].alert()

    @rule(number=st.integers(0, 5))
    def exit_thread(self, number: int) -> None:
        """The user's thread ends."""
        thread = self.threads[number]
        if thread.ended:
            return

        def leave() -> None:
            run_down_thread(self.machine.io, thread)
            thread.end()

        thread.terminate()
        thread.enter_kernel(leave)

    @rule(number=st.integers(0, 1))
    def kill(self, number: int) -> None:
        """The user's process dies."""
        process = self.processes[number]
        if not process.exiting and process not in self.deaths:
            self.deaths.append(process)
            create_system_thread(self.machine.processor, run_down_process, self.machine.io, process)

    def teardown(self) -> None:
        """End both processes; nothing may be left."""
        if not hasattr(self, "machine"):
            return
        for number in range(2):
            self.kill(number)
        machine, driver = self.machine, self.driver
        machine.processor.run_until(lambda: all(t.ended for t in self.threads))
        machine.settle()
        assert machine.processor.clock.now_ns() == 0  # nobody had to be waited for
        assert machine.io.detached_irps == 0
        assert not driver.held
        assert not driver.queue.irps
        assert not driver.stubborn
        assert driver.completions == machine.scripted.calls["DEVICE_CONTROL"]
        for process in self.processes:
            assert process.pool_charged == 0
            assert process.locked_pages == 0
            assert not process.handle_table.entries
            assert process.handle_table.closing == 0
            assert not process.threads
        assert all(not thread.irps for thread in self.threads)
        assert not machine.io.irp_watches
        assert not machine.io.close_watches
        calls = machine.scripted.calls
        assert calls["CREATE"] == calls["CLEANUP"] == calls["CLOSE"]
        assert machine.scripted.device.open_count == 0
        for request, finished_calls, returned in self.requests:
            self.check_request(request, finished_calls, returned)

    def check_request(
        self, request: DeviceControlRequest, calls: list[Any], returned: list[int]
    ) -> None:
        """A request ended once, and was told of at most once."""
        assert request.finished
        assert len(calls) <= 1
        if not returned:
            assert not calls  # its thread ended before it came to it
            return
        if calls:
            assert returned == [STATUS_PENDING]
        if request.iosb_written and request.iosb_status == STATUS_SUCCESS:
            assert request.information == len(DATA)
            assert request.output == (DATA if request.output_inline else None)
        else:
            assert request.output is None


@pytest.mark.parametrize("steps", [15, 60])
def test_races(new_machine: Any, steps: int):
    machine_class = type("BoundRaces", (Races,), {"new_machine": staticmethod(new_machine)})
    run_as_test(
        machine_class,
        settings=settings(max_examples=100, stateful_step_count=steps, deadline=None),
    )
