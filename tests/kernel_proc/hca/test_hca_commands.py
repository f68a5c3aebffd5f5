"""Every command: what it does, and how it refuses."""

import pytest

from kernel_proc.hca.command_interface import _HANDLERS
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import management_datagrams as mad
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.command_opcodes import COMMANDS
from kernel_proc.hca_abi.device_settings import HcaSettings, device_limits
from tests.kernel_proc.hca.hca_bench import ICM_SIZE, LAYOUT, PAGE, PD, RIGHTS, Bench

BEFORE_INIT = {
    op.NOP,
    op.QUERY_FW,
    op.ENABLE_LAM,
    op.DISABLE_LAM,
    op.MAP_FA,
    op.UNMAP_FA,
    op.RUN_FW,
}
RUNNING = {
    op.QUERY_DEV_LIM,
    op.QUERY_ADAPTER,
    op.SET_ICM_SIZE,
    op.MAP_ICM_AUX,
    op.UNMAP_ICM_AUX,
    op.MAP_ICM,
    op.UNMAP_ICM,
    op.INIT_HCA,
}
WITH_OUTBOX = [
    (op.QUERY_FW, 0),
    (op.QUERY_DEV_LIM, 0),
    (op.QUERY_ADAPTER, 0),
    (op.QUERY_EQ, 0),
    (op.READ_MGM, 0),
]


def test_every_command_has_its_handler():
    assert set(_HANDLERS) == set(COMMANDS)


@pytest.mark.parametrize("opcode", sorted(set(COMMANDS) - BEFORE_INIT))
def test_a_stopped_device_refuses_what_needs_firmware(bare: Bench, opcode: int):
    assert bare.run(opcode, inbox=b"") == op.CMD_STAT_BAD_SYS_STATE


@pytest.mark.parametrize("opcode", sorted(set(COMMANDS) - BEFORE_INIT - RUNNING))
def test_a_device_without_init_refuses_what_needs_tables(bare: Bench, opcode: int):
    bare.start_firmware()
    assert bare.run(opcode, inbox=b"") == op.CMD_STAT_BAD_SYS_STATE


@pytest.mark.parametrize("opcode", [0x000, 0x001, 0x02B, 0x0FF, 0x7FF])
def test_an_unknown_opcode_is_bad_op(bench: Bench, opcode: int):
    assert bench.run(opcode) == op.CMD_STAT_BAD_OP


@pytest.mark.parametrize(("opcode", "modifier"), WITH_OUTBOX)
@pytest.mark.parametrize("out_param", [0, 0x123, 7 << 48, (1 << 48) + (1 << 40), 2**64 - PAGE])
def test_an_outbox_that_cannot_be_is_bad_param(
    bench: Bench, opcode: int, modifier: int, out_param: int
):
    assert bench.run(opcode, modifier=modifier, out_param=out_param) == op.CMD_STAT_BAD_PARAM


@pytest.mark.parametrize("in_param", [0, 8, 7 << 48, 2**64 - PAGE])
@pytest.mark.parametrize(
    "opcode", [op.MAP_ICM, op.WRITE_MTT, op.SW2HW_EQ, op.SET_IB, op.MGID_HASH, op.WRITE_MGM]
)
def test_an_inbox_that_cannot_be_is_bad_param(bench: Bench, opcode: int, in_param: int):
    assert bench.run(opcode, modifier=1, in_param=in_param) == op.CMD_STAT_BAD_PARAM


# Bring-up


def test_firmware_says_where_things_are(bare: Bench):
    bare.ok(op.QUERY_FW)
    firmware = abi.Firmware(*abi.FIRMWARE.unpack(bare.out(abi.FIRMWARE.size)))
    assert firmware.log_outstanding == 6
    assert firmware.catastrophic_offset == reg.CATASTROPHIC_OFFSET


def test_limits_are_those_of_the_settings(bench: Bench):
    bench.ok(op.QUERY_DEV_LIM)
    answered = abi.DeviceLimits(*abi.DEVICE_LIMITS.unpack(bench.out(abi.DEVICE_LIMITS.size)))
    assert answered == device_limits(HcaSettings())
    assert (1 << answered.log_max_qps) - answered.reserved_qps == 64512


