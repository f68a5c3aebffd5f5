"""What the HCA says of its commands' times: sums by opcode in its register page, as differences.

Rules: any IRQL. Where commands of one opcode end at the same time each is given their mean.
Spec: kernel_proc/hca_abi/registers.py (COMMAND_TIMES_OFFSET).
"""

from typing import Final

from kernel_proc.hca_abi.command_opcodes import COMMANDS
from kernel_proc.hca_abi.registers import COMMAND_TIMES_OFFSET, COMMAND_TIMES_WORDS
from shared.live_words import words64

_FIRST_WORD: Final = COMMAND_TIMES_OFFSET // 8
_PLACES: Final = {
    opcode: _FIRST_WORD + number * COMMAND_TIMES_WORDS for number, opcode in enumerate(COMMANDS)
}


class CommandTimes:
    """The sums seen last, and what the latest commands of each opcode took."""

    __slots__ = ("_latest", "_seen", "_words")

    def __init__(self, registers: memoryview) -> None:
        self._words = words64(registers)
        self._seen: dict[int, tuple[int, int, int]] = {}
        self._latest: dict[int, tuple[int, int]] = {}

    def of_latest(self, opcode: int) -> tuple[int, int]:
        """Return modelled and real time of the command of this opcode that ended last."""
        place = _PLACES.get(opcode)
        if place is None:
            return 0, 0
        words = self._words
        count, asked_ns, took_ns = words[place], words[place + 1], words[place + 2]
        old = self._seen.get(opcode, (0, 0, 0))
        fresh = count - old[0]
        if fresh > 0:
            self._seen[opcode] = count, asked_ns, took_ns
            means = (asked_ns - old[1]) // fresh, (took_ns - old[2]) // fresh
            self._latest[opcode] = max(0, means[0]), max(0, means[1])
        return self._latest.get(opcode, (0, 0))

    def inspect(self) -> dict[str, dict[str, int]]:
        """Return the sums of each command that was executed, those given up included."""
        rows = {
            kind.name: self._words[place : place + COMMAND_TIMES_WORDS].tolist()
            for kind, place in zip(COMMANDS.values(), _PLACES.values(), strict=True)
        }
        names = ("count", "asked_ns", "achieved_ns")
        return {name: dict(zip(names, row, strict=True)) for name, row in rows.items() if row[0]}
