"""What stops the machine when a driver uses its DMA adapter wrongly.

Most of it only the verifier sees, as bug check 0xE6 with one of these first parameters. Without it
a routine above its IRQL is 0x0A, a call that cannot be carried out is a ValueError, which no driver
expects, and the rest goes on and shows in the data.

Spec: WDK, Bug Check 0xE6 DRIVER_VERIFIER_DMA_VIOLATION; DMA Verification; docs/verifier.md.
"""

from typing import Final

from kernel_proc.memory.mdl import MDL_PAGES_LOCKED, Mdl
from kernel_proc.scheduling.bugcheck import DRIVER_VERIFIER_DMA_VIOLATION
from kernel_proc.scheduling.irql import irql_name
from kernel_proc.scheduling.processor import Processor

# 0xE6, first parameter.
REGISTER_FILE: Final = 0x00
COMMON_BUFFERS_FREED: Final = 0x03
CHANNELS_FREED: Final = 0x04
MAP_REGISTERS_FREED: Final = 0x05
LISTS_FREED: Final = 0x06
COMMON_BUFFERS_LEFT: Final = 0x07
CHANNELS_LEFT: Final = 0x08
MAP_REGISTERS_LEFT: Final = 0x09
LISTS_LEFT: Final = 0x0A
SECOND_CHANNEL: Final = 0x0B
TOO_MANY_MAP_REGISTERS: Final = 0x0C
NOT_FLUSHED: Final = 0x0D
NOT_LOCKED: Final = 0x0E
OVERRUN: Final = 0x0F
FREED_WHILE_MAPPED: Final = 0x10
WRONG_IRQL: Final = 0x13
FLUSH_OF_UNMAPPED_BUFFER: Final = 0x16
ADAPTER_RELEASED: Final = 0x18
OUTSIDE_MDL: Final = 0x1B
MAPPED_ALREADY: Final = 0x1D
FLUSH_OF_UNMAPPED_REGISTER: Final = 0x20
ZERO_LENGTH: Final = 0x21

# REGISTER_FILE, second parameter.
FLUSHED_PAST_THE_END: Final = 1
NO_MAP_REGISTERS: Final = 2
# WRONG_IRQL, second parameter.
NOT_THE_LEVEL: Final = 1
ABOVE_THE_LEVEL: Final = 2


class DmaRules:
    """The checks of one adapter; `released` once it was put."""

    __slots__ = ("processor", "released")

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.released = False

    def at_exactly(self, level: int, routine: str) -> None:
        """Begin a routine that has one IRQL; below it only the verifier minds."""
        if self.processor.irql != level:
            self._wrong_level(NOT_THE_LEVEL, level, routine)
        self.processor.require_irql(level, routine)
        self._require_adapter(routine)

    def at_most(self, level: int, routine: str) -> None:
        """Begin a routine that has a highest IRQL."""
        if self.processor.irql > level:
            self._wrong_level(ABOVE_THE_LEVEL, level, routine)
        self.processor.require_irql(level, routine)
        self._require_adapter(routine)

    def require_locked(self, mdl: Mdl) -> None:
        """Verifier: the buffer is locked, or needs no lock."""
        if not (mdl.mdl_flags & MDL_PAGES_LOCKED or mdl.is_built_for_nonpaged_pool):
            self.suspect(NOT_LOCKED, f"DMA with {mdl!r}, whose pages are not locked")

    def suspect(self, code: int, detail: str, p2: int = 0, p3: int = 0) -> None:
        """Stop the machine if the verifier looks on; go on otherwise."""
        if self.processor.verifier:
            self.processor.bug_check(DRIVER_VERIFIER_DMA_VIOLATION, code, p2, p3, detail=detail)

    def refuse(self, code: int, detail: str) -> ValueError:
        """Stop the machine if the verifier looks on; else return what to raise."""
        self.suspect(code, detail)
        return ValueError(detail)

    def _wrong_level(self, kind: int, level: int, routine: str) -> None:
        processor = self.processor
        wanted = ("", "", "at most ")[kind] + irql_name(level)
        self.suspect(
            WRONG_IRQL,
            f"{routine} called at {processor.level_name()}, {wanted} is its level",
            kind,
            processor.irql,
        )

    def _require_adapter(self, routine: str) -> None:
        if self.released:
            raise self.refuse(ADAPTER_RELEASED, f"{routine} with an adapter that was put")
