"""Bits of `Processor.pending`: what waits for the IRQL to fall."""

from typing import Final

APC_REQUESTED: Final = 1
DPC_REQUESTED: Final = 2
RESCHEDULE_REQUESTED: Final = 4
INTERRUPT_REQUESTED: Final = 8
