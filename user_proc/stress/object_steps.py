"""Steps about objects that carry no traffic: made, changed, queried, destroyed, by name.

A thing knows its parents: closing a parent closes its children first, as the library does.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shared.verbs_enums import ibv_mw_type, ibv_qp_attr_mask, ibv_rereg_mr_flags, ibv_srq_attr_mask
from user_proc.stress.client_world import World
from user_proc.stress.findings import WRONG, Finding, NothingToDo
from user_proc.stress.shapes import ERR, INIT, RC, RESET, UC, UD
from user_proc.verbs.addr import AH, GID, AHAttr
from user_proc.verbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from user_proc.verbs.device import DM, AllocDmAttr
from user_proc.verbs.libibverbs_enums import ibv_xrcd_init_attr_mask
from user_proc.verbs.mr import MR, MW
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.qp_messages import LEAST_MASKS
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

_OF_DOMAIN: Final = int(
    ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_FD
    | ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_OFLAGS
)
_STATE: Final = int(ibv_qp_attr_mask.IBV_QP_STATE)
_LIMIT: Final = int(ibv_srq_attr_mask.IBV_SRQ_LIMIT)
_CHANGE_ACCESS: Final = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS)
_TYPES: Final = (RC, UC, UD)
_MLID: Final = 0xC001


@dataclass(slots=True)
class Thing:
    """An object, what it is made on, and what the model knows of it."""

    kind: str
    made: Any
    parents: tuple["Thing", ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def thing(world: World, name: str, *kinds: str) -> Thing:
    """Return a thing of one of the kinds; NothingToDo if there is none."""
    found = world.one(name, Thing)
    if found.kind not in kinds:
        raise NothingToDo(f"{name} is a {found.kind}")
    return found


def children(world: World, parent: Thing) -> list[str]:
    """Name the things made on a thing."""
    return [
        name
        for name, one in world.things.items()
        if isinstance(one, Thing) and parent in one.parents
    ]


def _keep(
    world: World, name: str, kind: str, make: Callable[[], Any], *parents: Thing, **facts: Any
) -> None:
    made = world.call(f"create {kind}", make)
    world.keep(name, Thing(kind, made, parents, facts))


def make_pd(world: World, name: str) -> None:
    """Allocate a protection domain."""
    world.require_free(name)
    _keep(world, name, "pd", lambda: PD(world.context))


def make_mr(world: World, name: str, pd: str, length: int, access: int, private: int) -> None:
    """Register memory of an arena, or of the process's own."""
    world.require_free(name)
    domain = thing(world, pd, "pd")
    own = mmap.mmap(-1, length + 8) if private else None
    # Of the process's own memory even an odd address is legal.
    address = None if own is None else ctypes.addressof(ctypes.c_char.from_buffer(own)) + 5
    _keep(
        world, name, "mr", lambda: MR(domain.made, length, access, address), domain,
        memory=own, length=length,
    )  # fmt: skip


def rereg(world: World, name: str, access: int) -> None:
    """Change a region's rights."""
    region = thing(world, name, "mr").made
    world.call("rereg_mr", lambda: region.rereg(_CHANGE_ACCESS, access=access))


def make_mw(world: World, name: str, pd: str, second: int) -> None:
    """Allocate a memory window."""
    world.require_free(name)
    domain = thing(world, pd, "pd")
    kind = ibv_mw_type.IBV_MW_TYPE_2 if second else ibv_mw_type.IBV_MW_TYPE_1
    _keep(world, name, "mw", lambda: MW(domain.made, int(kind)), domain)


def make_channel(world: World, name: str) -> None:
    """Make a completion channel."""
    world.require_free(name)
    _keep(world, name, "channel", lambda: CompChannel(world.context))


def make_cq(world: World, name: str, cqe: int, channel: str, extended: int) -> None:
    """Create a completion queue of either kind."""
    world.require_free(name)
    parent = thing(world, channel, "channel") if channel else None
    on = None if parent is None else parent.made
    parents = () if parent is None else (parent,)
    if extended:
        attr = CqInitAttrEx(cqe=cqe, channel=on)
        _keep(world, name, "cq", lambda: CQEX(world.context, attr), *parents)
    else:
        _keep(world, name, "cq", lambda: CQ(world.context, cqe, None, on), *parents)


def resize(world: World, name: str, cqe: int) -> None:
    """Have another size of a completion queue nothing lies in."""
    queue = thing(world, name, "cq").made
    if not isinstance(queue, CQ):
        raise NothingToDo("a CQEX is not resized")
    world.call("resize_cq", lambda: queue.resize(cqe))
    if queue.cqe < cqe:
        raise Finding(WRONG, f"resize_cq to {cqe} gave {queue.cqe}")


def arm(world: World, name: str, solicited: int) -> None:
    """Ask for an event of a queue to which nothing comes."""
    queue = thing(world, name, "cq").made
    world.call("req_notify", lambda: queue.req_notify(bool(solicited)))


def make_srq(world: World, name: str, pd: str, depth: int) -> None:
    """Create a shared receive queue."""
    world.require_free(name)
    domain = thing(world, pd, "pd")
    init = SrqInitAttr(SrqAttr(depth, 1))
    _keep(world, name, "srq", lambda: SRQ(domain.made, init), domain, depth=depth)


def limit(world: World, name: str, value: int) -> None:
    """Arm the limit event of a shared queue."""
    one = thing(world, name, "srq")
    most = one.made.query().max_wr
    attr = SrqAttr(srq_limit=value)
    refusal = (22,) if value > most else ()
    world.call("modify_srq", lambda: one.made.modify(attr, _LIMIT), *refusal)


