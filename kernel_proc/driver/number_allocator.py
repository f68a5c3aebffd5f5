"""Numbers of the device's table entries: an index, and above it how often it was given away.

A stale number names nothing: the entry's next user has another generation. Freed indices are
reused oldest first, so that a generation comes back as late as possible. No owner has more than
its share, so that one process cannot leave the others without.

Rules: any IRQL; does not wait.
Spec: Linux mthca_allocator.c (mthca_alloc), with a generation for each index.
"""

import errno
from collections import Counter, deque
from typing import Any, Final

from kernel_proc.driver.refusal import VerbRefused
from shared.verb_reasons import VerbReason


class NumberAllocator:
    """Gives out numbers of `bits` bits whose low `log_size` bits index a table.

    The first `reserved` indices are never given out. With `bits == log_size` a number is its
    index. `own` of them the driver takes before all others; `share` is what one owner can have.
    """

    __slots__ = (
        "_free",
        "_generations",
        "_held",
        "_in_use",
        "_next",
        "bits",
        "log_size",
        "own",
        "reserved",
        "share",
    )

    def __init__(
        self,
        log_size: int,
        reserved: int = 0,
        bits: int | None = None,
        *,
        own: int = 0,
        share_percent: int = 100,
    ) -> None:
        self.log_size: Final = log_size
        self.bits: Final = log_size if bits is None else bits
        self.reserved: Final = reserved
        self.own: Final = own
        self.share: Final = max(1, self.size * share_percent // 100)
        self._next = reserved
        self._free: deque[int] = deque()
        self._generations: dict[int, int] = {}
        self._in_use: dict[int, object] = {}  # with their owners
        self._held: Counter[object] = Counter()

    @property
    def size(self) -> int:
        """How many numbers others than the driver can have at a time."""
        return (1 << self.log_size) - self.reserved - self.own

    def take(self, owner: object) -> int:
        """Return a number nobody has; refuse with ENOMEM without one, or beyond the owner's share.

        The kernel, as owner None, has no share.
        """
        if owner is not None and self._held[owner] >= self.share:
            raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_SHARE, 0, self.share)
        number = self.allocate()
        if number is None:
            raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_NUMBERS, 0, self.size)
        if owner is not None:
            self._in_use[number] = owner
            self._held[owner] += 1
        return number

    def allocate(self) -> int | None:
        """Return a number nobody has, as the kernel's, None if all are taken."""
        if self._next < 1 << self.log_size:
            index = self._next
            self._next += 1
        elif self._free:
            index = self._free.popleft()
        else:
            return None
        generation = self._generations.get(index, 0)
        number = generation << self.log_size | index
        self._in_use[number] = None
        return number

    def free(self, number: int) -> None:
        """Take a number back; ValueError if it is not in use."""
        if number not in self._in_use:
            raise ValueError(f"number {number:#x} is not in use")
        owner = self._in_use.pop(number)
        if owner is not None:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
        index = self.index_of(number)
        generation = (number >> self.log_size) + 1
        self._generations[index] = generation & ((1 << (self.bits - self.log_size)) - 1)
        self._free.append(index)

    def index_of(self, number: int) -> int:
        """Return the table index of a number, in use or not."""
        return number & ((1 << self.log_size) - 1)

    def __len__(self) -> int:
        return len(self._in_use)

    def __contains__(self, number: int) -> bool:
        return number in self._in_use

    def inspect(self) -> dict[str, Any]:
        """Return how many there are and are used."""
        return {
            "size": self.size,
            "used": len(self._in_use),
            "reserved": self.reserved,
            "share": self.share,
        }
