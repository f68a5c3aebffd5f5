"""The generated matrix of queue pair transitions, asked by a user process of a real kernel and HCA.

The cases, and what each must come to, are those of test_qp_transitions.py of the driver's tests.
Here a third of them, with `-m stress` all, goes through `QP.modify`, and what the queue pair has
become is asked with `QP.query`: a refused call changes nothing, an accepted one exactly the
attributes its mask names. SQE, which only the device enters, is reached by a send that fails, so by
UD and UC alone.
"""

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from shared.verb_reasons import VerbReason as Reason
from shared.verbs_enums import ibv_qp_attr_mask
from tests.kernel_proc.driver.queue_user import (
    ERR,
    INIT,
    RESET,
    RTR,
    RTS,
    SQD,
    SQE,
    TYPES,
    UC,
    UD,
    XRC_RECV,
    XRC_SEND,
)
from tests.kernel_proc.driver.test_qp_transitions import ATTRIBUTES, COUNT, DROPPED, Case, cases
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID, AHAttr, GlobalRoute
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.wr import SGE, SendWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

pytestmark = pytest.mark.processes

STATES = (RESET, INIT, RTR, RTS, SQD, ERR)
TO_SQE = (UD, UC)
STATE = 0x1
NO_KEY = 0xDEAD_0000
WAYS = {
    RESET: (), INIT: (INIT,), RTR: (INIT, RTR), RTS: (INIT, RTR, RTS), SQD: (INIT, RTR, RTS, SQD),
    ERR: (INIT, ERR), SQE: (INIT, RTR, RTS),
}  # fmt: skip


def states_of(kind: int) -> tuple[int, ...]:
    """The states a type can be brought to here."""
    return (*STATES, SQE) if kind in TO_SQE else STATES


EVERY = [
    (kind, old, case) for kind in TYPES for old in states_of(kind) for case in cases(kind, old)
]
COUNT_HERE = 5888


def kind_of(kind: int, old: int, case: Case) -> tuple[int, ...]:
    """What calls have in common that differ in the attributes alone."""
    return kind, old, case.new, case.reason


