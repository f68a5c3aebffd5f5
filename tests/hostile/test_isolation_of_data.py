"""Work requests that name what is another's: keys, queue pairs, shared queues. No byte moves.

The victim has two queue pairs connected with each other, and one that lets the attacker in: what
is attacked then is what that queue pair does not grant.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from shared.wqe_layout import AddressVector, BindSegment, SendHead
from tests.hostile.machines import User, holdings, make_machine
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.base import inc_rkey
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR, MW, MWBindInfo
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

ALL = int(
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC | e.IBV_ACCESS_MW_BIND
)  # fmt: skip
LOCAL = int(e.IBV_ACCESS_LOCAL_WRITE)
SIZE = 256
QKEY = 0x4711


class Side:
    """A session's things for work requests."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.context = Context(name="mthca0", process=user.process)
        self.pd = PD(self.context)
        self.apart = PD(self.context)
        self.cq = CQ(self.context, 64)
        self.mr = self._region(self.pd, ALL)
        self.private = self._region(self.apart, ALL)  # of a domain that lets nobody in
        self.local = self._region(self.pd, LOCAL)

    def _region(self, pd: PD, access: int) -> MR:
        region = MR(pd, SIZE, access)
        region.write(b"\xa5" * SIZE, SIZE)
        return region

    def qp(self, kind: int = e.IBV_QPT_RC) -> QP:
        return QP(self.pd, QPInitAttr(int(kind), scq=self.cq, rcq=self.cq, cap=QPCap(8, 8, 1, 1)))

    def bytes(self) -> list[bytes]:
        """What lies in each region."""
        return [region.read(SIZE, 0) for region in (self.mr, self.private, self.local)]

    def poll(self) -> list[int]:
        """The statuses of what has completed."""
        self.user.door.run(lambda: False, 2_000_000_000)
        return [wc.status for wc in self.cq.poll(64)[1]]

    def close(self) -> None:
        self.context.close()


def connect(qp: QP, peer: int, **changes: Any) -> None:
    attr = QPAttr()
    attr.dest_qp_num, attr.ah_attr = peer, AHAttr(dlid=1)
    attr.qp_access_flags = ALL
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 8, 1, 1, 1
    attr.qkey = QKEY
    for name, value in changes.items():
        setattr(attr, name, value)
    qp.to_rts(attr)


class Scene:
    """Attacker and victim; `door` are two queue pairs by which the victim lets the attacker in."""

    def __init__(self) -> None:
        self.machine = make_machine()
        self.attacker = Side(User(self.machine, "attacker"))
        self.victim = Side(User(self.machine, "victim"))
        self.pair = (self.victim.qp(), self.victim.qp())
        connect(self.pair[0], self.pair[1].qp_num)
        connect(self.pair[1], self.pair[0].qp_num)
        self.ud = self.victim.qp(e.IBV_QPT_UD)
        connect(self.ud, 0)
        for qp in (*self.pair, self.ud):
            qp.post_recv(RecvWR(1, 1, [SGE(self.victim.mr.buf, SIZE, self.victim.mr.lkey)]))

    def door(self) -> tuple[QP, QP]:
        """A new pair: the attacker's end, the victim's end."""
        ours, theirs = self.attacker.qp(), self.victim.qp()
        connect(ours, theirs.qp_num)
        connect(theirs, ours.qp_num)
        return ours, theirs

    def close(self) -> None:
        self.attacker.close()
        self.victim.close()
        self.attacker.user.close()
        self.victim.user.close()
        assert holdings(self.machine)["sessions"] == []
        self.machine.close()


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    built = Scene()
    yield built
    built.close()


def _element(side: Side) -> list[SGE]:
    return [SGE(side.mr.buf, 8, side.mr.lkey)]


def _remote(scene: Scene, opcode: int, region: MR, rkey: int | None = None) -> int:
    """Send one request that names a region by the victim's open door; its status."""
    ours, theirs = scene.door()
    wr = SendWR(1, num_sge=1, sg=_element(scene.attacker), opcode=int(opcode))
    key = region.rkey if rkey is None else rkey
    if opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
        wr.set_wr_atomic(key, region.buf, 1, 2)
    else:
        wr.set_wr_rdma(key, region.buf)
    ours.post_send(wr)
    statuses = scene.attacker.poll()
    ours.close()
    theirs.close()
    assert len(statuses) == 1
    return statuses[0]


