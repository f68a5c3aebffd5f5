"""Multicast: attach a UD QP to a group and detach it.

Rules: PASSIVE_LEVEL, in the caller's thread, which waits for commands.
Spec: IBA vol. 1, 10.5 and 11.3.1; Linux drivers/infiniband/core/verbs.c (ib_attach_mcast).
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.driver import multicast_groups
from kernel_proc.driver.qp_resource import Qp
from kernel_proc.driver.queue_resource import refuse
from kernel_proc.driver.verb import Verb
from kernel_proc.hca_abi.qp_transitions import UD
from shared import verb_codes as codes
from shared.verb_messages import Multicast
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp

_GID_LENGTH: Final = 16
_MULTICAST_PREFIX: Final = 0xFF
_FIRST_LID: Final = 0xC000
_LAST_LID: Final = 0xFFFE


def _check(qp: Qp, request: Multicast) -> None:
    if qp.qp_type != UD:
        refuse(VerbReason.NOT_UD, 0, qp.qp_type)
    if len(request.gid) != _GID_LENGTH:
        refuse(VerbReason.BAD_GID, 0, len(request.gid))
    if request.gid[0] != _MULTICAST_PREFIX:
        refuse(VerbReason.NOT_MULTICAST_GID, 0, request.gid[0])
    if not _FIRST_LID <= request.lid <= _LAST_LID:
        refuse(VerbReason.NOT_MULTICAST_LID, request.lid)


def attach_mcast(
    driver: "HcaDriver", context: "Context", request: Multicast, irp: "Irp | None"
) -> None:
    """Attach a UD QP to a group; attaching again changes nothing."""
    qp = context.find(Qp, request.qp)
    with context.locked(qp):
        _check(qp, request)
        multicast_groups.attach(driver, qp, request.gid)


def detach_mcast(
    driver: "HcaDriver", context: "Context", request: Multicast, irp: "Irp | None"
) -> None:
    """Detach a UD QP from a group it is attached to."""
    qp = context.find(Qp, request.qp)
    with context.locked(qp):
        _check(qp, request)
        multicast_groups.detach(driver, qp, request.gid)


VERBS: Final = {
    codes.IOCTL_ATTACH_MCAST: Verb(attach_mcast, Multicast),
    codes.IOCTL_DETACH_MCAST: Verb(detach_mcast, Multicast),
}
