"""CQEX: one completion at a time, and only what was asked for. The device is played by hand."""

import errno
import threading
from typing import Any

import pytest

from tests.user_proc.provider.device_side import CompletionWriter
from tests.user_proc.verbs.stand_in import Refusal, Wire
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQEX, CompChannel, CqInitAttrEx, PollCqAttr, WcTmInfo
from user_proc.verbs.cq_ex import SUPPORTED_WC_FLAGS
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, SendWR

#: Each reader, what it reads of an entry, and the flag it needs.
READERS: list[tuple[str, str, int]] = [
    ("read_opcode", "opcode", 0),
    ("read_vendor_err", "vendor_err", 0),
    ("read_wc_flags", "wc_flags", 0),
    ("read_byte_len", "byte_len", e.IBV_WC_EX_WITH_BYTE_LEN),
    ("read_imm_data", "imm_data", e.IBV_WC_EX_WITH_IMM),
    ("read_qp_num", "qpn", e.IBV_WC_EX_WITH_QP_NUM),
    ("read_src_qp", "src_qp", e.IBV_WC_EX_WITH_SRC_QP),
    ("read_slid", "slid", e.IBV_WC_EX_WITH_SLID),
    ("read_sl", "sl", e.IBV_WC_EX_WITH_SL),
    ("read_dlid_path_bits", "dlid_path_bits", e.IBV_WC_EX_WITH_DLID_PATH_BITS),
    ("read_timestamp", "timestamp_ns", e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP),
    (
        "read_completion_wallclock_ns",
        "timestamp_ns",
        e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    ),
]
LACKING = {
    "read_cvlan": e.IBV_WC_EX_WITH_CVLAN,
    "read_flow_tag": e.IBV_WC_EX_WITH_FLOW_TAG,
    "read_tm_info": e.IBV_WC_EX_WITH_TM_INFO,
}
FIELDS = {
    "opcode": 128, "status": 0, "vendor_err": 6, "byte_len": 7, "imm_data": 8, "src_qp": 9,
    "wc_flags": 3, "slid": 11, "sl": 13, "dlid_path_bits": 14, "timestamp_ns": 123_456,
}  # fmt: skip
WALL_OFFSET = 5_000_000_000 - 1_000  # as the kernel of words tells its clocks


def make(context: Context, wc_flags: int = 0, **options: Any) -> CQEX:
    return CQEX(context, CqInitAttrEx(10, wc_flags=wc_flags, **options))


def sending(context: Context, cq: CQEX, number: int = 3) -> QP:
    qp = QP(PD(context), QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(8, 8, 1, 1)))
    qp.modify(QPAttr(qp_state=int(e.IBV_QPS_RTS)), e.IBV_QP_STATE)
    for wr_id in range(number):
        qp.post_send(SendWR(100 + wr_id, num_sge=1, sg=[SGE(4096, 8, 1)]))
    return qp


def device_of(cq: CQEX) -> CompletionWriter:
    memory: Any = cq._parts.memories[-1].view()
    return CompletionWriter(memory)


def test_the_readers_are_those_of_the_flags():
    flags = {int(one) for one in e.ibv_create_cq_wc_flags}
    needed = {flag for _, _, flag in READERS if flag}
    assert needed | {int(flag) for flag in LACKING.values()} == flags
    assert sum(needed) == SUPPORTED_WC_FLAGS
    print(f"{len(READERS)} readers, {len(LACKING)} of what the device lacks")
    named = {name for name in vars(CQEX) if name.startswith("read_")}
    assert named == {name for name, _, _ in READERS} | set(LACKING)


