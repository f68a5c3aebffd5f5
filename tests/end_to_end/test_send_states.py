"""SQD and SQE as a program sees them: requests that wait, the drained event, the way back."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from shared.verbs_enums import ibv_event_type, ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type
from tests.end_to_end.xrc_end import XrcEnd
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, SendWR

pytestmark = pytest.mark.processes

RTS, SQD, SQE, ERR = (int(ibv_qp_state[f"IBV_QPS_{name}"]) for name in ("RTS", "SQD", "SQE", "ERR"))
STATE = int(ibv_qp_attr_mask.IBV_QP_STATE)
CURRENT = int(ibv_qp_attr_mask.IBV_QP_CUR_STATE)
NOTIFY = int(ibv_qp_attr_mask.IBV_QP_EN_SQD_ASYNC_NOTIFY)
DRAINED = int(ibv_event_type.IBV_EVENT_SQ_DRAINED)
OK, PROT_ERR, FLUSH = 0, 4, 5
KINDS = ("RC", "UC", "UD", "XRC")
QKEY = 0x77


class Wire(NamedTuple):
    """A sender, and how to reach its peer; both are of this process."""

    end: XrcEnd
    kind: str
    qp: QP
    number: int
    srqn: int
    ah: AH

    def post(self) -> None:
        if self.kind == "XRC":
            self.end.post_srq(1 << 20, 100)
        else:
            self.end.receive(1 << 20, 100)

    def send(self, key: int | None = None) -> None:
        mr = self.end.mr
        wr = SendWR(9, num_sge=1, sg=[SGE(mr.buf, 16, mr.lkey if key is None else key)])
        if self.kind == "UD":
            wr.set_wr_ud(self.ah, self.number, QKEY)
        wr.set_qp_type_xrc(self.srqn)
        self.qp.post_send(wr)

    def statuses(self, count: int) -> list[int]:
        """Of the sends; receives complete elsewhere or have been taken out."""
        found: list[int] = []
        while len(found) < count:
            got = self.end.poll(1)
            assert got, "no completion"
            found += [one.status for one in got if one.opcode < 128 or one.status]
        return found

    def arrived(self, count: int) -> int:
        cq = self.end.srq_cq
        return sum(one.status == OK for one in self.end.poll_of(cq, count))

    def go(self, state: int, mask: int = STATE, **values: int) -> None:
        attr = QPAttr(qp_state=state)
        for name, value in values.items():
            setattr(attr, name, value)
        self.qp.modify(attr, mask)


@pytest.fixture(scope="module")
def kernel() -> Iterator[str]:
    with start_kernel(f"states-{uuid.uuid4().hex[:8]}", settings={"verifier": True}) as started:
        yield started.name


def _connected(end: XrcEnd, kind: str) -> QP:
    """A sender of a kind that is connected with the end's own queue pair, or target."""
    if kind == "XRC":
        number = end.make_target()
        own = end.make_sender()
        end.join_target(own)
        end.join_sender(number)
        assert end.sender is not None
        return end.sender
    end.qp.close()
    number = int(ibv_qp_type[f"IBV_QPT_{kind}"])
    cap = QPCap(32, 32, 4, 4, 64)
    end.qp = QP(end.pd, QPInitAttr(number, scq=end.cq, rcq=end.srq_cq, cap=cap))
    sender = QP(end.pd, QPInitAttr(number, scq=end.cq, rcq=end.srq_cq, cap=cap))
    for qp, peer in ((end.qp, sender), (sender, end.qp)):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags, attr.path_mtu, attr.dest_qp_num = 15, 3, peer.qp_num
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, 8, 3, 7
        attr.qkey = QKEY
        attr.ah_attr = AHAttr(dlid=1, port_num=1)
        qp.to_rts(attr)
    return sender


@pytest.fixture(params=KINDS)
def wire(kernel: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wire]:
    kind: str = request.param
    end = XrcEnd(kernel)
    srqn = 0
    if kind == "XRC":
        (tmp_path / "domain").touch()
        end.open_domain(str(tmp_path / "domain"))
        srqn = end.make_srq()
    qp = _connected(end, kind)
    ah = AH(end.pd, attr=AHAttr(dlid=1, port_num=1))
    yield Wire(end, kind, qp, end.qp.qp_num, srqn, ah)
    end.context.close()


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
    wire.send()  # nothing is posted to receive it
    if wire.kind in ("UC", "UD"):
        assert wire.statuses(1) == [OK]  # and it is lost
    wire.go(SQD, STATE | NOTIFY, en_sqd_async_notify=1)
    waits = wire.kind in ("RC", "XRC")
    assert wire.qp.query(STATE)[0].sq_draining == int(waits)
    wire.post()
    event = wire.end.context.get_async_event()
    assert event.event_type == DRAINED
    event.ack()
    assert wire.qp.query(STATE)[0].sq_draining == 0
    assert wire.statuses(1) == [OK] if waits else wire.end.nothing_came()
    wire.go(RTS)


@pytest.mark.parametrize("how", ["asked", "told", "neither"])
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
