"""A program of the extended calls, of a queue pair connected to itself: batches, stamps, memory.

python -P extended_program.py           does all of it
python -P extended_program.py FD PD     uses the domain PD of the context behind FD, and more
"""

import errno
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from shared.clock import now_ns
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQEX, CompChannel, CqInitAttrEx
from user_proc.verbs.device import DM, AllocDmAttr, Context
from user_proc.verbs.mr import DMMR, MR, MREx
from user_proc.verbs.pd import PD, ParentDomain, ParentDomainContext, ParentDomainInitAttr
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SGE, RecvWR

REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | REMOTE
STAMPS = (
    e.IBV_WC_EX_WITH_BYTE_LEN
    | e.IBV_WC_EX_WITH_IMM
    | e.IBV_WC_EX_WITH_QP_NUM
    | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
)
OPERATIONS = (
    e.IBV_QP_EX_WITH_SEND
    | e.IBV_QP_EX_WITH_SEND_WITH_IMM
    | e.IBV_QP_EX_WITH_RDMA_WRITE
    | e.IBV_QP_EX_WITH_RDMA_READ
    | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
)
WAIT_SECONDS = 20


def connected(context: Context, pd: PD, cq: CQEX) -> QPEx:
    """Make a queue pair that is connected to itself."""
    qp = QPEx(
        context,
        QPInitAttrEx(
            e.IBV_QPT_RC,
            scq=cq,
            rcq=cq,
            cap=QPCap(8, 8, 2, 2, 64),
            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd=pd,
            send_ops_flags=OPERATIONS,
        ),
    )
    attr = QPAttr()
    attr.dest_qp_num, attr.ah_attr = qp.qp_num, AHAttr(dlid=context.query_port(1).lid)
    attr.qp_access_flags = REMOTE
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
    qp.to_rts(attr)
    return qp


def polled(cq: CQEX, number: int) -> list[dict[str, int]]:
    """Wait for so many completions; read all that was asked for."""
    found: list[dict[str, int]] = []
    end = time.monotonic() + WAIT_SECONDS
    while len(found) < number:
        assert time.monotonic() < end, "the completions did not come"
        if cq.start_poll(None):
            continue
        while True:
            assert cq.status == e.IBV_WC_SUCCESS, cq.status
            found.append(
                {
                    "wr_id": cq.wr_id,
                    "opcode": cq.read_opcode(),
                    "length": cq.read_byte_len(),
                    "imm": cq.read_imm_data(),
                    "qpn": cq.read_qp_num(),
                    "stamp": cq.read_timestamp(),
                    "wall": cq.read_completion_wallclock_ns(),
                }
            )
            if cq.poll_next() == errno.ENOENT:
                break
        cq.end_poll()
    return found


def refused(act: Callable[[], object]) -> int:
    """Give the errno with which something is refused, 0 if it is not."""
    try:
        act()
    except PyverbsRDMAError as error:
        return error.error_code
    return 0