def test_the_adapter_is_a_mem_free_infinihost(bench: Bench):
    bench.ok(op.QUERY_ADAPTER)
    adapter = abi.Adapter(*abi.ADAPTER.unpack(bench.out(abi.ADAPTER.size)))
    assert (adapter.vendor_id, adapter.device_id) == (0x2C9, 25218)


@pytest.mark.parametrize("opcode", [op.ENABLE_LAM, op.DISABLE_LAM])
def test_there_is_no_attached_memory(bare: Bench, opcode: int):
    assert bare.run(opcode) == op.CMD_STAT_LAM_NOT_PRE


def test_firmware_runs_only_from_enough_pages(bare: Bench):
    assert bare.run(op.RUN_FW) == op.CMD_STAT_BAD_SYS_STATE
    bare.map_run(op.MAP_FA, 15)
    assert bare.run(op.RUN_FW) == op.CMD_STAT_BAD_SYS_STATE
    bare.map_run(op.MAP_FA, 1)
    bare.ok(op.RUN_FW)
    assert bare.run(op.RUN_FW) == op.CMD_STAT_BAD_SYS_STATE


def test_the_icm_needs_its_size_and_auxiliary_pages_first(bare: Bench):
    bare.map_run(op.MAP_FA, 16)
    bare.ok(op.RUN_FW)
    entry = abi.ICM_MAP_ENTRY.pack(0, bare.pages(1))
    assert bare.run(op.MAP_ICM, modifier=1, inbox=entry) == op.CMD_STAT_BAD_SYS_STATE
    assert bare.run(op.SET_ICM_SIZE, in_param=1 << 41) == op.CMD_STAT_EXCEED_LIM
    assert bare.run(op.SET_ICM_SIZE, in_param=PAGE + 1) == op.CMD_STAT_BAD_PARAM
    bare.ok(op.SET_ICM_SIZE, in_param=ICM_SIZE)
    auxiliary = bare.out_param
    assert auxiliary == ICM_SIZE // PAGE // 512 + 1
    assert bare.run(op.MAP_ICM, modifier=1, inbox=entry) == op.CMD_STAT_BAD_SYS_STATE
    bare.map_run(op.MAP_ICM_AUX, auxiliary)
    bare.ok(op.MAP_ICM, modifier=1, inbox=entry)


def icm(*entries: tuple[int, int]) -> bytes:
    return b"".join(abi.ICM_MAP_ENTRY.pack(*entry) for entry in entries)


def test_icm_pages_are_mapped_once_and_unmapped_once(bare: Bench):
    bare.start_firmware()
    bus = bare.pages(8)
    bare.ok(op.MAP_ICM, modifier=2, inbox=icm((0, bus | 2), (4 * PAGE, bus | 0)))
    for entries in (
        [(4 * PAGE, bus)],  # mapped
        [(5 * PAGE, bus), (5 * PAGE, bus)],  # twice in one command
        [(ICM_SIZE, bus)],  # beyond the end
        [(ICM_SIZE - PAGE, bus | 1)],
        [(5 * PAGE + 1, bus)],
        [(5 * PAGE, 9 << 48)],  # no memory
        [(5 * PAGE, bus | 40)],
    ):
        status = bare.run(op.MAP_ICM, modifier=len(entries), inbox=icm(*entries))
        assert status == op.CMD_STAT_BAD_PARAM, entries
    assert bare.device.inspect()["icm"]["mapped_pages"] == 5
    assert bare.run(op.MAP_ICM, modifier=0, inbox=b"") == op.CMD_STAT_BAD_PARAM
    assert bare.run(op.MAP_ICM, modifier=257, inbox=b"") == op.CMD_STAT_BAD_PARAM
    for modifier, virtual in ((6, 0), (1, 5 * PAGE), (0, 0), (1, 1), (0xFFFFFFFF, 0)):
        assert bare.run(op.UNMAP_ICM, modifier=modifier, in_param=virtual) == op.CMD_STAT_BAD_PARAM
    bare.ok(op.UNMAP_ICM, modifier=5, in_param=0)
    bare.ok(op.MAP_ICM, modifier=1, inbox=icm((4 * PAGE, bus)))


