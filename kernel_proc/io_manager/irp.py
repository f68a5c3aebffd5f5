"""I/O request packets: the structure, how one is made, made as new, and freed.

Locations are numbered as NT numbers them: 1 belongs to the lowest driver, `stack_count` to the
first one called, and `current_location` starts one above, at the creator's.

Rules: <= DISPATCH_LEVEL.
Spec: WDK, IRP; IoAllocateIrp; IoFreeIrp; IoReuseIrp; IoInitializeIrp.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from kernel_proc.io_manager.irp_flags import (
    IO_TYPE_IRP,
    IRP_ALLOCATED_FIXED_SIZE,
    IRP_QUOTA_CHARGED,
    MAJOR_NAMES,
    SIZE_OF_IRP,
    SIZE_OF_STACK_LOCATION,
)
from kernel_proc.io_manager.irp_look_aside import DEPTH, LARGEST
from kernel_proc.io_manager.irp_navigation import (
    copy_current_irp_stack_location_to_next,
    get_current_irp_stack_location,
    get_next_irp_stack_location,
    mark_irp_pending,
    set_completion_routine,
    set_next_irp_stack_location,
    skip_current_irp_stack_location,
)
from kernel_proc.io_manager.registry import io_manager_of
from kernel_proc.io_manager.stack_location import (
    NO_LOCATION,
    CancelRoutine,
    CompletionRoutine,
    DispatchRoutine,
    IoStackLocation,
    IoStatusBlock,
)
from kernel_proc.scheduling.apc import SpecialKernelApc
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.wait import KERNEL_MODE
from shared.nt_status import status_name

if TYPE_CHECKING:
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.io_manager.request import DeviceControlRequest
    from kernel_proc.scheduling.event import Event
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.process import KProcess
    from kernel_proc.scheduling.processor import Processor

__all__ = [
    "CancelRoutine",
    "CompletionRoutine",
    "DispatchRoutine",
    "IoStackLocation",
    "IoStatusBlock",
    "Irp",
    "allocate_irp",
    "copy_current_irp_stack_location_to_next",
    "free_irp",
    "get_current_irp_stack_location",
    "get_next_irp_stack_location",
    "initialize_irp",
    "mark_irp_pending",
    "reuse_irp",
    "set_completion_routine",
    "set_next_irp_stack_location",
    "skip_current_irp_stack_location",
]

# A freed IRP has no location, and counts as completed more than once.
_FREED_STACK: Final[list[IoStackLocation]] = []
_FREED_LOCATION: Final = 1 << 30


class Irp(SpecialKernelApc):
    """One request (WDK: IRP).

    The APC that finishes it in the requesting thread is embedded (NT: Tail.Apc): the IRP is its
    own APC object, which only `complete_request` inserts. `thread` is None for an IRP that
    belongs to no thread; `on_thread_list` tells whether the thread's exit waits for it.
    `driver_context` is for the driver that holds the IRP (NT: four pointers). `own_stack` is the
    stack of an IRP that goes back to a look-aside list while it has no other, else None.
    """

    __slots__ = (
        "allocation_flags",
        "cancel",
        "cancel_irql",
        "cancel_routine",
        "current_location",
        "driver_context",
        "file_object",
        "finish_buffers",
        "flags",
        "information",
        "io",
        "irp_count",
        "master_irp",
        "mdl_address",
        "on_thread_list",
        "own_stack",
        "pending_returned",
        "processor",
        "quota_charged",
        "quota_process",
        "request",
        "requestor_mode",
        "size",
        "stack",
        "stack_count",
        "status",
        "system_buffer",
        "user_buffer",
        "user_event",
        "user_iosb",
        "verifier_record",
    )

    type: Final = IO_TYPE_IRP

    quota_process: "KProcess"  # set while `quota_charged` is not zero
    cancel_irql: int  # set when the cancel routine is called
    master_irp: "Irp"  # set in an associated IRP
    irp_count: int  # set in a master IRP
    thread: "KThread | None"  # type: ignore[assignment]  # an APC always has one, a free IRP has none

    def __init__(self, io: "IoManager", stack_size: int) -> None:
        # `super().__init__` is left out: the APC part is filled in when it is inserted, and an
        # IRP is made for every request.
        self.io = io
        self.processor = io.processor
        self.verifier_record: Any = None
        self.own_stack: list[IoStackLocation] | None = None
        self.fill(0, stack_size)

    def fill(self, allocation_flags: int, stack_size: int) -> None:
        """Give every field the value of a new IRP."""
        self.size = SIZE_OF_IRP + SIZE_OF_STACK_LOCATION * stack_size
        self.stack_count = stack_size
        self.current_location = stack_size + 1
        if stack_size == 1:
            self.stack: list[IoStackLocation] = [NO_LOCATION, IoStackLocation()]
        else:
            self.stack = [NO_LOCATION, *[IoStackLocation() for _ in range(stack_size)]]
        self.allocation_flags = allocation_flags
        self.clear()

    def clear(self) -> None:
        """Give every field but those of size and place the value of a new IRP."""
        self.flags = 0
        self.requestor_mode = KERNEL_MODE
        self.status = 0
        self.information = 0
        self.pending_returned = 0
        self.cancel = False
        self.cancel_routine: CancelRoutine | None = None
        self.thread = None
        self.inserted = False
        self.on_thread_list = False
        self.file_object: FileObject | None = None
        self.system_buffer: Any = None
        self.user_buffer: Any = None
        self.mdl_address: Any = None
        self.user_event: Event | None = None
        self.user_iosb: IoStatusBlock | None = None
        self.request: DeviceControlRequest | None = None
        self.finish_buffers: Callable[[Irp], None] | None = None
        self.quota_charged = 0
        self.driver_context: Any = None

    @property
    def current_stack_location_index(self) -> int:
        """Return the distance of the current location from the lowest one."""
        return self.current_location - 1

    def __str__(self) -> str:
        """Show who holds it and in which state, for reports."""
        current, count = self.current_location, self.stack_count
        where = f"location {current} of {count}"
        function = "no function"
        if self.stack and current:
            location = self.stack[min(current, count)]  # its function outlives its completion
            function = MAJOR_NAMES.get(location.major_function, f"{location.major_function:#x}")
            if current <= count and location.device_object is not None:
                where += f" at {location.device_object}"
        if current > count:
            where = "with its creator" if current == count + 1 else "completed"
        if not self.stack:
            where = "freed"
        cancel = ", cancelled" if self.cancel else ""
        return f"IRP {id(self):#x} {function} {where}, {status_name(self.status)}{cancel}"


@overload
def allocate_irp(
    processor: "Processor", stack_size: int, charge_quota: Literal[False] = False
) -> Irp: ...
@overload
def allocate_irp(processor: "Processor", stack_size: int, charge_quota: bool) -> Irp | None: ...
def allocate_irp(processor: "Processor", stack_size: int, charge_quota: bool = False) -> Irp | None:
    """Make an IRP that belongs to no thread (WDK: IoAllocateIrp).

    Its creator frees it, in a completion routine that returns STATUS_MORE_PROCESSING_REQUIRED.
    None if the current process has no quota left for it.
    """
    if processor.irql > DISPATCH_LEVEL:
        processor.irql_violation(DISPATCH_LEVEL, "IoAllocateIrp")
    io = io_manager_of(processor)
    io.irps_allocated += 1
    if charge_quota:
        irp = Irp(io, stack_size)
        irp.allocation_flags = IRP_ALLOCATED_FIXED_SIZE
        return irp if _charge_irp(irp) else None
    irp = take_irp(io, stack_size)
    irp.allocation_flags = IRP_ALLOCATED_FIXED_SIZE
    return irp


def take_irp(io: "IoManager", stack_size: int) -> Irp:
    """Return a new IRP, from the look-aside list of its size if there is one."""
    if not 0 < stack_size <= LARGEST:
        return Irp(io, stack_size)
    free = io.irp_look_aside.free[stack_size]
    if free:
        irp = free.pop()
        irp.stack = irp.own_stack  # type: ignore[assignment]  # what lies in a list has one
        irp.current_location = stack_size + 1
        return irp
    irp = Irp(io, stack_size)
    if io.verifier is None:
        irp.own_stack = irp.stack
        io.irp_look_aside.allocate_misses += 1
    return irp


def _charge_irp(irp: Irp) -> bool:
    thread = irp.processor.current_thread
    process: KProcess | None = thread.process if thread is not None else None
    if process is not None:
        if not process.charge_pool(irp.size):
            return False
        irp.quota_process = process
        irp.quota_charged = irp.size
        irp.allocation_flags |= IRP_QUOTA_CHARGED
    return True


def free_irp(irp: Irp) -> None:
    """Free an IRP its creator owns (WDK: IoFreeIrp); using it afterwards fails loudly."""
    processor = irp.processor
    if processor.irql > DISPATCH_LEVEL:
        processor.irql_violation(DISPATCH_LEVEL, "IoFreeIrp")
    if irp.io.verifier is not None:
        irp.io.verifier.check_free(irp)
    release_irp(irp)


def release_irp(irp: Irp) -> None:
    """Return an IRP's quota and make it unusable; for its owner only."""
    if irp.quota_charged:
        irp.quota_process.return_pool(irp.quota_charged)
        irp.quota_charged = 0
    own = irp.own_stack
    if own is not None and irp.stack is own:  # not so if it has been freed before
        free = irp.io.irp_look_aside.free[irp.stack_count]
        if len(free) < DEPTH:
            irp.allocation_flags = 0
            _make_new(irp, own)
            free.append(irp)
        else:
            irp.io.irp_look_aside.free_misses += 1
    irp.current_location = _FREED_LOCATION
    irp.stack = _FREED_STACK


def _make_new(irp: Irp, stack: list[IoStackLocation]) -> None:
    irp.clear()
    stack[1].make_new()
    if irp.stack_count > 1:
        for location in stack[2:]:
            location.make_new()


def reuse_irp(irp: Irp, status: int) -> None:
    """Make an IRP from `allocate_irp` as new, with `status` in it (WDK: IoReuseIrp)."""
    if irp.io.verifier is not None:
        irp.io.verifier.check_reuse(irp)
    own = irp.own_stack
    if own is not None and irp.stack is own:
        irp.current_location = irp.stack_count + 1
        _make_new(irp, own)
    else:
        charged = irp.quota_charged
        irp.fill(irp.allocation_flags, irp.stack_count)
        irp.quota_charged = charged
    irp.status = status


def initialize_irp(irp: Irp, packet_size: int, stack_size: int) -> None:
    """Make a new IRP of memory the caller owns (WDK: IoInitializeIrp).

    Not for one from `allocate_irp`: that loses its allocation flags; the verifier objects.
    """
    if irp.io.verifier is not None:
        irp.io.verifier.check_initialize(irp)
    irp.fill(0, stack_size)
    irp.size = packet_size
