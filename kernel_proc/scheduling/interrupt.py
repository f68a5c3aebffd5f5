"""Interrupt objects: a line, its DIRQL and its service routine.

Rules: `request` may be called at any IRQL by a device model of this process; the service routine
runs at DIRQL as soon as the processor's IRQL is below it.
Spec: WDK, IoConnectInterrupt; Introduction to Interrupt Service Routines.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_proc.scheduling.irql import DEVICE_LEVEL
from kernel_proc.scheduling.pending import INTERRUPT_REQUESTED

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor


ServiceRoutine = Callable[["Interrupt", Any], bool]


class Interrupt:
    """One connected line. `spurious` counts services that did not claim the interrupt."""

    __slots__ = (
        "connected",
        "context",
        "irql",
        "processor",
        "raised",
        "service_routine",
        "spurious",
    )

    def __init__(
        self,
        processor: "Processor",
        service_routine: ServiceRoutine,
        context: Any = None,
        irql: int = DEVICE_LEVEL,
    ) -> None:
        self.processor = processor
        self.service_routine = service_routine
        self.context = context
        self.irql = irql
        self.connected = False
        self.raised = False
        self.spurious = 0

    def connect(self) -> None:
        """Let the line interrupt from now on."""
        self.connected = True

    def disconnect(self) -> None:
        """Mask the line for good; a raised one is dropped."""
        self.connected = False
        if self.raised:
            self.raised = False
            self.processor.raised_lines.remove(self)

    def request(self) -> None:
        """Raise the line; a raised one stays raised."""
        if self.raised or not self.connected:
            return
        self.raised = True
        processor = self.processor
        processor.raised_lines.append(self)
        processor.pending |= INTERRUPT_REQUESTED
        if processor.irql < self.irql:
            processor.take_pending()

    def service(self) -> None:
        """Run the service routine at DIRQL; called by the processor, which took the line."""
        processor = self.processor
        self.raised = False
        old = processor.irql
        processor.irql = self.irql
        processor.interrupts += 1
        try:
            claimed = self.service_routine(self, self.context)
        except Exception as error:
            processor.unhandled_exception(error, f"interrupt service {self.service_routine!r}")
        if not claimed:
            self.spurious += 1
        processor.irql = old
