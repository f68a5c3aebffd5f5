"""QPEx: what its builders put into the ring, and what keeps them from it."""

import ctypes
import errno
import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.user_proc.verbs.batched_operations import (
    LACKING,
    MOST_INLINE,
    MOST_SGE,
    MOST_WR,
    PAIRS,
    RC,
    ROWS,
    TYPES,
    UD,
    Objects,
    Row,
    Values,
    classic,
    entries,
    extended,
    finish,
    flags_of,
    ring_of,
)
from tests.user_proc.verbs.stand_in import Wire
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR, MW, MWBindInfo
from user_proc.verbs.pd import PD
from user_proc.verbs.posting import OPCODES
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp import QP, DataBuffer, QPAttr, QPCap, QPEx, QPInitAttr
from user_proc.verbs.wr import SGE


@pytest.fixture
def objects(pd: PD) -> Objects:
    region = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
    bind = MWBindInfo(region, region.buf, 64, e.IBV_ACCESS_REMOTE_READ)
    return Objects(AH(pd, attr=AHAttr(dlid=3)), MW(pd, e.IBV_MW_TYPE_2), bind)


def test_the_table_has_every_operation_of_the_device():
    flags = {one.name.removeprefix("IBV_QP_EX_WITH_") for one in e.ibv_qp_create_send_ops_flags}
    assert {row.flag for row in ROWS} == flags - set(LACKING)
    assert {row.opcode for row in ROWS} == set().union(*OPCODES.values())
    print(f"{len(ROWS)} operations, {len(PAIRS)} with their types of queue pair")
    assert len(PAIRS) == 10 + 7 + 2 + 10


@pytest.mark.parametrize(("kind", "row"), PAIRS)
def test_a_builder_puts_what_post_send_puts(
    context: Context, pd: PD, cq: CQ, objects: Objects, kind: int, row: Row
):
    qp, v, length = extended(context, pd, cq, kind), Values(), row.length or 24
    pieces = [SGE(4096 + 64 * number, length, number) for number in range(MOST_SGE)]
    memory = ctypes.create_string_buffer(bytes(range(200)), 200)
    base = ctypes.addressof(memory)
    put: list[tuple[Callable[[], None], list[SGE], int]] = [(lambda: None, [], 0)]
    if row.data:
        put = [(lambda: qp.wr_set_sge(pieces[0]), pieces[:1], 0)]
        counts = (1,) if row.length else range(MOST_SGE + 1)
        put += [
            (lambda n=n: qp.wr_set_sge_list(n, pieces), pieces[:n], 0)  # type: ignore[misc]
            for n in counts
        ]
    if row.data and row.inline:
        put += [
            (lambda: qp.wr_set_inline_data(base, 33), [SGE(base, 33, 0)], e.IBV_SEND_INLINE),
            (lambda: qp.wr_set_inline_data(0, 0), [SGE(0, 0, 0)], e.IBV_SEND_INLINE),
            (
                lambda: qp.wr_set_inline_data_list(
                    2, [DataBuffer(base + 5, 7), DataBuffer(base + 90, 13)]
                ),
                [SGE(base + 5, 7, 0), SGE(base + 90, 13, 0)],
                e.IBV_SEND_INLINE,
            ),
        ]
    for set_data, elements, inline in put:
        before = ring_of(qp).head
        qp.wr_start()
        qp.wr_id, qp.wr_flags = 7, e.IBV_SEND_FENCE
        row.build(qp, v, objects)
        qp.wr_id, qp.wr_flags = 1, 0  # they count when the operation is built
        set_data()
        finish(kind, qp, objects)
        assert ring_of(qp).head == before
        qp.wr_complete()
        wr = classic(kind, row, v, objects, elements)
        wr.send_flags |= inline
        qp.post_send(wr)
        built, posted = entries(qp)
        ring_of(qp).complete(ring_of(qp).head - 1)  # make room
        assert built == posted


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_batch_is_what_its_requests_posted_one_by_one_are(
    context: Context, pd: PD, cq: CQ, objects: Objects, data: st.DataObject
):
    kind = data.draw(st.sampled_from(sorted(TYPES)))
    rows = [row for row in ROWS if row.opcode in OPCODES[kind]]
    plain = QP(
        pd,
        QPInitAttr(
            kind, scq=cq, rcq=cq, cap=QPCap(MOST_WR, 1, MOST_SGE, 1, MOST_INLINE), sq_sig_all=0
        ),
    )
    plain.modify(QPAttr(qp_state=int(e.IBV_QPS_RTS)), e.IBV_QP_STATE)
    u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
    with extended(context, pd, cq, kind) as qp, plain:
        qp.wr_start()
        for row in data.draw(st.lists(st.sampled_from(rows), max_size=MOST_WR)):
            v = Values(
                data.draw(u32), data.draw(u64) & ~7, *(data.draw(one) for one in (u32, u64, u64))
            )
            qp.wr_id, qp.wr_flags = 7, e.IBV_SEND_FENCE
            row.build(qp, v, objects)
            elements: list[SGE] = []
            text = data.draw(st.binary(max_size=MOST_INLINE))
            inline = row.data and row.inline and data.draw(st.booleans())
            memory = ctypes.create_string_buffer(text, max(1, len(text)))
            address = ctypes.addressof(memory)
            if inline:
                elements = [SGE(address, len(text), 0)]
                qp.wr_set_inline_data(address, len(text))
            elif row.data:
                piece = st.builds(SGE, u64, st.integers(0, 1 << 20), u32)
                least, most = (1, 1) if row.length else (0, MOST_SGE)
                elements = data.draw(st.lists(piece, min_size=least, max_size=most))
                for one in elements if row.length else ():
                    one.length = row.length
                qp.wr_set_sge_list(len(elements), elements)
            finish(kind, qp, objects)
            wr = classic(kind, row, v, objects, elements)
            wr.send_flags |= int(e.IBV_SEND_INLINE) if inline else 0
            plain.post_send(wr)
            ctypes.memset(address, 0xFF, len(text))  # what was inline has been copied
        qp.wr_complete()
        assert entries(qp) == entries(plain)