@pytest.mark.parametrize(("reader", "field", "flag"), READERS, ids=[row[0] for row in READERS])
def test_a_reader_reads_what_it_was_asked_for(context: Context, reader: str, field: str, flag: int):
    for wanted in (flag, SUPPORTED_WC_FLAGS, SUPPORTED_WC_FLAGS & ~flag):
        cq = make(context, wanted)
        qp = sending(context, cq, 1)
        with pytest.raises(PyverbsUserError):
            getattr(cq, reader)()
        device_of(cq).post(qp.qp_num, 0, is_send=1, **FIELDS)
        assert cq.start_poll(None) == 0
        expected = (FIELDS | {"qpn": qp.qp_num})[field]
        if "wallclock" in reader:
            expected += WALL_OFFSET
        if not flag or wanted & flag:
            assert getattr(cq, reader)() == expected
        else:
            with pytest.raises(PyverbsUserError, match="was not made with IBV_WC_EX_WITH_"):
                getattr(cq, reader)()
        cq.end_poll()
        with pytest.raises(PyverbsUserError):
            getattr(cq, reader)()


def test_completions_are_polled_one_by_one(context: Context, wire: Wire):
    cq = CQEX(context, None)
    assert (cq.wr_id, cq.status, wire.last("create_cq").cqe) == (0, 0, 100)
    qp, device = sending(context, cq), device_of(cq)
    assert cq.start_poll(PollCqAttr()) == errno.ENOENT
    device.post(qp.qp_num, 0, is_send=1)
    device.post(qp.qp_num, 1, is_send=1, status=5)
    assert cq.start_poll(None) == 0
    assert (cq.wr_id, cq.status) == (100, 0)
    assert cq.poll_next() == 0
    assert (cq.wr_id, cq.status) == (101, 5)
    assert cq.poll_next() == errno.ENOENT
    with pytest.raises(PyverbsUserError, match="no current completion"):
        cq.read_opcode()
    device.post(qp.qp_num, 2, is_send=1)
    assert (cq.poll_next(), cq.wr_id) == (0, 102)
    cq.end_poll()
    assert cq.start_poll(None) == errno.ENOENT
    cq.wr_id, cq.status = 7, 8
    assert (cq.wr_id, cq.status) == (7, 8)


def test_the_order_of_calls_is_held_to(context: Context):
    cq = make(context)
    qp = sending(context, cq)
    for act in (cq.poll_next, cq.end_poll):
        with pytest.raises(PyverbsUserError, match="start_poll has found nothing"):
            act()
    attr = PollCqAttr()
    attr.comp_mask = 1
    assert cq.start_poll(attr) == errno.EINVAL
    device_of(cq).post(qp.qp_num, 0, is_send=1)
    assert cq.start_poll(None) == 0
    with pytest.raises(PyverbsUserError, match="before the end_poll"):
        cq.start_poll(None)
    cq.end_poll()
    cq.close()
    with pytest.raises(PyverbsUserError, match="the CQEX is closed"):
        cq.start_poll(None)


def test_threads_wait_for_each_other_unless_they_promised_not_to_meet(context: Context):
    for flags in (0, e.IBV_CREATE_CQ_ATTR_SINGLE_THREADED):
        cq = make(context, comp_mask=e.IBV_CQ_INIT_ATTR_MASK_FLAGS, flags=flags)
        qp, device = sending(context, cq), device_of(cq)
        for position in range(2):
            device.post(qp.qp_num, position, is_send=1)
        assert cq.start_poll(None) == 0
        seen: list[int] = []
        began = threading.Event()

        def other(queue: CQEX = cq, began: threading.Event = began, seen: list[int] = seen) -> None:
            began.set()
            assert queue.start_poll(None) == 0
            seen.append(queue.wr_id)
            queue.end_poll()

        thread = threading.Thread(target=other)
        thread.start()
        assert began.wait(20)
        if flags:
            thread.join(20)
        else:
            assert seen == []  # it cannot get on before end_poll
            cq.end_poll()
            thread.join(20)
        assert seen == [101]


def test_a_queue_that_failed_is_an_errno(context: Context):
    cq = make(context)
    cq.events.broken = True
    assert cq.start_poll(None) == errno.EIO
    assert cq.start_poll(None) == errno.EIO  # and the lock has been let go


