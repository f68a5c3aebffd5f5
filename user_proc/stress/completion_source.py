"""A completion queue of either kind whose completions go into the account.

Rules: one thread.
"""

import select
from typing import Final

from user_proc.stress.client_world import World
from user_proc.stress.findings import LOST, Finding
from user_proc.verbs.completion import WC
from user_proc.verbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from user_proc.verbs.libibverbs_enums import ibv_create_cq_wc_flags as wc_flags

_A_LOOK: Final = 16
_FIELDS: Final = int(
    wc_flags.IBV_WC_EX_WITH_BYTE_LEN
    | wc_flags.IBV_WC_EX_WITH_IMM
    | wc_flags.IBV_WC_EX_WITH_QP_NUM
    | wc_flags.IBV_WC_EX_WITH_SRC_QP
    | wc_flags.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
)
_WITH_IMM: Final = 2


class CompletionSource:
    """A CQ, or a CQEX that is read field by field; with a channel if it is to be armed."""

    def __init__(self, world: World, name: str, cqe: int, *, extended: bool, channel: bool) -> None:
        self.name: Final = name
        self._world: Final = world
        self.channel = CompChannel(world.context) if channel else None
        self.armed = False
        made: CQ | CQEX | None
        if extended:
            attr = CqInitAttrEx(cqe=cqe, channel=self.channel, wc_flags=_FIELDS)
            made = world.call("create_cq_ex", lambda: CQEX(world.context, attr))
        else:
            made = world.call("create_cq", lambda: CQ(world.context, cqe, None, self.channel))
        assert made is not None
        self.cq: Final[CQ | CQEX] = made
        world.polled[name] = self

    def poll(self) -> int:
        """Take what has come into the account; return how many."""
        found = self._look()
        for wc in found:
            self._world.ledger.take(wc, self.name)
        return len(found)

    def _look(self) -> list[WC]:
        if isinstance(self.cq, CQ):
            return self.cq.poll(_A_LOOK)[1]
        found: list[WC] = []
        if self.cq.start_poll(None):
            return found
        while True:
            found.append(_completion(self.cq))
            if len(found) == _A_LOOK or self.cq.poll_next():
                break
        self.cq.end_poll()
        return found

    # Events

    def arm(self, *, solicited_only: bool = False) -> None:
        """Ask for an event with the next completion that is not polled yet."""
        self._world.call("req_notify", lambda: self.cq.req_notify(solicited_only))
        self.armed = True

    def take_event(self, seconds: float) -> None:
        """Take and acknowledge the event that must come: something has completed since the arm."""
        channel = self.channel
        assert channel is not None
        if not select.select([channel.fd], [], [], seconds)[0]:
            raise Finding(LOST, f"{self.name}: no event in {seconds:g} s after a completion")
        channel.get_cq_event(self.cq)
        self.cq.ack_events(1)
        self.armed = False

    def close(self) -> None:
        """Destroy it."""
        del self._world.polled[self.name]
        self._world.call("destroy_cq", self.cq.close)
        if self.channel is not None:
            self.channel.close()


def _completion(cq: CQEX) -> WC:
    """Make an ordinary completion of what an extended queue points at."""
    flags = cq.read_wc_flags()
    return WC(
        cq.wr_id,
        cq.status,
        cq.read_opcode(),
        cq.read_vendor_err(),
        cq.read_byte_len(),
        cq.read_qp_num(),
        cq.read_src_qp(),
        cq.read_imm_data() if flags & _WITH_IMM else 0,
        flags,
    )