def batches(context: Context) -> None:
    """Send a batch of several operations, and see when each was done."""
    before, wall_before = context.query_rt_values_ex()[1], time.time_ns()
    pd, channel = PD(context), CompChannel(context)
    cq = CQEX(context, CqInitAttrEx(32, channel, wc_flags=STAMPS))
    qp, mr = connected(context, pd, cq), MR(pd, 4096, RIGHTS)
    cq.req_notify()
    for number in range(2):
        qp.post_recv(RecvWR(number, 1, [SGE(mr.buf + 1024, 64, mr.lkey)]))
    mr.write(b"of the memory", 13)
    qp.wr_start()
    qp.wr_id, qp.wr_flags = 10, e.IBV_SEND_SIGNALED
    qp.wr_rdma_write(mr.rkey, mr.buf + 2048)
    qp.wr_set_sge_list(2, [SGE(mr.buf, 3, mr.lkey), SGE(mr.buf + 3, 10, mr.lkey)])
    qp.wr_id = 11
    qp.wr_send_imm(0x01020304)
    qp.wr_set_inline_data(mr.buf, 6)
    qp.wr_id, qp.wr_flags = 12, 0
    qp.wr_send()
    qp.wr_set_sge(SGE(mr.buf + 3, 10, mr.lkey))
    qp.wr_id, qp.wr_flags = 13, e.IBV_SEND_SIGNALED
    qp.wr_atomic_fetch_add(mr.rkey, mr.buf + 3072, 5)
    qp.wr_set_sge(SGE(mr.buf + 3584, 8, mr.lkey))
    qp.wr_complete()
    channel.get_cq_event(cq)
    cq.ack_events(1)
    found = polled(cq, 5)
    assert sorted(one["wr_id"] for one in found) == [0, 1, 10, 11, 13]
    by_id = {one["wr_id"]: one for one in found}
    assert by_id[0]["imm"].to_bytes(4, sys.byteorder) == bytes([1, 2, 3, 4])
    assert (by_id[0]["length"], by_id[1]["length"]) == (6, 10)
    assert {one["qpn"] for one in found} == {qp.qp_num}
    assert (mr.read(13, 2048), mr.read(1, 3072)) == (b"of the memory", b"\5")
    stamps = [one["stamp"] for one in found]
    assert stamps == sorted(stamps)
    assert before <= stamps[0]
    assert stamps[-1] <= context.query_rt_values_ex()[1]
    assert {one["wall"] - one["stamp"] for one in found} == {by_id[0]["wall"] - by_id[0]["stamp"]}
    if before > 1 << 30:  # the host's own clock, not one that a test moves
        assert before <= now_ns()
        assert wall_before - 10**9 <= found[0]["wall"] <= time.time_ns() + 10**9
    channel.close()
    pd.close()


def device_memory(context: Context) -> None:
    """Write into the memory of the device, and from it; change it there."""
    most = context.query_device_ex().max_dm_size
    pd, cq = PD(context), CQEX(context, CqInitAttrEx(32, wc_flags=STAMPS))
    qp, mr = connected(context, pd, cq), MR(pd, 8192, RIGHTS)
    dm = DM(context, AllocDmAttr(10000))
    assert dm.copy_from_dm(0, 10000) == bytes(10000)
    dm.copy_to_dm(4090, b"across a page", 13)
    region = DMMR(pd, 5000, RIGHTS | e.IBV_ACCESS_ZERO_BASED, dm, 4090)
    assert region.read(13, 0) == b"across a page"
    mr.write(bytes(range(200)), 200)
    for remote, build in ((100, qp.wr_rdma_write), (0, qp.wr_rdma_read)):
        qp.wr_start()
        qp.wr_flags = e.IBV_SEND_SIGNALED
        build(region.rkey, remote)
        qp.wr_set_sge(SGE(mr.buf + (0 if remote else 4096), 5000 - 100 if remote else 300, mr.lkey))
        qp.wr_complete()
        polled(cq, 1)
    assert dm.copy_from_dm(4190, 200) == bytes(range(200))
    assert mr.read(300, 4096) == region.read(300, 0)
    qp.wr_start()  # its own key for the device's side of a local element, too
    qp.wr_rdma_write(mr.rkey, mr.buf + 4096)
    qp.wr_set_sge(SGE(100, 200, region.lkey))
    qp.wr_complete()
    polled(cq, 1)
    assert mr.read(200, 4096) == bytes(range(200))
    refusals: list[tuple[Callable[[], object], int]] = [
        (lambda: DM(context, AllocDmAttr(most + 1)), errno.EINVAL),
        (lambda: DM(context, AllocDmAttr(most)), errno.ENOMEM),
        (lambda: DM(context, AllocDmAttr(0)), errno.EINVAL),
        (lambda: DM(context, AllocDmAttr(64, 13)), errno.EINVAL),
        (lambda: DM(context, AllocDmAttr(64, 0, 1)), errno.EOPNOTSUPP),
        (lambda: DMMR(pd, 64, RIGHTS, dm, 0), errno.EINVAL),
        (lambda: DMMR(pd, 9001, RIGHTS | e.IBV_ACCESS_ZERO_BASED, dm, 1000), errno.EINVAL),
        (lambda: region.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=1), errno.EOPNOTSUPP),
        (dm.export_dmabuf_fd, errno.EOPNOTSUPP),
    ]
    assert [refused(act) for act, _ in refusals] == [number for _, number in refusals]
    dm.close()  # with its region
    DM(context, AllocDmAttr(most)).close()
    cq.close()
    pd.close()


