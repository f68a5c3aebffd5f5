"""What each field of the device's attributes stands for: at the limit, and beyond.

A check takes a Claims on a kernel whose tables are small, and asserts.
"""

import errno
from collections.abc import Callable
from typing import Any, Final

from tests.user_proc.verbs.claimed_queues import QUEUES, filled
from tests.user_proc.verbs.claims import (
    GROUP,
    GROUP_LID,
    OK,
    Check,
    Claims,
    multicast_address,
)
from tests.user_proc.verbs.extended_program import refused
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, GID
from user_proc.verbs.mr import MR, MW
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QPAttr
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import SendWR


def is_(value: int) -> Callable[[str], Check]:
    """Give the check of a field with nothing to try: what it says is documented."""
    return lambda name: lambda c: equals(getattr(c.device, name), value)


def equals(found: object, value: object) -> None:
    assert found == value


def max_mr_size(c: Claims) -> None:
    """No length is too long as such: what is missing is the memory."""
    assert refused(lambda: MR(c.pd, 1 << 47, 1, address=1 << 12)) == errno.EFAULT
    assert c.device.max_mr_size == (1 << 64) - 1


def page_size_cap(c: Claims) -> None:
    assert c.device.page_size_cap == sum(1 << shift for shift in range(12, 32))
    MR(c.pd, 3 << 12, 1).close()


def max_mr(c: Claims) -> None:
    """Keys are of one table, and queues have some: what is left are all but those of the checks."""
    _of_keys(c, lambda: MR(c.pd, 64, 1), c.device.max_mr)


def max_mw(c: Claims) -> None:
    _of_keys(c, lambda: MW(c.pd, e.IBV_MW_TYPE_1), c.device.max_mw)


def _of_keys(c: Claims, make: Callable[[], Any], most: int) -> None:
    c.mr.close()
    c.cq.close()
    filled(make, most)


def max_pd(c: Claims) -> None:
    filled(lambda: PD(c.context), c.device.max_pd - 1)  # beside the one of the checks


def max_qp_rd_atom(c: Claims) -> None:
    _of_reads(c, "max_dest_rd_atomic", c.device.max_qp_rd_atom)


def max_qp_init_rd_atom(c: Claims) -> None:
    _of_reads(c, "max_rd_atomic", c.device.max_qp_init_rd_atom)


def _of_reads(c: Claims, name: str, most: int) -> None:
    for value, number in ((most, 0), (most + 1, errno.EINVAL)):
        qp = c.queue_pair(e.IBV_QPT_RC)
        attr = c.attributes(qp.qp_num)
        setattr(attr, name, value)
        assert refused(lambda qp=qp, attr=attr: qp.to_rts(attr)) == number
        if not number:
            for _ in range(8):
                qp.post_send(c.send(qp, e.IBV_WR_RDMA_READ))
            assert c.statuses(8) == [OK] * 8


def max_res_rd_atom(c: Claims) -> None:
    assert c.device.max_res_rd_atom == c.device.max_qp * c.device.max_qp_rd_atom


def atomic_caps(c: Claims) -> None:
    """Atomics of two queue pairs are atomic to each other, whoever sends them."""
    assert c.device.atomic_caps == e.IBV_ATOMIC_HCA
    (one, other), ends = c.pair(), 0
    c.mr.write(bytes(8), 8, 4096)
    for qp in (one, other) * 4:
        request = SendWR(5, num_sge=1, sg=[c.element(8)])
        request.opcode = int(e.IBV_WR_ATOMIC_FETCH_AND_ADD)
        request.set_wr_atomic(c.mr.rkey, c.mr.buf + 4096, 3)
        qp.post_send(request)
        ends += 1
    assert c.statuses(ends) == [OK] * ends
    assert int.from_bytes(c.mr.read(8, 4096), "little") == 3 * ends


def _group(number: int) -> GID:
    return GID(f"ff12:0000:0000:0000:0000:0000:0000:{number:04x}")


def max_mcast_grp(c: Claims) -> None:
    """Half of the table is found by hashing: GIDs of every place are needed to fill it."""
    qp, most = c.datagrams(), c.device.max_mcast_grp
    joined = [
        number
        for number in range(16 * most)
        if not refused(lambda number=number: qp.attach_mcast(_group(number), GROUP_LID))
    ]
    assert len(joined) == most
    for number in joined:
        qp.detach_mcast(_group(number), GROUP_LID)


def max_mcast_qp_attach(c: Claims) -> None:
    """Each of so many gets a copy; the next one cannot join."""
    most, sender = c.device.max_mcast_qp_attach, c.datagrams()
    srq = SRQ(c.pd, SrqInitAttr(SrqAttr(c.device.max_srq_wr, 1)))
    members = [c.datagrams(srq=srq) for _ in range(most + 1)]
    joined = [refused(lambda qp=qp: qp.attach_mcast(GROUP, GROUP_LID)) for qp in members]
    assert joined == [0] * most + [errno.ENOMEM]
    for _ in range(c.device.max_srq_wr):
        c.receive(srq)
    c.datagram(sender, 0xFFFFFF, multicast_address(c))
    got = [wc.qp_num for wc in c.completions(c.device.max_srq_wr + 1) if wc.wr_id == 7]
    assert len(set(got)) == len(got) == c.device.max_srq_wr
    assert members[most].qp_num not in got
    for qp in members[:most]:
        qp.detach_mcast(GROUP, GROUP_LID)


