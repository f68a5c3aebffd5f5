"""Memory regions: reg_mr, rereg_mr, dereg_mr.

Rules: PASSIVE_LEVEL, in the calling process's context; each waits for commands.
Spec: IBA vol. 1, 11.2.8; libibverbs ibv_reg_mr(3), ibv_rereg_mr(3); docs/memory-registration.md.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.pinned_memory import (
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_WRITE,
    ZERO_BASED,
    Region,
    Translated,
)
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.driver.verb import Verb
from kernel_proc.hca_abi import command_opcodes as op
from shared import verb_codes as code
from shared.verb_messages import Object, Registered, RegMr, ReregMr
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_access_flags as access_flags
from shared.verbs_enums import ibv_rereg_mr_err_code as rereg_error
from shared.verbs_enums import ibv_rereg_mr_flags as rereg_flags

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp

_UNSUPPORTED: Final = int(
    access_flags.IBV_ACCESS_ON_DEMAND
    | access_flags.IBV_ACCESS_FLUSH_GLOBAL
    | access_flags.IBV_ACCESS_FLUSH_PERSISTENT
)
_OPTIONAL: Final = ((1 << 30) - 1) & ~((1 << 20) - 1)  # ignored by a device that lacks them
_KNOWN: Final = 0x3FF | _OPTIONAL

_TRANSLATION: Final = int(rereg_flags.IBV_REREG_MR_CHANGE_TRANSLATION)
_PD: Final = int(rereg_flags.IBV_REREG_MR_CHANGE_PD)
_ACCESS: Final = int(rereg_flags.IBV_REREG_MR_CHANGE_ACCESS)
_REREG_FLAGS: Final = _TRANSLATION | _PD | _ACCESS

_ERR_INPUT: Final = -int(rereg_error.IBV_REREG_MR_ERR_INPUT)
_ERR_CMD: Final = -int(rereg_error.IBV_REREG_MR_ERR_CMD)


class Mr(Resource):
    """A memory region of a user."""

    kind = "MR"

    __slots__ = ("address", "region")

    def __init__(self, context: "Context", region: Region, address: int) -> None:
        super().__init__(context)
        self.region = region
        self.address = address

    def destroy(self, driver: "HcaDriver") -> None:
        """Take the key back, then let go of the memory."""
        try:
            driver.regions.release(self.region)
        except VerbRefused as refusal:
            _explain_bound(self, refusal)
            raise

    def require_changeable(self) -> None:
        """Refuse, for what rereg_mr does not change; a user's memory it does."""

    def registered(self) -> Registered:
        """Return the answer of reg_mr and rereg_mr."""
        return Registered(handle=self.handle, lkey=self.region.lkey, rkey=self.region.rkey)

    def attributes(self) -> dict[str, Any]:
        """Return place, rights and key."""
        region = self.region
        return {
            "address": self.address,
            "length": region.length,
            "access": region.access,
            "key": region.key,
            "page_shift": region.page_shift,
            "usable": region.in_hardware,
        }


class ImportedMr(Mr):
    """A region of another context, by its keys: it ends where it was registered, whoever imports.

    Nothing is held there, so that nobody keeps another from deregistering.
    """

    __slots__ = ()

    def destroy(self, driver: "HcaDriver") -> None:
        """Know the keys no more."""

    def require_changeable(self) -> None:
        """Refuse: who registered it changes it."""
        raise VerbRefused(errno.EINVAL, VerbReason.REREG_OF_IMPORTED, self.handle)


def reg_mr(driver: "HcaDriver", context: "Context", request: RegMr, irp: "Irp") -> Registered:
    """Register memory: WRITE_MTT for each 510 pages, SW2HW_MPT.

    EINVAL for the access, no bytes, or a range that wraps; EFAULT for memory that is not there.
    """
    check_access(request.access)
    pd = context.find(Pd, request.pd)
    context.require_room()
    with context.holding(pd):
        region = driver.regions.register_user(
            context,
            request.address,
            request.length,
            access=request.access,
            iova=request.iova,
            pdn=pd.pdn,
        )
        mr = Mr(context, region, request.address)
        context.add(mr, pd)
    return mr.registered()


def check_access(access: int) -> None:
    """Refuse rights no region can have, and those this device does not give."""
    unknown = access & ~_KNOWN
    if unknown:
        raise VerbRefused(errno.EINVAL, VerbReason.UNKNOWN_ACCESS_BITS, 0, unknown)
    if access & _UNSUPPORTED:
        bits = access & _UNSUPPORTED
        raise VerbRefused(errno.EOPNOTSUPP, VerbReason.ACCESS_NOT_SUPPORTED, 0, bits)
    if access & (REMOTE_WRITE | REMOTE_ATOMIC) and not access & LOCAL_WRITE:
        raise VerbRefused(errno.EINVAL, VerbReason.ACCESS_NEEDS_LOCAL_WRITE, 0, access)


