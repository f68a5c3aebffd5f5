"""Interrupt request levels, as numbers to compare.

Spec: WDK, Managing Hardware Priorities; x64 values.
"""

from typing import Final

PASSIVE_LEVEL: Final = 0
APC_LEVEL: Final = 1
DISPATCH_LEVEL: Final = 2
DEVICE_LEVEL: Final = 5
HIGH_LEVEL: Final = 15

_NAMES: Final = {
    PASSIVE_LEVEL: "PASSIVE_LEVEL",
    APC_LEVEL: "APC_LEVEL",
    DISPATCH_LEVEL: "DISPATCH_LEVEL",
    HIGH_LEVEL: "HIGH_LEVEL",
}


def irql_name(level: int) -> str:
    """Return the name of an IRQL, DIRQL with its number for device levels."""
    return _NAMES.get(level, f"DIRQL {level}")
