"""Queries, modify_port, protection domains and address handles."""

import errno

import pytest

from kernel_proc.driver.limits import Profile
from shared.verb_codes import (
    IOCTL_ALLOC_PD,
    IOCTL_CREATE_AH,
    IOCTL_DEALLOC_PD,
    IOCTL_DESTROY_AH,
    IOCTL_MODIFY_PORT,
    IOCTL_OPEN_CONTEXT,
    IOCTL_QUERY_DEVICE,
    IOCTL_QUERY_GID,
    IOCTL_QUERY_PKEY,
    IOCTL_QUERY_PORT,
)
from shared.verb_messages import CreateAh, ModifyPort, Object, PortQuery
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, good, verb

SM, SNMP = 2, 1 << 17
GID = bytes.fromhex("fe80000000000000000000000000abcd")


def test_a_library_is_told_what_it_needs(box: HcaBox, session: HcaSession):
    names, opened = box.commands_of(session, IOCTL_OPEN_CONTEXT)
    assert names == []
    assert (opened.doorbells, opened.ports, opened.max_inline) == (session.uar, 2, 400)


def test_the_device_is_the_one_of_the_profile():
    with HcaBox(profile=Profile()) as box:
        names, device = box.commands_of(box.session(), IOCTL_QUERY_DEVICE)
    assert names == ["MAD_IFC"]
    assert (device.vendor_id, device.vendor_part_id, device.hw_ver) == (0x2C9, 25218, 0xA0)
    assert (device.max_qp, device.max_cq, device.max_srq) == (64512, 65408, 960)
    assert (device.max_mr, device.max_mw, device.max_pd) == (131056, 131056, 32764)
    assert (device.max_cqe, device.max_qp_wr, device.max_srq_wr) == (131071, 16384, 16384)
    assert (device.max_sge, device.max_srq_sge) == (27, 27)
    assert (device.max_qp_rd_atom, device.max_qp_init_rd_atom) == (4, 128)
    assert device.max_res_rd_atom == 258048
    assert (device.max_mcast_grp, device.max_mcast_qp_attach) == (8192, 56)
    assert device.max_total_mcast_qp_attach == 458752
    assert (device.device_cap_flags, device.atomic_cap) == (0x1321C66, 1)
    assert (device.max_pkeys, device.local_ca_ack_delay, device.phys_port_cnt) == (64, 15, 2)
    assert (device.max_mr_size, device.page_size_cap) == ((1 << 64) - 1, 0xFFFFF000)
    assert device.fw_version == "5.3.0"
    assert device.node_guid == device.sys_image_guid == box.settings.node_guid


def test_a_port(box: HcaBox, session: HcaSession):
    names, port = box.commands_of(session, IOCTL_QUERY_PORT, PortQuery(1))
    assert names == ["MAD_IFC"]
    assert (port.state, port.phys_state, port.link_layer) == (4, 5, 1)
    assert (port.max_mtu, port.active_mtu, port.max_msg_sz) == (5, 5, 0x80000000)
    assert (port.gid_tbl_len, port.pkey_tbl_len) == (32, 64)
    assert port.lid != good(session, IOCTL_QUERY_PORT, PortQuery(2)).lid


def test_gids_and_pkeys(box: HcaBox, session: HcaSession):
    names, first = box.commands_of(session, IOCTL_QUERY_GID, PortQuery(1, 0))
    assert names == ["MAD_IFC"] * 2
    assert first.gid[:8] == bytes.fromhex("fe80000000000000")
    assert int.from_bytes(first.gid[8:], "big") == box.settings.node_guid + 1
    assert good(session, IOCTL_QUERY_GID, PortQuery(1, 31)).gid == bytes(16)
    names, key = box.commands_of(session, IOCTL_QUERY_PKEY, PortQuery(1, 0))
    assert (names, key.pkey) == (["MAD_IFC"], 0xFFFF)
    assert good(session, IOCTL_QUERY_PKEY, PortQuery(2, 63)).pkey == 0


@pytest.mark.parametrize(
    ("ioctl", "query", "reason"),
    [
        (IOCTL_QUERY_PORT, PortQuery(0), VerbReason.NO_SUCH_PORT),
        (IOCTL_QUERY_PORT, PortQuery(3), VerbReason.NO_SUCH_PORT),
        (IOCTL_QUERY_GID, PortQuery(3), VerbReason.NO_SUCH_PORT),
        (IOCTL_QUERY_GID, PortQuery(1, 32), VerbReason.NO_SUCH_INDEX),
        (IOCTL_QUERY_PKEY, PortQuery(0), VerbReason.NO_SUCH_PORT),
        (IOCTL_QUERY_PKEY, PortQuery(1, 64), VerbReason.NO_SUCH_INDEX),
        (IOCTL_MODIFY_PORT, ModifyPort(3, 0, 0, 0), VerbReason.NO_SUCH_PORT),
        (IOCTL_MODIFY_PORT, ModifyPort(1, 1, 0, 0), VerbReason.UNKNOWN_CAPABILITY_BITS),
        (IOCTL_MODIFY_PORT, ModifyPort(1, 0, 8, 0), VerbReason.UNKNOWN_CAPABILITY_BITS),
    ],
)
def test_what_is_out_of_range_is_refused_without_a_command(
    box: HcaBox, session: HcaSession, ioctl: int, query: PortQuery, reason: VerbReason
):
    box.life.channel.journal.clear()
    assert verb(session, ioctl, query)[:2] == (errno.EINVAL, reason)
    assert not box.life.channel.journal


