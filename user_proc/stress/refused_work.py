"""Requests that must fail: what is wrong with each, and what both ends see of it.

The requester's table of the reference: the order of checks decides which error it is.

Spec: docs/engine.md, responder: the order of checks; UC; datagrams.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from shared.verbs_enums import ibv_qp_attr_mask
from user_proc.stress.connection import Connection
from user_proc.stress.connection_end import End
from user_proc.stress.findings import NothingToDo
from user_proc.stress.ledger import (
    FLUSHED,
    LENGTH_ERROR,
    LOCAL_ACCESS,
    NOT_READY_EXCEEDED,
    OK,
    PROTECTION_ERROR,
    REMOTE_ACCESS,
    REMOTE_INVALID,
)
from user_proc.stress.sending import Request
from user_proc.stress.shapes import (
    ADD,
    ALL_ACCESS,
    ATOMICS,
    ERR,
    LOCAL_WRITE,
    QKEY,
    READ,
    RTS,
    SEND,
    SQE,
    SWAP,
    WRITE,
    WRITE_IMM,
)
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QPAttr
from user_proc.verbs.wr import SGE, SendWR

_CONNECTED: Final = ("rc", "xrc")
_ACCESS: Final = int(ibv_qp_attr_mask.IBV_QP_ACCESS_FLAGS)
_UNKNOWN: Final = 0x0100_0000  # of a key: an index nobody has
_KEYED: Final = (WRITE, READ, SWAP, ADD)
_RESULTS: Final = (READ, SWAP, ADD)


@dataclass(frozen=True, slots=True)
class Scene:
    """A request about to be spoiled: the ends, and where regions for it are closed."""

    connection: Connection
    near: End
    far: End
    stack: ExitStack

    def region(self, end: End, access: int, *, foreign: bool = False) -> MR:
        """Register an end's memory once more, for as long as the scene lasts."""
        world = end.world
        domain = world.pd
        if foreign:
            made = world.call("alloc_pd", lambda: PD(world.context))
            assert made is not None
            domain = made
            self.stack.callback(world.call, "dealloc_pd", domain.close)
        region = world.call(
            "reg_mr", lambda: MR(domain, end.region.length, access, end.region.base)
        )
        assert region is not None
        self.stack.callback(world.call, "dereg_mr", region.close)
        return region


