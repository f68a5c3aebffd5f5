"""An end of a connection that binds memory windows to its region.

Run as `python -P -m tests.end_to_end.window_end KERNEL [private]`, like `traffic_end`.
"""

import sys

from shared.verbs_enums import (
    ibv_access_flags,
    ibv_mw_type,
    ibv_rereg_mr_flags,
    ibv_send_flags,
    ibv_wr_opcode,
)
from tests.end_to_end.traffic_end import ALL_ACCESS, LENGTH, End, serve
from user_proc.verbs.base import inc_rkey
from user_proc.verbs.mr import MR, MW, MWBind, MWBindInfo
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.wr import SendWR

TYPE_1 = int(ibv_mw_type.IBV_MW_TYPE_1)
SIGNALED = int(ibv_send_flags.IBV_SEND_SIGNALED)
BIND_MW = int(ibv_wr_opcode.IBV_WR_BIND_MW)
LOCAL_INV = int(ibv_wr_opcode.IBV_WR_LOCAL_INV)
SEND_WITH_INV = int(ibv_wr_opcode.IBV_WR_SEND_WITH_INV)
CHANGE_ACCESS = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS)
BINDABLE = ALL_ACCESS | int(ibv_access_flags.IBV_ACCESS_MW_BIND)


class WindowEnd(End):
    """An end with one window, bound to a region over its memory's second half."""

    def __init__(self, kernel: str, private: bool = False) -> None:
        super().__init__(kernel, private)
        self.bindable = MR(self.pd, LENGTH // 2, BINDABLE, self.mr.buf + LENGTH // 2)
        self.window: MW | None = None
        self.rkey = 0

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
        if self.window.type == TYPE_1:
            return self.bind(0, 0, 0)
        self.qp.post_send(SendWR(opcode=LOCAL_INV, imm_data=self.rkey))
        return self.statuses()[0]

    def send_with_inv(self, rkey: int) -> int:
        """Have the other end invalidate a key; return the status."""
        self.qp.post_send(SendWR(opcode=SEND_WITH_INV, imm_data=rkey))
        return self.statuses()[0]

    def prepare(self, kind: int, way: str, right: int) -> list[int]:
        """Bind a window so that using it is, or is not, granted; return key and address."""
        self.open_window(kind)
        rights = ALL_ACCESS & ~right if way == "without the right" else ALL_ACCESS
        start, length = 4096 - 64, 4096
        assert self.bind(start, length, rights) == 0
        rkey = self.rkey
        if way in ("unbound", "its old key"):
            assert self.unbind() == 0
        if way == "its old key":
            assert self.bind(start, length, rights) == 0
        offset = {"below": -8, "beyond": length, "at its end": length - 8}.get(way, 0)
        return [rkey, self.bindable.buf + start + offset]

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


if __name__ == "__main__":
    serve(WindowEnd(sys.argv[1], private="private" in sys.argv))
