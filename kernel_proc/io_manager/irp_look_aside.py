"""The look-aside lists IRPs are taken from and given back to, one for each number of locations.

An IRP given back is made as new at once: it keeps nothing of its last request alive, and whoever
takes it has two fields to set. Until it is taken it has no stack, so that a late touch is as loud
as that of an IRP nobody will ever get; afterwards it is somebody else's request, as in NT.

Verifier mode has no lists: there a freed IRP is never handed out again. Nor are those charged to a
quota, or made for the system services, which charge theirs.

Rules: <= DISPATCH_LEVEL, one processor: nobody can come between.
Spec: WDK, Using Lookaside Lists; IoAllocateIrp. NT: IopSmallIrp and IopLargeIrp look-aside lists.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import Irp

#: An IRP with more stack locations comes from the pool and goes back to it.
LARGEST: Final = 8
#: IRPs a list keeps; one more is left to the pool. NT tunes its depths, this one stays.
DEPTH: Final = 32


class IrpLookAside:
    """The lists of one processor; `free[n]` holds IRPs with n stack locations, the latest last.

    The counters are those of NT's GENERAL_LOOKASIDE: a miss is what the pool had to do.
    """

    __slots__ = ("allocate_misses", "free", "free_misses")

    def __init__(self) -> None:
        self.free: list[list[Irp]] = [[] for _ in range(LARGEST + 1)]
        self.allocate_misses = 0
        self.free_misses = 0

    def inspect(self) -> dict[str, Any]:
        """Return the depth, what lies in the lists, and how often the pool was needed."""
        return {
            "depth": DEPTH,
            "free": {str(size): len(irps) for size, irps in enumerate(self.free) if irps},
            "allocate_misses": self.allocate_misses,
            "free_misses": self.free_misses,
        }
