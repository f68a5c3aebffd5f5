"""Memory windows: alloc_mw and dealloc_mw; binding is a work request, which the driver never sees.

A window is a key without memory. What it is bound to is the HCA's to know: a region that has
windows is not given back by it (REG_BOUND).

Rules: PASSIVE_LEVEL; each waits for one command.
Spec: IBA vol. 1, 11.2.8.10 (allocate), 10.6.7 (windows); ibv_alloc_mw(3); docs/memory-windows.md.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.memory_keys import OwnedKey
from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.driver.verb import Verb
from kernel_proc.hca_abi import contexts as abi
from shared import verb_codes as code
from shared.verb_messages import AllocMw, Object, WindowMade
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_mw_type

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp

_FLAGS: Final = {
    int(ibv_mw_type.IBV_MW_TYPE_1): 0,
    int(ibv_mw_type.IBV_MW_TYPE_2): abi.MPT_FLAG_TYPE_2,
}


class Mw(Resource):
    """A memory window; `owned` is its key as it was allocated."""

    kind = "MW"
    ends_first = True  # the region it is bound to cannot end before

    __slots__ = ("mw_type", "owned")

    def __init__(self, context: "Context", mw_type: int, owned: OwnedKey) -> None:
        super().__init__(context)
        self.mw_type = mw_type
        self.owned = owned

    def destroy(self, driver: "HcaDriver") -> None:
        """Take the key back, which unbinds; the HCA waits for accesses under way."""
        keys = driver.regions.keys
        keys.revoke(self.owned)
        keys.free_key(self.owned.key, for_good=self.owned.uncertain)

    def attributes(self) -> dict[str, Any]:
        """Return type and key."""
        return {"type": self.mw_type, "key": self.owned.key}


def alloc_mw(driver: "HcaDriver", context: "Context", request: AllocMw, irp: "Irp") -> WindowMade:
    """Make a window that is not bound: SW2HW_MPT. EINVAL for a type there is not."""
    flags = _FLAGS.get(request.mw_type)
    if flags is None:
        raise VerbRefused(errno.EINVAL, VerbReason.BAD_WINDOW_TYPE, 0, request.mw_type)
    pd = context.find(Pd, request.pd)
    context.require_room()
    with context.holding(pd):
        owned = _owned_key(driver, context, pd.pdn, flags)
        window = Mw(context, request.mw_type, owned)
        context.add(window, pd)
    return WindowMade(handle=window.handle, rkey=owned.key)


def _owned_key(driver: "HcaDriver", context: "Context", pdn: int, flags: int) -> OwnedKey:
    keys = driver.regions.keys
    owned = OwnedKey(keys.allocate_key(context.owner))
    entry = abi.MptEntry(flags=flags, page_size=0, key=owned.key, pd=pdn, start=0, length=0)
    try:
        keys.grant(owned, entry)
    except BaseException:
        keys.free_key(owned.key, for_good=owned.uncertain)
        raise
    return owned


def dealloc_mw(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp") -> None:
    """End a window, bound or not: HW2SW_MPT."""
    context.destroy(Mw, request.handle)


VERBS: Final = {
    code.IOCTL_ALLOC_MW: Verb(alloc_mw, AllocMw),
    code.IOCTL_DEALLOC_MW: Verb(dealloc_mw, Object),
}