def max_ah(c: Claims) -> None:
    """The device has no table of them: 0, as the InfiniHost says."""
    assert c.device.max_ah == 0
    for handle in [AH(c.pd, attr=c.local()) for _ in range(200)]:
        handle.close()


def pkey_tbl_len(c: Claims) -> None:
    assert c.ports is not None
    last, port = c.context.query_port(1).pkey_tbl_len - 1, c.ports[0]
    port.set_pkeys(last, [0x8123])
    c.events(e.IBV_EVENT_PKEY_CHANGE)
    one, other = c.datagrams(pkey_index=last), c.datagrams(pkey_index=last)
    c.receive(other)
    c.datagram(one, other.qp_num, c.local())
    assert c.statuses(2) == [OK, OK]
    qp = c.queue_pair(e.IBV_QPT_UD)
    attr = QPAttr(port_num=1)
    attr.pkey_index = last + 1
    assert refused(lambda: qp.to_init(attr)) == errno.EINVAL
    assert refused(lambda: c.context.query_pkey(1, last + 1)) != 0
    port.set_pkeys(last, [0])
    c.events(e.IBV_EVENT_PKEY_CHANGE)


def max_pkeys(c: Claims) -> None:
    assert c.device.max_pkeys == c.context.query_port(1).pkey_tbl_len
    pkey_tbl_len(c)


def local_ca_ack_delay(c: Claims) -> None:
    """An exponent of 4.096 us: an acknowledgement takes no longer. A timeout so long is enough."""
    one, other = c.queue_pair(e.IBV_QPT_RC), c.queue_pair(e.IBV_QPT_RC)
    for qp, peer in ((one, other), (other, one)):
        attr = c.attributes(peer.qp_num)
        attr.timeout, attr.retry_cnt = c.device.local_ca_ack_delay, 0
        qp.to_rts(attr)
    for _ in range(4):
        c.receive(other)
        one.post_send(c.send(one))
    assert c.statuses(8) == [OK] * 8


def phys_port_cnt(c: Claims) -> None:
    count = c.device.phys_port_cnt
    assert c.context.query_port(count).state == e.IBV_PORT_ACTIVE
    for port in (0, count + 1):
        assert refused(lambda port=port: c.context.query_port(port)) == errno.EINVAL
        qp = c.queue_pair(e.IBV_QPT_UD)
        assert refused(lambda port=port, qp=qp: qp.to_init(QPAttr(port_num=port))) == errno.EINVAL


def no_raw_packets(c: Claims) -> None:
    for kind in (e.IBV_QPT_RAW_PACKET,):
        assert refused(lambda kind=kind: c.queue_pair(kind)) == errno.EOPNOTSUPP


def fw_version(c: Claims) -> None:
    assert c.device.fw_version == "5.3.0"


def node_guid(c: Claims) -> None:
    own = c.context.query_gid(1, 0).raw[8:]
    swapped = c.device.node_guid.to_bytes(8, "little")
    assert own[:7] == swapped[:7]
    assert own != swapped  # each port has the next number


DEVICE: Final[dict[str, Check]] = {
    "fw_version": fw_version,
    "node_guid": node_guid,
    "sys_image_guid": node_guid,
    "max_mr_size": max_mr_size,
    "page_size_cap": page_size_cap,
    **{
        name: is_(value)(name)
        for name, value in {
            "vendor_id": 0x2C9, "vendor_part_id": 25218, "hw_ver": 0xA0,
            # Kinds of queues and domains the device has not:
            "max_ee_rd_atom": 0, "max_ee_init_rd_atom": 0, "max_ee": 0, "max_rdd": 0,
            "max_fmr": 0, "max_map_per_fmr": 0, "max_raw_ipv6_qps": 0,
        }.items()
    },
    "max_raw_ethy_qp": no_raw_packets,
    "device_cap_flags": lambda c: None,  # bit by bit
    **QUEUES,
    "max_mr": max_mr,
    "max_pd": max_pd,
    "max_qp_rd_atom": max_qp_rd_atom,
    "max_res_rd_atom": max_res_rd_atom,
    "max_qp_init_rd_atom": max_qp_init_rd_atom,
    "atomic_caps": atomic_caps,
    "max_mw": max_mw,
    "max_mcast_grp": max_mcast_grp,
    "max_mcast_qp_attach": max_mcast_qp_attach,
    "max_ah": max_ah,
    "max_pkeys": max_pkeys,
    "local_ca_ack_delay": local_ca_ack_delay,
    "phys_port_cnt": phys_port_cnt,
}  # fmt: skip
