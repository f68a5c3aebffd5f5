"""Regions over memory of the device.

Their keys' addresses count from 0, and `buf` is 0: the memory has no address in this process.

Rules: any thread.
Spec: rdma-core, pyverbs/mr.pyx; ibv_reg_dm_mr(3).
"""

from typing import NoReturn

from shared.verb_codes import IOCTL_REG_DM_MR
from shared.verb_messages import RegDmMr, Registered
from user_proc.verbs.argument_types import require
from user_proc.verbs.c_integers import IntLike, to_int, to_u64
from user_proc.verbs.dm import DM
from user_proc.verbs.memory_region import MR, OwnMemory
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import VerbRefusal

_U32 = 0xFFFF_FFFF


class DMMR(MR):
    """A region over a part of a `DM`; the access must have IBV_ACCESS_ZERO_BASED."""

    def __init__(self, pd: PD, length: IntLike, access: IntLike, dm: DM, offset: IntLike) -> None:
        self._resource = None
        self.pd = require("pd", pd, PD)
        self.dm = require("dm", dm, DM)
        size, flags, self._offset = to_u64(length), to_int(access), to_u64(offset)
        VerbObject.__init__(self, self.pd._session)
        self._own = OwnMemory(None)
        self._imported = False
        self._buf = 0
        try:
            dm_handle = self.dm.handle_for(self._session)
            request = RegDmMr(self.pd.handle, dm_handle, self._offset, size, flags & _U32)
            made = self._session.call(Registered, IOCTL_REG_DM_MR, request)
        except VerbRefusal as refusal:
            raise refusal.error(
                f"Failed to register a device MR. length: {size}, access flags: {flags}"
            ) from refusal
        self._become(made, size, (self.pd, self.dm))
        self.dm.adopt(self)
        self.logger.debug("Registered device ibv_mr. Length: %d, access flags %d", size, flags)

    def write(self, data: str | bytes, length: IntLike, offset: IntLike = 0) -> None:
        """Store `length` bytes; the offset counts from the region's first byte."""
        size, start = to_int(length), to_int(offset)
        self._check_range(size, start)
        source = data.encode() if isinstance(data, str) else data
        self.dm.copy_to_dm(self._offset + start, source, size)

    def read(self, length: IntLike, offset: IntLike) -> bytes:
        """Load `length` bytes; the offset counts from the region's first byte."""
        size, start = to_int(length), to_int(offset)
        self._check_range(size, start)
        return self.dm.copy_from_dm(self._offset + start, size)

    def view(self) -> NoReturn:
        """Refuse: no process maps the device's memory."""
        self.handle  # noqa: B018 - a closed region has none
        raise PyverbsUserError("the device's memory is not mapped: use read and write")
