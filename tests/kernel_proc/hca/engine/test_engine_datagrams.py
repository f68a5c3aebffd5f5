"""Datagrams: the 40 bytes, keys and partitions, what is dropped, groups, and address handles."""

import itertools
from collections.abc import Callable

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.multicast_table import MulticastTable
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from shared.verbs_enums import ibv_wc_flags
from tests.kernel_proc.hca.engine.engine_bench import (
    INLINE,
    SIGNALED,
    Region,
    User,
    engine_bench,
    vector,
    wr,
)
from tests.kernel_proc.hca.hca_bench import PD, Bench

UD = abi.QPC_TRANSPORT_UD
GRH, WITH_IMM = int(ibv_wc_flags.IBV_WC_GRH), int(ibv_wc_flags.IBV_WC_WITH_IMM)
GROUP = b"\xff\x12" + bytes(13) + b"\x07"


def datagram_user(bench: Bench, qpn: int, **changes: int) -> User:
    """A UD queue pair in RTS."""
    user = User(bench, qpn, transport=UD, **changes)
    assert user.run(op.INIT2RTR_QPEE) == op.CMD_STAT_OK
    assert user.run(op.RTR2RTS_QPEE) == op.CMD_STAT_OK
    return user


@pytest.fixture
def users(bench: Bench) -> tuple[User, User]:
    return datagram_user(bench, 2000), datagram_user(bench, 2001)


Users = tuple[User, User]


MESSAGES = list(itertools.product([0, 1, 63, 1024, 4096], ["SEND", "SEND_WITH_IMM"], [1, 3]))


