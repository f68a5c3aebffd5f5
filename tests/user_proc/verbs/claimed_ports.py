"""What each extended field and each field of a port stands for; as claimed_limits.py has it."""

import errno
from typing import Final

from tests.user_proc.verbs.claimed_flags import bad_pkey_cntr, bad_qkey_cntr
from tests.user_proc.verbs.claimed_limits import (
    equals,
    no_raw_packets,
    node_guid,
    pkey_tbl_len,
)
from tests.user_proc.verbs.claimed_queues import made_or
from tests.user_proc.verbs.claims import OK, Check, Claims
from tests.user_proc.verbs.extended_program import refused
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH
from user_proc.verbs.device import DM, AllocDmAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

PROT_ERR: Final = int(e.IBV_WC_LOC_PROT_ERR)

# Of what is beyond the plain attributes


def completion_timestamp_mask(c: Claims) -> None:
    """Stamps are compared in tests of the extended queues; here the clock that makes them goes."""
    extended = c.context.query_device_ex()
    first, second = (c.context.query_rt_values_ex()[1] for _ in range(2))
    assert first <= second <= extended.completion_timestamp_mask


def hca_core_clock(c: Claims) -> None:
    assert c.context.query_device_ex().hca_core_clock == 1_000_000  # kHz: ticks are nanoseconds


def max_dm_size(c: Claims) -> None:
    most = c.context.query_device_ex().max_dm_size
    made_or(lambda length: DM(c.context, AllocDmAttr(length)), most)


EXTENDED: Final[dict[str, Check]] = {
    "completion_timestamp_mask": completion_timestamp_mask,
    "hca_core_clock": hca_core_clock,
    "device_cap_flags_ex": lambda c: None,  # bit by bit
    "max_dm_size": max_dm_size,
    "phys_port_cnt_ex": lambda c: equals(
        c.context.query_device_ex().phys_port_cnt_ex, c.device.phys_port_cnt
    ),
    "max_wq_type_rq": lambda c: equals(c.context.query_device_ex().max_wq_type_rq, 0),
    "raw_packet_caps": no_raw_packets,
}


# Of a port


def gid_tbl_len(c: Claims) -> None:
    assert c.ports is not None
    length, port = c.context.query_port(1).gid_tbl_len, c.ports[0]
    assert refused(lambda: c.context.query_gid_ex(1, length)) == errno.EINVAL
    assert refused(lambda: c.context.query_gid_ex(1, length - 1)) == errno.ENODATA
    port.set_guids(length - 1, [0x77])
    c.events(e.IBV_EVENT_GID_CHANGE)
    assert c.context.query_gid_ex(1, length - 1).gid_index == length - 1
    port.set_guids(length - 1, [0])
    c.events(e.IBV_EVENT_GID_CHANGE)


def max_msg_sz(c: Claims) -> None:
    """The longest message is taken, and fails at the end of the memory, not for its length."""
    most = c.context.query_port(1).max_msg_sz
    one, _ = c.pair()
    for length in (most + 1, most):
        request = SendWR(5, num_sge=1, sg=[SGE(c.mr.buf, length, c.mr.lkey)])
        found = refused(lambda request=request: one.post_send(request))
        assert found == (errno.EINVAL if length > most else 0)
    assert c.statuses(1) == [PROT_ERR]


def max_mtu(c: Claims) -> None:
    most = c.context.query_port(1).max_mtu
    for mtu, number in ((most, 0), (most + 1, errno.EINVAL)):
        qp = c.queue_pair(e.IBV_QPT_RC)
        attr = c.attributes(qp.qp_num)
        attr.path_mtu = mtu
        assert refused(lambda qp=qp, attr=attr: qp.to_rts(attr)) == number


def active_mtu(c: Claims) -> None:
    """A longer datagram is sent and reaches nobody."""
    size = 128 << c.context.query_port(1).active_mtu
    one, other = c.datagrams(), c.datagrams()
    other.post_recv(RecvWR(7, 1, [c.element(4096, 4096)]))
    for length in (size + 1, size):
        request = SendWR(5, num_sge=1, sg=[c.element(length)])
        request.set_wr_ud(AH(c.pd, attr=c.local()), other.qp_num, 0x1234)
        one.post_send(request)
    found = c.completions(3)
    assert [wc.byte_len for wc in found if wc.wr_id == 7] == [size + 40]


def sm_lid(c: Claims) -> None:
    """Whoever manages the subnet says so, and a change is an event."""
    assert c.ports is not None
    port, before = c.ports[0], c.context.query_port(1)
    port.set_lid(before.lid, 9, 3)
    c.events(e.IBV_EVENT_SM_CHANGE)
    found = c.context.query_port(1)
    assert (found.sm_lid, found.sm_sl) == (9, 3)
    port.set_lid(before.lid, before.sm_lid, before.sm_sl)
    c.events(e.IBV_EVENT_SM_CHANGE)


def lid(c: Claims) -> None:
    """Messages go to the LID that is told; a new one is an event."""
    assert c.ports is not None
    port, before = c.ports[0], c.context.query_port(1)
    port.set_lid(77, before.sm_lid, before.sm_sl)
    c.events(e.IBV_EVENT_LID_CHANGE)
    assert c.context.query_port(1).lid == 77
    one, other = c.pair()
    c.receive(other)
    one.post_send(c.send(one))
    assert c.statuses(2) == [OK, OK]
    port.set_lid(before.lid, before.sm_lid, before.sm_sl)
    c.events(e.IBV_EVENT_LID_CHANGE)


def of_port(name: str, value: int) -> Check:
    """Give the check of a field with nothing to try."""
    return lambda c: equals(getattr(c.context.query_port(1), name), value)


def state(c: Claims) -> None:
    up = c.down(1)
    c.events(e.IBV_EVENT_PORT_ERR)
    port = c.context.query_port(1)
    assert (port.state, port.phys_state) == (e.IBV_PORT_DOWN, 3)
    up()
    c.events(e.IBV_EVENT_PORT_ACTIVE)
    port = c.context.query_port(1)
    assert (port.state, port.phys_state) == (e.IBV_PORT_ACTIVE, 5)


def client_reregister(c: Claims) -> None:
    assert c.ports is not None
    c.ports[0].ask_to_reregister()
    c.events(e.IBV_EVENT_CLIENT_REREGISTER)


#: Bits of port_cap_flags.
PORT_FLAGS: Final[dict[str, Check]] = {
    "CLIENT_REG_SUP": client_reregister,
    "SYS_IMAGE_GUID_SUP": node_guid,
}

PORT: Final[dict[str, Check]] = {
    "state": state,
    "phys_state": state,
    "max_mtu": max_mtu,
    "active_mtu": active_mtu,
    "gid_tbl_len": gid_tbl_len,
    "pkey_tbl_len": pkey_tbl_len,
    "port_cap_flags": lambda c: None,  # bit by bit
    "max_msg_sz": max_msg_sz,
    "bad_pkey_cntr": bad_pkey_cntr,
    "qkey_viol_cntr": bad_qkey_cntr,
    "lid": lid,
    "sm_lid": sm_lid,
    "sm_sl": sm_lid,
    **{
        name: of_port(name, value)
        for name, value in {
            "lmc": 0, "max_vl_num": 4, "subnet_timeout": 18, "init_type_reply": 0,
            "active_width": 2, "active_speed": 2, "active_speed_ex": 0, "link_layer": 1,
            "flags": 0, "port_cap_flags2": 0,
        }.items()
    },
}  # fmt: skip
