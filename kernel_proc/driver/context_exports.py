"""Contexts whose objects other contexts may use: exported and imported by a descriptor.

The inode of a descriptor is what names an exported context, as it names an XRC domain: who was
given the descriptor may import. An imported domain is another opening of the same number; it
lives until its last opening is closed, whichever context that is in.

Rules: PASSIVE_LEVEL; a descriptor is looked at by the lane of the process.
Spec: ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3), ibv_import_dm(3);
docs/extended-verbs.md.
"""

import errno
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kernel_proc.driver.dm_verbs import Dm
from kernel_proc.driver.mr_verbs import ImportedMr, Mr
from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.driver.verb import Verb
from kernel_proc.driver.xrcd_verbs import HeldDescriptor, descriptor_of
from shared import verb_codes as code
from shared.verb_messages import (
    DmImported,
    ImportByDescriptor,
    ImportMr,
    MrImported,
    Object,
)
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp

_R = TypeVar("_R", bound=Resource)


class Export(Resource):
    """An exported context; `held` keeps the inode, so that no other comes to have its number."""

    kind = "export"

    __slots__ = ("held",)

    def __init__(self, context: "Context", held: HeldDescriptor) -> None:
        super().__init__(context)
        self.held = held

    def destroy(self, driver: "HcaDriver") -> None:
        """Be imported no more; what was imported stays."""
        del driver.exports[self.held.inode]
        self.held.close()


class Import(Resource):
    """The right of a context to import from another."""

    kind = "import"

    __slots__ = ("source",)

    def __init__(self, context: "Context", source: "Context") -> None:
        super().__init__(context)
        self.source = source

    def destroy(self, driver: "HcaDriver") -> None:
        """Give the right up."""

    def attributes(self) -> dict[str, Any]:
        """Return whose context it is."""
        return {"from": self.source.number}


def export_context(
    driver: "HcaDriver", context: "Context", request: ImportByDescriptor, irp: "Irp"
) -> Object:
    """Let whoever is given a descriptor of the caller's import.

    EEXIST if it names a context already, or the context has another: each holds a descriptor.
    """
    context.require_room()
    held = descriptor_of(context, request.fd)
    if held.inode in driver.exports or context in driver.exports.values():
        held.close()
        raise VerbRefused(errno.EEXIST, VerbReason.EXPORTED_ALREADY, request.fd)
    driver.exports[held.inode] = context
    return Object(context.add(Export(context, held)))


def import_context(
    driver: "HcaDriver", context: "Context", request: ImportByDescriptor, irp: "Irp"
) -> Object:
    """Take the right to import from the context a descriptor names; EBADF if it names none."""
    context.require_room()
    held = descriptor_of(context, request.fd)
    held.close()
    source = driver.exports.get(held.inode)
    if source is None:
        raise VerbRefused(errno.EBADF, VerbReason.NOT_EXPORTED, request.fd)
    return Object(context.add(Import(context, source)))


def import_pd(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp") -> Object:
    """Open a domain once more, of the context itself or of one it may import from."""
    context.require_room()
    pd = _named(context, Pd, request.handle)
    return Object(context.add(Pd(context, pd.domain)))


def import_mr(driver: "HcaDriver", context: "Context", request: ImportMr, irp: "Irp") -> MrImported:
    """Tell the keys of a region, which must be of the domain that is given."""
    context.require_room()
    pd = context.find(Pd, request.pd)
    mr = _named(context, Mr, request.mr)
    if mr.region.pdn != pd.pdn:
        raise VerbRefused(errno.EINVAL, VerbReason.OF_ANOTHER_DOMAIN, request.mr, pd.pdn)
    made = ImportedMr(context, mr.region, mr.address)
    context.add(made, pd)
    region = mr.region
    return MrImported(made.handle, region.lkey, region.rkey, region.length)


def import_dm(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp") -> DmImported:
    """Open device memory once more."""
    context.require_room()
    memory = _named(context, Dm, request.handle).memory
    return DmImported(context.add(Dm(context, memory)), memory.length)


def _named(context: "Context", kind: type[_R], handle: int) -> _R:
    """Return what a handle names in a context that may be imported from, else in one's own."""
    rights = [one for one in context.objects() if isinstance(one, Import)]
    *others, last = [right.source for right in rights] or [context]
    for source in others:
        try:
            return source.find(kind, handle)
        except VerbRefused:
            continue
    return last.find(kind, handle)


VERBS: Final = {
    code.IOCTL_EXPORT_CONTEXT: Verb(export_context, ImportByDescriptor),
    code.IOCTL_IMPORT_CONTEXT: Verb(import_context, ImportByDescriptor),
    code.IOCTL_IMPORT_PD: Verb(import_pd, Object),
    code.IOCTL_IMPORT_MR: Verb(import_mr, ImportMr),
    code.IOCTL_IMPORT_DM: Verb(import_dm, Object),
}
