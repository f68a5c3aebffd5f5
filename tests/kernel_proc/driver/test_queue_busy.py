"""What holds what: every kind of object that can be held, by every kind that holds it."""

import errno
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from shared import verb_codes as codes
from shared.verb_messages import NO_FD, CreateAh, Multicast, Object, OpenXrcd, RegMr
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import RC, UC, UD, XRC_RECV, XRC_SEND, CqUser, QueueUser


class Held(NamedTuple):
    """An object, who holds it, and how each is destroyed."""

    code: int
    handle: int
    holder_code: int
    holder: int


def _pd(user: QueueUser) -> int:
    return int(user.good(codes.IOCTL_ALLOC_PD).handle)


def _domain(user: QueueUser) -> int:
    return int(user.good(codes.IOCTL_OPEN_XRCD, OpenXrcd(NO_FD, os.O_CREAT)).handle)


def _pd_by_mr(user: QueueUser) -> Held:
    pd = _pd(user)
    mr = user.good(codes.IOCTL_REG_MR, RegMr(pd, user.memory(4096), 4096, 0, 1)).handle
    return Held(codes.IOCTL_DEALLOC_PD, pd, codes.IOCTL_DEREG_MR, mr)


def _pd_by_ah(user: QueueUser) -> Held:
    pd = _pd(user)
    ah = user.good(
        codes.IOCTL_CREATE_AH, CreateAh(pd, 1, 1, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0)
    ).handle
    return Held(codes.IOCTL_DEALLOC_PD, pd, codes.IOCTL_DESTROY_AH, ah)


def _pd_by_qp(user: QueueUser) -> Held:
    pd = _pd(user)
    return Held(
        codes.IOCTL_DEALLOC_PD, pd, codes.IOCTL_DESTROY_QP, user.qp(user.cq(), pd=pd).handle
    )


def _pd_by_srq(user: QueueUser) -> Held:
    pd = _pd(user)
    return Held(codes.IOCTL_DEALLOC_PD, pd, codes.IOCTL_DESTROY_SRQ, user.srq(pd=pd).handle)


def _cq_by(kind: int, which: str) -> Callable[[QueueUser], Held]:
    def make(user: QueueUser) -> Held:
        held, other = user.cq(), user.cq()
        parts = {"send_cq": other.handle, "receive_cq": other.handle} | {which: held.handle}
        qp = user.qp(held, kind, **parts)
        return Held(codes.IOCTL_DESTROY_CQ, held.handle, codes.IOCTL_DESTROY_QP, qp.handle)

    return make


def _cq_by_xrc_srq(user: QueueUser) -> Held:
    cq: CqUser = user.cq()
    srq = user.srq(srq_type=1, xrcd=_domain(user), cq=cq.handle)
    return Held(codes.IOCTL_DESTROY_CQ, cq.handle, codes.IOCTL_DESTROY_SRQ, srq.handle)


def _srq_by_qp(user: QueueUser) -> Held:
    srq = user.srq().handle
    qp = user.qp(user.cq(), srq=srq).handle
    return Held(codes.IOCTL_DESTROY_SRQ, srq, codes.IOCTL_DESTROY_QP, qp)


def _domain_by_srq(user: QueueUser) -> Held:
    domain = _domain(user)
    srq = user.srq(srq_type=1, xrcd=domain, cq=user.cq().handle)
    return Held(codes.IOCTL_CLOSE_XRCD, domain, codes.IOCTL_DESTROY_SRQ, srq.handle)


def _domain_by_qp(user: QueueUser) -> Held:
    domain = _domain(user)
    qp = user.qp(user.cq(), XRC_RECV, xrcd=domain)
    return Held(codes.IOCTL_CLOSE_XRCD, domain, codes.IOCTL_DESTROY_QP, qp.handle)


HOLDERS: dict[str, Callable[[QueueUser], Held]] = {
    "PD by MR": _pd_by_mr,
    "PD by AH": _pd_by_ah,
    "PD by QP": _pd_by_qp,
    "PD by SRQ": _pd_by_srq,
    "CQ by RC, sends": _cq_by(RC, "send_cq"),
    "CQ by RC, receives": _cq_by(RC, "receive_cq"),
    "CQ by UC, sends": _cq_by(UC, "send_cq"),
    "CQ by UD, receives": _cq_by(UD, "receive_cq"),
    "CQ by XRC_SEND": _cq_by(XRC_SEND, "send_cq"),
    "CQ by XRC SRQ": _cq_by_xrc_srq,
    "SRQ by QP": _srq_by_qp,
    "domain by XRC SRQ": _domain_by_srq,
    "domain by XRC_RECV": _domain_by_qp,
}


def test_how_many_there_are():
    assert len(HOLDERS) == 13


@pytest.fixture(scope="module")
def user() -> Iterator[QueueUser]:
    with HcaBox() as box:
        yield QueueUser(box)


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_held_is_busy_until_it_is_let_go(user: QueueUser, name: str):
    held = HOLDERS[name](user)
    for _ in range(2):  # a refusal leaves it fully usable, and held
        answer = user.ask(held.code, Object(held.handle))
        assert answer[:4] == (errno.EBUSY, Reason.IN_USE, held.handle, 1)
    user.good(held.holder_code, Object(held.holder))
    user.good(held.code, Object(held.handle))
    again = user.ask(held.code, Object(held.handle))
    assert again[:3] == (errno.EINVAL, Reason.NO_SUCH_OBJECT, held.handle)


def test_a_qp_is_busy_in_a_group(user: QueueUser):
    qp = user.qp(user.cq(), UD).handle
    message = Multicast(qp, b"\xff" + bytes(15), 0xC001)
    user.good(codes.IOCTL_ATTACH_MCAST, message)
    answer = user.ask(codes.IOCTL_DESTROY_QP, Object(qp))
    assert answer[:4] == (errno.EBUSY, Reason.STILL_ATTACHED, qp, 1)
    user.good(codes.IOCTL_DETACH_MCAST, message)
    user.good(codes.IOCTL_DESTROY_QP, Object(qp))


def test_the_close_of_a_file_frees_all_of_it_leaf_to_root():
    box = HcaBox()
    user = QueueUser(box)
    before = box.life.inspect()["numbers"]
    for make in HOLDERS.values():
        make(user)
    assert box.life.inspect()["numbers"] != before
    user.session.close()
    assert box.life.inspect()["numbers"] == before
    hca = box.hca.tables
    for table in (hca.qps, hca.cqs, hca.srqs):
        assert not table.all()
    box.close()
