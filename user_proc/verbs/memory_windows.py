"""Memory windows: a key of its own to a part of a region, given and taken by work requests.

A type 1 window is bound by `QP.bind_mw`, which chooses the key; one of type 2 by a BIND_MW request
(`SendWR.set_bind_wr`) for the queue pair it is posted to, with a key whose low 8 bits are the
program's.

Rules: any thread. A window that has been bound keeps its region from being closed.
Spec: rdma-core, pyverbs/mr.pyx; ibv_alloc_mw(3), ibv_bind_mw(3).
"""

from collections.abc import Callable
from typing import ClassVar, Final

from shared.verb_codes import IOCTL_ALLOC_MW, IOCTL_DEALLOC_MW
from shared.verb_messages import AllocMw, WindowMade
from shared.verbs_enums import ibv_mw_type
from shared.wqe_layout import bind_segment
from user_proc.verbs.argument_types import require
from user_proc.verbs.base import PyverbsCM, inc_rkey
from user_proc.verbs.c_integers import IntLike, to_int, to_u32, to_u64
from user_proc.verbs.memory_region import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.printing import lines
from user_proc.verbs.utils import access_flags_to_str, names_of_send_flags
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal

_VARIANT: Final = 0xFF


class MWBindInfo(PyverbsCM):
    """Which part of a region a window is bound to, and with which rights."""

    def __init__(self, mr: MR, addr: IntLike, length: IntLike, mw_access_flags: IntLike) -> None:
        super().__init__()
        self.mr: Final = require("mr", mr, MR)
        self._addr = to_u64(addr)
        self._length = to_u64(length)
        self._access = to_u32(mw_access_flags)

    @property
    def addr(self) -> int:
        """The first address of the range."""
        return self._addr

    @property
    def length(self) -> int:
        """Bytes of the range; 0 unbinds a type 1 window."""
        return self._length

    @property
    def mw_access_flags(self) -> int:
        """The rights, as ibv_access_flags."""
        return self._access

    def segment(self, new_rkey: int) -> bytes:
        """Give what a BIND_MW entry has in its head, for the window `new_rkey` is of."""
        return bind_segment(
            access=self._access,
            new_rkey=new_rkey,
            lkey=self.mr.lkey,
            address=self._addr,
            length=self._length,
        )

    def __str__(self) -> str:
        return "MWBindInfo:\n" + lines(
            22,
            [
                ("Addr", self._addr),
                ("Length", self._length),
                ("MW access flags", access_flags_to_str(self._access)),
            ],
        )


class MWBind(PyverbsCM):
    """A bind as `QP.bind_mw` takes it."""

    def __init__(self, info: MWBindInfo, send_flags: IntLike, wr_id: IntLike = 0) -> None:
        super().__init__()
        self.info: Final = require("info", info, MWBindInfo)
        self.send_flags: Final = to_u32(send_flags)
        self.wr_id: Final = to_u64(wr_id)

    def __str__(self) -> str:
        return "MWBind:\n" + lines(
            22,
            [("WR id", self.wr_id), ("Send flags", names_of_send_flags(self.send_flags))],
        )


class MW(VerbObject):
    """A memory window of a protection domain."""

    KIND: ClassVar[str] = "MW"
    DESTROY_TEXT: ClassVar[str] = "Failed to dealloc MW"

    def __init__(self, pd: PD, mw_type: IntLike) -> None:
        self._resource = None
        domain = require("pd", pd, PD)
        super().__init__(domain._session)
        self.pd: Final = domain
        self._type = to_int(mw_type)
        request = AllocMw(domain.handle, self._type & 0xFFFF_FFFF)
        try:
            made = self._session.call(WindowMade, IOCTL_ALLOC_MW, request)
        except VerbRefusal as refusal:
            raise refusal.error("Failed to allocate MW") from refusal
        self._rkey = made.rkey
        self._resource = Resource(self._session, IOCTL_DEALLOC_MW, made.handle, keep=domain)
        domain.adopt(self)
        self.logger.debug("Allocated ibv_mw, type %s", mwtype2str(self._type))

    @property
    def rkey(self) -> int:
        """The key for the peer's requests, as of the last `bind_mw`; of type 2, as allocated."""
        self.handle  # noqa: B018 - a closed window has none
        return self._rkey

    @property
    def type(self) -> int:
        """An ibv_mw_type."""
        self.handle  # noqa: B018
        return self._type

    def key_with(self, rkey: int) -> int:
        """Give the key of this window that has the low 8 bits of `rkey`."""
        return self.rkey & ~_VARIANT | rkey & _VARIANT

    def rebind(self, post: Callable[[int], None]) -> None:
        """Have a bind posted for the next key, which is the window's from then on."""
        with self._closing:
            new_rkey = inc_rkey(self.rkey)
            post(new_rkey)
            self._rkey = new_rkey

    def _shown(self) -> str:
        return "MW:\n" + lines(
            22,
            [("Rkey", self.rkey), ("Handle", self.handle), ("MW Type", mwtype2str(self.type))],
        )


def mwtype2str(mw_type: int) -> str:
    """Name a type of memory window."""
    try:
        return ibv_mw_type(mw_type).name
    except ValueError:
        return f"Unknown MW type ({mw_type})"
