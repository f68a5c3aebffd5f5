"""Steps that load a connection in less usual ways.

A drained send queue, a completion queue that changes its size, solicited events, memory windows,
limits of shared queues, multicast.
"""

import os
import select
from collections.abc import Callable
from functools import partial
from typing import Final

from shared.clock import now_ns
from shared.verbs_enums import ibv_event_type, ibv_mw_type, ibv_qp_attr_mask, ibv_srq_attr_mask
from user_proc.stress.client_world import World
from user_proc.stress.connection import Connection
from user_proc.stress.connection_end import AREA_TARGET, End
from user_proc.stress.findings import LOST, WRONG, Finding, NothingToDo
from user_proc.stress.ledger import OK, REMOTE_ACCESS, Posted
from user_proc.stress.refused_work import expect_harmed_peer
from user_proc.stress.sending import SIGNALED, Remote, Request, Sender
from user_proc.stress.shapes import (
    BIND,
    LOCAL_INV,
    READ,
    REMOTE,
    RTS,
    SEND,
    SEND_INV,
    SQD,
    WRITE,
)
from user_proc.stress.traffic_steps import requests_of
from user_proc.verbs.addr import AH, GID, AHAttr, GlobalRoute
from user_proc.verbs.base import inc_rkey
from user_proc.verbs.completion import WC
from user_proc.verbs.cq import CQ
from user_proc.verbs.mr import MW, MWBind, MWBindInfo
from user_proc.verbs.srq import SrqAttr
from user_proc.verbs.wr import SendWR

_STATE: Final = int(ibv_qp_attr_mask.IBV_QP_STATE)
_LIMIT: Final = int(ibv_srq_attr_mask.IBV_SRQ_LIMIT)
_LIMIT_REACHED: Final = int(ibv_event_type.IBV_EVENT_SRQ_LIMIT_REACHED)
_TYPE_2: Final = int(ibv_mw_type.IBV_MW_TYPE_2)
_TYPE_1: Final = int(ibv_mw_type.IBV_MW_TYPE_1)
_MULTICAST_QPN: Final = 0xFF_FFFF
_MLID: Final = 0xC002


def _whole(world: World, name: str, *kinds: str) -> Connection:
    connection = world.one(name, Connection)
    connection.require_whole()
    if kinds and connection.shape.kind not in kinds:
        raise NothingToDo(f"not for {connection.shape.kind}")
    return connection


def drain(world: World, name: str, direction: int, requests: list[list[int]]) -> None:
    """Stop a send queue by SQD with requests out, post more, and let it go on."""
    connection = _whole(world, name)
    near, _, _ = connection.ends_of(direction)
    connection.modify(near, SQD)
    room = len(near.send_slots)
    wanted = requests_of(requests)[: max(1, room - 1)]
    if room > 1:
        connection.burst(direction, wanted)
    connection.expect_state(near, SQD)
    # The device goes on only when what had been started is done.
    connection.wait(lambda: not _is_draining(near))
    connection.modify(near, RTS)
    connection.settle()


def _is_draining(end: End) -> bool:
    found = end.world.call("query_qp", lambda: end.qp.query(_STATE))
    return found is None or bool(found[0].sq_draining)


def resize_loaded(world: World, name: str, more: int) -> None:
    """Change the size of a connection's completion queue while completions come."""
    connection = _whole(world, name)
    queue = connection.source.cq
    if not isinstance(queue, CQ):
        raise NothingToDo("a CQEX is not resized")
    cqe = connection.most_completions + more
    world.call("resize_cq", lambda: queue.resize(cqe))


def solicited_event(world: World, name: str) -> None:
    """Arm for solicited completions: a message that is none raises no event, one that is does."""
    connection = _whole(world, name)
    source = connection.source
    channel = source.channel
    if channel is None:
        raise NothingToDo(f"{name} has no channel")
    connection.settle()
    source.arm(solicited_only=True)
    connection.burst(0, [Request(SEND, 16)])
    connection.settle()
    if select.select([channel.fd], [], [], 0)[0]:
        raise Finding(WRONG, f"{name}: an event for a message that was not solicited")
    connection.burst(0, [Request(SEND, 16, solicited=True)])
    source.take_event(world.patience_s)
    connection.settle()


# Memory windows


def _post_own(connection: Connection, end: End, what: str, post: Callable[[int], None]) -> None:
    """Post a request that concerns nobody else, and wait until it has succeeded."""
    connection.wait(partial(bool, end.send_slots))
    slot = end.send_slots.popleft()

    def done(wc: WC | None) -> None:
        end.send_slots.append(slot)

    number = end.sends.post(Posted(what, done, frozenset((OK,))))
    end.world.call(what, lambda: post(number))
    connection.wait(lambda: not len(end.sends))


