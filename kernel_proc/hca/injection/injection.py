"""One fault at work in the device: what it does at once, whom it replaces, what it undoes.

Rules: between two rounds, but for the routines it has put into places of the device's own.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.faults.active_fault import ActiveFault
from kernel_proc.faults.overrides import Overrides

if TYPE_CHECKING:
    from kernel_proc.hca.hca_device import HcaDevice


class Injection:
    """What faults have in common: `begin` and `end` once, `install` whenever any fault changes."""

    def __init__(self, device: "HcaDevice", active: ActiveFault) -> None:
        self.device: Final = device
        self.active: Final = active

    def begin(self) -> None:
        """Do what is done at once."""

    def install(self, overrides: Overrides) -> None:
        """Replace what is replaced while the fault is there."""

    def end(self) -> None:
        """Undo what was done at once: the fault is cleared, or its time over."""

    def pause_ns(self, did_something: bool) -> int:
        """Return for how long the device does nothing after a round."""
        return 0
