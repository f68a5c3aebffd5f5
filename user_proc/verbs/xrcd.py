"""XRC domains, which processes share by a file.

Spec: rdma-core, pyverbs/xrcd.pyx; ibv_open_xrcd(3).
"""

import errno
from typing import ClassVar, Final

from shared.verb_codes import IOCTL_CLOSE_XRCD, IOCTL_OPEN_XRCD
from shared.verb_messages import Object, OpenXrcd
from user_proc.verbs.argument_types import require
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_int, to_u32
from user_proc.verbs.device import Context
from user_proc.verbs.libibverbs_enums import ibv_xrcd_init_attr_mask
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal

_NEEDED: Final = int(ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_FD) | int(
    ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_OFLAGS
)
_U32: Final = 0xFFFF_FFFF


class XRCDInitAttr(PyverbsObject):
    """ibv_xrcd_init_attr; descriptor -1 is a domain of one's own."""

    comp_mask = CField(to_u32)
    oflags = CField(to_int)
    fd = CField(to_int)

    def __init__(self, comp_mask: IntLike, oflags: IntLike, fd: IntLike) -> None:
        super().__init__()
        self.comp_mask = comp_mask
        self.oflags = oflags
        self.fd = fd


class XRCD(VerbObject):
    """An opening of a domain; the last one to close removes it."""

    KIND: ClassVar[str] = "XRCD"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("QP", "SRQ")
    DESTROY_TEXT: ClassVar[str] = "Failed to dealloc XRCD"

    def __init__(self, context: Context, init_attr: XRCDInitAttr) -> None:
        self._resource = None
        self.context = require("context", context, Context)
        attr = require("init_attr", init_attr, XRCDInitAttr)
        super().__init__(self.context.session())
        text = "Failed to allocate XRCD"
        if attr.comp_mask & ~_NEEDED:
            raise PyverbsRDMAError(text, errno.EOPNOTSUPP, reason="comp_mask has unknown bits")
        if attr.comp_mask != _NEEDED:
            raise PyverbsRDMAError(text, errno.EINVAL, reason="comp_mask needs both FD and OFLAGS")
        request = OpenXrcd(attr.fd & _U32, attr.oflags & _U32)
        try:
            made = self._session.call(Object, IOCTL_OPEN_XRCD, request)
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal
        self._resource = Resource(self._session, IOCTL_CLOSE_XRCD, made.handle, keep=self.context)
        self.context.adopt(self)
        self.logger.debug("Allocated XRCD")