REMOTE = (
    e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_CMP_AND_SWP,
    e.IBV_WR_ATOMIC_FETCH_AND_ADD,
)  # fmt: skip


def _rkey(scene: Scene) -> None:
    """A key of another domain, a key without the right, and keys near a good one."""
    good = scene.victim.mr
    assert _remote(scene, e.IBV_WR_RDMA_READ, good) == e.IBV_WC_SUCCESS  # what is granted
    keys = (0, 0xFFFF_FFFF, good.rkey ^ 1, good.rkey ^ 0x100, good.rkey ^ 1 << 31)
    for opcode in REMOTE:
        for region in (scene.victim.private, scene.victim.local, scene.attacker.private):
            assert _remote(scene, opcode, region) == e.IBV_WC_REM_ACCESS_ERR
    for key in keys:
        status = _remote(scene, e.IBV_WR_RDMA_WRITE, good, key)
        assert status == e.IBV_WC_REM_ACCESS_ERR
    # The attacker's own key is none in the victim's domain.
    assert _remote(scene, e.IBV_WR_RDMA_WRITE, scene.attacker.mr) == e.IBV_WC_REM_ACCESS_ERR


def _lkey(scene: Scene) -> None:
    """The victim's keys in elements of the attacker's own requests: to send, and to receive."""
    for region in (scene.victim.mr, scene.victim.private, scene.victim.local):
        ours, theirs = scene.door()
        element = [SGE(region.buf, 8, region.lkey)]
        ours.post_send(SendWR(1, num_sge=1, sg=element, opcode=int(e.IBV_WR_SEND)))
        assert scene.attacker.poll() == [e.IBV_WC_LOC_PROT_ERR]
        ours.close()
        theirs.close()
        first, second = scene.attacker.qp(), scene.attacker.qp()
        connect(first, second.qp_num)
        connect(second, first.qp_num)
        second.post_recv(RecvWR(1, 1, element))
        wr = SendWR(2, num_sge=1, sg=_element(scene.attacker), opcode=int(e.IBV_WR_SEND))
        first.post_send(wr)
        assert e.IBV_WC_LOC_PROT_ERR in scene.attacker.poll()
        read = SendWR(3, num_sge=1, sg=element, opcode=int(e.IBV_WR_RDMA_READ))
        third, fourth = scene.attacker.qp(), scene.attacker.qp()
        connect(third, fourth.qp_num)
        connect(fourth, third.qp_num)
        read.set_wr_rdma(scene.attacker.mr.rkey, scene.attacker.mr.buf)
        third.post_send(read)
        assert scene.attacker.poll() == [e.IBV_WC_LOC_PROT_ERR]
        for qp in (first, second, third, fourth):
            qp.close()


def _queue_pair(scene: Scene) -> None:
    """A connection to a queue pair that is connected with another: it answers its peer alone."""
    for target in scene.pair:
        ours = scene.attacker.qp()
        connect(ours, target.qp_num)
        wr = SendWR(1, num_sge=1, sg=_element(scene.attacker), opcode=int(e.IBV_WR_RDMA_WRITE))
        wr.set_wr_rdma(scene.victim.mr.rkey, scene.victim.mr.buf)
        ours.post_send(wr)
        assert scene.attacker.poll() == [e.IBV_WC_RETRY_EXC_ERR]
        ours.close()


def _datagram(scene: Scene, qkey: int, qpn: int) -> None:
    ours = scene.attacker.qp(e.IBV_QPT_UD)
    connect(ours, 0)
    ah = AH(scene.attacker.pd, attr=AHAttr(dlid=1))
    wr = SendWR(1, num_sge=1, sg=_element(scene.attacker), opcode=int(e.IBV_WR_SEND))
    wr.set_wr_ud(ah, qpn, qkey)
    ours.post_send(wr)
    assert scene.attacker.poll() == [e.IBV_WC_SUCCESS]  # it went; that is all a datagram tells
    ah.close()
    ours.close()


def _qkey(scene: Scene) -> None:
    for qkey in (0, QKEY ^ 1, QKEY - 1, 0x7FFF_FFFF):
        _datagram(scene, qkey, scene.ud.qp_num)