class _Window:
    """A window bound to the area an end's peer writes to."""

    def __init__(self, connection: Connection, end: End, second: bool) -> None:
        self._connection, self._end, self._second = connection, end, second
        world, region = end.world, end.region
        kind = _TYPE_2 if second else _TYPE_1
        made = world.call("alloc_mw", lambda: MW(world.pd, kind))
        assert made is not None
        self._mw: Final = made
        length = end.shape.depth * end.shape.slot
        self._info: Final = MWBindInfo(region.mr, region.at(AREA_TARGET, 0), length, REMOTE)
        self.rkey = 0

    def bind(self) -> None:
        """Bind it, in the way of its type."""
        qp, info = self._end.qp, self._info
        if not self._second:
            _post_own(
                self._connection, self._end, "bind_mw",
                lambda number: qp.bind_mw(self._mw, MWBind(info, SIGNALED, number)),
            )  # fmt: skip
            self.rkey = self._mw.rkey
            return
        wr = SendWR(opcode=BIND)
        wr.set_bind(self._mw, info, inc_rkey(self._mw.rkey))

        def post(number: int) -> None:
            wr.wr_id = number
            qp.post_send(wr)

        _post_own(self._connection, self._end, "BIND_MW", post)
        self.rkey = wr.rkey

    def unbind(self) -> None:
        """Take it back oneself, in the way of its type."""
        qp = self._end.qp
        if not self._second:
            nothing = MWBindInfo(self._info.mr, 0, 0, 0)
            _post_own(
                self._connection, self._end, "bind_mw of nothing",
                lambda number: qp.bind_mw(self._mw, MWBind(nothing, SIGNALED, number)),
            )  # fmt: skip
            return
        wr = SendWR(opcode=LOCAL_INV, imm_data=self.rkey)

        def post(number: int) -> None:
            wr.wr_id = number
            qp.post_send(wr)

        _post_own(self._connection, self._end, "LOCAL_INV", post)

    def close(self) -> None:
        """Deallocate it, bound or not."""
        self._end.world.call("dealloc_mw", self._mw.close)


def window(world: World, name: str, direction: int, second: int, how: int) -> None:
    """Write and read by a window, have it taken back, and perhaps use its key once more.

    `how`: 0 its owner takes it back, 1 the peer does by SEND WITH INV, 2 it is deallocated bound;
    3 is 0 with an access afterwards, which must be refused.
    """
    connection = _whole(world, name, "rc")
    near, far, _ = connection.ends_of(direction)
    connection.settle()
    bound = _Window(connection, far, bool(second))
    bound.bind()
    by_window = Sender(near, far, Remote(far.region.word(0), bound.rkey, far.qp.qp_num))
    by_window.post(Request(WRITE, min(64, near.shape.slot)))
    by_window.post(Request(READ, min(64, near.shape.slot)))
    connection.settle()
    if how in (0, 3):
        bound.unbind()
    elif how == 1 and second:
        connection.burst(direction, [Request(SEND_INV, 16, invalidates=bound.rkey)])
        connection.settle()
    if how == 3:
        if far.free_receives <= 0:
            far.post_receives(1)
        expect_harmed_peer(connection, near, far)
        by_window.post_refused(Request(WRITE, 8), REMOTE_ACCESS)
        connection.wait_for_flush(near)
        connection.wait_for_flush(far)
    bound.close()


# Events of shared queues, multicast


def reach_limit(world: World, name: str, limit: int) -> None:
    """Arm the limit of an end's shared queue, and go below it."""
    connection = _whole(world, name, "rc")
    _, far, _ = connection.ends_of(0)
    srq = far.srq
    if srq is None:
        raise NothingToDo(f"{name} has no shared queue")
    connection.settle()
    limit = min(limit, far.shape.depth)
    while far.post_receives(1):
        pass
    attr = SrqAttr(srq_limit=limit)
    world.call("modify_srq", lambda: srq.modify(attr, _LIMIT))
    for _ in range(len(far.receives) - limit + 1):
        connection.burst(0, [Request(SEND, 8)])
        connection.wait(partial(_nothing_inbound, far))
    _take_limit_event(world, name)
    found = world.call("query_srq", srq.query)
    if found is not None and found.srq_limit:
        raise Finding(WRONG, f"{name}: the limit is {found.srq_limit} after its event")
    connection.settle()


def _nothing_inbound(end: End) -> bool:
    return not end.inbound


def _take_limit_event(world: World, name: str) -> None:
    """Take events until the one that must come; others are of queue pairs that were broken."""
    descriptor = world.context.async_fd
    deadline = now_ns() + int(world.patience_s * 1e9)
    while select.select([descriptor], [], [], max(0, deadline - now_ns()) / 1e9)[0]:
        event = world.context.get_async_event()
        event.ack()
        if event.event_type == _LIMIT_REACHED:
            return
    raise Finding(LOST, f"{name}: no SRQ_LIMIT_REACHED in {world.patience_s:g} s")


def multicast(world: World, name: str, count: int) -> None:
    """Join a group of this client's own, be sent to by it, and leave."""
    connection = _whole(world, name, "ud")
    near, far, _ = connection.ends_of(0)
    connection.settle()
    gid = GID(f"ff12:0000:0000:0000:0000:0001:{os.getpid() >> 16:04x}:{os.getpid() & 0xFFFF:04x}")
    joined = world.call("attach_mcast", lambda: _attached(far, gid), 0, 12)
    if not joined:
        raise NothingToDo("the table of groups is full")
    route = GlobalRoute(dgid=gid, sgid_index=0)
    path = AHAttr(dlid=_MLID, port_num=1, is_global=1, gr=route)
    handle = world.call("create_ah", lambda: AH(world.pd, attr=path))
    sender = Sender(near, far, Remote(0, 0, _MULTICAST_QPN, 0, handle))
    for _ in range(min(count, near.shape.depth)):
        if far.free_receives > 0 or far.post_receives(1):
            sender.post(Request(SEND, 24))
    connection.settle()
    world.call("detach_mcast", lambda: far.qp.detach_mcast(gid, _MLID))
    if handle is not None:
        world.call("destroy_ah", handle.close)


def _attached(end: End, gid: GID) -> bool:
    end.qp.attach_mcast(gid, _MLID)
    return True