def test_capabilities_of_a_port(box: HcaBox, session: HcaSession):
    before = good(session, IOCTL_QUERY_PORT, PortQuery(1)).port_cap_flags
    box.hca.tables.ports[0].qkey_violations = 5
    names, _ = box.commands_of(session, IOCTL_MODIFY_PORT, ModifyPort(1, SM | SNMP, 0, 0))
    assert names == ["MAD_IFC", "SET_IB"]
    port = good(session, IOCTL_QUERY_PORT, PortQuery(1))
    assert (port.port_cap_flags, port.qkey_viol_cntr) == (before | SM | SNMP, 5)
    good(session, IOCTL_MODIFY_PORT, ModifyPort(1, 0, SM, 1))
    port = good(session, IOCTL_QUERY_PORT, PortQuery(1))
    assert (port.port_cap_flags, port.qkey_viol_cntr) == ((before | SNMP) & ~SM, 0)
    assert good(session, IOCTL_QUERY_PORT, PortQuery(2)).port_cap_flags == before


def test_protection_domains_send_nothing(box: HcaBox, session: HcaSession):
    before = box.tables()
    names, pd = box.commands_of(session, IOCTL_ALLOC_PD)
    assert names == []
    assert box.commands_of(session, IOCTL_DEALLOC_PD, pd) == ([], None)
    after = box.tables()
    assert after == before


def test_the_last_protection_domain(box: HcaBox, session: HcaSession):
    numbers = box.life.numbers.pd
    numbers._next = (1 << 15) - 1
    good(session, IOCTL_ALLOC_PD)
    answer = verb(session, IOCTL_ALLOC_PD, None)
    assert answer[:2] == (errno.ENOMEM, VerbReason.OUT_OF_NUMBERS)
    assert answer.detail == 32764


def address(pd: int) -> CreateAh:
    return CreateAh(pd, 1, 7, 0, 0, 0, 1, GID, 0, 0, 1, 0)


def test_an_address_handle_holds_its_domain(box: HcaBox, session: HcaSession):
    pd = good(session, IOCTL_ALLOC_PD)
    names, made = box.commands_of(session, IOCTL_CREATE_AH, address(pd.handle))
    assert names == ["MAD_IFC"]  # the port's GIDs, once
    good(session, IOCTL_DESTROY_AH, Object(made.handle))
    names, made = box.commands_of(session, IOCTL_CREATE_AH, address(pd.handle))
    assert names == []
    assert verb(session, IOCTL_DEALLOC_PD, pd)[:2] == (errno.EBUSY, VerbReason.IN_USE)
    good(session, IOCTL_DESTROY_AH, Object(made.handle))
    good(session, IOCTL_DEALLOC_PD, pd)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"port": 0}, VerbReason.NO_SUCH_PORT),
        ({"port": 3}, VerbReason.NO_SUCH_PORT),
        ({"sl": 16}, VerbReason.BAD_SERVICE_LEVEL),
        ({"static_rate": 64}, VerbReason.BAD_STATIC_RATE),
        ({"dlid": 1 << 16}, VerbReason.BAD_LID),
        ({"src_path_bits": 128}, VerbReason.BAD_PATH_BITS),
        ({"sgid_index": 32}, VerbReason.NO_SUCH_INDEX),
        ({"sgid_index": 31}, VerbReason.EMPTY_SGID_INDEX),
        ({"flow_label": 1 << 20}, VerbReason.BAD_FLOW_LABEL),
        ({"hop_limit": 256}, VerbReason.BAD_HOP_LIMIT_OR_CLASS),
        ({"traffic_class": 256}, VerbReason.BAD_HOP_LIMIT_OR_CLASS),
        ({"dgid": GID[:15]}, VerbReason.BAD_GID),
        ({"pd": 77}, VerbReason.NO_SUCH_OBJECT),
    ],
)
def test_an_address_that_cannot_be(
    box: HcaBox, session: HcaSession, changes: dict[str, int], reason: VerbReason
):
    pd = good(session, IOCTL_ALLOC_PD).handle
    before = box.tables()
    answer = verb(session, IOCTL_CREATE_AH, address(pd)._replace(**changes))  # type: ignore[arg-type] # of many types
    assert answer[:2] == (errno.EINVAL, reason)
    assert box.tables() == before


def test_without_a_grh_its_fields_are_not_looked_at(session: HcaSession):
    pd = good(session, IOCTL_ALLOC_PD).handle
    local = address(pd)._replace(is_global=0, sgid_index=99, hop_limit=999, dgid=b"")
    made = good(session, IOCTL_CREATE_AH, local)
    assert made.handle == pd + 1
    assert made.pdn > 0  # reserved ones are no process's
