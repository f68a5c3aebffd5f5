"""One fault at work in the kernel: what it does at once, and whom it replaces.

Rules: dispatcher's OS thread.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.fault_board.kernel_parts import KernelParts
from kernel_proc.faults.active_fault import ActiveFault
from kernel_proc.faults.overrides import Overrides
from shared.fault_points import FaultError

if TYPE_CHECKING:
    from kernel_proc.driver.device_link import DeviceLink


class KernelInjection:
    """What faults of the kernel have in common: `begin` once, `install` whenever any changes."""

    def __init__(self, parts: KernelParts, active: ActiveFault) -> None:
        self.parts: Final = parts
        self.active: Final = active

    def begin(self) -> None:
        """Do what is done at once; FaultError if it cannot be done here."""

    def install(self, overrides: Overrides) -> None:
        """Replace what is replaced while the fault is there."""

    @property
    def is_there(self) -> bool:
        """Whether its time is not over."""
        return not self.active.is_over(self.parts.processor.clock.now_ns())


def living_hca(parts: KernelParts) -> "DeviceLink":
    """Return the link to the HCA; FaultError where there is none, or it is dead."""
    link = parts.hca.link if parts.hca is not None else None
    if link is None:
        raise FaultError("this kernel runs without an HCA")
    if link.dead or link.inspect()["catastrophic"]:
        raise FaultError("the HCA is dead: 'softhca kernel reset-hca' begins another")
    return link
