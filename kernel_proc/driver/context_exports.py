"""Contexts whose protection domains other contexts may use: exported and imported by a descriptor.

The inode of a descriptor is what names an exported context, as it names an XRC domain: who was
given the descriptor may import. An imported domain is another opening of the same number; it
lives until its last opening is closed, whichever context that is in.

Rules: PASSIVE_LEVEL; a descriptor is looked at by the lane of the process.
Spec: ibv_import_device(3), ibv_import_pd(3); docs/shared-domains.md.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.driver.verb import Verb
from kernel_proc.driver.xrcd_verbs import HeldDescriptor, descriptor_of
from shared import verb_codes as code
from shared.verb_messages import ImportByDescriptor, Object
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp


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
    rights = [one for one in context.objects() if isinstance(one, Import)]
    sources = [right.source for right in rights] or [context]
    for number, source in enumerate(sources, 1):
        try:
            pd = source.find(Pd, request.handle)
        except VerbRefused:
            if number == len(sources):
                raise
        else:
            return Object(context.add(Pd(context, pd.domain)))
    raise AssertionError("there is always a source")


VERBS: Final = {
    code.IOCTL_EXPORT_CONTEXT: Verb(export_context, ImportByDescriptor),
    code.IOCTL_IMPORT_CONTEXT: Verb(import_context, ImportByDescriptor),
    code.IOCTL_IMPORT_PD: Verb(import_pd, Object),
}
