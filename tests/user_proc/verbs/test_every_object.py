"""Every kind of object on the whole machine in this process: made, used, refused, destroyed."""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID, AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import DM, AllocDmAttr, Context
from user_proc.verbs.mr import DMMR, MR, MW
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from user_proc.verbs.wr import SGE, RecvWR, SendWR
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

GROUP = GID("ff12:0000:0000:0000:0000:0000:0000:0001")
XRC_SRQ_MASK = (
    e.IBV_SRQ_INIT_ATTR_TYPE
    | e.IBV_SRQ_INIT_ATTR_PD
    | e.IBV_SRQ_INIT_ATTR_XRCD
    | e.IBV_SRQ_INIT_ATTR_CQ
)
XRCD_MASK = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(KernelSettings(verifier=True, seed=11), in_process=True)
    made.start_hca()
    yield made
    assert made.inspect()["server"]["sessions"] == []
    made.close()


@pytest.fixture
def context(machine: Machine) -> Iterator[Context]:
    with (
        UserProcess.in_process(machine.connect_in_process("verbs")) as process,
        Context(name="mthca0", process=process) as opened,
    ):
        yield opened


def test_memory_of_every_origin(context: Context):
    pd = PD(context)
    everything = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
    own = MR(pd, 10000, everything)
    memory = mmap.mmap(-1, 8192)
    block = ctypes.c_ubyte.from_buffer(memory)
    address = ctypes.addressof(block)
    private = MR(pd, 8000, e.IBV_ACCESS_LOCAL_WRITE, address + 100)
    assert len({own.lkey, private.lkey}) == 2
    own.rereg(e.IBV_REREG_MR_CHANGE_TRANSLATION, None, address, 4096)
    own.rereg(e.IBV_REREG_MR_CHANGE_PD | e.IBV_REREG_MR_CHANGE_ACCESS, PD(context), access=1)
    for region in (own, private):
        region.close()
    del block
    memory.close()
    with pytest.raises(PyverbsRDMAError, match="0x1000 cannot be written") as caught:
        MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE, 4096)
    assert caught.value.error_code == 14
    with pytest.raises(PyverbsRDMAError, match="the length is 0"):
        MR(pd, 0)
    with pytest.raises(PyverbsRDMAError, match="need IBV_ACCESS_LOCAL_WRITE"):
        MR(pd, 64, e.IBV_ACCESS_REMOTE_WRITE)
    region = MR(pd, 64)
    with pytest.raises(PyverbsRDMAError, match="IBV_REREG_MR_ERR_INPUT"):
        region.rereg(0)


def test_a_shared_queue_and_its_limit(context: Context):
    pd, cq = PD(context), CQ(context, 16)
    init = SrqInitAttr(SrqAttr(8, 2))
    srq = SRQ(pd, init)
    assert (init.max_wr, srq.query().max_wr) == (8, 8)
    srq.modify(SrqAttr(srq_limit=3), e.IBV_SRQ_LIMIT)
    assert srq.query().srq_limit == 3
    with pytest.raises(PyverbsRDMAError, match="srq_limit 9 is more than the 8"):
        srq.modify(SrqAttr(srq_limit=9), e.IBV_SRQ_LIMIT)
    region = MR(pd, 64, e.IBV_ACCESS_LOCAL_WRITE)
    for number in range(8):
        srq.post_recv(RecvWR(number, 1, [SGE(region.buf, 8, region.lkey)]))
    with pytest.raises(PyverbsRDMAError, match="Errno: 12"):
        srq.post_recv(RecvWR())
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, srq=srq, cap=QPCap(4)))
    srq.close()
    assert qp.close() is None


def test_datagrams_and_multicast(context: Context):
    pd, cq = PD(context), CQ(context, 16)
    init = QPInitAttr(e.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1))
    attr = QPAttr()
    attr.qkey = 0x1234
    qp = QP(pd, init, attr)
    assert qp.query(e.IBV_QP_STATE)[0].qkey == 0x1234
    qp.attach_mcast(GROUP, 0xC001)
    with pytest.raises(PyverbsRDMAError, match="attached to 1 multicast group:") as caught:
        qp.close()
    assert caught.value.error_code == 16
    qp.detach_mcast(GROUP, 0xC001)
    with pytest.raises(PyverbsRDMAError, match="not attached"):
        qp.detach_mcast(GROUP, 0xC001)
    with pytest.raises(PyverbsRDMAError, match="begins with 0xfe"):
        qp.attach_mcast(context.query_gid(1, 0), 0xC001)
    wr = SendWR(num_sge=1, sg=[SGE(4096, 8, 5)])
    wr.set_wr_ud(AH(pd, attr=AHAttr(dlid=1)), qp.qp_num, 0x1234)
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    qp.post_send(wr)
    found: list[int] = []
    while not found:
        found = [wc.status for wc in cq.poll(4)[1]]
    assert found == [e.IBV_WC_WR_FLUSH_ERR]
    attr.qkey = 1 << 31
    with pytest.raises(PyverbsRDMAError, match="privileged") as caught:
        QP(pd, init, attr)
    assert caught.value.error_code == 1


