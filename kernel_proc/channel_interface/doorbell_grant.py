"""What a process gets when it asks for its way to the HCA, and whom it asks; types only.

Spec: shared/messages.py (OpenDoorbells); shared/doorbell_layout.py.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kernel_proc.scheduling.os_lane import Lane
    from kernel_proc.scheduling.process import KProcess


class DoorbellGrant(NamedTuple):
    """The answer; the three descriptors are the receiver's to send and close.

    They are the doorbell segment, the status page (read-only) and the eventfd that wakes the HCA.
    `reason` says in words what stood against it.
    """

    status: int
    number: int = 0
    length: int = 0
    status_length: int = 0
    descriptors: tuple[int, ...] = ()
    reason: str = ""


class DoorbellIssuer(Protocol):
    """Gives each process its doorbell segment."""

    def open(self, process: "KProcess", lane: "Lane") -> DoorbellGrant:
        """Give a process its segment, the same one again if it has one; PASSIVE_LEVEL, waits."""

    def close(self, process: "KProcess") -> None:
        """Take the segment back; the process has ended, and the driver has cleaned up after it."""