Prepare = Callable[[Scene], Callable[[SendWR], None]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A way to fail: `status` of the request, `entry` of the receive it takes, if it takes one.

    `harms_peer`: the peer's queue pair goes to ERR. A request that is lost has `status` 0.
    """

    kinds: tuple[str, ...]
    opcodes: tuple[int, ...]
    status: int
    prepare: Prepare
    entry: int | None = None
    harms_peer: bool = False


def _own(change: Callable[[Scene, SGE], SGE]) -> Prepare:
    """Have another element than the good one."""

    def prepare(scene: Scene) -> Callable[[SendWR], None]:
        def spoil(wr: SendWR) -> None:
            wr.sg_list = [change(scene, wr.sg_list[0])]

        return spoil

    return prepare


def _theirs(change: Callable[[Scene, int, int, int], tuple[int, int]]) -> Prepare:
    """Name other memory of the peer's than the good: key and address."""

    def prepare(scene: Scene) -> Callable[[SendWR], None]:
        def spoil(wr: SendWR) -> None:
            key, address = change(scene, scene.far.region.mr.rkey, wr.remote_addr, wr.opcode)
            if wr.opcode in ATOMICS:
                wr.set_wr_atomic(key, address, 1, 1)
            else:
                wr.set_wr_rdma(key, address)
            if scene.far.srqn:
                wr.set_qp_type_xrc(scene.far.srqn)

        return spoil

    return prepare


def _right_of(opcode: int) -> int:
    rights = {WRITE: 2, READ: 4}
    return rights.get(opcode, 8)


def _without_right(scene: Scene, key: int, address: int, opcode: int) -> tuple[int, int]:
    return scene.region(scene.far, ALL_ACCESS & ~_right_of(opcode)).rkey, address


def _too_long(scene: Scene) -> Callable[[SendWR], None]:
    def spoil(wr: SendWR) -> None:
        slot, (first,) = scene.near.shape.slot, wr.sg_list
        wr.sg_list = [SGE(first.addr, slot, first.lkey), SGE(first.addr, 8, first.lkey)]
        wr.num_sge = 2

    return spoil


def _as_it_is(scene: Scene) -> Callable[[SendWR], None]:
    return lambda wr: None


def _no_receive(scene: Scene) -> Callable[[SendWR], None]:
    if len(scene.far.receives) or scene.near.shape.patient:
        raise NothingToDo("there are receives, or the sender waits for one")
    return _as_it_is(scene)


def _no_right(scene: Scene) -> Callable[[SendWR], None]:
    """Take every right from the peer's queue pair."""
    far = scene.far
    attr = QPAttr()
    attr.qp_access_flags = LOCAL_WRITE
    far.world.call("modify_qp, rights", lambda: far.qp.modify(attr, _ACCESS))
    return _as_it_is(scene)


def _wrong_qkey(scene: Scene) -> Callable[[SendWR], None]:
    def spoil(wr: SendWR) -> None:
        assert wr.ah is not None
        wr.set_wr_ud(wr.ah, scene.far.qp.qp_num, QKEY ^ 1)

    return spoil


_OWN: Final = {
    "own key unknown": _own(lambda scene, one: SGE(one.addr, one.length, one.lkey ^ _UNKNOWN)),
    "own key foreign": _own(
        lambda scene, one: SGE(
            one.addr, one.length, scene.region(scene.near, ALL_ACCESS, foreign=True).lkey
        )
    ),
    "own beyond": _own(
        lambda scene, one: SGE(one.addr + scene.near.region.length, one.length, one.lkey)
    ),
}
_THEIRS: Final = {
    "key unknown": _theirs(lambda scene, key, address, opcode: (key ^ _UNKNOWN, address)),
    "key stale": _theirs(lambda scene, key, address, opcode: (key ^ 1, address)),
    "key foreign": _theirs(
        lambda scene, key, address, opcode: (
            scene.region(scene.far, ALL_ACCESS, foreign=True).rkey,
            address,
        )
    ),
    "key beyond": _theirs(
        lambda scene, key, address, opcode: (key, address + scene.far.region.length)
    ),
    "key without the right": _theirs(_without_right),
}

#: By name, as steps have it.
REFUSALS: Final[dict[str, Refusal]] = {
    **{
        name: Refusal(_CONNECTED, (SEND, *_KEYED), PROTECTION_ERROR, prepare)
        for name, prepare in _OWN.items()
    },
    **{
        f"{name}, unreliable": Refusal(("uc", "ud"), (SEND,), PROTECTION_ERROR, prepare)
        for name, prepare in _OWN.items()
    },
    "own key read-only": Refusal(
        _CONNECTED,
        _RESULTS,
        PROTECTION_ERROR,
        _own(lambda scene, one: SGE(one.addr, one.length, scene.region(scene.near, 0).lkey)),
    ),
    **{
        name: Refusal(_CONNECTED, _KEYED, REMOTE_ACCESS, prepare, harms_peer=True)
        for name, prepare in _THEIRS.items()
    },
    "key unknown, with immediate": Refusal(
        _CONNECTED, (WRITE_IMM,), REMOTE_ACCESS, _THEIRS["key unknown"], LOCAL_ACCESS, True
    ),
    "too long": Refusal(_CONNECTED, (SEND,), REMOTE_INVALID, _too_long, LENGTH_ERROR, True),
    "no receive": Refusal(_CONNECTED, (SEND,), NOT_READY_EXCEEDED, _no_receive),
    "no right of the queue pair": Refusal(
        _CONNECTED, _KEYED, REMOTE_INVALID, _no_right, harms_peer=True
    ),
    **{
        f"{name}, lost": Refusal(("uc",), (WRITE,), OK, prepare)
        for name, prepare in _THEIRS.items()
    },
    "wrong Q_Key, lost": Refusal(("ud",), (SEND,), OK, _wrong_qkey),
}


def be_refused(
    connection: Connection, direction: int, name: str, choice: int, trailing: int
) -> None:
    """Post a request that must fail and some behind it, and see what both ends make of it."""
    refusal = REFUSALS[name]
    if connection.shape.kind not in refusal.kinds:
        raise NothingToDo(f"{name} is not for {connection.shape.kind}")
    near, far, sender = connection.ends_of(direction)
    connection.settle()
    opcode = refusal.opcodes[choice % len(refusal.opcodes)]
    with ExitStack() as stack:
        scene = Scene(connection, near, far, stack)
        spoil = refusal.prepare(scene)
        if refusal.prepare is not _no_receive and far.free_receives <= 0:
            far.post_receives(1)
        connection.broken = refusal.status != OK
        request = Request(opcode, 8)
        sender.post_refused(request, refusal.status, spoil)
        _expect(connection, near, far, refusal)
        room = min(trailing, len(near.send_slots)) if connection.broken else 0
        for _ in range(room):
            sender.post_refused(Request(SEND, 8), FLUSHED)
        _see(connection, near, far, refusal)


def expect_harmed_peer(connection: Connection, near: End, far: End) -> None:
    """Say that both ends of a connection go to ERR, with what they have out."""
    connection.broken = True
    for end in (near, far):
        if end.srq is None:
            end.receives.allow((FLUSHED,), only=True)


def _expect(connection: Connection, near: End, far: End, refusal: Refusal) -> None:
    """Say what becomes of the receives of both ends."""
    if not connection.broken:
        return
    if connection.shape.kind in _CONNECTED and near.srq is None:
        near.receives.allow((FLUSHED,), only=True)
    if refusal.harms_peer and far.srq is None:
        far.receives.allow((FLUSHED,), only=True)
    if refusal.entry is not None:
        next(iter(far.receives)).allowed = frozenset((refusal.entry,))


def _see(connection: Connection, near: End, far: End, refusal: Refusal) -> None:
    """Wait for what must come back, and look at the states."""
    before = len(far.receives)
    if not connection.broken:
        connection.settle()
    elif connection.shape.kind in _CONNECTED:
        connection.wait_for_flush(near)
    else:
        connection.wait(partial(_is_empty, near))
    if refusal.harms_peer:
        connection.wait_for_flush(far)
    if refusal.entry is not None and far.srq is not None:
        connection.wait(lambda: len(far.receives) < before)
    unreliable = SQE if connection.broken else RTS
    connection.expect_state(near, ERR if connection.shape.kind in _CONNECTED else unreliable)
    connection.expect_state(far, ERR if refusal.harms_peer else RTS)


def _is_empty(end: End) -> bool:
    return not len(end.sends)
