"""Protection domains: alloc_pd and dealloc_pd, which send no command.

Rules: PASSIVE_LEVEL; neither waits.
Spec: IBA vol. 1, 11.2.1.5; Linux mthca_pd.c.
"""

from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.resources import Resource
from kernel_proc.driver.verb import Verb
from shared import verb_codes as code
from shared.verb_messages import Object

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp


class Domain:
    """The HCA's number of a domain, and how often it is open: more than once if imported."""

    __slots__ = ("openings", "pdn")

    def __init__(self, pdn: int) -> None:
        self.pdn = pdn
        self.openings = 0


class Pd(Resource):
    """A protection domain: `pdn` is the HCA's."""

    kind = "PD"

    __slots__ = ("domain",)

    def __init__(self, context: "Context", domain: Domain) -> None:
        super().__init__(context)
        self.domain = domain
        domain.openings += 1

    @property
    def pdn(self) -> int:
        """Return the number the HCA compares."""
        return self.domain.pdn

    def destroy(self, driver: "HcaDriver") -> None:
        """Close it, and give the number back with the last opening; the HCA was never told."""
        self.domain.openings -= 1
        if not self.domain.openings:
            driver.numbers.pd.free(self.pdn)

    def attributes(self) -> dict[str, Any]:
        """Return the number and how often it is open."""
        return {"pdn": self.pdn, "opened": self.domain.openings}


def alloc_pd(driver: "HcaDriver", context: "Context", request: None, irp: "Irp") -> Object:
    """Make a protection domain; ENOMEM when all are taken, or the share of a process."""
    context.require_room()
    pdn = driver.numbers.pd.take(context.owner)
    return Object(handle=context.add(Pd(context, Domain(pdn))))


def dealloc_pd(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp") -> None:
    """End a protection domain; EBUSY while anything lies in it."""
    context.destroy(Pd, request.handle)


VERBS: Final = {
    code.IOCTL_ALLOC_PD: Verb(alloc_pd, None),
    code.IOCTL_DEALLOC_PD: Verb(dealloc_pd, Object),
}
