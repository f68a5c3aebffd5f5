"""Pages for the input and output of commands, kept for the next command when given back.

Rules: PASSIVE_LEVEL to take; any to give back.
Spec: Linux mthca_cmd.c (mthca_alloc_mailbox).
"""

import errno
from typing import TYPE_CHECKING, Final

from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi.registers import MAILBOX_ALIGNMENT, MAILBOX_SIZE
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory

_ZEROS: Final = bytes(MAILBOX_SIZE)


class Mailboxes:
    """A pool of mailboxes that grows to what was in use at one time."""

    __slots__ = ("_free", "_made", "_memory")

    def __init__(self, memory: "KernelMemory") -> None:
        self._memory = memory
        self._free: list[KernelBuffer] = []
        self._made: list[KernelBuffer] = []

    @property
    def allocated(self) -> int:
        """How many there are, in use or not."""
        return len(self._made)

    def take(self, content: bytes = b"") -> "KernelBuffer":
        """Return a mailbox that begins with `content` and is zero otherwise; ENOMEM if none."""
        if self._free:
            mailbox = self._free.pop()
        else:
            made = self._memory.allocate_contiguous(MAILBOX_SIZE, MAILBOX_ALIGNMENT)
            if made is None:
                raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_MEMORY, 0, MAILBOX_SIZE)
            mailbox = made
            self._made.append(made)
        view = mailbox.view
        view[len(content) : MAILBOX_SIZE] = _ZEROS[len(content) :]
        view[: len(content)] = content
        return mailbox

    def give(self, mailbox: "KernelBuffer") -> None:
        """Take a mailbox back that the HCA uses no more; after `release` it is gone already."""
        if self._made:
            self._free.append(mailbox)

    def release(self) -> None:
        """Free all, those of commands given up too; the HCA has stopped."""
        self._free.clear()
        while self._made:
            self._memory.free(self._made.pop())
