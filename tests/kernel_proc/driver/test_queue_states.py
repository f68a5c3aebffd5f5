"""Random lives of queues and what holds them, against a model of holders; nothing is ever left."""

import errno
import os
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernel_proc.hca_abi.device_settings import HcaSettings
from shared import verb_codes as codes
from shared.verb_messages import NO_FD, Multicast, Object, OpenXrcd
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import (
    ERR,
    INIT,
    RC,
    RESET,
    UC,
    UD,
    XRC_RECV,
    XRC_SEND,
    CqUser,
    QueueUser,
)

DESTROY = {
    "pd": codes.IOCTL_DEALLOC_PD,
    "cq": codes.IOCTL_DESTROY_CQ,
    "srq": codes.IOCTL_DESTROY_SRQ,
    "qp": codes.IOCTL_DESTROY_QP,
    "domain": codes.IOCTL_CLOSE_XRCD,
}
STATE, TO_INIT, TO_INIT_UD = 0x1, 0x39, 0x71


@dataclass(eq=False)
class Thing:
    """An object, what it holds, and what of it the model must know."""

    kind: str
    handle: int
    holds: list["Thing"] = field(default_factory=list)
    number: int = 0
    qp_type: int = 0
    state: int = RESET
    groups: set[bytes] = field(default_factory=set)
    cq: CqUser | None = None