REFUSED = [
    *((f"wc_flags-{name}", errno.EOPNOTSUPP, {"wc_flags": flag}) for name, flag in LACKING.items()),
    ("wc_flags-unknown", errno.EOPNOTSUPP, {"wc_flags": 1 << 40}),
    ("comp_mask", errno.EOPNOTSUPP, {"comp_mask": 4}),
    ("domain-missing", errno.EINVAL, {"comp_mask": e.IBV_CQ_INIT_ATTR_MASK_PD}),
]


@pytest.mark.parametrize(
    ("number", "options"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_the_device_does_not_have_is_refused(
    context: Context, wire: Wire, number: int, options: dict[str, int]
):
    with pytest.raises(PyverbsRDMAError, match="Failed to create extended CQ") as caught:
        CQEX(context, CqInitAttrEx(**options))
    assert caught.value.error_code == number
    assert "create_cq" not in wire.names()


@pytest.mark.parametrize("name", LACKING)
def test_readers_of_what_the_device_lacks(context: Context, name: str):
    with pytest.raises(PyverbsRDMAError, match="the device has no") as caught:
        getattr(make(context), name)()
    assert caught.value.error_code == errno.EOPNOTSUPP


def test_a_plain_domain_is_no_parent_domain(context: Context):
    attr = CqInitAttrEx(comp_mask=e.IBV_CQ_INIT_ATTR_MASK_PD, parent_domain=PD(context))
    with pytest.raises(PyverbsRDMAError, match="asks for a parent domain"):
        CQEX(context, attr)


def test_flags_count_when_the_mask_says_so(context: Context, wire: Wire):
    flags = e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN
    CQEX(context, CqInitAttrEx(flags=flags))
    assert wire.last("create_cq").flags == 0
    CQEX(context, CqInitAttrEx(flags=flags, comp_mask=e.IBV_CQ_INIT_ATTR_MASK_FLAGS))
    assert wire.last("create_cq").flags == flags
    wire.answers["create_cq"] = lambda request: Refusal(22)
    with pytest.raises(PyverbsRDMAError, match=r"^Failed to create extended CQ. Errno: 22"):
        CQEX(context, CqInitAttrEx(comp_vector=1))
    assert wire.last("create_cq").comp_vector == 1


def test_a_queue_whose_clock_is_not_told_is_closed_again(context: Context, wire: Wire):
    wire.answers["query_clock"] = lambda request: Refusal(5)
    with pytest.raises(PyverbsRDMAError, match="Failed to create extended CQ"):
        make(context, e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
    assert wire.names()[-1] == "destroy_cq"


def test_it_is_closed_with_its_children_and_its_channel(context: Context, wire: Wire):
    channel = CompChannel(context)
    attr = CqInitAttrEx(16, channel)
    cq = CQEX(context, attr)
    qp = sending(context, cq)
    cq.req_notify()
    assert (wire.last("create_cq").has_channel, cq.comp_channel) == (1, channel)
    channel.close()
    ended = [name for name in wire.names() if name.startswith("destroy")]
    assert ended == ["destroy_qp", "destroy_cq"]
    with pytest.raises(PyverbsUserError, match="closed"):
        qp.qp_num  # noqa: B018
    cq.close()


def test_words_and_values(context: Context):
    attr = CqInitAttrEx(3, None, 4, e.IBV_WC_EX_WITH_BYTE_LEN, 1, 2)
    assert str(attr) == (
        "Number of CQEs        : 3                   \n"
        "WC flags              : IBV_WC_EX_WITH_BYTE_LEN \n"
        "comp mask             : 1                   \n"
        "flags                 : 2                   \n"
    )
    assert str(make(context)).startswith("CQ\nHandle                : ")
    assert (WcTmInfo().tag, WcTmInfo().priv) == (0, 0)
    attr.comp_channel = attr.parent_domain = None
    with pytest.raises(TypeError, match=r"expected pyverbs.cq.CqInitAttrEx, got int"):
        CQEX(context, 3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match=r"expected pyverbs.cq.PollCqAttr, got int"):
        make(context).start_poll(3)  # type: ignore[arg-type]  # on purpose
