"""Address handles, and the attributes they are made of.

Spec: rdma-core, pyverbs/addr.pyx; ibv_create_ah(3), ibv_create_ah_from_wc(3).
"""

import ctypes
import errno
import struct
from typing import Any, ClassVar, Final

from shared.verb_codes import IOCTL_CREATE_AH, IOCTL_DESTROY_AH
from shared.verb_messages import AhCreated, CreateAh
from user_proc.verbs.address_attributes import GID, GRH, AHAttr, GlobalRoute
from user_proc.verbs.argument_types import require
from user_proc.verbs.c_integers import to_u8, to_u64
from user_proc.verbs.completion import WC
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.utils import GID_LENGTH
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal

__all__ = ["AH", "GID", "GRH", "AHAttr", "GlobalRoute"]

_NO_GID: Final = bytes(GID_LENGTH)
_GRH: Final = struct.Struct(">IHBB16s16s")  # as it lies before a datagram
_WC_GRH: Final = 1


class AH(VerbObject):
    """An address handle: `AH(pd, attr=AHAttr)`, or `AH(pd, wc=WC, grh=address, port_num=n)`.

    The second form answers whoever sent the datagram of that completion; `grh` is the address of
    the first 40 bytes of its receive buffer.
    """

    KIND: ClassVar[str] = "AH"
    DESTROY_TEXT: ClassVar[str] = "Failed to destroy AH"

    def __init__(self, pd: PD, **kwargs: Any) -> None:
        domain = require("pd", pd, PD)
        super().__init__(domain._session)
        if len(kwargs) == 1:
            attr = require("attr", kwargs["attr"], AHAttr)
        else:
            attr = self._answering(domain, kwargs["wc"], kwargs["grh"], kwargs["port_num"])
        self.attr = attr.copy()
        self.pd = domain
        route = attr.route
        request = CreateAh(
            pd=domain.handle,
            port=attr.port_num,
            dlid=attr.dlid,
            sl=attr.sl,
            src_path_bits=attr.src_path_bits,
            static_rate=attr.static_rate,
            is_global=attr.is_global,
            dgid=route.dgid.raw if attr.is_global else _NO_GID,
            flow_label=route.flow_label,
            sgid_index=route.sgid_index,
            hop_limit=route.hop_limit,
            traffic_class=route.traffic_class,
        )
        try:
            made = self._session.call(AhCreated, IOCTL_CREATE_AH, request)
        except VerbRefusal as refusal:
            raise refusal.error("Failed to create AH") from refusal
        self.pdn = made.pdn
        self._resource = Resource(self._session, IOCTL_DESTROY_AH, made.handle, keep=domain)
        domain.adopt(self)
        self.logger.debug("Created AH")

    @staticmethod
    def _answering(domain: PD, wc: Any, grh: Any, port_num: Any) -> AHAttr:
        """Turn the path of a received datagram round."""
        completion, port, route = require("wc", wc, WC), to_u8(port_num), None
        if completion.wc_flags & _WC_GRH:
            header = ctypes.string_at(to_u64(grh), _GRH.size)
            flow, _, _, _, sgid, dgid = _GRH.unpack(header)
            index = domain.context.find_gid(port, dgid)
            if index is None:  # a multicast GID, too: nobody answers as a group
                raise PyverbsRDMAError(
                    "Failed to create AH",
                    errno.EINVAL,
                    reason=f"the GRH went to {GID.of(dgid)}, which is no GID of port {port}",
                )
            route = GlobalRoute(GID.of(sgid), flow & 0xFFFFF, index, 0xFF, flow >> 20 & 0xFF)
        return AHAttr(
            dlid=completion.slid,
            sl=completion.sl,
            src_path_bits=completion.dlid_path_bits,
            is_global=route is not None,
            port_num=port,
            gr=route,
        )
