"""Handles that are not one's own, of another kind, or of what is gone: raw, in every verb.

Every field of every verb that names an object is given every handle it must not take: those of
another process, of another context of this process, of every other kind, of an object that was
destroyed, and numbers that name nothing. All are EINVAL, and nothing changes anywhere.
"""

import errno
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from shared import verb_codes as codes
from shared.verb_messages import (
    AllocMw,
    CreateAh,
    CreateQp,
    CreateSrq,
    DmBytes,
    DmRange,
    ImportMr,
    ModifySrq,
    Multicast,
    Object,
    RegDmMr,
    RegMr,
    ReregMr,
    ResizeCq,
    VerbMessage,
)
from shared.verb_reasons import VerbReason as Reason
from shared.verbs_enums import ibv_access_flags
from tests.end_to_end.conftest import READY_USER
from tests.end_to_end.verbs_holdings import everything_held, objects_held, wait_for_nothing_more
from tests.end_to_end.verbs_raw import RawVerbs
from tests.end_to_end.verbs_things import GROUP, MLID, Things
from tests.kernel_proc.driver.queue_user import RC, XRC_RECV, attributes
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs.device import DM, AllocDmAttr, Context
from user_proc.verbs.pd import PD

pytestmark = pytest.mark.processes

NAME = f"handles-{uuid.uuid4().hex[:8]}"
ROOT = Path(__file__).resolve().parents[2]
ZERO_BASED = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)
NOBODY = (0x7FFF_FFFF, 0xFFFF_FFFF)
APART = 300  # how far the handles of each context lie from those of the next

#: Another process that has one of everything, and says which handles they have.
OTHER = """
import sys
from tests.end_to_end.test_verbs_handles import handles_of, shifted
from tests.end_to_end.verbs_things import GROUP, MLID, Things
from user_proc.verbs import enums as e
from user_proc.verbs.device import Context
with Context(name="mthca0", kernel=sys.argv[1]) as context:
    things = shifted(context, 2)
    print(*(f"{kind}={handle}" for kind, handle in handles_of(things).items()), flush=True)
    sys.stdin.readline()
    assert things.init.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_INIT
    assert things.srq.query().max_wr == 8
    things.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=0)
    things.ud.detach_mcast(GROUP, MLID)
print("closed", flush=True)
"""


def shifted(context: Context, place: int) -> Things:
    """One of everything, with handles that no other context has."""
    for _ in range(APART * place):
        PD(context).close()
    return with_memory(Things(context))


def with_memory(things: Things) -> Things:
    """Add memory of the device."""
    things.dm = DM(things.context, AllocDmAttr(64))
    return things


def handles_of(things: Things) -> dict[str, int]:
    """One handle of each kind."""
    return {
        "PD": things.pd.handle, "MR": things.mr.handle, "MW": things.mw.handle,
        "AH": things.ah.handle,
        "CQ": things.cq.handle, "SRQ": things.srq.handle, "QP": things.init.handle,
        "XRCD": things.xrcd.handle, "DM": things.dm.handle,
    }  # fmt: skip


class Field(NamedTuple):
    """A field that names an object: of which kind, in what message; whether 0 is none there."""

    name: str
    kind: str
    code: int
    message: Callable[[int, dict[str, int]], VerbMessage]
    optional: bool = False


def _object(code: int, kind: str, optional: bool = False) -> Field:
    return Field(codes.VERB_NAMES[code], kind, code, lambda handle, _: Object(handle), optional)


def _srq(handle: int, own: dict[str, int], field: str) -> CreateSrq:
    parts = {"pd": own["PD"], "xrcd": own["XRCD"], "cq": own["CQ"]} | {field: handle}
    return CreateSrq(parts["pd"], 1, 4, 1, parts["xrcd"], parts["cq"], 0, 0)


def _qp(handle: int, own: dict[str, int], field: str, kind: int = RC) -> CreateQp:
    parts = {
        "pd": own["PD"], "send_cq": own["CQ"], "receive_cq": own["CQ"], "srq": 0, "xrcd": 0,
    } | {field: handle}  # fmt: skip
    return CreateQp(kind, *parts.values(), 1, 1, 1, 1, 0, 0, 0, 0, 0, 0)


