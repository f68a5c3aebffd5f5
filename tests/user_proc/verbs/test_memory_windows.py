"""Memory windows of the library: keys, binds as they lie in a ring, what is refused at once."""

import errno
from collections.abc import Callable

import pytest

from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_mw_type
from shared.wqe_layout import BIND_OFFSET, BIND_SEGMENT, SEND_HEAD, BindSegment, SendHead
from tests.user_proc.verbs.stand_in import Refusal, Wire
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR, MW, MWBind, MWBindInfo, mwtype2str
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp import QP, QPCap, QPInitAttr
from user_proc.verbs.wr import SendWR

BOTH = (int(ibv_mw_type.IBV_MW_TYPE_1), int(ibv_mw_type.IBV_MW_TYPE_2))
ACCESS = int(e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)


@pytest.fixture
def mr(pd: PD) -> MR:
    return MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)


def queue_pair(pd: PD, cq: CQ, kind: int = e.IBV_QPT_RC, state: int = e.IBV_QPS_RTS) -> QP:
    qp = QP(pd, QPInitAttr(int(kind), scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1, 64)))
    qp._state = int(state)
    return qp


@pytest.fixture
def qp(pd: PD, cq: CQ) -> QP:
    return queue_pair(pd, cq)


def info_of(mr: MR, access: int = ACCESS, length: int = 64) -> MWBindInfo:
    return MWBindInfo(mr, mr.buf + 8, length, access)


@pytest.mark.parametrize("kind", BOTH)
def test_a_window_is_asked_for_and_given_back(pd: PD, wire: Wire, kind: int):
    with MW(pd, kind) as window:
        assert wire.last("alloc_mw") == (pd.handle, kind)
        assert (window.handle, window.type) == (window.rkey >> 8, kind)
        assert str(window) == (
            f"MW:\nRkey                  : {window.rkey!s:<20}\n"
            f"Handle                : {window.handle!s:<20}\n"
            f"MW Type               : {mwtype2str(kind):<20}\n"
        )
    assert wire.names()[-1] == "dealloc_mw"
    for name in ("rkey", "type", "handle"):
        with pytest.raises(PyverbsUserError, match="the MW is closed"):
            getattr(window, name)
    window.close()


def test_a_refused_window_says_why(pd: PD, wire: Wire):
    wire.answers["alloc_mw"] = lambda request: Refusal(22, VerbReason.BAD_WINDOW_TYPE, 0, 7)
    with pytest.raises(
        PyverbsRDMAError, match=r"^Failed to allocate MW. Errno: 22.*type 7 is no ibv_mw_type"
    ):
        MW(pd, 7)
    with pytest.raises(TypeError, match=r"'pd' has incorrect type .expected pyverbs.pd.PD"):
        MW(3, 1)  # type: ignore[arg-type]


def test_a_domain_closes_windows_before_regions(pd: PD, mr: MR, wire: Wire):
    MW(pd, 1)
    kept = MW(pd, 2)
    pd.close()
    names = [name for name in wire.names() if name.startswith("de")]
    assert names == ["dealloc_mw", "dealloc_mw", "dereg_mr", "dealloc_pd"]
    kept.close()


def test_a_region_that_is_bound_says_so(mr: MR, wire: Wire):
    wire.answers["dereg_mr"] = lambda request: Refusal(16, VerbReason.WINDOWS_BOUND, 3)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to dereg MR. Errno: 16.*windows are bound"):
        mr.close()
    assert mr.lkey
    del wire.answers["dereg_mr"]


def test_what_a_bind_is_made_of(mr: MR):
    info = info_of(mr)
    assert (info.addr, info.length, info.mw_access_flags) == (mr.buf + 8, 64, ACCESS)
    assert str(info) == (
        f"MWBindInfo:\nAddr                  : {mr.buf + 8!s:<20}\n"
        f"Length                : {64!s:<20}\n"
        f"MW access flags       : {'Remote write Remote read ':<20}\n"
    )
    bind = MWBind(info, e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE, 7)
    assert str(bind).splitlines()[:2] == ["MWBind:", f"WR id                 : {7!s:<20}"]
    for wrong in (None, 5):
        with pytest.raises(TypeError):
            MWBindInfo(wrong, 0, 0, 0)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            MWBind(wrong, 0)  # type: ignore[arg-type]
    assert [mwtype2str(kind) for kind in (1, 2, 9)] == [
        "IBV_MW_TYPE_1", "IBV_MW_TYPE_2", "Unknown MW type (9)",
    ]  # fmt: skip


def posted(qp: QP) -> tuple[SendHead, BindSegment]:
    """The latest entry of a send ring."""
    ring = qp._rings.send
    assert ring is not None
    at = (ring.head - 1 & ring._mask) * ring._stride
    head = SendHead(*SEND_HEAD.unpack_from(ring._view, at))
    return head, BindSegment(*BIND_SEGMENT.unpack_from(ring._view, at + BIND_OFFSET))


