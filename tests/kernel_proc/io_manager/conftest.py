"""A machine in process: one user process with an arena, one device driven by the test."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.io_manager.completion import complete_request
from kernel_proc.io_manager.driver_object import DeviceObject, DriverObject, create_device
from kernel_proc.io_manager.handle_table import HandleTable
from kernel_proc.io_manager.irp import Irp, get_current_irp_stack_location
from kernel_proc.io_manager.irp_flags import (
    IRP_MJ_CLEANUP,
    IRP_MJ_CLOSE,
    IRP_MJ_CREATE,
    IRP_MJ_DEVICE_CONTROL,
    MAJOR_NAMES,
)
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    create_file,
    device_io_control_file,
)
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.scheduling.bugcheck import BugCheck
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread, create_user_thread
from kernel_proc.scheduling.os_lane import InlineLane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from shared.ioctl_codes import METHOD_BUFFERED, ctl_code
from shared.nt_status import STATUS_SUCCESS

ARENA = 0x7000_0000_0000
ARENA_LENGTH = 64 * 1024
DEVICE_TYPE = 0x8003


def complete(irp: Irp, status: int = STATUS_SUCCESS, information: int = 0) -> int:
    """Complete an IRP and return its status, as a dispatch routine that is done at once does."""
    irp.status = status
    irp.information = information
    complete_request(irp)
    return status


class ScriptedDriver:
    """A driver whose device control is what the test puts in `on_control`; counts every IRP."""

    def __init__(self, processor: Processor, name: str = "scripted") -> None:
        self.driver = DriverObject(processor, name)
        self.device: DeviceObject = create_device(self.driver, name, DEVICE_TYPE)
        self.calls: Counter[str] = Counter()
        self.log: list[str] = []
        self.on_control: Callable[[DeviceObject, Irp], int] = lambda _, irp: complete(irp)
        self.on: dict[int, Callable[[DeviceObject, Irp], int]] = {}
        for major in (IRP_MJ_CREATE, IRP_MJ_CLEANUP, IRP_MJ_CLOSE, IRP_MJ_DEVICE_CONTROL):
            self.driver.major_function[major] = self._dispatch

    def _dispatch(self, device: DeviceObject, irp: Irp) -> int:
        major = get_current_irp_stack_location(irp).major_function
        self.calls[MAJOR_NAMES[major]] += 1
        self.log.append(MAJOR_NAMES[major])
        if major in self.on:
            return self.on[major](device, irp)
        if major == IRP_MJ_DEVICE_CONTROL:
            return self.on_control(device, irp)
        return complete(irp)


class Call:
    """A system service on its way; `value` once `done`."""

    def __init__(self, thread: KThread, routine: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.thread = thread
        self.done = False
        self.value: Any = None
        thread.enter_kernel(self._run, routine, args)

    def _run(self, routine: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.value = routine(*args)
        self.done = True


class IoMachine:
    """Processor, I/O manager, one user process with one thread, and a scripted device."""

    def __init__(self, *, verifier: bool = False, seed: int | None = None) -> None:
        self.processor = Processor(VirtualClock(), verifier=verifier, seed=seed)
        self.io = IoManager(self.processor)
        self.scripted = ScriptedDriver(self.processor)
        self.process, self.memory = self.new_process("user")
        self.thread = self.new_thread()

    def new_process(self, name: str) -> tuple[KProcess, memoryview]:
        process = KProcess(self.processor, name, 1)
        process.handle_table = HandleTable()
        process.address_space = AddressSpace(process, InlineLane(self.processor))
        memory = memoryview(bytearray(ARENA_LENGTH))
        assert process.address_space.add_arena(1, ARENA, ARENA_LENGTH, memory) == STATUS_SUCCESS
        return process, memory

    def new_thread(self, process: KProcess | None = None) -> KThread:
        return create_user_thread(self.processor, process or self.process, "user thread")

    def start(self, service: Callable[..., Any], *args: Any, thread: KThread | None = None) -> Call:
        """Begin `service(io, thread, *args)` on a user thread and run until all is quiet."""
        thread = thread or self.thread
        call = Call(thread, service, (self.io, thread, *args))
        self.settle()
        return call

    def call(self, service: Callable[..., Any], *args: Any, thread: KThread | None = None) -> Any:
        """Run a service to its end and return its value."""
        thread = thread or self.thread
        call = Call(thread, service, (self.io, thread, *args))
        self.processor.run_until(lambda: call.done)
        return call.value

    def settle(self) -> None:
        """Run until nothing is ready; time stands still."""
        processor = self.processor
        dispatcher = processor.dispatcher
        for _ in range(2):  # what the first round posts is run by the second
            reached: list[bool] = []
            processor.post(lambda reached=reached: reached.append(True))
            processor.run_until(
                lambda reached=reached: (
                    bool(reached)
                    and not dispatcher.ready_queue.summary
                    and not dispatcher.hardware
                    and not processor.dpc_queue
                )
            )

    def in_kernel(self, routine: Callable[..., Any], *args: Any) -> Any:
        """Run a kernel client's routine in a system thread."""
        return self.processor.run_thread(routine, *args)

    def in_process(self, routine: Callable[..., Any], *args: Any) -> Any:
        """Run a routine in a kernel thread of the user process."""
        box: list[Any] = []
        thread = create_system_thread(
            self.processor, lambda: box.append(routine(*args)), process=self.process
        )
        self.processor.run_until(lambda: thread.ended)
        return box[0]

    def open(
        self, *, synchronous: bool = True, access: int = 3, thread: KThread | None = None
    ) -> int:
        status, handle = self.call(create_file, "scripted", access, synchronous, thread=thread)
        assert status == STATUS_SUCCESS
        assert isinstance(handle, int)
        return handle

    def control(
        self, request: DeviceControlRequest, thread: KThread | None = None
    ) -> tuple[int, DeviceControlRequest]:
        return self.call(device_io_control_file, request, thread=thread), request

    def file_of(self, handle: int) -> Any:
        return self.process.handle_table.entries[handle][0]


def code(method: int = METHOD_BUFFERED, access: int = 0, function: int = 0x800) -> int:
    return ctl_code(DEVICE_TYPE, function, method, access)


@pytest.fixture
def machine() -> IoMachine:
    return IoMachine()


@pytest.fixture
def verified() -> IoMachine:
    return IoMachine(verifier=True)


@pytest.fixture
def new_machine() -> type[IoMachine]:
    return IoMachine


def stopped(machine: Any, routine: Callable[..., Any], *args: Any) -> BugCheck:
    """Run a routine in a kernel thread and return the bug check it must end in."""
    with pytest.raises(BugCheck) as caught:
        machine.in_process(routine, *args)
    return caught.value
