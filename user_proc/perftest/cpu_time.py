"""How busy the processors of this machine are, all programs together.

Spec: /proc/stat in proc(5).
"""

from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
_IDLE: Final = (3, 4)  # idle, iowait
_COUNTED: Final = 8  # guest times, behind them, are part of user and nice


class CpuTime:
    """Percent of the time since this was made."""

    def __init__(self) -> None:
        self._idle, self._total = _times()

    def utilization(self) -> float:
        """Give how much of it was not idle."""
        idle, total = _times()
        passed = total - self._total
        return 100.0 * (1 - (idle - self._idle) / passed) if passed else 0.0


def _times() -> tuple[int, int]:
    line = _STAT.read_text(encoding="ascii").partition("\n")[0]
    numbers = [int(word) for word in line.split()[1 : 1 + _COUNTED]]
    return sum(numbers[index] for index in _IDLE), sum(numbers)
