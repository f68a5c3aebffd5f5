"""The verifier's rules for making, reusing and freeing IRPs.

Rules: called by the routines they check, at their IRQL.
Spec: WDK, Bug Check 0xC9 (0x01, 0x02, 0x08, 0x09, 0x20A, 0x20D, 0x310, 0x311); rules
IoAllocateFree, IoReuseIrp, IoBuildDeviceControlNoFree.
"""

from typing import TYPE_CHECKING, Any, NoReturn

from kernel_proc.io_manager.irp_flags import IRP_ALLOCATED_FIXED_SIZE
from kernel_proc.io_manager.verifier_codes import (
    BUILT_CONTROL_WITH_BAD_BUFFER,
    BUILT_WITH_BAD_BUFFER,
    FREE_OF_IRP_IN_USE,
    FREE_OF_THREAD_IRP,
    INITIALIZE_OF_ALLOCATED,
    NOT_AN_IRP,
    REINITIALIZED_BUILT_IRP,
    REINITIALIZED_IN_USE,
)
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    DRIVER_VERIFIER_IOMANAGER_VIOLATION,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.processor import Processor


class OwnershipRules:
    """The part of the I/O verifier that knows nothing of dispatch routines."""

    __slots__ = ("_processor",)

    def __init__(self, processor: "Processor") -> None:
        self._processor = processor

    def check_free(self, irp: "Irp") -> None:
        """Check a call of IoFreeIrp."""
        if not irp.stack:
            self._violation(NOT_AN_IRP, irp, "freed twice")
        if irp.on_thread_list:
            self._violation(FREE_OF_THREAD_IRP, irp, "freed, but the I/O manager's to free")
        if irp.current_location <= irp.stack_count:
            self._violation(FREE_OF_IRP_IN_USE, irp, "freed while a driver has it")

    def check_initialize(self, irp: "Irp") -> None:
        """Check a call of IoInitializeIrp."""
        if irp.allocation_flags & IRP_ALLOCATED_FIXED_SIZE:
            self._violation(INITIALIZE_OF_ALLOCATED, irp, "IoInitializeIrp on IoAllocateIrp's")

    def check_reuse(self, irp: "Irp") -> None:
        """Check a call of IoReuseIrp."""
        if not irp.stack:
            self._violation(NOT_AN_IRP, irp, "IoReuseIrp of a freed IRP")
        if irp.current_location <= irp.stack_count:
            self._violation(REINITIALIZED_IN_USE, irp, "IoReuseIrp while a driver has it")
        if not irp.allocation_flags & IRP_ALLOCATED_FIXED_SIZE:
            self._violation(REINITIALIZED_BUILT_IRP, irp, "IoReuseIrp on what IoBuild... made")

    def check_control_buffer(self, buffer: Any, length: int) -> None:
        """Check a buffer given to IoBuildDeviceIoControlRequest."""
        self._check_buffer(buffer, length, BUILT_CONTROL_WITH_BAD_BUFFER, "IoBuildDeviceIoControl")

    def check_fsd_buffer(self, buffer: Any, length: int) -> None:
        """Check a buffer given to IoBuildSynchronousFsdRequest or its asynchronous sister."""
        self._check_buffer(buffer, length, BUILT_WITH_BAD_BUFFER, "IoBuild...Fsd")

    def _check_buffer(self, buffer: Any, length: int, code: int, routine: str) -> None:
        if not length:
            return
        try:
            with memoryview(buffer) as view:
                size = view.nbytes
        except TypeError:
            size = -1
        if size < length:
            what = f"a buffer of {size} bytes" if size >= 0 else f"no buffer but {buffer!r}"
            self._processor.bug_check(
                DRIVER_VERIFIER_IOMANAGER_VIOLATION,
                code,
                id(buffer),
                length,
                detail=f"{routine}Request of {length} bytes with {what}",
            )

    def _violation(self, code: int, irp: "Irp", detail: str) -> NoReturn:
        self._processor.bug_check(
            DRIVER_VERIFIER_IOMANAGER_VIOLATION, code, id(irp), detail=f"{irp}: {detail}"
        )

    def _detected(self, code: int, irp: "Irp", detail: str, p3: int = 0) -> NoReturn:
        self._processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION, code, id(irp), p3, detail=f"{irp}: {detail}"
        )
