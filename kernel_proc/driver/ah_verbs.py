"""Address handles: create_ah and destroy_ah, of which the HCA is not told.

The address itself travels in each work request; the driver checks it and counts the handle on its
domain. A path with a GRH needs a datagram when the port's GIDs have not been asked for yet.

Rules: PASSIVE_LEVEL; create_ah may wait for that command.
Spec: IBA vol. 1, 11.2.2; Linux mthca_av.c.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.pd_verbs import Pd
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.driver.verb import Verb
from shared import verb_codes as code
from shared.verb_messages import AhCreated, CreateAh, Object
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp

_MOST_SL: Final = 15
_MOST_RATE: Final = 63  # six bits of an address path
_MOST_LID: Final = 0xFFFF
_MOST_PATH_BITS: Final = 127
_MOST_FLOW_LABEL: Final = (1 << 20) - 1
_MOST_BYTE: Final = 255
_GID_LENGTH: Final = 16


class AddressHandle(Resource):
    """An address handle: where its datagrams go, and the HCA's number of its domain."""

    kind = "AH"

    __slots__ = ("address", "pdn")

    def __init__(self, context: "Context", address: CreateAh, pdn: int) -> None:
        super().__init__(context)
        self.address = address
        self.pdn = pdn

    def destroy(self, driver: "HcaDriver") -> None:
        """Do nothing: the HCA was never told."""

    def attributes(self) -> dict[str, Any]:
        """Return port and destination."""
        address = self.address
        return {"port": address.port, "dlid": address.dlid, "dgid": address.dgid.hex()}


def create_ah(driver: "HcaDriver", context: "Context", request: CreateAh, irp: "Irp") -> AhCreated:
    """Make an address handle; EINVAL for a port, index or field out of range, or an empty GID."""
    _check_address(driver, request)
    pd = context.find(Pd, request.pd)
    if request.is_global:
        with context.holding(pd):
            notification_of(driver).gids.require(driver, request.port, request.sgid_index)
    context.require_room()
    handle = context.add(AddressHandle(context, request, pd.pdn), pd)
    return AhCreated(handle=handle, pdn=pd.pdn)


def _check_address(driver: "HcaDriver", request: CreateAh) -> None:
    limits = driver.limits
    if not 1 <= request.port <= limits.ports:
        raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_PORT, request.port, limits.ports)
    _at_most(request.sl, _MOST_SL, VerbReason.BAD_SERVICE_LEVEL)
    _at_most(request.static_rate, _MOST_RATE, VerbReason.BAD_STATIC_RATE)
    _at_most(request.dlid, _MOST_LID, VerbReason.BAD_LID)
    _at_most(request.src_path_bits, _MOST_PATH_BITS, VerbReason.BAD_PATH_BITS)
    if not request.is_global:
        return
    length = limits.device.gid_table_length
    if request.sgid_index >= length:
        raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_INDEX, request.sgid_index, length)
    _at_most(request.flow_label, _MOST_FLOW_LABEL, VerbReason.BAD_FLOW_LABEL)
    _at_most(request.hop_limit, _MOST_BYTE, VerbReason.BAD_HOP_LIMIT_OR_CLASS)
    _at_most(request.traffic_class, _MOST_BYTE, VerbReason.BAD_HOP_LIMIT_OR_CLASS)
    if len(request.dgid) != _GID_LENGTH:
        raise VerbRefused(errno.EINVAL, VerbReason.BAD_GID, 0, len(request.dgid))


def _at_most(value: int, most: int, reason: VerbReason) -> None:
    if value > most:
        raise VerbRefused(errno.EINVAL, reason, 0, value)


def destroy_ah(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp") -> None:
    """End an address handle."""
    context.destroy(AddressHandle, request.handle)


VERBS: Final = {
    code.IOCTL_CREATE_AH: Verb(create_ah, CreateAh),
    code.IOCTL_DESTROY_AH: Verb(destroy_ah, Object),
}