class Queues(RuleBasedStateMachine):
    """Make, change, attach and destroy, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.things: list[Thing] = []

    @initialize()
    def begin(self) -> None:
        self.box = HcaBox(settings=HcaSettings(log_max_mgms=4))
        self.empty = self.box.life.inspect()["numbers"]
        self.user = QueueUser(self.box)

    def pick(self, kind: str, index: int) -> Thing:
        """Return one of a kind; there is always one."""
        fitting = [thing for thing in self.things if thing.kind == kind]
        return fitting[index % len(fitting)] if fitting else self.make(kind)

    def make(self, kind: str) -> Thing:
        user = self.user
        if kind == "pd":
            thing = Thing("pd", user.good(codes.IOCTL_ALLOC_PD).handle)
        elif kind == "domain":
            opened = user.good(codes.IOCTL_OPEN_XRCD, OpenXrcd(NO_FD, os.O_CREAT))
            thing = Thing("domain", opened.handle)
        else:
            cq = user.cq()
            thing = Thing("cq", cq.handle, number=cq.number, cq=cq)
        self.things.append(thing)
        return thing

    @rule(kind=st.sampled_from(["pd", "cq", "domain"]))
    def make_one(self, kind: str) -> None:
        self.make(kind)

    @rule(index=st.integers(0, 5), xrc=st.booleans())
    def make_srq(self, index: int, xrc: bool) -> None:
        pd = self.pick("pd", index)
        holds = [pd]
        parts: dict[str, Any] = {"pd": pd.handle}
        if xrc:
            domain, cq = self.pick("domain", index), self.pick("cq", index)
            holds += [domain, cq]
            parts |= {"srq_type": 1, "xrcd": domain.handle, "cq": cq.handle}
        created = self.user.srq(**parts)
        # The model calls an XRC SRQ another kind: no ordinary QP can have it.
        thing = Thing("srq" if not xrc else "xrc srq", created.handle, holds, created.srqn)
        self.things.append(thing)

    @rule(
        kind=st.sampled_from([RC, UC, UD, XRC_SEND, XRC_RECV]),
        index=st.integers(0, 5),
        shared=st.booleans(),
    )
    def make_qp(self, kind: int, index: int, shared: bool) -> None:
        if kind == XRC_RECV:
            domain = self.pick("domain", index)
            request = self.user.qp_request(kind, xrcd=domain.handle)
            holds = [domain]
        else:
            pd, send = self.pick("pd", index), self.pick("cq", index)
            holds = [pd, send]
            parts: dict[str, Any] = {"pd": pd.handle, "send_cq": send.handle}
            if kind != XRC_SEND:
                receive = self.pick("cq", index + 1)
                holds.append(receive)
                parts["receive_cq"] = receive.handle
                srqs = [thing for thing in self.things if thing.kind == "srq"]
                if shared and srqs:
                    holds.append(srqs[index % len(srqs)])
                    parts["srq"] = holds[-1].handle
            request = self.user.qp_request(kind, **parts)
        created = self.user.good(codes.IOCTL_CREATE_QP, request)
        thing = Thing("qp", created.handle, holds, created.qpn, kind)
        self.things.append(thing)

    def qps(self) -> list[Thing]:
        return [thing for thing in self.things if thing.kind == "qp"]

    @precondition(lambda self: self.qps())
    @rule(index=st.integers(0, 9), state=st.sampled_from([RESET, INIT, ERR]))
    def move_qp(self, index: int, state: int) -> None:
        qp = self.qps()[index % len(self.qps())]
        mask = STATE
        if state == INIT and qp.state == RESET:
            mask = TO_INIT_UD if qp.qp_type == UD else TO_INIT
        answer = self.user.modify(qp.handle, mask, qp_state=state)
        legal = {RESET: (RESET, INIT), INIT: (RESET, INIT, ERR), ERR: (RESET, ERR)}[qp.state]
        assert answer.errno == (0 if state in legal else errno.EINVAL)
        if state in legal:
            qp.state = state

    @precondition(lambda self: self.qps())
    @rule(index=st.integers(0, 9), group=st.integers(0, 3), attach=st.booleans())
    def join(self, index: int, group: int, attach: bool) -> None:
        qp = self.qps()[index % len(self.qps())]
        gid = b"\xff" + bytes(14) + bytes([group])
        code = codes.IOCTL_ATTACH_MCAST if attach else codes.IOCTL_DETACH_MCAST
        answer = self.user.ask(code, Multicast(qp.handle, gid, 0xC001))
        if qp.qp_type != UD:
            assert answer[:2] == (errno.EINVAL, Reason.NOT_UD)
        elif attach:
            assert answer.errno == 0
            qp.groups.add(gid)
        elif gid in qp.groups:
            assert answer.errno == 0
            qp.groups.remove(gid)
        else:
            assert answer[:2] == (errno.EINVAL, Reason.NOT_ATTACHED)

    @precondition(lambda self: self.things)
    @rule(index=st.integers(0, 30))
    def destroy(self, index: int) -> None:
        thing = self.things[index % len(self.things)]
        code = DESTROY["srq" if thing.kind == "xrc srq" else thing.kind]
        answer = self.user.ask(code, Object(thing.handle))
        holders = sum(other.holds.count(thing) for other in self.things)
        if holders:
            assert answer[:4] == (errno.EBUSY, Reason.IN_USE, thing.handle, holders)
        elif thing.groups:
            expected = (errno.EBUSY, Reason.STILL_ATTACHED, thing.handle, len(thing.groups))
            assert answer[:4] == expected
        else:
            assert answer.errno == 0
            self.things.remove(thing)

    @invariant()
    def the_hca_has_what_the_model_has(self) -> None:
        if not hasattr(self, "box"):
            return
        hca = self.box.hca.tables
        live = {thing.number for thing in self.things if thing.kind == "cq"}
        assert {cq.number for cq in hca.cqs.all()} == live
        live = {qp.number for qp in self.qps() if qp.state != RESET}
        assert {qp.number for qp in hca.qps.all()} == live
        for group in range(4):
            gid = b"\xff" + bytes(14) + bytes([group])
            members = {qp.number for qp in self.qps() if gid in qp.groups}
            assert set(hca.multicast.members(gid)) == members

    def teardown(self) -> None:
        if not hasattr(self, "box"):
            return
        self.user.session.end()
        assert not any("was not" in line for line in self.box.lines)
        assert self.box.life.inspect()["numbers"] == self.empty
        self.box.close()


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