FIELDS = [
    _object(codes.IOCTL_DEALLOC_PD, "PD"),
    _object(codes.IOCTL_DEREG_MR, "MR"),
    _object(codes.IOCTL_DEALLOC_MW, "MW"),
    _object(codes.IOCTL_DESTROY_AH, "AH"),
    _object(codes.IOCTL_DESTROY_CQ, "CQ"),
    _object(codes.IOCTL_QUERY_SRQ, "SRQ"),
    _object(codes.IOCTL_DESTROY_SRQ, "SRQ"),
    _object(codes.IOCTL_QUERY_QP, "QP"),
    _object(codes.IOCTL_DESTROY_QP, "QP"),
    _object(codes.IOCTL_CLOSE_XRCD, "XRCD"),
    _object(codes.IOCTL_GET_CQ_COMP_EVENT, "CQ", True),
    _object(codes.IOCTL_GET_CQ_ASYNC_EVENT, "CQ", True),
    _object(codes.IOCTL_GET_QP_ASYNC_EVENT, "QP", True),
    _object(codes.IOCTL_GET_SRQ_ASYNC_EVENT, "SRQ", True),
    Field("reg_mr", "PD", codes.IOCTL_REG_MR, lambda handle, _: RegMr(handle, 4096, 64, 4096, 0)),
    Field("rereg_mr", "MR", codes.IOCTL_REREG_MR, lambda handle, _: ReregMr(handle, 4, 0, 0, 0, 0)),
    Field("rereg_mr pd", "PD", codes.IOCTL_REREG_MR,
          lambda handle, own: ReregMr(own["MR"], 2, handle, 0, 0, 0)),
    _object(codes.IOCTL_IMPORT_PD, "PD"),
    Field("import_mr", "MR", codes.IOCTL_IMPORT_MR,
          lambda handle, own: ImportMr(own["PD"], handle)),
    Field("import_mr pd", "PD", codes.IOCTL_IMPORT_MR,
          lambda handle, own: ImportMr(handle, own["MR"])),
    _object(codes.IOCTL_IMPORT_DM, "DM"),
    _object(codes.IOCTL_FREE_DM, "DM"),
    Field("copy_to_dm", "DM", codes.IOCTL_COPY_TO_DM, lambda handle, _: DmBytes(handle, 0, b"x")),
    Field("copy_from_dm", "DM", codes.IOCTL_COPY_FROM_DM, lambda handle, _: DmRange(handle, 0, 1)),
    Field("reg_dm_mr", "DM", codes.IOCTL_REG_DM_MR,
          lambda handle, own: RegDmMr(own["PD"], handle, 0, 64, ZERO_BASED)),
    Field("reg_dm_mr pd", "PD", codes.IOCTL_REG_DM_MR,
          lambda handle, own: RegDmMr(handle, own["DM"], 0, 64, ZERO_BASED)),
    Field("alloc_mw", "PD", codes.IOCTL_ALLOC_MW, lambda handle, _: AllocMw(handle, 1)),
    Field("create_ah", "PD", codes.IOCTL_CREATE_AH,
          lambda handle, _: CreateAh(handle, 1, 1, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0)),
    Field("resize_cq", "CQ", codes.IOCTL_RESIZE_CQ, lambda handle, _: ResizeCq(handle, 3, 0, 0)),
    Field("modify_srq", "SRQ", codes.IOCTL_MODIFY_SRQ,
          lambda handle, _: ModifySrq(handle, 2, 0, 1)),
    Field("create_srq pd", "PD", codes.IOCTL_CREATE_SRQ, lambda h, own: _srq(h, own, "pd")),
    Field("create_srq xrcd", "XRCD", codes.IOCTL_CREATE_SRQ, lambda h, own: _srq(h, own, "xrcd")),
    Field("create_srq cq", "CQ", codes.IOCTL_CREATE_SRQ, lambda h, own: _srq(h, own, "cq")),
    Field("create_qp pd", "PD", codes.IOCTL_CREATE_QP, lambda h, own: _qp(h, own, "pd")),
    Field("create_qp send_cq", "CQ", codes.IOCTL_CREATE_QP, lambda h, own: _qp(h, own, "send_cq")),
    Field("create_qp receive_cq", "CQ", codes.IOCTL_CREATE_QP,
          lambda h, own: _qp(h, own, "receive_cq")),
    Field("create_qp srq", "SRQ", codes.IOCTL_CREATE_QP, lambda h, own: _qp(h, own, "srq"), True),
    Field("create_qp xrcd", "XRCD", codes.IOCTL_CREATE_QP,
          lambda h, own: _qp(h, own, "xrcd", XRC_RECV)),
    Field("modify_qp", "QP", codes.IOCTL_MODIFY_QP, lambda handle, _: attributes(handle, 1)),
    Field("attach_mcast", "QP", codes.IOCTL_ATTACH_MCAST,
          lambda handle, _: Multicast(handle, GROUP.raw, MLID)),
    Field("detach_mcast", "QP", codes.IOCTL_DETACH_MCAST,
          lambda handle, _: Multicast(handle, GROUP.raw, MLID)),
]  # fmt: skip


