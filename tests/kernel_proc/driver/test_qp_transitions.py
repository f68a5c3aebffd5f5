"""Every pair of states x every type x every kind of mask, against the driver and the real device.

What is expected is written here as the verbs semantics have it, in masks of libibverbs; it is not
taken from the table the driver and the HCA use.
"""

import errno
import os
from collections import Counter
from itertools import product
from typing import NamedTuple

import pytest

from kernel_proc.driver.qp_resource import Qp
from kernel_proc.driver.qp_verbs import modify_qp, query_qp
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import qp_transitions as table
from shared import verb_codes as codes
from shared.verb_messages import NO_FD, Object, OpenXrcd
from shared.verb_reasons import VerbReason as Reason
from shared.verbs_enums import ibv_qp_attr_mask
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import (
    ERR,
    INIT,
    RC,
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
    QueueUser,
    attributes,
)

STATES = range(7)
STATE, CUR_STATE = 0x1, 0x2
ALT_PATH, MIGRATION = 0x4000, 0x40000
BITS = [int(bit) for bit in ibv_qp_attr_mask]
UNKNOWN_BIT = 1 << 31

# (old, new): type: (required, optional)
ATTRIBUTES: dict[tuple[int, int], dict[int, tuple[int, int]]] = {
    (RESET, INIT): {
        RC: (0x38, 0), UC: (0x38, 0), XRC_SEND: (0x38, 0), XRC_RECV: (0x38, 0), UD: (0x70, 0),
    },
    (INIT, INIT): {
        RC: (0, 0x38), UC: (0, 0x38), XRC_SEND: (0, 0x38), XRC_RECV: (0, 0x38), UD: (0, 0x70),
    },
    (INIT, RTR): {
        RC: (0x129180, 0x4018), XRC_RECV: (0x129180, 0x4018), UC: (0x101180, 0x4018),
        XRC_SEND: (0x101180, 0x4018), UD: (0, 0x50),
    },
    (RTR, RTS): {
        RC: (0x12E00, 0x4C00A), XRC_SEND: (0x12E00, 0x4400A), XRC_RECV: (0x10200, 0x4C00A),
        UC: (0x10000, 0x4400A), UD: (0x10000, 0x42),
    },
    (RTS, RTS): {
        RC: (0, 0x4C00A), XRC_RECV: (0, 0x4C00A), UC: (0, 0x4400A), XRC_SEND: (0, 0x4400A),
        UD: (0, 0x42),
    },
    (RTS, SQD): {RC: (0, 4), UC: (0, 4), UD: (0, 4), XRC_SEND: (0, 4), XRC_RECV: (0, 4)},
    (SQD, RTS): {
        RC: (0, 0x4C00A), XRC_RECV: (0, 0x4C00A), UC: (0, 0x4400A), XRC_SEND: (0, 0x4400A),
        UD: (0, 0x42),
    },
    (SQD, SQD): {
        RC: (0, 0x6EEB8), XRC_SEND: (0, 0x46EB8), XRC_RECV: (0, 0x6C2B8), UC: (0, 0x44098),
        UD: (0, 0x50),
    },
    (SQE, RTS): {
        UD: (0, 0x42), UC: (0, 0xA), RC: (0, 0), XRC_SEND: (0, 0), XRC_RECV: (0, 0),
    },
}  # fmt: skip
for _old in STATES:
    ATTRIBUTES[(_old, RESET)] = dict.fromkeys(TYPES, (0, 0))
    if _old != RESET:
        ATTRIBUTES[(_old, ERR)] = dict.fromkeys(TYPES, (0, 0))

#: What means nothing to a side of XRC and is dropped before anything is checked.
DROPPED = {XRC_SEND: 0x20000 | 0x8000, XRC_RECV: 0x2000 | 0x400 | 0x800}

# The masks of libibverbs, spelled as numbers above.
assert {
    "DEST": table.DEST_RD_ATOMIC,
    "RNR_TIMER": table.RNR_TIMER,
    "RD_ATOMIC": table.RD_ATOMIC,
} == {"DEST": 0x20000, "RNR_TIMER": 0x8000, "RD_ATOMIC": 0x2000}


class Case(NamedTuple):
    """One call: its mask, and what it must come to (0 is success)."""

    new: int
    mask: int
    code: int
    reason: int


def _judge(kind: int, old: int, new: int, mask: int) -> Case:
    """Apply the acceptance rule in words: known, CUR_STATE, pair, required, nothing else."""

    def refused(reason: Reason, code: int = errno.EINVAL) -> Case:
        return Case(new, mask, code, reason)

    if mask & UNKNOWN_BIT:
        return refused(Reason.UNKNOWN_ATTRIBUTES, errno.EOPNOTSUPP)
    counted = mask & ~DROPPED.get(kind, 0)
    if counted & CUR_STATE and old not in (RTR, RTS, SQD, SQE):
        return refused(Reason.CUR_STATE_NOT_ALLOWED)
    rows = ATTRIBUTES.get((old, new if counted & STATE else old))
    if rows is None:
        return refused(Reason.NO_SUCH_TRANSITION)
    required, optional = rows[kind]
    if required & ~counted:
        return refused(Reason.ATTRIBUTES_MISSING)
    if counted & ~(required | optional | STATE):
        return refused(Reason.ATTRIBUTES_NOT_ALLOWED)
    if counted & (ALT_PATH | MIGRATION):
        return refused(Reason.ALTERNATE_PATH_NOT_SUPPORTED, errno.EOPNOTSUPP)
    return Case(new, mask, 0, 0)