@pytest.mark.parametrize(("length", "name", "pieces"), MESSAGES)
def test_a_datagram_lies_behind_forty_bytes(
    bench: Bench, users: Users, length: int, name: str, pieces: int
):
    one, other = users
    near, far = Region(bench, 8192), Region(bench, 8192)
    data = near.fill(1)
    size = -(-(length + 40) // pieces)
    other.receive([far.at(n * size, size) for n in range(pieces)])
    one.send(wr(name), [near.at(0, length)], vector=vector(), qpn=other.qpn, imm=77)
    assert [(c.status, c.opcode) for c in one.sends()] == [(0, 0)]
    (arrived,) = other.receives()
    assert (arrived.status, arrived.byte_len, arrived.src_qp) == (0, length + 40, one.qpn)
    assert (arrived.slid, arrived.sl, arrived.dlid_path_bits) == (1, 0, 0)
    with_imm = name == "SEND_WITH_IMM"
    assert arrived.wc_flags == (WITH_IMM if with_imm else 0)
    assert arrived.imm_data == (77 if with_imm else 0)
    assert far.view[40 : 40 + length] == data[:length]
    assert not any(far.view[:40])
    assert not any(far.view[40 + length :])


def test_a_global_route_header_arrives_before_the_payload(bench: Bench, users: Users):
    one, other = users
    port = bench.tables.ports[0]
    far = Region(bench, 4096)
    other.receive([far.at(0, 20), far.at(20, 200)])
    way = vector(
        is_global=1, dgid=port.gid(0), flow_label=0x12345, traffic_class=0xAB, hop_limit=9, sl=5
    )
    one.send(wr("SEND"), inline=b"hello", flags=INLINE | SIGNALED, vector=way, qpn=other.qpn)
    assert [c.status for c in one.sends()] == [0]
    (arrived,) = other.receives()
    assert (arrived.wc_flags, arrived.byte_len, arrived.sl) == (GRH, 45, 5)
    header = bytes(far.view[:40])
    assert int.from_bytes(header[:4], "big") == 6 << 28 | 0xAB << 20 | 0x12345
    assert int.from_bytes(header[4:6], "big") == 8 + 12 + 8 + 4  # padded payload, headers, CRC
    assert (header[6], header[7]) == (0x1B, 9)
    assert header[8:24] == header[24:40] == port.gid(0)
    assert far.view[40:45] == b"hello"


def test_one_queue_pair_sends_to_several(bench: Bench):
    one = datagram_user(bench, 2000)
    others = [datagram_user(bench, 2001 + n, port=1 + n % 2, path_port=1 + n % 2) for n in range(4)]
    far = Region(bench, 4096)
    for other in others:
        other.receive([far.at(0, 100)])
    for other in others:
        one.send(wr("SEND"), vector=vector(dlid=other.context.port), qpn=other.qpn)
    assert [c.status for c in one.sends()] == [0] * 4
    assert [len(other.receives()) for other in others] == [1] * 4


DROPS: dict[str, tuple[str, Callable[[Bench, User], dict[str, object]]]] = {
    "Q_Key": ("Q_Key", lambda bench, other: {"qkey": 0x1235}),
    "P_Key": (
        "P_Key",
        lambda bench, other: (bench.tables.ports[0].set_pkeys(0, [0x7FFF]), {})[1],
    ),
    "nobody": ("", lambda bench, other: {"qpn": 3000}),
    "no such LID": ("", lambda bench, other: {"vector": vector(dlid=99)}),
    "other port": ("another port", lambda bench, other: {"vector": vector(dlid=2)}),
    "GID": (
        "another GID",
        lambda bench, other: {"vector": vector(is_global=1, dgid=b"\xfe" + bytes(15))},
    ),
    "in INIT": ("not listening", lambda bench, other: {"qpn": User(bench, 2050, transport=UD).qpn}),
    "connected": ("not listening", lambda bench, other: {"qpn": User(bench, 2050).qpn}),
    "short entry": ("longer than the receive entry", lambda bench, other: {"elements": 61}),
}


@pytest.mark.parametrize("name", DROPS)
def test_what_cannot_be_taken_is_dropped(bench: Bench, users: Users, name: str):
    one, other = users
    reason, make = DROPS[name]
    near, far = Region(bench, 4096), Region(bench, 4096)
    position = other.receive([far.at(0, 100)])
    arguments = {"qpn": other.qpn, "vector": vector(), **make(bench, other)}
    length = arguments.pop("elements", 60)
    one.send(wr("SEND"), [near.at(0, length)], **arguments)  # type: ignore[arg-type]
    assert [c.status for c in one.sends()] == [0]
    assert other.receives() == []
    port = bench.tables.ports[0]
    target = bench.tables.qps.find(arguments["qpn"])
    if reason:
        assert target is not None
        assert target.counters.drops == {reason: 1}
    else:
        assert sum(port.drops.values()) == 1
    violations = (port.pkey_violations, port.qkey_violations)
    assert violations == (int(name == "P_Key"), int(name == "Q_Key"))
    # The entry is still there for the next.
    port.set_pkeys(0, [0xFFFF])
    one.send(wr("SEND"), vector=vector(), qpn=other.qpn)
    assert [c.wqe_index for c in other.receives()] == [position]


def test_without_an_entry_a_datagram_is_lost(bench: Bench, users: Users):
    one, other = users
    one.send(wr("SEND"), vector=vector(), qpn=other.qpn)
    assert [c.status for c in one.sends()] == [0]
    other.receive([Region(bench, 4096).at()])
    assert other.receives() == []
    assert other.device_object.counters.drops == {"no receive entry": 1}


def test_one_longer_than_the_mtu_is_sent_and_goes_nowhere(bench: Bench, users: Users):
    one, other = users
    near, far = Region(bench, 8192), Region(bench, 8192)
    other.receive([far.at()])
    one.send(wr("SEND"), [near.at(0, 4097)], vector=vector(), qpn=other.qpn)
    assert [c.status for c in one.sends()] == [0]
    assert other.receives() == []
    assert one.device_object.counters.drops == {"longer than the MTU": 1}


@pytest.mark.parametrize("own", [0x1234, 0x9999])
def test_the_own_qkey_is_sent_if_bit_31_asks_for_it(bench: Bench, own: int):
    one = datagram_user(bench, 2000, qkey=own)
    other = datagram_user(bench, 2001)
    other.receive([Region(bench, 4096).at()])
    one.send(wr("SEND"), vector=vector(), qpn=other.qpn, qkey=0x80000000)
    assert [c.status for c in one.sends()] == [0]
    assert len(other.receives()) == (own == 0x1234)


BAD_VECTORS = {
    "port 0": vector(port=0),
    "another port": vector(port=2),
    "SL": vector(sl=16),
    "sgid_index": vector(is_global=1, sgid_index=32),
    "is_global": vector(is_global=2),
    "another domain": vector(pd=PD + 1),
}


@pytest.mark.parametrize("name", BAD_VECTORS)
def test_a_bad_address_handle_ends_in_the_send_error_state(bench: Bench, users: Users, name: str):
    one, other = users
    far = Region(bench, 4096)
    one.receive([far.at()])
    one.put_send(wr("SEND"), vector=BAD_VECTORS[name], qpn=other.qpn, flags=0)
    one.put_send(wr("SEND"), vector=vector(), qpn=other.qpn, flags=0)
    one.ring_send()
    assert [c.status for c in one.sends()] == [ops.LOC_QP_OP_ERR, ops.WR_FLUSH_ERR]
    assert one.state == table.SQE
    other.send(wr("SEND"), vector=vector(), qpn=one.qpn)  # the receive side works on
    assert [c.status for c in one.receives()] == [0]
    assert one.run(op.SQERR2RTS_QPEE) == op.CMD_STAT_OK
    one.send(wr("SEND"), vector=vector(), qpn=other.qpn)
    assert [c.status for c in one.sends()] == [0]


OTHER_OPCODES = ["RDMA_WRITE", "RDMA_READ", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV"]


@pytest.mark.parametrize("name", OTHER_OPCODES)
def test_other_opcodes_are_not_for_datagrams(users: Users, name: str):
    one, other = users
    one.send(wr(name), vector=vector(), qpn=other.qpn)
    assert [c.status for c in one.sends()] == [ops.LOC_QP_OP_ERR]
    assert one.state == table.SQE


@pytest.mark.parametrize(
    ("element", "status"),
    [
        ("near", ops.LOC_PROT_ERR),
        ("far", ops.SUCCESS),
    ],
)
def test_bad_elements_on_either_side(bench: Bench, users: Users, element: str, status: int):
    one, other = users
    good = Region(bench, 4096)
    bad = (good.start, 64, 0x7700)
    other.receive([bad if element == "far" else good.at()])
    one.send(wr("SEND"), [bad if element == "near" else good.at(0, 8)], vector=vector(),
             qpn=other.qpn)  # fmt: skip
    assert [c.status for c in one.sends()] == [status]
    expected = [ops.LOC_PROT_ERR] if element == "far" else []
    assert [c.status for c in other.receives()] == expected
    assert other.state == (table.ERR if element == "far" else table.RTS)


def join_group(bench: Bench, members: list[int]) -> None:
    """Write the group's entry as the driver does."""
    groups: MulticastTable = bench.tables.multicast
    entry = bytearray(abi.MGM_ENTRY_SIZE)
    abi.MGM_HEAD.pack_into(entry, 0, 0, GROUP)
    for number, qpn in enumerate(members):
        place = abi.MGM_QP_OFFSET + 4 * number
        entry[place : place + 4] = (qpn | abi.MGM_QP_VALID).to_bytes(4, "big")
    groups.write(groups.hash_of(GROUP), bytes(entry))


@pytest.mark.parametrize("blocked", [False, True])
def test_each_member_of_a_group_gets_a_copy(blocked: bool):
    bench = engine_bench()
    one = datagram_user(bench, 2000)
    if blocked:
        found = one.device_object
        flags = found.context.flags | abi.QPC_BLOCK_SELF_MULTICAST
        found.context = found.context._replace(flags=flags)
    other = datagram_user(bench, 2001)
    deaf = datagram_user(bench, 2002, qkey=5)
    join_group(bench, [one.qpn, other.qpn, deaf.qpn, 3000])
    near, far = Region(bench, 4096), Region(bench, 4096)
    data = near.fill(1)
    for number, user in enumerate((one, other, deaf)):
        user.receive([far.at(1000 * number, 200)])
    way = vector(dlid=0xC007, is_global=1, dgid=GROUP)
    one.send(wr("SEND"), [near.at(0, 64)], vector=way, qpn=0xFFFFFF)
    assert [c.status for c in one.sends()] == [0]
    counts = [[c.wc_flags for c in user.receives()] for user in (one, other, deaf)]
    assert counts == [[] if blocked else [GRH], [GRH], []]
    assert far.view[1040:1104] == data[:64]
    assert deaf.device_object.counters.drops == {"Q_Key": 1}


def test_a_group_nobody_is_in(bench: Bench, users: Users):
    one, _ = users
    one.send(wr("SEND"), vector=vector(dlid=0xC001, is_global=1, dgid=GROUP), qpn=0xFFFFFF)
    assert [c.status for c in one.sends()] == [0]
    assert bench.tables.ports[0].drops == {"no member of the group": 1}


def test_memory_of_another_domain_is_not_given(bench: Bench, users: Users):
    one, other = users
    foreign = Region(bench, 4096, pd=PD + 1)
    one.send(wr("SEND"), [foreign.at(0, 8)], vector=vector(), qpn=other.qpn)
    assert [c.status for c in one.sends()] == [ops.LOC_PROT_ERR]
