"""The commands that may be outstanding at a time, and whose completion is whose.

A token is the slot's number and, above it, a generation that advances before each use: the
completion of a command that was given up finds another token in its slot and is dropped.

Rules: `acquire` and `release` at PASSIVE_LEVEL; `complete` and `fail` at <= DISPATCH_LEVEL.
Spec: Linux mthca_cmd.c (mthca_cmd_wait, mthca_cmd_event).
"""

from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.semaphore import Semaphore

if TYPE_CHECKING:
    from kernel_proc.memory.kernel_memory import KernelBuffer
    from kernel_proc.scheduling.processor import Processor

_TOKEN_MASK: Final = 0xFFFF


class CommandSlot:
    """One command at a time; `lost` says that the HCA died before it was done."""

    __slots__ = ("done", "lost", "out_param", "pending", "status", "token")

    def __init__(self, processor: "Processor", number: int) -> None:
        self.done = Event(processor, notification=False)
        self.token = number
        self.pending = False
        self.lost = False
        self.status = 0
        self.out_param = 0

    def end(self, status: int, out_param: int) -> None:
        """Wake who waits."""
        self.pending = False
        self.status = status
        self.out_param = out_param
        self.done.set()


class CommandSlots:
    """2^log_count slots on a free list, behind a semaphore of as many.

    `abandoned` keeps the mailboxes of commands given up, by token; `late` counts completions
    that nobody waited for.
    """

    def __init__(self, processor: "Processor", log_count: int) -> None:
        count = 1 << log_count
        self._slots = [CommandSlot(processor, number) for number in range(count)]
        self._free = list(self._slots)
        self._room = Semaphore(processor, count, count)
        self._mask = count - 1
        self.abandoned: dict[int, list[KernelBuffer]] = {}
        self.late = 0

    def acquire(self) -> CommandSlot:
        """Wait for a free slot."""
        self._room.wait()
        return self._free.pop()

    def release(self, slot: CommandSlot) -> None:
        """Let the next command have it."""
        self._free.append(slot)
        self._room.release()

    def begin(self, slot: CommandSlot) -> None:
        """Take a token no earlier command of this slot had for long."""
        slot.token = self._after(slot.token)
        while slot.token in self.abandoned:
            slot.token = self._after(slot.token)
        slot.pending = True
        slot.lost = False
        slot.done.clear()

    def _after(self, token: int) -> int:
        return (token + len(self._slots)) & _TOKEN_MASK

    def complete(self, token: int, status: int, out_param: int) -> bool:
        """End the command that has this token; False, and counted, if none has."""
        slot = self._slots[token & self._mask]
        if slot.token != token or not slot.pending:
            self.late += 1
            return False
        slot.end(status, out_param)
        return True

    def fail(self) -> None:
        """End every command under way as lost."""
        for slot in self._slots:
            if slot.pending:
                slot.lost = True
                slot.end(0, 0)

    def inspect(self) -> dict[str, Any]:
        """Return how many there are, are used, and what came late."""
        return {
            "outstanding_limit": len(self._slots),
            "outstanding": sum(slot.pending for slot in self._slots),
            "late_completions": self.late,
            "given_up": len(self.abandoned),
        }
