"""An end of a connection that binds memory windows to its region.

Its words are KERNEL [private], as those of `traffic_end`.
"""

import errno
import sys

from shared.verbs_enums import (
    ibv_access_flags,
    ibv_mw_type,
    ibv_qp_type,
    ibv_rereg_mr_flags,
    ibv_send_flags,
    ibv_wr_opcode,
)
from tests.end_to_end.traffic_end import ALL_ACCESS, LENGTH, End, serve
from user_proc.verbs.base import inc_rkey
from user_proc.verbs.mr import MR, MW, MWBind, MWBindInfo
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPCap, QPInitAttr
from user_proc.verbs.wr import SendWR

TYPE_1 = int(ibv_mw_type.IBV_MW_TYPE_1)
SIGNALED = int(ibv_send_flags.IBV_SEND_SIGNALED)
BIND_MW = int(ibv_wr_opcode.IBV_WR_BIND_MW)
LOCAL_INV = int(ibv_wr_opcode.IBV_WR_LOCAL_INV)
SEND_WITH_INV = int(ibv_wr_opcode.IBV_WR_SEND_WITH_INV)
CHANGE_ACCESS = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS)
BINDABLE = ALL_ACCESS | int(ibv_access_flags.IBV_ACCESS_MW_BIND)
PAGE = 4096
START, SIZE = PAGE - 64, PAGE
#: Where a key is used, from the window's begin on.
OFFSETS = {
    "at its end": SIZE - 8, "over a page": 64 - 8, "below": -8, "beyond": SIZE,
    "half beyond": SIZE - 7, "far beyond": 1 << 40,
}  # fmt: skip


def is_held(region: MR, access: int) -> bool:
    """Whether a region cannot be changed since windows are bound to it."""
    try:
        region.rereg(CHANGE_ACCESS, access=access)
    except PyverbsRDMAError as error:
        if error.error_code != errno.EBUSY:
            raise
        return True
    return False


class WindowEnd(End):
    """An end with one window, bound to a region over its memory's second half."""

    def __init__(self, kernel: str, private: bool = False) -> None:
        super().__init__(kernel, private)
        self.bindable = MR(self.pd, LENGTH // 2, BINDABLE, self.mr.buf + LENGTH // 2)
        self.window: MW | None = None
        self.rkey = 0
        self.other: QP | None = None

    def open_window(self, kind: int) -> None:
        """Have a new window of a type."""
        if self.window is not None:
            self.window.close()
        self.window = MW(self.pd, kind)
        self.rkey = self.window.rkey

    def bind(self, offset: int, length: int, access: int) -> int:
        """Bind it; return the status. `rkey` is its key then."""
        assert self.window is not None
        info = MWBindInfo(self.bindable, self.bindable.buf + offset, length, access)
        if self.window.type == TYPE_1:
            self.qp.bind_mw(self.window, MWBind(info, SIGNALED))
            rkey = self.window.rkey
        else:
            wr = SendWR(opcode=BIND_MW)
            wr.set_bind(self.window, info, inc_rkey(self.rkey))
            self.qp.post_send(wr)
            rkey = wr.rkey
        (status,) = self.statuses()
        if not status:
            self.rkey = rkey
        return status

    def unbind(self) -> int:
        """Take it back in the way of its type; return the status."""
        assert self.window is not None
        return self.bind(0, 0, 0) if self.window.type == TYPE_1 else self.invalidate(self.rkey)

    def send_with_inv(self, rkey: int) -> int:
        """Have the other end invalidate a key; return the status."""
        self.qp.post_send(SendWR(opcode=SEND_WITH_INV, imm_data=rkey))
        return self.statuses()[0]

    # Another connection of the same process

    def open_other(self, foreign: bool = False) -> int:
        """Have another queue pair, in this domain or in the other one; return its number."""
        if self.other is not None:
            self.other.close()
        domain = self.foreign_pd if foreign else self.pd
        kind = int(ibv_qp_type.IBV_QPT_RC)
        self.other = QP(domain, QPInitAttr(kind, scq=self.cq, rcq=self.cq, cap=QPCap(8, 8, 1, 1)))
        return self.other.qp_num

    def exchange(self) -> None:
        """Be the other queue pair from now on."""
        assert self.other is not None
        self.qp, self.other = self.other, self.qp

    def connect_other(self, peer: int) -> None:
        self.exchange()
        self.connect(peer)
        self.exchange()

    # Windows in every condition

    def prepare(self, kind: int, way: str, right: int) -> list[int]:
        """Bind a window so that using it is, or is not, granted; return key and address."""
        self.open_window(kind)
        rights = {"without the right": ALL_ACCESS & ~right, "with the right alone": right}
        assert self.bind(START, SIZE, rights.get(way, ALL_ACCESS)) == 0
        rkey = self.rkey
        if way == "unbound":
            assert self.unbind() == 0
        elif way == "given back":
            self.close_window()
        elif way in ("bound again, new key", "bound again, old key", "bound elsewhere"):
            if kind != TYPE_1:
                assert self.unbind() == 0
            assert self.bind(2 * PAGE if way == "bound elsewhere" else START, 64, ALL_ACCESS) == 0
            rkey = rkey if way == "bound again, old key" else self.rkey
        rkey ^= {"another variant": 1, "another generation": 1 << 31}.get(way, 0)
        return [rkey, self.bindable.buf + START + OFFSETS.get(way, 0)]

    def prepare_end(self, kind: int, state: str) -> int:
        """Have a window in a state, and return the key that is to be invalidated."""
        if self.window is not None:
            self.window.close()
        foreign = state == "of another domain"
        self.window = MW(self.foreign_pd if foreign else self.pd, kind)
        self.rkey = self.window.rkey
        if state not in ("free", "of another domain"):
            assert self.bind(0, SIZE, ALL_ACCESS) == 0
        if state == "a region":
            return self.bindable.rkey
        return self.rkey ^ (state == "another variant")

    def invalidate(self, rkey: int) -> int:
        """Invalidate a key by one's own request; return the status."""
        self.qp.post_send(SendWR(opcode=LOCAL_INV, imm_data=rkey))
        return self.statuses()[0]

    def is_bound(self) -> bool:
        """Whether a window is bound to the region: then it cannot be changed."""
        return is_held(self.bindable, BINDABLE)

    def close_bindable(self) -> int:
        """Deregister the region; return the errno, 0 if it went."""
        try:
            self.bindable.close()
        except PyverbsRDMAError as error:
            return int(error.error_code)
        return 0

    def change_region(self, times: int) -> list[int]:
        """Reregister the region with the same rights so many times; return its keys of then."""
        for _ in range(times):
            self.mr.rereg(CHANGE_ACCESS, access=ALL_ACCESS)
        return [self.mr.lkey, self.mr.rkey]

    def close_window(self) -> None:
        assert self.window is not None
        self.window.close()
        self.window = None

    def half_read(self, address: int, length: int) -> str:
        """What lies at an address of the region."""
        return self.read(address - self.mr.buf, length).hex()


def main() -> None:
    """Be the other process of a test."""
    serve(WindowEnd(sys.argv[1], private="private" in sys.argv))