def _masks(kind: int, old: int, new: int) -> list[int]:
    """The least mask, each required bit missing, each other bit alone, one bit unknown."""
    required, _ = ATTRIBUTES.get((old, new), {}).get(kind, (0, 0))
    least = STATE | required
    masks = [least]
    masks += [least & ~bit for bit in BITS if required & bit]
    masks += [least | bit for bit in BITS if not least & bit]
    masks.append(least | UNKNOWN_BIT)
    if old == new:
        masks += [mask & ~STATE for mask in list(masks)]
    return masks


def cases(kind: int, old: int) -> list[Case]:
    """Every call for a type in a state."""
    return [_judge(kind, old, new, mask) for new in STATES for mask in _masks(kind, old, new)]


def test_the_table_of_driver_and_hca_says_the_same():
    for (old, new), kind in product(product(STATES, STATES), TYPES):
        row = table.TRANSITIONS.get((old, new))
        expected = ATTRIBUTES.get((old, new), {}).get(kind)
        assert (None if row is None else tuple(row.attributes[kind])) == expected


def test_how_many_there_are():
    every = [case for kind in TYPES for old in STATES for case in cases(kind, old)]
    outcomes = Counter(case.code for case in every)
    assert len(every) == COUNT
    assert outcomes == {
        0: ACCEPTED,
        errno.EINVAL: COUNT - ACCEPTED - UNSUPPORTED,
        errno.EOPNOTSUPP: UNSUPPORTED,
    }


COUNT = 6440
ACCEPTED = 427
UNSUPPORTED = 332


class Driven:
    """A QP that is taken to a state by hand, and looked at from both sides."""

    def __init__(self, user: QueueUser, kind: int) -> None:
        self.user = user
        self.kind = kind
        cq = user.cq()
        xrcd = 0
        if kind == XRC_RECV:
            xrcd = user.good(codes.IOCTL_OPEN_XRCD, OpenXrcd(NO_FD, os.O_CREAT)).handle
        self.handle = user.qp(cq, kind, xrcd=xrcd).handle
        self.context = user.session.context
        self.qp: Qp = self.context.find(Qp, self.handle)
        self.table = user.box.hca.tables.qps

    def call(self, new: int, mask: int, old: int = 0) -> tuple[int, int]:
        request = attributes(self.handle, mask, qp_state=new, cur_qp_state=old)
        try:
            modify_qp(self.context.driver, self.context, request, None)
        except VerbRefused as refusal:
            return refusal.errno, refusal.reason
        return 0, 0

    def take_to(self, state: int) -> None:
        """Go the shortest way from RESET."""
        assert self.call(RESET, STATE) == (0, 0)
        way = {RESET: [], INIT: [INIT], ERR: [INIT, ERR], SQE: [INIT, RTR, RTS]}.get(
            state,
            [INIT, RTR, RTS, SQD][: (INIT, RTR, RTS, SQD).index(state) + 1]
            if state in (RTR, RTS, SQD)
            else [],
        )
        now = RESET
        for step in way:
            assert self.call(step, STATE | ATTRIBUTES[(now, step)][self.kind][0]) == (0, 0)
            now = step
        if state == SQE:  # which only the device enters
            self.table.require(self.qp.number).state = SQE
            query_qp(self.context.driver, self.context, Object(self.handle), None)
        assert self.qp.state == state

    def seen(self) -> object:
        """Both sides' idea of the QP."""
        own = self.table.find(self.qp.number)
        return self.qp.hca, None if own is None else own.live_context()

    def device_state(self) -> int:
        own = self.table.find(self.qp.number)
        return RESET if own is None else int(own.state)

    def check_all(self, old: int) -> Counter[int]:
        """Make every call in a state; a refused one changes nothing."""
        outcomes: Counter[int] = Counter()
        self.take_to(old)
        before = self.seen()
        for case in cases(self.kind, old):
            answer = self.call(case.new, case.mask, old)
            assert answer == (case.code, case.reason), (self.kind, old, case)
            outcomes[case.code] += 1
            if case.code:
                assert self.seen() == before, (self.kind, old, case)
                continue
            expected = case.new if case.mask & STATE else old
            assert self.qp.state == self.device_state() == expected
            self.take_to(old)
            before = self.seen()
        return outcomes


@pytest.mark.parametrize("kind", TYPES)
def test_every_call_in_every_state(box: HcaBox, kind: int):
    driven = Driven(QueueUser(box), kind)
    for old in STATES:
        outcomes: Counter[int] = box.processor.run_thread(driven.check_all, old)
        assert outcomes == Counter(case.code for case in cases(kind, old))