class World(NamedTuple):
    """This context's objects, and the handles it must not use."""

    things: Things
    raw: RawVerbs
    own: dict[str, int]
    gone: dict[str, int]
    neighbour: dict[str, int]
    stranger: dict[str, int]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with start_kernel(NAME, settings={"verifier": True}):
        nothing = everything_held(kernel_state(NAME))
        other = READY_USER.start(OTHER, NAME, stderr=None)
        assert other.stdout is not None
        assert other.stdin is not None
        stranger = dict(pair.split("=") for pair in other.stdout.readline().split())
        with (
            Context(name="mthca0", kernel=NAME) as context,
            Context(name="mthca0", kernel=NAME) as second,
        ):
            things, neighbour = shifted(context, 0), shifted(second, 1)
            dead = with_memory(Things(context))
            gone = handles_of(dead)
            dead.ud.detach_mcast(GROUP, MLID)
            for one in (dead.xrcd, dead.channel, dead.pd, dead.dm):
                one.close()
            session = context.session()
            yield World(
                things, RawVerbs(session.process, session.device), handles_of(things), gone,
                handles_of(neighbour), {kind: int(handle) for kind, handle in stranger.items()},
            )  # fmt: skip
            things.ud.detach_mcast(GROUP, MLID)
            neighbour.ud.detach_mcast(GROUP, MLID)
        assert other.communicate("\n", timeout=20)[0] == "closed\n"
        wait_for_nothing_more(NAME, nothing)


def bad_handles(field: Field, world: World) -> dict[str, tuple[int, Reason]]:
    """Every handle a field must not take, and what is said of it."""
    bad = {
        "destroyed": (world.gone[field.kind], Reason.NO_SUCH_OBJECT),
        "of another context": (world.neighbour[field.kind], Reason.NO_SUCH_OBJECT),
        "of another process": (world.stranger[field.kind], Reason.NO_SUCH_OBJECT),
    }
    bad |= {f"number {number:#x}": (number, Reason.NO_SUCH_OBJECT) for number in NOBODY}
    bad |= {
        f"of a {kind}": (handle, Reason.WRONG_KIND)
        for kind, handle in world.own.items()
        if kind != field.kind
    }
    return bad


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_handle_that_is_none(world: World, field: Field):
    before = objects_held(kernel_state(NAME))
    bad = bad_handles(field, world)
    assert len(bad) == 5 + 8
    assert len({handle for handle, _ in bad.values()}) == len(bad)
    for name, (handle, reason) in bad.items():
        answer = world.raw.ask(field.code, field.message(handle, world.own))
        assert answer[:3] == (errno.EINVAL, reason, handle), name
    if not field.optional:
        answer = world.raw.ask(field.code, field.message(0, world.own))
        assert answer.errno == errno.EINVAL
        assert answer.reason != Reason.NONE
    assert objects_held(kernel_state(NAME)) == before


