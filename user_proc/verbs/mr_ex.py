"""Regions by the extended call: with an address of one's own choice for their first byte.

Spec: rdma-core, pyverbs/mr.pyx; ibv_reg_mr_ex(3), ibv_reg_mr_iova(3).
"""

import errno

from user_proc.verbs.argument_types import require
from user_proc.verbs.c_integers import IntLike, to_u64
from user_proc.verbs.memory_region import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

_TEXT = "Failed to register MR using extended API"


class MREx(MR):
    """A memory region; requests name its bytes from `iova` on, which is the address unless given.

    `iova` and the address must be the same within a page.
    """

    def __init__(
        self,
        pd: PD,
        length: IntLike = 0,
        access: IntLike = 0,
        address: IntLike | None = None,
        iova: IntLike | None = None,
        fd: IntLike | None = None,
        fd_offset: IntLike = 0,
        dmah: object = None,
        implicit: bool = False,
        buf: object = None,
        *,
        handle: IntLike | None = None,
    ) -> None:
        self._resource = None
        domain = require("pd", pd, PD)
        self._iova = None if iova is None else to_u64(iova)
        for given, what in ((fd, "dma-buf"), (dmah, "DMA handles"), (buf, "buffer objects")):
            if given is not None:
                raise PyverbsRDMAError(_TEXT, errno.EOPNOTSUPP, reason=f"the device has no {what}")
        to_u64(fd_offset)
        super().__init__(domain, length, access, address, implicit, handle=handle)

    def _first_address(self, flags: int) -> int:
        return super()._first_address(flags) if self._iova is None else self._iova

    def _failure(self, size: int, flags: int) -> str:
        return _TEXT