def test_init_wants_tables_within_limits_and_icm(bare: Bench):
    bare.start_firmware()
    pack = abi.INIT_HCA_MAILBOX.pack
    too_many = LAYOUT._replace(log_qps=17)
    assert bare.run(op.INIT_HCA, inbox=pack(*too_many)) == op.CMD_STAT_EXCEED_LIM
    beyond = LAYOUT._replace(mpt_base=ICM_SIZE)
    assert bare.run(op.INIT_HCA, inbox=pack(*beyond)) == op.CMD_STAT_BAD_PARAM
    bare.ok(op.INIT_HCA, inbox=pack(*LAYOUT))
    assert bare.run(op.INIT_HCA, inbox=pack(*LAYOUT)) == op.CMD_STAT_BAD_SYS_STATE
    assert bare.run(op.UNMAP_FA) == op.CMD_STAT_BAD_SYS_STATE
    assert bare.run(op.UNMAP_ICM_AUX) == op.CMD_STAT_BAD_SYS_STATE
    assert bare.run(op.MAP_FA, inbox=b"") == op.CMD_STAT_BAD_SYS_STATE


def test_close_drops_everything_and_init_begins_again(bench: Bench):
    qp = bench.make_qp()
    bench.ok(op.CLOSE_HCA)
    assert bench.run(op.QUERY_QPEE, modifier=qp.qpn) == op.CMD_STAT_BAD_SYS_STATE
    bench.ok(op.INIT_HCA, inbox=abi.INIT_HCA_MAILBOX.pack(*LAYOUT))
    state = bench.device.inspect()
    assert state["qps"] == state["cqs"] == {}
    assert state["translation"]["keys"] == 0
    bench.ok(op.CLOSE_HCA)
    bench.ok(op.UNMAP_ICM_AUX)
    bench.ok(op.UNMAP_FA)
    assert bench.run(op.QUERY_DEV_LIM) == op.CMD_STAT_BAD_SYS_STATE
    bench.ok(op.QUERY_FW)


# Memory


def test_mtt_entries_are_written_and_read_across_chunks(bare: Bench):
    bench = Bench(HcaSettings()).bring_up()
    entries = [(0xABC000 + n * PAGE) | 1 for n in range(510)]
    body = abi.WRITE_MTT_HEADER.pack(4000 * 8, 0) + b"".join(e.to_bytes(8, "big") for e in entries)
    bench.ok(op.WRITE_MTT, modifier=510, inbox=body)
    bench.ok(op.READ_MTT, modifier=510, in_param=4000 * 8)
    read = bench.out(510 * 8)
    assert [int.from_bytes(read[n : n + 8], "big") for n in range(0, len(read), 8)] == entries


@pytest.mark.parametrize(
    ("modifier", "address", "status"),
    [
        (0, 0, op.CMD_STAT_BAD_PARAM),
        (511, 0, op.CMD_STAT_BAD_PARAM),
        (1, 4, op.CMD_STAT_BAD_PARAM),
        (1, 8192 * 8, op.CMD_STAT_BAD_INDEX),
        (2, 8191 * 8, op.CMD_STAT_BAD_INDEX),
        (1, 2**64 - 8, op.CMD_STAT_BAD_INDEX),
    ],
)
def test_mtt_ranges_are_checked(bench: Bench, modifier: int, address: int, status: int):
    body = abi.WRITE_MTT_HEADER.pack(address, 0)
    assert bench.run(op.WRITE_MTT, modifier=modifier, inbox=body) == status
    if modifier != 511:
        assert bench.run(op.READ_MTT, modifier=modifier, in_param=address) == status


def mpt(index: int, **changes: object) -> bytes:
    values = {"flags": RIGHTS, "page_size": 0, "key": index << 8, "pd": PD, "start": 0}
    entry = abi.MptEntry(**{**values, "length": PAGE, **changes})  # type: ignore[arg-type]
    return abi.MPT_ENTRY.pack(*entry)


@pytest.mark.parametrize(
    "changes",
    [
        {"key": 0x1234500},
        {"page_size": 20},
        {"page_size": 0xFFFFFFFF},
        {"pd": 1 << 24},
        {"start": 2**64 - 1, "length": 2},
        {"length": 0},
        {"mtt_address": 4},
        {"mtt_address": 8192 * 8},
        {"length": 2**64 - 1, "start": 0},
    ],
)
def test_an_mpt_entry_that_cannot_be_is_bad_param(bench: Bench, changes: dict[str, int]):
    assert bench.run(op.SW2HW_MPT, modifier=40, inbox=mpt(40, **changes)) == op.CMD_STAT_BAD_PARAM
    assert bench.run(op.QUERY_MPT, modifier=40) == op.CMD_STAT_BAD_RES_STATE