def _datagram_to_connection(scene: Scene) -> None:
    for qp in scene.pair:
        _datagram(scene, QKEY, qp.qp_num)


def _invalidated(scene: Scene) -> None:
    """SEND WITH INV of a key that is no window of that queue pair; it is the peer's to refuse."""
    for key in (scene.victim.mr.rkey, scene.victim.private.rkey, 0xFFFF_FF00):
        ours, theirs = scene.door()
        theirs.post_recv(RecvWR(1, 1, [SGE(scene.victim.private.buf, 0, 0)]))
        ours.post_send(SendWR(1, opcode=int(e.IBV_WR_SEND_WITH_INV), imm_data=key))
        statuses = scene.attacker.poll()
        assert statuses
        assert e.IBV_WC_SUCCESS not in statuses
        scene.victim.poll()
        ours.close()
        theirs.close()
    assert scene.victim.mr.read(8, 0) == b"\xa5" * 8


def _bound(scene: Scene) -> None:
    """The attacker's window over the victim's region, and the victim's window over his own."""
    theirs = MW(scene.victim.pd, int(e.IBV_MW_TYPE_2))
    ours = MW(scene.attacker.pd, int(e.IBV_MW_TYPE_2))
    cases = (
        (ours, scene.victim.mr, ours.rkey), (theirs, scene.attacker.mr, theirs.rkey),
        (ours, scene.victim.mr, theirs.rkey),
    )  # fmt: skip
    for window, region, key in cases:
        qp, other = scene.attacker.qp(), scene.attacker.qp()
        connect(qp, other.qp_num)
        wr = SendWR(1, opcode=int(e.IBV_WR_BIND_MW))
        info = MWBindInfo(region, region.buf, 8, int(e.IBV_ACCESS_REMOTE_READ))
        wr.set_bind(window, info, inc_rkey(key))
        qp.post_send(wr)
        assert scene.attacker.poll() == [e.IBV_WC_MW_BIND_ERR]
        qp.close()
        other.close()
    ours.close()
    theirs.close()


class Name(NamedTuple):
    """A field of a work request that names something, and what was tried with it."""

    attacks: tuple[Callable[[Scene], None], ...]


NAMES: dict[str, Name] = {
    "SendHead.rkey": Name((_rkey,)),
    "SendHead.imm_data": Name((_invalidated,)),
    "SendHead.remote_qpn": Name((_datagram_to_connection, _queue_pair)),
    "SendHead.remote_qkey": Name((_qkey,)),
    "BindSegment.new_rkey": Name((_bound,)),
    "BindSegment.lkey": Name((_bound,)),
    "SGE.lkey": Name((_lkey,)),
}
#: Shared queues of XRC are named by number: tests/kernel_proc/hca/engine/test_engine_xrc.py.
ELSEWHERE = {"SendHead.srqn"}
PLAIN = {
    "opcode", "flags", "elements", "remote_address", "compare_add", "swap", "address_vector",
    "inline_length", "access", "address", "length",
} | set(AddressVector._fields)  # fmt: skip


def test_every_name_in_a_work_request_is_attacked():
    fields = {
        f"{cls.__name__}.{field}"
        for cls in (SendHead, BindSegment)
        for field in cls._fields
        if field not in PLAIN
    }
    assert fields | {"SGE.lkey"} == set(NAMES) | ELSEWHERE


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_another_is_read_written_or_completed(scene: Scene, name: str):
    before = scene.victim.bytes()
    assert scene.victim.poll() == []
    own = scene.attacker.bytes()
    for attack in NAMES[name].attacks:
        attack(scene)
    assert scene.victim.bytes() == before
    assert scene.attacker.bytes() == own
    assert scene.victim.poll() == []
    for qp in (*scene.pair, scene.ud):
        assert qp.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_RTS


def test_the_victim_is_served_all_the_same(scene: Scene):
    """Last: the same requests between its own, with its own keys, and what it lets in."""
    element = [SGE(scene.victim.local.buf, 8, scene.victim.local.lkey)]
    scene.pair[0].post_send(SendWR(5, num_sge=1, sg=element, opcode=int(e.IBV_WR_SEND)))
    assert scene.victim.poll() == [e.IBV_WC_SUCCESS] * 2
    _datagram(scene, QKEY, scene.ud.qp_num)
    assert scene.victim.poll() == [e.IBV_WC_SUCCESS]
