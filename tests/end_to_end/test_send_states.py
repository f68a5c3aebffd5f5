"""SQD and SQE as a program sees them: requests that wait, the drained event, the way back."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from shared.verbs_enums import ibv_event_type, ibv_qp_attr_mask, ibv_qp_state
from tests.end_to_end.conftest import Kernel
from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.xrc_end import XrcEnd
from tests.end_to_end.xrc_pair import XrcPair, xrc_pair
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPAttr
from user_proc.verbs.wr import SGE, SendWR

pytestmark = pytest.mark.processes

RTS, SQD, SQE, ERR = (int(ibv_qp_state[f"IBV_QPS_{name}"]) for name in ("RTS", "SQD", "SQE", "ERR"))
STATE = int(ibv_qp_attr_mask.IBV_QP_STATE)
CURRENT = int(ibv_qp_attr_mask.IBV_QP_CUR_STATE)
NOTIFY = int(ibv_qp_attr_mask.IBV_QP_EN_SQD_ASYNC_NOTIFY)
DRAINED = int(ibv_event_type.IBV_EVENT_SQ_DRAINED)
OK, PROT_ERR, FLUSH = 0, 4, 5
KINDS = ("RC", "UC", "UD", "XRC")
QKEY, HALF = 0x77, 1 << 21
HOW = ("asked", "told", "neither")
CASES = len(KINDS) * (2 + len(HOW))


class Wire(NamedTuple):
    """A sender of this process, and how to reach the queue pair of another one."""

    end: XrcEnd
    peer: Peer
    kind: str
    qp: QP
    number: int
    srqn: int
    ah: AH

    def post(self) -> None:
        self.peer.ask("post_srq" if self.kind == "XRC" else "receive", HALF, 100)

    def request(self, key: int | None = None) -> SendWR:
        mr = self.end.mr
        wr = SendWR(9, num_sge=1, sg=[SGE(mr.buf, 16, mr.lkey if key is None else key)])
        if self.kind == "UD":
            wr.set_wr_ud(self.ah, self.number, QKEY)
        wr.set_qp_type_xrc(self.srqn)
        return wr

    def send(self, key: int | None = None) -> None:
        self.qp.post_send(self.request(key))

    def statuses(self, count: int) -> list[int]:
        return self.end.statuses(count)

    def arrived(self, count: int) -> int:
        """How many of so many messages have come well."""
        if self.kind == "XRC":
            return sum(status == OK for status, *_ in self.peer.ask("srq_completions", count))
        found: list[int] = self.peer.ask("statuses", count)
        return found.count(OK)

    def go(self, state: int, mask: int = STATE, **values: int) -> None:
        attr = QPAttr(qp_state=state)
        for name, value in values.items():
            setattr(attr, name, value)
        self.qp.modify(attr, mask)


@pytest.fixture(scope="module")
def ends(shared_kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[XrcPair]:
    with xrc_pair(shared_kernel.name, tmp_path_factory.mktemp("states")) as pair:
        yield pair


@pytest.fixture(params=KINDS)
def wire(ends: XrcPair, request: pytest.FixtureRequest) -> Wire:
    end, peer = ends
    kind: str = request.param
    ah = AH(end.pd, attr=AHAttr(dlid=1, port_num=1))
    if kind == "XRC":
        number, srqn, own = peer.ask("make_target"), peer.ask("make_srq"), end.make_sender()
        peer.ask("join_target", own)
        end.join_sender(number)
        assert end.sender is not None
        return Wire(end, peer, kind, end.sender, number, srqn, ah)
    number, own = peer.ask("renew", kind), end.renew(kind)
    if kind == "UD":
        peer.ask("open_datagrams", QKEY)
        end.open_datagrams(QKEY)
    else:
        peer.ask("connect", own)
        end.connect(number)
    return Wire(end, peer, kind, end.qp, number, 0, ah)


def test_the_cases_are_counted():
    print(f"{CASES} cases of {KINDS}")
    assert CASES == 20


def test_what_is_posted_in_sqd_goes_out_in_rts(wire: Wire):
    for _ in range(3):
        wire.post()
    wire.send()
    assert wire.statuses(1) == [OK]
    wire.go(SQD, STATE | NOTIFY, en_sqd_async_notify=1)
    event = wire.end.context.get_async_event()
    assert event.event_type == DRAINED
    event.ack()
    attr, _ = wire.qp.query(STATE)
    assert (attr.qp_state, attr.sq_draining) == (SQD, 0)
    wire.send()
    wire.send()
    assert wire.end.nothing_came()
    assert wire.arrived(1) == 1
    wire.go(RTS)
    assert wire.statuses(2) == [OK, OK]
    assert wire.arrived(2) == 2


def test_draining_waits_for_an_answer(wire: Wire):
    wire.post()
    chain = wire.request()
    chain.next_wr = wire.request()  # nothing is posted to receive it
    wire.qp.post_send(chain)
    waits = wire.kind in ("RC", "XRC")
    # A turn has begun that starts the second, too; or it has gone, and is lost.
    assert wire.statuses(2 - waits) == [OK] * (2 - waits)
    wire.go(SQD, STATE | NOTIFY, en_sqd_async_notify=1)
    assert wire.qp.query(STATE)[0].sq_draining == int(waits)
    wire.post()
    event = wire.end.context.get_async_event()
    assert event.event_type == DRAINED
    event.ack()
    assert wire.qp.query(STATE)[0].sq_draining == 0
    assert wire.statuses(1) == [OK] if waits else wire.end.nothing_came()
    assert wire.arrived(1 + waits) == 1 + waits
    wire.go(RTS)


@pytest.mark.parametrize("how", HOW)
def test_the_way_back_from_an_error(wire: Wire, how: str):
    wire.post()
    wire.send(key=0x7F00)
    wire.send()
    assert wire.statuses(2) == [PROT_ERR, FLUSH]
    reliable = wire.kind in ("RC", "XRC")
    if how == "asked":
        assert wire.qp.query(STATE)[0].qp_state == (ERR if reliable else SQE)
    wire.send()
    assert wire.statuses(1) == [FLUSH]
    mask, values = STATE, {}
    if how == "told":
        mask, values = STATE | CURRENT, {"cur_qp_state": SQE}
    if reliable:
        with pytest.raises(PyverbsRDMAError, match="Errno: 22"):
            wire.go(RTS, mask, **values)
        return
    wire.go(RTS, mask, **values)
    wire.send()
    assert wire.statuses(1) == [OK]
    assert wire.arrived(1) == 1