def test_an_mpt_entry_changes_hands(bench: Bench):
    assert bench.run(op.HW2SW_MPT, modifier=40) == op.CMD_STAT_BAD_RES_STATE
    bench.ok(op.SW2HW_MPT, modifier=40, inbox=mpt(40))
    assert bench.run(op.SW2HW_MPT, modifier=40, inbox=mpt(40)) == op.CMD_STAT_BAD_RES_STATE
    bench.ok(op.QUERY_MPT, modifier=40)
    entry = abi.MptEntry(*abi.MPT_ENTRY.unpack(bench.out(abi.MPT_ENTRY.size)))
    assert (entry.key, entry.length, entry.flags) == (40 << 8, PAGE, RIGHTS)
    bench.ok(op.HW2SW_MPT, modifier=40)
    entry = abi.MptEntry(*abi.MPT_ENTRY.unpack(bench.out(abi.MPT_ENTRY.size)))
    assert entry.flags == RIGHTS | abi.MPT_STATUS_SOFTWARE
    bench.ok(op.SW2HW_MPT, modifier=40, inbox=mpt(40))
    bench.ok(op.HW2SW_MPT, modifier=40, opmod=op.HW2SW_MPT_NO_OUTBOX, out_param=0)
    bench.ok(op.SYNC_TPT)


@pytest.mark.parametrize("index", [0, 11, 1 << 10, 0xFFFFFFFF])
@pytest.mark.parametrize("opcode", [op.SW2HW_MPT, op.HW2SW_MPT, op.QUERY_MPT])
def test_mpt_indices_are_checked(bench: Bench, opcode: int, index: int):
    assert bench.run(opcode, modifier=index, inbox=mpt(40)) == op.CMD_STAT_BAD_INDEX


def test_a_region_with_windows_stays(bench: Bench):
    bench.ok(op.SW2HW_MPT, modifier=40, inbox=mpt(40))
    bench.tables.translation.entry(40).windows = 1
    assert bench.run(op.HW2SW_MPT, modifier=40) == op.CMD_STAT_REG_BOUND


def test_a_context_without_icm_is_bad_res_state(bench: Bench):
    def unmap(address: int) -> None:
        bench.ok(op.UNMAP_ICM, modifier=1, in_param=address & -PAGE)

    unmap(LAYOUT.mpt_base + 100 * abi.MPT_SIZE)
    assert bench.run(op.SW2HW_MPT, modifier=100, inbox=mpt(100)) == op.CMD_STAT_BAD_RES_STATE
    unmap(LAYOUT.mtt_base + 600 * 8)
    body = abi.WRITE_MTT_HEADER.pack(600 * 8, 0)
    assert bench.run(op.WRITE_MTT, modifier=1, inbox=body) == op.CMD_STAT_BAD_RES_STATE
    unmap(LAYOUT.mgm_base)
    assert bench.run(op.READ_MGM, modifier=3) == op.CMD_STAT_BAD_RES_STATE
    qp = bench.make_qp(create=False)
    unmap(LAYOUT.rdb_base + 2000 * abi.RDB_SIZE)
    assert qp.run(op.RST2INIT_QPEE) == op.CMD_STAT_BAD_RES_STATE


# Ports and multicast


def smp(method: int, attribute: int, modifier: int = 0, data: bytes = b"") -> bytes:
    head = mad.SMP_HEAD.pack(1, 1, 1, method, 0, 0, 0, 77, attribute, modifier)
    return (head.ljust(64, b"\0") + data).ljust(256, b"\0")


def ask(bench: Bench, port: int, *arguments: object) -> tuple[int, bytes]:
    bench.ok(op.MAD_IFC, modifier=port, inbox=smp(*arguments))  # type: ignore[arg-type]
    answer = bench.out(256)
    assert answer[3] == mad.METHOD_GET_RESPONSE
    return int.from_bytes(answer[4:6], "big"), answer[64:128]