def test_every_verb_that_names_an_object_is_there():
    asked = {field.code for field in FIELDS}
    without = {
        codes.IOCTL_OPEN_CONTEXT, codes.IOCTL_QUERY_DEVICE, codes.IOCTL_QUERY_PORT,
        codes.IOCTL_QUERY_GID, codes.IOCTL_QUERY_PKEY, codes.IOCTL_MODIFY_PORT,
        codes.IOCTL_ALLOC_PD, codes.IOCTL_CREATE_CQ, codes.IOCTL_OPEN_XRCD,
        codes.IOCTL_GET_CA_FATAL_EVENT, codes.IOCTL_GET_CA_PORT_EVENT,
        codes.IOCTL_QUERY_DEVICE_EX, codes.IOCTL_QUERY_CLOCK, codes.IOCTL_ALLOC_DM,
        codes.IOCTL_EXPORT_CONTEXT, codes.IOCTL_IMPORT_CONTEXT,
    }  # fmt: skip
    assert asked | without == set(codes.VERB_NAMES)
    print(f"{len(FIELDS)} fields, {13 * len(FIELDS)} handles")


#: What holds what: a destruction that is refused, and how many hold it.
BUSY = [
    ("PD", codes.IOCTL_DEALLOC_PD, Reason.IN_USE, 11),
    ("CQ", codes.IOCTL_DESTROY_CQ, Reason.IN_USE, 13),
    ("SRQ", codes.IOCTL_DESTROY_SRQ, Reason.IN_USE, 1),
    ("XRCD", codes.IOCTL_CLOSE_XRCD, Reason.IN_USE, 2),
    ("UD", codes.IOCTL_DESTROY_QP, Reason.STILL_ATTACHED, 1),
]


@pytest.mark.parametrize(("kind", "code", "reason", "users"), BUSY, ids=lambda row: str(row))
def test_what_is_in_use_is_busy(world: World, kind: str, code: int, reason: Reason, users: int):
    handle = world.things.ud.handle if kind == "UD" else world.own[kind]
    before = objects_held(kernel_state(NAME))
    answer = world.raw.ask(code, Object(handle))
    assert answer[:4] == (errno.EBUSY, reason, handle, users)
    assert objects_held(kernel_state(NAME)) == before


def test_nothing_can_be_destroyed_twice(world: World):
    with RawVerbs(world.raw.process).device as device:
        raw = RawVerbs(world.raw.process, device)
        pd = raw.good(codes.IOCTL_ALLOC_PD).handle
        address = world.things.mr.buf
        ah = CreateAh(pd, 1, 1, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0)
        made = [
            (raw.good(codes.IOCTL_CREATE_AH, ah).handle, codes.IOCTL_DESTROY_AH),
            (raw.good(codes.IOCTL_REG_MR, RegMr(pd, address, 64, address, 0)).handle,
             codes.IOCTL_DEREG_MR),
            (pd, codes.IOCTL_DEALLOC_PD),
        ]  # fmt: skip
        for handle, code in made:
            raw.good(code, Object(handle))
        before = objects_held(kernel_state(NAME))
        for handle, code in made:
            answer = raw.ask(code, Object(handle))
            assert answer[:3] == (errno.EINVAL, Reason.NO_SUCH_OBJECT, handle)
        assert objects_held(kernel_state(NAME)) == before
    gone = world.gone
    queues = [
        ("CQ", codes.IOCTL_DESTROY_CQ), ("SRQ", codes.IOCTL_DESTROY_SRQ),
        ("QP", codes.IOCTL_DESTROY_QP), ("XRCD", codes.IOCTL_CLOSE_XRCD),
    ]  # fmt: skip
    for kind, code in queues:
        answer = world.raw.ask(code, Object(gone[kind]))
        assert answer[:3] == (errno.EINVAL, Reason.NO_SUCH_OBJECT, gone[kind])