def test_bind_mw_gives_the_next_key_at_once(pd: PD, mr: MR, qp: QP):
    window = MW(pd, 1)
    index = window.rkey & ~0xFF
    for expected in (index, index | 1):  # 0xff is followed by 0
        qp.bind_mw(window, MWBind(info_of(mr), e.IBV_SEND_SIGNALED, 5))
        assert window.rkey == expected
        head, segment = posted(qp)
        assert (head.opcode, head.elements) == (e.IBV_WR_BIND_MW, 0)
        assert head.flags == e.IBV_SEND_SIGNALED
        assert segment == (ACCESS, expected, mr.lkey, mr.buf + 8, 64)


def test_a_bind_request_has_the_key_it_will_give(pd: PD, mr: MR, qp: QP):
    window = MW(pd, 2)
    was = window.rkey
    wr = SendWR(opcode=e.IBV_WR_BIND_MW)
    assert wr.rkey == 0
    wr.set_bind_wr(window, info_of(mr))
    assert wr.rkey == was & ~0xFF
    qp.post_send(wr)
    assert posted(qp)[1] == (ACCESS, wr.rkey, mr.lkey, mr.buf + 8, 64)
    assert window.rkey == was
    wr.set_bind(window, info_of(mr, 0), 0x1234)  # of which the low bits count
    assert wr.rkey == was & ~0xFF | 0x34
    wr.set_wr_rdma(1, 2)  # they share one place
    assert wr.rkey == 0


Post = Callable[[QP, MW, MWBindInfo, int], None]


def by_call(qp: QP, mw: MW, info: MWBindInfo, flags: int) -> None:
    qp.bind_mw(mw, MWBind(info, flags))


def by_request(qp: QP, mw: MW, info: MWBindInfo, flags: int) -> None:
    wr = SendWR(opcode=e.IBV_WR_BIND_MW, send_flags=flags)
    wr.set_bind_wr(mw, info)
    qp.post_send(wr)


WAYS: dict[str, Post] = {"Bind MW": by_call, "post send": by_request}
#: What is changed, and the errno for either way of its own type.
CHANGES: dict[str, tuple[int, int]] = {
    "nothing": (0, 0),
    "no bytes": (0, 0),
    "another type": (errno.EINVAL, errno.EINVAL),
    "inline": (errno.EINVAL, errno.EINVAL),
    "zero based": (errno.EINVAL, 0),
    "region of another domain": (errno.EPERM, 0),
    "UC": (0, 0),
    "XRC_SEND": (0, 0),
    "UD": (errno.EINVAL, errno.EINVAL),
    "state INIT": (errno.EINVAL, errno.EINVAL),
    "state ERR": (0, 0),
    "full queue": (errno.ENOMEM, errno.ENOMEM),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_refused_at_once(context: Context, pd: PD, cq: CQ, mr: MR, way: str, change: str):
    kind = BOTH[way != "Bind MW"]
    own_type = kind if change != "another type" else 3 - kind
    window = MW(pd, own_type)
    region = mr if change != "region of another domain" else MR(PD(context), 64, 17)
    types = {"UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD, "XRC_SEND": e.IBV_QPT_XRC_SEND}
    states = {"state INIT": e.IBV_QPS_INIT, "state ERR": e.IBV_QPS_ERR}
    qp = queue_pair(pd, cq, types.get(change, e.IBV_QPT_RC), states.get(change, e.IBV_QPS_RTS))
    length = 0 if change == "no bytes" else 64
    info = info_of(region, ACCESS | (32 if change == "zero based" else 0), length)
    flags = int(e.IBV_SEND_INLINE) if change == "inline" else 2
    if change == "full queue":
        for _ in range(4):
            WAYS[way](qp, window, info, flags)
    before = window.rkey
    expected = CHANGES[change][way != "Bind MW"]
    if not expected:
        WAYS[way](qp, window, info, flags)
        return
    with pytest.raises(PyverbsRDMAError, match=rf"^Failed to {way}. Errno: {expected}") as caught:
        WAYS[way](qp, window, info, flags)
    assert caught.value.reason
    assert window.rkey == before


def test_a_bind_without_a_window_is_refused(qp: QP):
    with pytest.raises(PyverbsRDMAError, match="call set_bind_wr"):
        qp.post_send(SendWR(opcode=e.IBV_WR_BIND_MW))


def test_a_closed_window_or_region_cannot_be_bound(pd: PD, mr: MR, qp: QP):
    window, info = MW(pd, 1), info_of(mr)
    mr.close()
    with pytest.raises(PyverbsUserError, match="the MR is closed"):
        qp.bind_mw(window, MWBind(info, 2))
    window.close()
    with pytest.raises(PyverbsUserError, match="the MW is closed"):
        SendWR(opcode=e.IBV_WR_BIND_MW).set_bind_wr(window, info)


def test_a_queue_pair_closes_the_windows_it_bound(pd: PD, mr: MR, qp: QP, wire: Wire):
    bound, other = MW(pd, 1), MW(pd, 1)
    qp.bind_mw(bound, MWBind(info_of(mr), 2))
    qp.close()
    assert wire.names()[-2:] == ["dealloc_mw", "destroy_qp"]
    assert other.rkey
    with pytest.raises(PyverbsUserError, match="the MW is closed"):
        _ = bound.rkey