def test_ports_are_active_with_lids_gids_and_pkeys(bench: Bench):
    for port in (1, 2):
        status, info = ask(bench, port, mad.METHOD_GET, mad.ATTRIBUTE_PORT_INFO, port)
        assert status == 0
        assert info[mad.PORT_INFO_SPEED_SUPPORTED_STATE] & 15 == 4
        assert int.from_bytes(info[16:18], "big") == port
        assert int.from_bytes(info[18:20], "big") == 0  # no subnet manager
        assert info[:16][8:16] == bytes.fromhex("fe80000000000000")
        _, guids = ask(bench, port, mad.METHOD_GET, mad.ATTRIBUTE_GUID_INFO, 0)
        assert int.from_bytes(guids[:8], "big") == bench.device.settings.node_guid + port
        _, pkeys = ask(bench, port, mad.METHOD_GET, mad.ATTRIBUTE_PKEY_TABLE, 0)
        assert pkeys == b"\xff\xff" + bytes(62)
    _, node = ask(bench, 2, mad.METHOD_GET, mad.ATTRIBUTE_NODE_INFO)
    values = mad.NODE_INFO.unpack_from(node)
    assert values[3] == 2
    assert values[-1] == 2 << 24 | 0x2C9
    _, name = ask(bench, 1, mad.METHOD_GET, mad.ATTRIBUTE_NODE_DESCRIPTION)
    assert name.rstrip(b"\0") == b"SoftHCA"


def test_what_management_does_not_know_is_said(bench: Bench):
    bad_attribute, bad_value = mad.MAD_STATUS_BAD_ATTRIBUTE, mad.MAD_STATUS_BAD_VALUE
    assert ask(bench, 1, mad.METHOD_SET, mad.ATTRIBUTE_NODE_INFO)[0] == bad_attribute
    assert ask(bench, 1, 0x55, mad.ATTRIBUTE_NODE_INFO)[0] == bad_attribute
    assert ask(bench, 1, mad.METHOD_GET, 0x9999)[0] == bad_attribute
    assert ask(bench, 1, mad.METHOD_GET, mad.ATTRIBUTE_PORT_INFO, 3)[0] == bad_value
    assert ask(bench, 1, mad.METHOD_GET, mad.ATTRIBUTE_PKEY_TABLE, 2)[0] == bad_value
    assert ask(bench, 1, mad.METHOD_GET, mad.ATTRIBUTE_GUID_INFO, 2**31)[0] == bad_value
    assert ask(bench, 1, mad.METHOD_SET, mad.ATTRIBUTE_PORT_INFO, 1)[0] == bad_value  # LID 0
    assert bench.run(op.MAD_IFC, modifier=3, inbox=smp(1, 0x11)) == op.CMD_STAT_BAD_PARAM
    assert bench.run(op.MAD_IFC, modifier=1, inbox=bytes(256)) == op.CMD_STAT_BAD_PKT


def port_events(bench: Bench) -> list[tuple[int, int]]:
    bench.settle()
    return [(e[3], e[12] >> 4) for e in bench.events(reg.ASYNC_EQ) if e[1] == 9]


def test_port_changes_are_events(bench: Bench):
    _, info = ask(bench, 2, mad.METHOD_GET, mad.ATTRIBUTE_PORT_INFO, 2)
    changed = bytearray(info)
    changed[16:18] = bytes.fromhex("0015")
    assert ask(bench, 2, mad.METHOD_SET, mad.ATTRIBUTE_PORT_INFO, 2, bytes(changed))[0] == 0
    assert port_events(bench) == [(0x10, 2)]
    ask(bench, 2, mad.METHOD_SET, mad.ATTRIBUTE_PORT_INFO, 2, bytes(changed))
    assert port_events(bench) == []
    for manager, status, events in (
        ("c000", mad.MAD_STATUS_BAD_VALUE, []),
        ("0001", 0, [(0x13, 2)]),
    ):
        changed[18:20] = bytes.fromhex(manager)
        answer = ask(bench, 2, mad.METHOD_SET, mad.ATTRIBUTE_PORT_INFO, 2, bytes(changed))
        assert answer[0] == status
        assert port_events(bench) == events
    keys = b"\xff\xff\x80\x01".ljust(64, b"\0")
    ask(bench, 1, mad.METHOD_SET, mad.ATTRIBUTE_PKEY_TABLE, 0, keys)
    assert port_events(bench) == [(0x11, 1)]
    ask(bench, 1, mad.METHOD_SET, mad.ATTRIBUTE_GUID_INFO, 0, bytes(8) + b"\1" * 8 + bytes(48))
    assert port_events(bench) == [(0x12, 1)]
    assert bench.tables.ports[0].gid(0)[8:] != bytes(8)  # the port's own stays
    assert bench.tables.ports[0].gid(2) == bytes(16)


