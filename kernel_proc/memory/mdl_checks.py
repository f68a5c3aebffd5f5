"""What stops the machine when an MDL is used wrongly.

Spec: WDK: bug checks 0x0A, 0x1E, 0x76, 0xC4.
"""

from typing import TYPE_CHECKING, Final, NoReturn

from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    KMODE_EXCEPTION_NOT_HANDLED,
    PROCESS_HAS_LOCKED_PAGES,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from shared.nt_status import STATUS_ACCESS_VIOLATION

if TYPE_CHECKING:
    from kernel_proc.memory.mdl import Mdl

# Verifier 0xC4.
LOCKED_TOO_HIGH: Final = 0x70
MAPPED_TOO_HIGH: Final = 0x76
UNLOCKED_TOO_HIGH: Final = 0x78
UNMAPPED_TOO_HIGH: Final = 0x79
NEVER_LOCKED: Final = 0x7C
UNLOCK_OF_NONPAGED: Final = 0x7D
PAGED_POOL_AS_NONPAGED: Final = 0x7F
WRONG_FLAGS_TO_LOCK: Final = 0xB0
MAPPED_UNLOCKED: Final = 0x140


def refuse_lock(mdl: "Mdl") -> NoReturn:
    """Stop: the MDL's flags forbid probe and lock."""
    what = f"MmProbeAndLockPages on {mdl!r}, locked or built for nonpaged pool"
    if mdl.processor.verifier:
        violation(mdl, WRONG_FLAGS_TO_LOCK, what)
    fault(mdl, what)


def refuse_unlock(mdl: "Mdl") -> NoReturn:
    """Stop: the pages are not locked, or need no locking."""
    processor = mdl.processor
    nonpaged = mdl.is_built_for_nonpaged_pool
    if processor.verifier:
        violation(
            mdl,
            UNLOCK_OF_NONPAGED if nonpaged else NEVER_LOCKED,
            f"MmUnlockPages of {mdl!r}, " + ("nonpaged pool" if nonpaged else "never locked"),
        )
    processor.bug_check(
        PROCESS_HAS_LOCKED_PAGES, 0, mdl.page_count, detail=f"unlock of {mdl!r}, not locked"
    )


def refuse_level(mdl: "Mdl", code: int, routine: str) -> NoReturn:
    """Stop: a routine was called above its documented IRQL."""
    processor = mdl.processor
    if processor.verifier:
        processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION,
            code,
            processor.irql,
            mdl.virtual_address,
            detail=f"{routine} at too high an IRQL",
        )
    pageable = code == LOCKED_TOO_HIGH and not mdl.is_nonpageable
    processor.irql_violation(APC_LEVEL if pageable else DISPATCH_LEVEL, routine)


def violation(mdl: "Mdl", code: int, detail: str) -> NoReturn:
    """Stop with verifier code 0xC4."""
    mdl.processor.bug_check(
        DRIVER_VERIFIER_DETECTED_VIOLATION, code, mdl.virtual_address, mdl.mdl_flags, detail=detail
    )


def fault(mdl: "Mdl", detail: str) -> NoReturn:
    """Stop as the touch of pages that are not there would."""
    mdl.processor.bug_check(
        KMODE_EXCEPTION_NOT_HANDLED,
        STATUS_ACCESS_VIOLATION,
        p4=mdl.virtual_address,
        detail=detail,
    )
