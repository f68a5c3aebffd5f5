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


class Pd(Resource):
    """A protection domain: `pdn` is the HCA's."""

    kind = "PD"

    __slots__ = ("pdn",)

    def __init__(self, context: "Context", pdn: int) -> None:
        super().__init__(context)
        self.pdn = pdn

    def destroy(self, driver: "HcaDriver") -> None:
        """Give the number back; the HCA was never told."""
        driver.numbers.pd.free(self.pdn)

    def attributes(self) -> dict[str, Any]:
        """Return the number."""
        return {"pdn": self.pdn}


def alloc_pd(driver: "HcaDriver", context: "Context", request: None, irp: "Irp") -> Object:
    """Make a protection domain; ENOMEM when all are taken, or the share of a process."""
    context.require_room()
    pdn = driver.numbers.pd.take(context.owner)
    return Object(handle=context.add(Pd(context, pdn)))


def dealloc_pd(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp") -> None:
    """End a protection domain; EBUSY while anything lies in it."""
    context.destroy(Pd, request.handle)


VERBS: Final = {
    code.IOCTL_ALLOC_PD: Verb(alloc_pd, None),
    code.IOCTL_DEALLOC_PD: Verb(dealloc_pd, Object),
}