# What is wrong with a batch


def started(qp: QPEx) -> QPEx:
    qp.wr_start()
    return qp


def whole(qp: QPEx) -> None:
    qp.wr_rdma_write(1, 4096)
    qp.wr_set_sge(SGE(4096, 8, 1))


PIECE = SGE(4096, 8, 1)
BAD: list[tuple[str, int, str, Callable[[QPEx], object]]] = [
    ("no-data", errno.EINVAL, "needs wr_set_sge", lambda q: q.wr_send()),
    (
        "data-twice",
        errno.EINVAL,
        "takes no data, or has it",
        lambda q: (whole(q), q.wr_set_sge(PIECE)),
    ),
    (
        "data-of-an-invalidate",
        errno.EINVAL,
        "takes no data, or has it",
        lambda q: (q.wr_local_inv(1), q.wr_set_inline_data(0, 0)),
    ),
    ("data-first", errno.EINVAL, "before any operation", lambda q: q.wr_set_sge(PIECE)),
    (
        "elements",
        errno.ENOSPC,
        "more than max_send_sge 4",
        lambda q: (q.wr_send(), q.wr_set_sge_list(5, [PIECE] * 5)),
    ),
    (
        "inline",
        errno.ENOSPC,
        "more than max_inline_data 64",
        lambda q: (q.wr_send(), q.wr_set_inline_data(1, 65)),  # its memory is not looked at
    ),
    (
        "inline-of-a-read",
        errno.EINVAL,
        "cannot have IBV_SEND_INLINE",
        lambda q: (q.wr_rdma_read(1, 0), q.wr_set_inline_data(0, 0)),
    ),
    (
        "atomic",
        errno.EINVAL,
        "not a multiple of 8",
        lambda q: (q.wr_atomic_fetch_add(1, 4, 1), q.wr_set_sge(PIECE)),
    ),
    (
        "long",
        errno.EINVAL,
        "more than a message",
        lambda q: (q.wr_send(), q.wr_set_sge(SGE(0, (1 << 31) + 1, 1))),
    ),
    (
        "full",
        errno.ENOMEM,
        "9 requests, the queue room for 8 of 8",
        lambda q: [whole(q) for _ in range(9)],
    ),
    ("xrc", errno.EINVAL, "is for XRC_SEND", lambda q: (whole(q), q.wr_set_xrc_srqn(1))),
    (
        "the-first-counts",
        errno.ENOSPC,
        "max_inline_data",
        lambda q: (q.wr_send(), q.wr_set_inline_data(1, 65), q.wr_send(), q.wr_rdma_read(1, 1)),
    ),
]