def dereg_mr(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp") -> None:
    """Deregister memory: HW2SW_MPT. EBUSY while a window is bound to it."""
    context.destroy(Mr, request.handle)


def rereg_mr(driver: "HcaDriver", context: "Context", request: ReregMr, irp: "Irp") -> Registered:
    """Change memory, domain or rights of a region, whose keys stay.

    Until HW2SW_MPT has succeeded a refusal leaves the region as it was; if that is not answered,
    or after it, the region can only be deregistered.
    """
    try:
        _check_rereg(request)
        mr = context.find(Mr, request.handle)
        mr.require_changeable()
        with context.locked(mr):
            return _rereg(driver, context, mr, request)
    except VerbRefused as refusal:
        if refusal.reason is not VerbReason.REREG_FAILED:
            refusal.detail = _ERR_INPUT
        raise


def _check_rereg(request: ReregMr) -> None:
    flags = request.flags
    if not flags or flags & ~_REREG_FLAGS:
        raise VerbRefused(errno.EINVAL, VerbReason.UNKNOWN_REREG_FLAGS, flags)
    if flags & _TRANSLATION and not (request.length and request.address):
        raise VerbRefused(errno.EINVAL, VerbReason.REREG_NO_RANGE)
    if request.access and not flags & _ACCESS:
        raise VerbRefused(errno.EINVAL, VerbReason.REREG_ACCESS_WITHOUT_FLAG, request.access)
    check_access(request.access)


def _rereg(driver: "HcaDriver", context: "Context", mr: Mr, request: ReregMr) -> Registered:
    pd = context.find(Pd, request.pd) if request.flags & _PD else mr.parents[0]
    assert isinstance(pd, Pd)
    access = request.access if request.flags & _ACCESS else mr.region.access
    with context.holding(pd):
        address, fresh = _translate_anew(driver, mr, request, access)
        try:
            driver.regions.withdraw(mr.region)
        except VerbRefused as refusal:
            if fresh is not None:
                driver.regions.give_up(fresh)
            if refusal.unanswered:  # its key may be taken back yet
                raise _failed(refusal) from refusal
            _explain_bound(mr, refusal)
            raise
        try:
            _publish_changed(driver, mr.region, pd.pdn, access, fresh)
        finally:
            if mr.region.in_hardware:  # or may be
                mr.address = address
                mr.hold_parents((pd,))
    return mr.registered()


def _explain_bound(mr: Mr, refusal: VerbRefused) -> None:
    """Refuse with EBUSY if a region's key was not taken back because windows are bound to it."""
    if refusal.is_status(op.HW2SW_MPT, op.CMD_STAT_REG_BOUND):
        raise VerbRefused(errno.EBUSY, VerbReason.WINDOWS_BOUND, mr.handle) from refusal


def _failed(refusal: VerbRefused) -> VerbRefused:
    """Return the refusal of a region that can only be deregistered."""
    failed = refusal.detail if refusal.reason is VerbReason.COMMAND_FAILED else 0
    return VerbRefused(refusal.errno, VerbReason.REREG_FAILED, failed, _ERR_CMD)


def _translate_anew(
    driver: "HcaDriver", mr: Mr, request: ReregMr, access: int
) -> tuple[int, Translated | None]:
    """Pin and translate if the range changes, where its addresses begin, or how it is locked."""
    region = mr.region
    if request.flags & _TRANSLATION:
        address, length = request.address, request.length
        start = address
    elif (access ^ region.access) & ZERO_BASED:
        address, length = mr.address, region.length
        start = address
    elif access & (LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC) and not (
        region.translated.pages.writable
    ):
        address, length = mr.address, region.length
        start = 0 if region.translated.zero_based else region.translated.start
    else:
        return mr.address, None
    return address, driver.regions.translate_user(address, length, access, start)


def _publish_changed(
    driver: "HcaDriver", region: Region, pdn: int, access: int, fresh: Translated | None
) -> None:
    """Give the changed region to the HCA; if that fails it is unusable, and as it was besides.

    If that is not answered the HCA may have it as it is now, and with this memory it stays.
    """
    old = region.pdn, region.access, region.translated
    region.pdn, region.access = pdn, access
    if fresh is not None:
        region.translated = fresh
    try:
        driver.regions.publish(region)
    except VerbRefused as refusal:
        if not region.in_hardware:
            region.pdn, region.access, region.translated = old
            if fresh is not None:
                driver.regions.give_up(fresh)
        elif fresh is not None:
            driver.regions.give_up(old[2])
        raise _failed(refusal) from refusal
    if fresh is not None:
        driver.regions.give_up(old[2])


VERBS: Final = {
    code.IOCTL_REG_MR: Verb(reg_mr, RegMr),
    code.IOCTL_REREG_MR: Verb(rereg_mr, ReregMr),
    code.IOCTL_DEREG_MR: Verb(dereg_mr, Object),
}