def test_xrc(context: Context):
    pd, cq = PD(context), CQ(context, 16)
    with open(os.devnull, "rb") as file:
        xrcd = XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, file.fileno()))
        again = XRCD(context, XRCDInitAttr(XRCD_MASK, 0, file.fileno()))
        with pytest.raises(PyverbsRDMAError, match="has an XRC domain already"):
            XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT | os.O_EXCL, file.fileno()))
        again.close()
    with pytest.raises(PyverbsRDMAError, match=r"Failed to allocate XRCD. Errno: 9"):
        XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, 12345))
    attr = SrqInitAttrEx(4)
    attr.comp_mask, attr.srq_type = 15, e.IBV_SRQT_XRC
    attr.pd, attr.xrcd, attr.cq = pd, xrcd, cq
    srq = SRQ(context, attr)
    target = QP(
        context,
        QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=xrcd),
        QPAttr(),
    )
    source = QP(
        context,
        QPInitAttrEx(
            e.IBV_QPT_XRC_SEND,
            scq=cq,
            pd=pd,
            cap=QPCap(4, 0, 1, 0),
            comp_mask=e.IBV_QP_INIT_ATTR_PD,
        ),
        QPAttr(),
    )
    assert (target.qp_state, source.qp_state) == (e.IBV_QPS_INIT, e.IBV_QPS_INIT)
    assert srq.get_srq_num() > 0
    xrcd.close()
    source.close()


def test_what_is_in_use_cannot_be_destroyed_behind_the_library(context: Context):
    pd = PD(context)
    region = MR(pd, 64)
    pd.disown(region)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to dealloc PD. Errno: 16.*an object"):
        pd.close()
    region.close()


def test_a_queue_is_resized_while_completions_wait(context: Context):
    pd, cq = PD(context), CQ(context, 16)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 8, 1, 1)), QPAttr())
    for number in range(8):
        qp.post_recv(RecvWR(number))
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    found: list[int] = []
    while not found:
        found += [wc.wr_id for wc in cq.poll(2)[1]]
    with pytest.raises(PyverbsRDMAError, match="completions wait"):
        cq.resize(2)
    cq.resize(200)
    while len(found) < 8:
        found += [wc.wr_id for wc in cq.poll(3)[1]]
    assert found == list(range(8))


def test_every_object_can_be_printed_while_it_is_open_and_after(context: Context):
    pd, cq = PD(context), CQ(context, 7)
    objects = {
        QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1))): "number",
        CompChannel(context): "fd",
        SRQ(pd, SrqInitAttr(SrqAttr(4, 1))): "Handle",
        MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE): "length                : 4096",
        MW(pd, e.IBV_MW_TYPE_1): "MW Type",
        AH(pd, attr=AHAttr(dlid=1)): "Handle",
        DM(context, AllocDmAttr(64)): "Handle",
        XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, -1)): "Handle",
        cq: "CQEs                  : 7",
        pd: "Handle",
        context: "Device                : mthca0",
    }
    for one, words in objects.items():
        assert words in str(one)
        one.close()
        assert str(one) == f"{one.KIND} (closed)\n"


def test_an_object_of_another_context_is_refused_though_its_number_is_known(machine: Machine):
    with (
        UserProcess.in_process(machine.connect_in_process("one")) as process,
        Context(name="mthca0", process=process) as context,
        Context(name="mthca0", process=process) as other,
    ):
        pd, foreign_pd = PD(context), PD(other)
        cq, foreign_cq = CQ(context, 1), CQ(other, 1)
        assert (pd.handle, cq.handle) == (foreign_pd.handle, foreign_cq.handle)
        mr, dm, channel = MR(pd, 4096, 1), DM(other, AllocDmAttr(64)), CompChannel(other)
        srq = SRQ(foreign_pd, SrqInitAttr(SrqAttr(4, 1)))
        xrcd = XRCD(other, XRCDInitAttr(XRCD_MASK, os.O_CREAT, -1))
        own_xrcd = XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, -1))

        def qp(scq: CQ = cq, rcq: CQ = cq, srq: SRQ | None = None) -> QP:
            cap = QPCap(1, 1, 1, 1)
            return QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=scq, rcq=rcq, srq=srq, cap=cap))

        def xrc_srq(pd: PD = pd, xrcd: XRCD = own_xrcd, cq: CQ = cq) -> SRQ:
            attr = SrqInitAttrEx(4, 1)
            attr.comp_mask = XRC_SRQ_MASK
            attr.srq_type, attr.pd, attr.xrcd, attr.cq = e.IBV_SRQT_XRC, pd, xrcd, cq
            return SRQ(context, attr)

        attempts: dict[Callable[[], object], str] = {
            lambda: qp(scq=foreign_cq): "CQ",
            lambda: qp(rcq=foreign_cq): "CQ",
            lambda: qp(srq=srq): "SRQ",
            lambda: QP(
                context,
                QPInitAttrEx(e.IBV_QPT_XRC_RECV, xrcd=xrcd, comp_mask=e.IBV_QP_INIT_ATTR_XRCD),
            ): "XRCD",
            lambda: xrc_srq(pd=foreign_pd): "PD",
            lambda: xrc_srq(xrcd=xrcd): "XRCD",
            lambda: xrc_srq(cq=foreign_cq): "CQ",
            lambda: CQ(context, 1, None, channel): "CompChannel",
            lambda: DMMR(pd, 64, e.IBV_ACCESS_ZERO_BASED, dm, 0): "DM",
            lambda: mr.rereg(e.IBV_REREG_MR_CHANGE_PD, foreign_pd): "PD",
        }
        for attempt, kind in attempts.items():
            with pytest.raises(
                PyverbsRDMAError, match=f"the {kind} is another context's"
            ) as caught:
                attempt()
            assert caught.value.error_code == errno.EINVAL
        xrc_srq().close()
        qp().close()