@pytest.mark.parametrize(
    ("number", "text", "build"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_what_is_wrong_is_kept_until_the_end_and_nothing_is_posted(
    context: Context,
    pd: PD,
    cq: CQ,
    wire: Wire,
    number: int,
    text: str,
    build: Callable[[QPEx], object],
):
    qp = extended(context, pd, cq, RC)
    qp.wr_start()
    if text != "before any operation" and "9 requests" not in text:
        whole(qp)  # one that is right does not help
    build(qp)
    with pytest.raises(PyverbsRDMAError) as caught:
        qp.wr_complete()
    assert str(caught.value).startswith(f"ibv_wr_complete failed.. Errno: {number}, ")
    assert text in caught.value.reason
    assert caught.value.error_code == number
    assert (ring_of(qp).outstanding, wire.index(0)) == (0, 0)
    qp.wr_start()  # and the next batch is a clean one
    whole(qp)
    qp.wr_complete()
    assert ring_of(qp).outstanding == 1


def test_a_datagram_needs_its_address(context: Context, pd: PD, cq: CQ, objects: Objects):
    qp = extended(context, pd, cq, UD)
    for build in (lambda: None, lambda: qp.wr_set_xrc_srqn(1)):
        qp.wr_start()
        qp.wr_send()
        qp.wr_set_sge(PIECE)
        build()
        with pytest.raises(PyverbsRDMAError, match=r"wr_set_ud_addr|XRC_SEND"):
            qp.wr_complete()
    qp = extended(context, pd, cq, RC)
    qp.wr_start()
    whole(qp)
    qp.wr_set_ud_addr(objects.ah, 1, 2)
    with pytest.raises(PyverbsRDMAError, match="is for UD queue pairs"):
        qp.wr_complete()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.flag)
def test_an_operation_that_was_not_asked_for(
    context: Context, pd: PD, cq: CQ, objects: Objects, row: Row
):
    own = int(getattr(e, f"IBV_QP_EX_WITH_{row.flag}"))
    qp = extended(context, pd, cq, RC, flags_of(RC) & ~own)
    qp.wr_start()
    with pytest.raises(PyverbsRDMAError, match=f"without IBV_QP_EX_WITH_{row.flag}") as caught:
        row.build(qp, Values(), objects)
    assert caught.value.error_code == errno.EOPNOTSUPP
    qp.wr_complete()  # of nothing
    assert ring_of(qp).outstanding == 0


def test_operations_the_device_lacks_and_a_queue_pair_without_any(pd: PD, cq: CQ):
    qp = QPEx(pd, QPInitAttr(RC, scq=cq, rcq=cq, cap=QPCap(1, 1)))
    for build in (
        qp.wr_send,
        lambda: qp.wr_send_tso(0, 0, 0),
        lambda: qp.wr_atomic_write(1, 2, b"12345678"),
        lambda: qp.wr_flush(1, 2, 3, 4, 5),
    ):
        with pytest.raises(PyverbsRDMAError) as caught:
            build()
        assert caught.value.error_code == errno.EOPNOTSUPP
    assert (qp.ind_table, qp.comp_mask, qp.wr_id, qp.wr_flags) == (None, 0, 0, 0)


def test_states_that_take_nothing(context: Context, pd: PD, cq: CQ):
    qp = extended(context, pd, cq, RC)
    qp.modify(QPAttr(qp_state=int(e.IBV_QPS_RESET)), e.IBV_QP_STATE)
    started(qp)
    whole(qp)
    with pytest.raises(PyverbsRDMAError, match="in state Reset") as caught:
        qp.wr_complete()
    assert caught.value.error_code == errno.EINVAL


def test_an_abort_leaves_no_trace(context: Context, pd: PD, cq: CQ):
    qp = extended(context, pd, cq, RC)
    memory = bytes(ring_of(qp)._view)
    started(qp)
    whole(qp)
    qp.wr_send()
    qp.wr_abort()
    assert (bytes(ring_of(qp)._view), ring_of(qp).head) == (memory, 0)
    started(qp)
    qp.wr_complete()
    assert ring_of(qp).head == 0


def test_the_order_of_calls_is_held_to(context: Context, pd: PD, cq: CQ):
    qp = extended(context, pd, cq, RC)
    for act in (qp.wr_send, qp.wr_complete, qp.wr_abort, lambda: qp.wr_set_sge(PIECE)):
        with pytest.raises(PyverbsUserError, match="wr_start has not been called"):
            act()
    started(qp)
    with pytest.raises(PyverbsUserError, match="wr_start before the wr_complete"):
        qp.wr_start()
    whole(qp)
    for wrong, kind in (
        (lambda: qp.wr_set_sge(None), TypeError),
        (lambda: qp.wr_set_sge_list(2, [PIECE]), IndexError),
        (lambda: qp.wr_rdma_write("key", 0), TypeError),
        (lambda: qp.wr_send_imm(1 << 32), OverflowError),
        (lambda: qp.wr_set_sge_list(-1, []), OverflowError),
    ):
        with pytest.raises(kind):
            wrong()
    qp.wr_complete()  # what could not be called is not part of the batch
    assert ring_of(qp).outstanding == 1
    started(qp)
    qp.close()
    with pytest.raises(PyverbsUserError, match="closed"):
        qp.wr_complete()
    with pytest.raises(PyverbsUserError, match="closed"):
        qp.wr_start()


def test_batches_of_threads_do_not_mix(context: Context, pd: PD, cq: CQ):
    qp, failures = extended(context, pd, cq, RC), []
    barrier = threading.Barrier(4)

    def batches(number: int) -> None:
        try:
            barrier.wait()
            for _ in range(20):
                qp.wr_start()
                for _ in range(2):
                    qp.wr_id, qp.wr_flags = number, number
                    qp.wr_rdma_write(number, 4096)
                    qp.wr_set_sge(SGE(4096, 8, number))
                qp.wr_complete()
                with ring_of(qp).lock:
                    pair = entries(qp)
                    ring_of(qp).reset()
                assert not pair or len(set(pair[:2])) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=batches, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert ring_of(qp).head == 4 * 20 * 2