def own_queue_memory(context: Context) -> None:
    """Give the memory of every kind of queue oneself, out of regions."""
    pd, taken, given = PD(context), {}, []

    def allocate(pd: PD, own: ParentDomainContext, size: int, alignment: int, kind: int) -> int:
        region = MR(pd, size, e.IBV_ACCESS_LOCAL_WRITE)
        assert region.buf % alignment == 0
        taken[region.buf] = region
        own.user_data.append(kind & 0xFFFF_FFFF)
        return region.buf

    def free(pd: PD, own: ParentDomainContext, address: int, kind: int) -> None:
        taken.pop(address).close()
        given.append(kind & 0xFFFF_FFFF)

    kinds: list[int] = []
    own = ParentDomainContext(pd, allocate, free, kinds)
    mask = e.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | e.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
    domain = ParentDomain(context, ParentDomainInitAttr(pd, own, mask))
    attr = CqInitAttrEx(
        32, wc_flags=STAMPS, comp_mask=e.IBV_CQ_INIT_ATTR_MASK_PD, parent_domain=domain
    )
    cq = CQEX(context, attr)
    SRQ(domain, SrqInitAttr(SrqAttr(8, 1)))
    qp = connected(context, domain, cq)
    assert kinds == [4, 3, 0][: len(kinds)]
    assert len(kinds) >= 2  # the shared queue may be gone again: nobody holds it
    mr = MREx(domain, 4096, RIGHTS, iova=0x1000)
    mr.write(b"by iova", 7)
    qp.wr_start()
    qp.wr_flags = e.IBV_SEND_SIGNALED
    qp.wr_rdma_write(mr.rkey, 0x1800)
    qp.wr_set_sge(SGE(0x1000, 7, mr.lkey))
    qp.wr_complete()
    polled(cq, 1)
    assert mr.read(7, 0x800) == b"by iova"
    domain.close()
    assert sorted(given) == sorted(kinds) == [0, 3, 4]
    assert not taken
    pd.close()


def run(context: Context) -> None:
    """Do all of it."""
    batches(context)
    device_memory(context)
    own_queue_memory(context)


def use_domain_of(descriptor: int, handle: int, **options: Any) -> None:
    """Import a domain, a region and device memory, and use them with the keys of their exporter.

    On the standard input: the region's address, its handle, and the memory's.
    """
    with Context(cmd_fd=descriptor, **options) as context:
        pd = PD(context, handle=handle)
        cq = CQEX(context, CqInitAttrEx(32, wc_flags=STAMPS))
        qp, mr = connected(context, pd, cq), MR(pd, 4096, RIGHTS)
        address, region, memory = (int(sys.stdin.readline()) for _ in range(3))
        imported, dm = MR(pd, handle=region), DM(context, handle=memory)
        qp.wr_start()
        qp.wr_flags = e.IBV_SEND_SIGNALED
        qp.wr_rdma_write(mr.rkey, mr.buf)
        # The other process's memory, as a local element.
        qp.wr_set_sge(SGE(address, 11, imported.lkey))
        qp.wr_complete()
        polled(cq, 1)
        print(mr.read(11, 0).decode(), dm.copy_from_dm(0, 4).decode())
        dm.copy_to_dm(0, b"back", 4)
        for one in (dm, imported):
            one.unimport()
        pd.unimport()


if __name__ == "__main__":
    if sys.argv[1:]:
        use_domain_of(*map(int, sys.argv[1:]))
    else:
        with Context(name="mthca0", kernel=os.environ["SOFTHCA_NAME"]) as opened:
            run(opened)
    print("done")