#: What is accepted, the first refusal of each kind, and every fourth of the rest.
FIRST_OF_ITS_KIND = {kind_of(*one): number for number, one in reversed(list(enumerate(EVERY)))}
SOME = [
    one
    for number, one in enumerate(EVERY)
    if not one[2].code or number in (number // 4 * 4, FIRST_OF_ITS_KIND[kind_of(*one)])
]

#: What the reason of each kind of refusal says.
WORDS = {
    Reason.UNKNOWN_ATTRIBUTES: "attribute mask bits 0x80000000 are unknown",
    Reason.CUR_STATE_NOT_ALLOWED: "IBV_QP_CUR_STATE is taken in RTR, RTS, SQD and SQE only",
    Reason.NO_SUCH_TRANSITION: "there is no transition ",
    Reason.ATTRIBUTES_MISSING: " needs IBV_QP_",
    Reason.ATTRIBUTES_NOT_ALLOWED: " does not take IBV_QP_",
    Reason.ALTERNATE_PATH_NOT_SUPPORTED: "the device has no path migration",
}

#: What a queue pair is brought up with.
FIRST: dict[str, int] = {
    "qkey": 0x11, "rq_psn": 5, "sq_psn": 6, "dest_qp_num": 0x1234, "qp_access_flags": 6,
    "max_rd_atomic": 1, "max_dest_rd_atomic": 1, "min_rnr_timer": 12, "port_num": 1, "path_mtu": 3,
    "timeout": 14, "retry_cnt": 7, "rnr_retry": 7,
}  # fmt: skip
#: What every call of the matrix gives: the attribute's bit, the value, what it reads back as.
GIVEN: dict[str, tuple[int, int, int]] = {
    "qkey": (e.IBV_QP_QKEY, 0x7FFF_2222, 0x7FFF_2222),
    "rq_psn": (e.IBV_QP_RQ_PSN, 0xFF00_0015, 0x15),  # 24 bits, never refused
    "sq_psn": (e.IBV_QP_SQ_PSN, 0xFF00_0016, 0x16),
    "dest_qp_num": (e.IBV_QP_DEST_QPN, 0xAB_CDEF, 0xAB_CDEF),
    "qp_access_flags": (e.IBV_QP_ACCESS_FLAGS, 0xB, 0xA),  # local write is not the peer's
    "max_rd_atomic": (e.IBV_QP_MAX_QP_RD_ATOMIC, 5, 8),  # a power of two in the device
    "max_dest_rd_atomic": (e.IBV_QP_MAX_DEST_RD_ATOMIC, 3, 4),
    "min_rnr_timer": (e.IBV_QP_MIN_RNR_TIMER, 31, 31),
    "port_num": (e.IBV_QP_PORT, 2, 2),
    "path_mtu": (e.IBV_QP_PATH_MTU, 5, 5),
    "timeout": (e.IBV_QP_TIMEOUT, 31, 31),
    "retry_cnt": (e.IBV_QP_RETRY_CNT, 0, 0),
    "rnr_retry": (e.IBV_QP_RNR_RETRY, 0, 0),
    "pkey_index": (e.IBV_QP_PKEY_INDEX, 63, 63),
}
PLAIN = (*GIVEN, "qp_state", "cur_qp_state", "path_mig_state", "sq_draining")
PATH = ("port_num", "dlid", "sl", "src_path_bits", "static_rate", "is_global")
ROUTE = ("flow_label", "sgid_index", "hop_limit", "traffic_class")
PEER = GID("fe80:0000:0000:0000:0123:4567:89ab:cdef")


def other_path() -> AHAttr:
    """A path unlike the one a queue pair is brought up with, but in its port."""
    route = GlobalRoute(PEER, flow_label=0xFFFFF, sgid_index=0, hop_limit=255, traffic_class=7)
    return AHAttr(dlid=9, sl=15, src_path_bits=0, static_rate=2, is_global=1, port_num=1, gr=route)


def first_attributes() -> QPAttr:
    attr = QPAttr()
    for name, value in FIRST.items():
        setattr(attr, name, value)
    attr.ah_attr = AHAttr(dlid=1)
    return attr


def call_attributes(new: int, old: int) -> QPAttr:
    attr = QPAttr(qp_state=new, cur_qp_state=old)
    for name, (_, value, _) in GIVEN.items():
        setattr(attr, name, value)
    attr.ah_attr = other_path()
    attr.alt_port_num, attr.alt_timeout, attr.alt_ah_attr = 1, 14, AHAttr(dlid=1)
    return attr


def as_int(mask: int) -> int:
    """The mask as a C int has it."""
    return mask - (1 << 32) if mask >> 31 else mask


def path_of(path: AHAttr) -> dict[str, Any]:
    names = (*PATH, *ROUTE) if path.is_global else PATH
    values = {f"path {name}": getattr(path, name) for name in names}
    return values | ({"path dgid": str(path.dgid)} if path.is_global else {})


def look(qp: QP) -> dict[str, Any]:
    """Everything a query tells of the attributes."""
    attr, init = qp.query(sum(ibv_qp_attr_mask))
    seen = {name: getattr(attr, name) for name in PLAIN}
    return seen | path_of(attr.ah_attr) | {"cap": str(init.cap), "type": init.qp_type}


def expected(
    kind: int, old: int, case: Case, before: dict[str, Any], fresh: dict[str, Any]
) -> dict[str, Any]:
    """What a query must tell after an accepted call."""
    state = case.new if case.mask & STATE else old
    if state == RESET:
        return fresh
    mask = case.mask & ~DROPPED.get(kind, 0)
    after = before | {name: back for name, (bit, _, back) in GIVEN.items() if mask & bit}
    if mask & e.IBV_QP_AV:
        path = path_of(other_path())
        after |= path | {"port_num": path["path port_num"]}
    return after | {"qp_state": state, "cur_qp_state": state}


class Driven:
    """A queue pair of a type, taken to a state and asked for everything there."""

    def __init__(self, context: Context, pd: PD, cq: CQ, xrcd: XRCD, kind: int) -> None:
        cap = QPCap(1, 1, 1, 1)
        if kind == XRC_RECV:
            mask = int(e.IBV_QP_INIT_ATTR_XRCD)
            self.qp = QP(context, QPInitAttrEx(kind, xrcd=xrcd, comp_mask=mask))
        elif kind == XRC_SEND:
            mask = int(e.IBV_QP_INIT_ATTR_PD)
            self.qp = QP(context, QPInitAttrEx(kind, scq=cq, pd=pd, cap=cap, comp_mask=mask))
        else:
            self.qp = QP(pd, QPInitAttr(kind, scq=cq, rcq=cq, cap=cap))
        self.kind = kind
        self.cq = cq
        self.ah = AH(pd, attr=AHAttr(dlid=1))
        self.fresh = look(self.qp)

    def take_to(self, state: int) -> dict[str, Any]:
        """Go there from RESET; what a query tells then."""
        attr, now = first_attributes(), RESET
        for step in (RESET, *WAYS[state]):
            attr.qp_state = step
            self.qp.modify(attr, STATE | ATTRIBUTES[(now, step)][self.kind][0])
            now = step
        if state == SQE:
            self.fail_a_send()
        found = look(self.qp)
        assert found["qp_state"] == state
        return found

    def fail_a_send(self) -> None:
        """Send from memory no key was given for."""
        wr = SendWR(1, num_sge=1, sg=[SGE(4096, 8, NO_KEY)])
        if self.kind == UD:
            wr.set_wr_ud(self.ah, self.qp.qp_num, FIRST["qkey"])
        self.qp.post_send(wr)
        while not (found := self.cq.poll()[1]):
            pass
        assert found[0].status != e.IBV_WC_SUCCESS

    def ask(self, case: Case, old: int) -> tuple[int, str]:
        try:
            self.qp.modify(call_attributes(case.new, old), as_int(case.mask))
        except PyverbsRDMAError as error:
            return error.error_code, error.reason
        return 0, ""

    def check_all(self, old: int, calls: list[Case]) -> Counter[int]:
        """Make calls of the matrix in a state."""
        outcomes: Counter[int] = Counter()
        before = self.take_to(old)
        for case in calls:
            where = (self.kind, old, case)
            code, why = self.ask(case, old)
            assert code == case.code, (where, why)
            outcomes[code] += 1
            after = look(self.qp)
            if code:
                assert WORDS[Reason(case.reason)] in why, where
                assert after == before, where
                assert self.qp.qp_state == old, where
                continue
            assert after == expected(self.kind, old, case, before, self.fresh), where
            before = self.take_to(old)
        return outcomes


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    with (
        start_kernel(f"transitions-{uuid.uuid4().hex[:8]}") as kernel,
        Context(name="mthca0", kernel=kernel.name) as opened,
    ):
        yield opened


def test_how_many_there_are():
    outcomes = Counter(case.code for _, _, case in SOME)
    print(f"{len(SOME)} of {COUNT} cases across processes: {dict(outcomes)}")
    assert len(EVERY) == COUNT_HERE
    assert 3 * len(SOME) >= COUNT
    assert {case.reason for _, _, case in SOME} == {0, *WORDS}
    assert {kind_of(*one) for one in SOME} == {kind_of(*one) for one in EVERY}


def check(context: Context, kind: int, calls: list[tuple[int, int, Case]]) -> None:
    """Make the calls of a type."""
    pd, cq = PD(context), CQ(context, 1)
    mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
    xrcd = XRCD(context, XRCDInitAttr(mask, 0o100, -1))
    total: Counter[int] = Counter()
    for old in states_of(kind):
        here = [case for one, state, case in calls if (one, state) == (kind, old)]
        outcomes = Driven(context, pd, cq, xrcd, kind).check_all(old, here)
        assert outcomes == Counter(case.code for case in here)
        total += outcomes
    print(f"type {kind}: {total.total()} calls: {dict(total)}")
    assert total.total() == sum(one == kind for one, _, _ in calls)
    for parent in (xrcd, cq, pd):
        parent.close()


@pytest.mark.parametrize("kind", TYPES)
def test_calls_of_all_kinds_in_every_state_across_processes(context: Context, kind: int):
    check(context, kind, SOME)


@pytest.mark.stress
@pytest.mark.parametrize("kind", TYPES)
def test_every_call_in_every_state_across_processes(context: Context, kind: int):
    check(context, kind, EVERY)
