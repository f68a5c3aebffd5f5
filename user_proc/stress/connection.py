"""A connection within a client: two ends, or one that is its own peer, and the ways between them.

What is posted in a good state must succeed. A connection is broken by a refused request or by
taking an end to ERR; the model then says what every request that is out may come back with, and a
heal takes both ends through RESET.

Rules: one thread; the completions are taken by `World.pump`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from shared.clock import now_ns
from shared.verbs_enums import ibv_qp_attr_mask
from user_proc.stress.client_world import World
from user_proc.stress.completion_source import CompletionSource
from user_proc.stress.connection_end import End
from user_proc.stress.findings import LOST, WRONG, Finding, NothingToDo
from user_proc.stress.ledger import FLUSHED, OK, RETRIES_EXCEEDED
from user_proc.stress.sending import Remote, Request, Sender
from user_proc.stress.shapes import (
    ALL_ACCESS,
    ERR,
    OPCODES,
    QKEY,
    RELIABLE,
    RESET,
    RTS,
    SEND_INV,
    TAKING_ENTRY,
    Shape,
)
from user_proc.stress.xrc_ends import XrcSender, XrcTarget
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.qp import QPAttr

_STATE: Final = int(ibv_qp_attr_mask.IBV_QP_STATE)
_FOR_EVER: Final = 7
_RETRIES: Final = 7
_TIMEOUT: Final = 14


def attributes(world: World, shape: Shape, peer: int) -> QPAttr:
    """Return what a queue pair of a shape is connected with."""
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = ALL_ACCESS
    attr.path_mtu = shape.mtu
    attr.dest_qp_num = peer
    attr.qkey = QKEY
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt = 1, _TIMEOUT, _RETRIES
    attr.rnr_retry = _FOR_EVER if shape.patient else 0
    attr.ah_attr = AHAttr(dlid=world.lid, port_num=1)
    return attr


class Connection:
    """Both ends of a connection in one process."""

    def __init__(self, world: World, shape: Shape, name: str) -> None:
        self.world: Final = world
        self.shape: Final = shape
        self.name: Final = name
        self.broken = False
        self.most_completions: Final = 4 * (shape.depth + 2)
        self.source: Final = CompletionSource(
            world,
            f"CQ of {name}",
            self.most_completions,
            extended=shape.extended,
            channel=shape.channel,
        )
        first: type[End] = XrcSender if shape.kind == "xrc" else End
        second: type[End] = XrcTarget if shape.kind == "xrc" else End
        near = first(world, shape, self.source, f"{name}.0")
        far = near if shape.kind == "loop" else second(world, shape, self.source, f"{name}.1")
        self.ends: Final[tuple[End, End]] = near, far
        self._ah: AH | None = None
        if shape.kind == "ud":
            path = AHAttr(dlid=world.lid, port_num=1)
            self._ah = world.call("create_ah", lambda: AH(world.pd, attr=path))
        self.senders: Final = [
            Sender(one, other, self._remote(other)) for one, other in ((near, far), (far, near))
        ]
        self.connect()

    def _remote(self, end: End) -> Remote:
        return Remote(end.region.word(0), end.region.mr.rkey, end.qp.qp_num, end.srqn, self._ah)

    @property
    def distinct(self) -> tuple[End, ...]:
        """The ends, each once."""
        near, far = self.ends
        return (near,) if near is far else (near, far)

    def connect(self) -> None:
        """Take the ends from RESET to RTS."""
        near, far = self.ends
        for one, other in ((near, far), (far, near))[: len(self.distinct)]:
            attr = attributes(self.world, self.shape, other.qp.qp_num)
            self.world.call("modify_qp to RTS", lambda: one.qp.to_rts(attr))  # noqa: B023
        self.broken = False

    # Traffic

    def ends_of(self, direction: int) -> tuple[End, End, Sender]:
        """Return who sends, who receives and by what; NothingToDo for a way there is not."""
        if direction and self.shape.kind in ("xrc", "loop"):
            raise NothingToDo(f"{self.name} has one direction")
        return self.ends[direction], self.ends[1 - direction], self.senders[direction]

    def require_whole(self) -> None:
        """Raise NothingToDo if it is broken."""
        if self.broken:
            raise NothingToDo(f"{self.name} is broken")

    def burst(self, direction: int, requests: list[Request]) -> None:
        """Post requests, waiting where there is no room; the last one leaves a completion."""
        near, far, sender = self.ends_of(direction)
        self.require_whole()
        known = (*OPCODES[self.shape.kind], SEND_INV)
        wanted = [one for one in requests if one.opcode in known]
        for place, request in enumerate(wanted, 1):
            self.wait(lambda: bool(near.send_slots))
            if place == len(wanted) or len(near.send_slots) == 1:
                request = replace(request, signaled=True)
            if request.opcode in TAKING_ENTRY and far.free_receives <= 0:
                self._find_receive(far)
            length = min(request.length, self.shape.longest)
            sender.post(replace(request, length=length))

    def _find_receive(self, far: End) -> None:
        """See to a receive for one more message, unless its sender waits for it anyway."""
        waits = self.shape.patient and self.shape.kind in RELIABLE
        while not far.post_receives(1) and not waits:
            self.wait(lambda: bool(far.receive_slots))

    def settle(self) -> None:
        """Wait until everything has come back that must; Finding LOST if it does not."""
        self.require_whole()
        self.wait(self._is_settled)
        for end in self.distinct:
            end.check_written()

    def _is_settled(self) -> bool:
        for end in self.distinct:
            if len(end.inbound) > len(end.receives):
                end.post_receives(len(end.inbound) - len(end.receives))
        return not any(len(end.sends) or end.inbound for end in self.distinct)

    def wait(self, reached: Callable[[], bool]) -> None:
        """Take completions until something is reached; LOST when none comes for long."""
        patience_ns = int(self.world.patience_s * 1e9)
        deadline = now_ns() + patience_ns
        while not reached():
            if self.world.pump():
                deadline = now_ns() + patience_ns
            elif now_ns() > deadline:
                raise Finding(LOST, f"{self.name}: {self._missing()}")
            else:
                self.world.rest()

    def _missing(self) -> str:
        parts = [
            f"{end.name} waits for {[one.what for one in end.sends][:3]} and for "
            f"{len(end.inbound)} messages with {len(end.receives)} receives posted, state "
            f"{self.state(end)}"
            for end in self.distinct
        ]
        return f"nothing has come back for {self.world.patience_s:g} s: " + "; ".join(parts)

    # Breaking and healing

    def state(self, end: End) -> int:
        """Ask for the state of an end's queue pair."""
        found = self.world.call("query_qp", lambda: end.qp.query(_STATE))
        assert found is not None
        return found[0].qp_state

    def expect_state(self, end: End, wanted: int) -> None:
        """Compare the state of an end's queue pair."""
        found = self.state(end)
        if found != wanted:
            raise Finding(WRONG, f"{end.name} is in state {found} instead of {wanted}")

    def break_up(self) -> None:
        """Take the ends to ERR with requests out; markers tell when send queues are through."""
        self.require_whole()
        self.broken = True
        for end in self.distinct:
            end.sends.allow((OK, FLUSHED, RETRIES_EXCEEDED))
            end.receives.allow((OK, FLUSHED))
        for end, sender in zip(self.distinct, self.senders, strict=False):
            self.modify(end, ERR)
            if end.sends_requests:
                self.wait(partial(bool, end.send_slots))
                sender.post_refused(Request(OPCODES[self.shape.kind][0]), FLUSHED)
        for end in self.distinct:
            self.wait_for_flush(end)
            self.expect_state(end, ERR)
        while self.world.pump():
            pass

    def modify(self, end: End, state: int) -> None:
        """Take an end's queue pair to a state that needs no attributes."""
        attr = QPAttr(qp_state=state)
        self.world.call(f"modify_qp to {state}", lambda: end.qp.modify(attr, _STATE))

    def wait_for_flush(self, end: End) -> None:
        """Wait until an end that is in ERR has everything back that was in its own queues."""
        waiting = [end.sends] if end.srq is not None else [end.sends, end.receives]
        self.wait(lambda: not any(len(one) for one in waiting))

    def heal(self) -> None:
        """Take the ends through RESET and connect them anew."""
        if not self.broken:
            self.settle()
        for end in self.distinct:
            self.modify(end, RESET)
            end.forget()
        for sender in self.senders:
            sender.forget()
        self.connect()
        for end in self.distinct:
            self.expect_state(end, RTS)

    def close(self) -> None:
        """Destroy everything of it, whatever is out."""
        for end in self.distinct:
            end.close()
        if self._ah is not None:
            self.world.call("destroy_ah", self._ah.close)
        self.source.close()