def make_qp(world: World, name: str, pd: str, cq: str, kind: int, srq: str) -> None:
    """Create a queue pair."""
    world.require_free(name)
    domain, queue = thing(world, pd, "pd"), thing(world, cq, "cq")
    shared = thing(world, srq, "srq") if srq else None
    parents = (domain, queue) if shared is None else (domain, queue, shared)
    init = QPInitAttr(
        _TYPES[kind], scq=queue.made, rcq=queue.made,
        srq=None if shared is None else shared.made, cap=QPCap(4, 4, 1, 1),
    )  # fmt: skip
    _keep(
        world, name, "qp", lambda: QP(domain.made, init), *parents, state=RESET, type=_TYPES[kind],
        groups=set(),
    )  # fmt: skip


def move_qp(world: World, name: str, way: int) -> None:
    """Take a queue pair a step on, or to ERR or RESET; the model knows which steps there are."""
    one = thing(world, name, "qp")
    qp, state = one.made, one.facts["state"]
    attr = QPAttr()
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.ah_attr, attr.dest_qp_num = AHAttr(dlid=world.lid), qp.qp_num
    target = (1, 2, 3, ERR, RESET)[way]
    if target in (ERR, RESET):
        allowed = not (target == ERR and state == RESET)
        step = QPAttr(qp_state=target)
        call: Callable[[], None] = lambda: qp.modify(step, _STATE)  # noqa: E731
    else:
        allowed = state == target - 1 or state == target == INIT
        attr.qp_state = target
        mask = LEAST_MASKS[one.facts["type"]][target]
        call = lambda: qp.modify(attr, mask)  # noqa: E731
    world.call(f"modify_qp {state} to {target}", call, *(() if allowed else (22,)))
    if allowed:
        one.facts["state"] = target
    found = world.call("query_qp", lambda: qp.query(_STATE))
    if found is not None and found[0].qp_state != one.facts["state"]:
        raise Finding(
            WRONG, f"{name} is in state {found[0].qp_state} instead of {one.facts['state']}"
        )


def join_group(world: World, name: str, number: int, leave: int) -> None:
    """Attach a queue pair to a multicast group, or detach it."""
    one = thing(world, name, "qp")
    gid, groups = GID(f"ff12:0000:0000:0000:0000:0000:0000:000{number}"), one.facts["groups"]
    is_ud = one.facts["type"] == UD
    if leave:
        refusal = () if is_ud and number in groups else (22,)
        world.call("detach_mcast", lambda: one.made.detach_mcast(gid, _MLID), *refusal)
        groups.discard(number)
        return
    # A group takes so many queue pairs only, those of the other clients among them.
    refusals = (0, 12) if is_ud else (22,)
    joined = world.call("attach_mcast", lambda: _joined(one.made, gid), *refusals)
    if joined:
        groups.add(number)


def _joined(qp: QP, gid: GID) -> bool:
    qp.attach_mcast(gid, _MLID)
    return True


def make_ah(world: World, name: str, pd: str) -> None:
    """Create an address handle."""
    world.require_free(name)
    domain = thing(world, pd, "pd")
    path = AHAttr(dlid=world.lid, port_num=1)
    _keep(world, name, "ah", lambda: AH(domain.made, attr=path), domain)


def make_xrcd(world: World, name: str) -> None:
    """Open an XRC domain of its own."""
    world.require_free(name)
    attr = XRCDInitAttr(_OF_DOMAIN, os.O_CREAT, -1)
    _keep(world, name, "xrcd", lambda: XRCD(world.context, attr))


def make_dm(world: World, name: str, length: int) -> None:
    """Allocate memory of the device, unless others have it all; store and load in it."""
    world.require_free(name)
    attr = AllocDmAttr(length)
    made = world.call("alloc_dm", lambda: DM(world.context, attr), 0, 12)
    if made is None:
        return
    world.keep(name, Thing("dm", made))
    data = os.urandom(min(length, 256))
    world.call("copy_to_dm", lambda: made.copy_to_dm(0, data, len(data)))
    back = world.call("copy_from_dm", lambda: made.copy_from_dm(0, len(data)))
    if back != data:
        raise Finding("corrupt", f"{name}: device memory gives {back!r} for {data!r}")


def query(world: World, port: int) -> None:
    """Query device, port and GID."""
    attr = world.call("query_port", lambda: world.context.query_port(port))
    if attr is not None and port == 1 and attr.lid != world.lid:
        raise Finding(WRONG, f"the port's LID is {attr.lid}, and was {world.lid}")
    world.call("query_device", world.context.query_device)
    world.call("query_gid", lambda: world.context.query_gid(port, 0))


def close(world: World, name: str) -> None:
    """Destroy a thing and what is made on it; one in a multicast group is refused first."""
    one = world.one(name, Thing)
    strike(world, name, one)
    world.call(f"destroy {one.kind}", one.made.close)


def strike(world: World, name: str, one: Thing) -> None:
    """Let the model forget a thing and everything made on it, leaving groups before."""
    for child in children(world, one):
        found = world.things.get(child)
        if isinstance(found, Thing):
            strike(world, child, found)
    for number in one.facts.get("groups", ()):
        gid = GID(f"ff12:0000:0000:0000:0000:0000:0000:000{number}")
        world.call("detach_mcast", lambda: one.made.detach_mcast(gid, _MLID))  # noqa: B023
    world.things.pop(name, None)