def test_a_port_goes_down_and_up_with_one_event_each(bench: Bench):
    bench.ok(op.CLOSE_IB, modifier=2)
    bench.ok(op.CLOSE_IB, modifier=2)
    assert port_events(bench) == [(1, 2)]
    _, info = ask(bench, 2, mad.METHOD_GET, mad.ATTRIBUTE_PORT_INFO)
    assert info[mad.PORT_INFO_SPEED_SUPPORTED_STATE] & 15 == 1
    init = mad.INIT_IB_MAILBOX.pack(0, 0, 2048, 0, 0, 0, 0)
    bench.ok(op.INIT_IB, modifier=2, inbox=init)
    assert port_events(bench) == [(4, 2)]
    assert bench.tables.ports[1].mtu == 4
    for opcode in (op.INIT_IB, op.CLOSE_IB, op.SET_IB):
        for port in (0, 3, 0xFFFFFFFF):
            assert bench.run(opcode, modifier=port, inbox=init) == op.CMD_STAT_BAD_PARAM
    huge = mad.INIT_IB_MAILBOX.pack(0, 0, 9000, 0, 0, 0, 0)
    assert bench.run(op.INIT_IB, modifier=2, inbox=huge) == op.CMD_STAT_BAD_PARAM


def test_set_ib_sets_capabilities_and_resets_the_counter(bench: Bench):
    port = bench.tables.ports[0]
    port.qkey_violations = 7
    bench.ok(op.SET_IB, modifier=1, inbox=mad.SET_IB_MAILBOX.pack(0, 0x10000, 5))
    assert (port.capabilities, port.qkey_violations) == (0x10000, 7)
    flags = mad.SET_IB_RESET_QKEY_VIOLATIONS | mad.SET_IB_SYSTEM_IMAGE_GUID
    bench.ok(op.SET_IB, modifier=1, inbox=mad.SET_IB_MAILBOX.pack(flags, 0x10000, 5))
    assert port.qkey_violations == 0
    _, node = ask(bench, 1, mad.METHOD_GET, mad.ATTRIBUTE_NODE_INFO)
    assert mad.NODE_INFO.unpack_from(node)[4] == 5


def test_multicast_chains_are_walked_and_end(bench: Bench):
    gid = b"\xff" + bytes(14) + b"\x07"
    bench.ok(op.MGID_HASH, inbox=gid)
    head = bench.out_param
    assert head < 16
    qps = (abi.MGM_QP_VALID | 0x123456).to_bytes(4, "big") + bytes(4)
    member = abi.MGM_HEAD.pack(0, gid) + qps
    other = abi.MGM_HEAD.pack(20 << 6, b"\xff" * 16) + qps
    assert bench.tables.multicast.members(gid) == []
    bench.ok(op.WRITE_MGM, modifier=head, inbox=other)
    bench.ok(op.WRITE_MGM, modifier=20, inbox=member)
    bench.ok(op.READ_MGM, modifier=20)
    assert bench.out(256) == member.ljust(256, b"\0")
    assert bench.tables.multicast.members(gid) == [0x123456]
    circle = abi.MGM_HEAD.pack(20 << 6, b"\xff" * 16)
    bench.ok(op.WRITE_MGM, modifier=20, inbox=circle)
    assert bench.tables.multicast.members(gid) == []
    for index in (32, 0xFFFFFFFF):
        assert bench.run(op.READ_MGM, modifier=index) == op.CMD_STAT_BAD_INDEX
        assert bench.run(op.WRITE_MGM, modifier=index, inbox=b"") == op.CMD_STAT_BAD_INDEX


def test_special_queue_pairs_are_noted(bench: Bench):
    bench.ok(op.CONF_SPECIAL_QP, modifier=8, opmod=1)
    assert bench.tables.special_qps == {1: 8}
    assert bench.run(op.CONF_SPECIAL_QP, modifier=8, opmod=4) == op.CMD_STAT_BAD_PARAM
    assert bench.run(op.CONF_SPECIAL_QP, modifier=1024) == op.CMD_STAT_BAD_INDEX
