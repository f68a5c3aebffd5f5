"""What arrives when all is well: every opcode, every way to give the data, and what completes."""

import itertools
import zlib

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine import pieces
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from shared.verbs_enums import ibv_wc_flags, ibv_wc_opcode
from tests.kernel_proc.hca.engine.engine_bench import (
    FENCE,
    INLINE,
    SIGNALED,
    SOLICITED,
    Region,
    User,
    pair,
    wr,
)
from tests.kernel_proc.hca.hca_bench import Bench

Ends = tuple[User, User]
LENGTHS = [0, 1, 7, 8, 9, 64, 1023, 1024, 1025, 4096, 131072, 131073, 1 << 20, (1 << 20) + 5]
MESSAGES = [
    *(
        (name, length, with_imm)
        for name, with_imm in (
            ("SEND", False),
            ("SEND_WITH_IMM", True),
            ("RDMA_WRITE", False),
            ("RDMA_WRITE_WITH_IMM", True),
            ("RDMA_READ", False),
        )
        for length in LENGTHS
    ),
]
SENDER_SAYS = {
    "SEND": ibv_wc_opcode.IBV_WC_SEND,
    "SEND_WITH_IMM": ibv_wc_opcode.IBV_WC_SEND,
    "RDMA_WRITE": ibv_wc_opcode.IBV_WC_RDMA_WRITE,
    "RDMA_WRITE_WITH_IMM": ibv_wc_opcode.IBV_WC_RDMA_WRITE,
    "RDMA_READ": ibv_wc_opcode.IBV_WC_RDMA_READ,
}


def test_the_list_of_messages_is_whole():
    assert len(MESSAGES) == 5 * len(LENGTHS) == 70


@pytest.mark.parametrize(("name", "length", "with_imm"), MESSAGES)
def test_a_message_arrives_once_and_whole(
    bench: Bench, ends: Ends, name: str, length: int, with_imm: bool
):
    one, other = ends
    near, far = Region(bench, length + 64), Region(bench, length + 64, start=0x7000_0000_0000)
    sent = near.fill(1)
    was = far.fill(2)
    takes_entry = name.startswith("SEND") or with_imm
    if takes_entry:
        other.receive([far.at(8, length)] if length else [])
    psn, expected = one.device_object.send_psn, other.device_object.receive_psn
    position = one.send(
        wr(name), [near.at(4, length)], remote=(far.start + 8, far.key), imm=0x04030201
    )
    (completion,) = one.sends()
    assert completion.status == 0
    assert completion.wqe_index == position
    assert completion.opcode == SENDER_SAYS[name]
    assert completion.is_send == 1
    if name == "RDMA_READ":
        assert completion.byte_len == length
        assert bytes(near.view[4 : 4 + length]) == was[8 : 8 + length]
        assert near.view[:4] == sent[:4]
        assert near.view[4 + length :] == sent[4 + length :]
    else:
        assert bytes(far.view[8 : 8 + length]) == sent[4 : 4 + length]
        assert far.view[:8] == was[:8]
        assert far.view[8 + length :] == was[8 + length :]
    arrived = other.receives()
    assert len(arrived) == takes_entry
    if takes_entry:
        assert (arrived[0].status, arrived[0].byte_len) == (0, length)
        assert arrived[0].imm_data == (0x04030201 if with_imm else 0)
        assert arrived[0].wc_flags == (ibv_wc_flags.IBV_WC_WITH_IMM if with_imm else 0)
        written = name == "RDMA_WRITE_WITH_IMM"
        assert arrived[0].opcode == (ops.RECEIVED_WRITE if written else ops.RECEIVED)
    packets = max(1, -(-length // 1024))
    assert one.device_object.send_psn == (psn + packets) & 0xFFFFFF
    assert other.device_object.receive_psn == (expected + packets) & 0xFFFFFF


SPLITS = list(itertools.product([1, 2, 3, 7], [1, 2, 5]))


@pytest.mark.parametrize("name", ["SEND", "RDMA_WRITE", "RDMA_READ"])
@pytest.mark.parametrize(("pieces", "targets"), SPLITS)
@pytest.mark.parametrize("length", [23, 300_000])
def test_data_is_gathered_and_scattered(
    bench: Bench, name: str, pieces: int, targets: int, length: int
):
    one, other = pair(bench)
    near, far = Region(bench, length + 64), Region(bench, length + 64)
    sent, was = near.fill(3), far.fill(4)

    def split(region: Region, count: int) -> list[tuple[int, int, int]]:
        size = length // count
        cuts = [(n * size, size if n < count - 1 else length - n * size) for n in range(count)]
        elements = []
        for offset, part in cuts:
            elements.append(region.at(offset, part))
            elements.append((1, 0, 0xDEAD))  # of no length: not looked at
        return elements

    if name == "SEND":
        other.receive(split(far, targets))
    one.send(wr(name), split(near, pieces), remote=(far.start, far.key))
    (completion,) = one.sends()
    assert completion.status == 0
    if name == "RDMA_READ":
        assert zlib.crc32(near.view[:length]) == zlib.crc32(was[:length])
        assert near.view[length:] == sent[length:]
    else:
        assert zlib.crc32(far.view[:length]) == zlib.crc32(sent[:length])
        assert far.view[length:] == was[length:]


@pytest.mark.parametrize("name", ["SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM"])
@pytest.mark.parametrize("length", [0, 1, 64, 384])
def test_inline_data_needs_no_key(bench: Bench, ends: Ends, name: str, length: int):
    one, other = ends
    far = Region(bench, 4096)
    other.receive([far.at(0, 512)])
    data = bytes(range(256)) * 2
    one.send(wr(name), inline=data[:length], flags=INLINE | SIGNALED, remote=(far.start, far.key))
    (completion,) = one.sends()
    assert completion.status == 0
    assert far.view[:length] == data[:length]
    assert not any(far.view[length:])


@pytest.mark.parametrize(
    ("name", "compare", "swap", "before", "after"),
    [
        ("ATOMIC_FETCH_AND_ADD", 5, 99, 7, 12),
        ("ATOMIC_FETCH_AND_ADD", 2, 0, 2**64 - 1, 1),
        ("ATOMIC_CMP_AND_SWP", 7, 99, 7, 99),
        ("ATOMIC_CMP_AND_SWP", 8, 99, 7, 7),
    ],
)
def test_atomics(
    bench: Bench, ends: Ends, name: str, compare: int, swap: int, before: int, after: int
):
    one, _ = ends
    near, far = Region(bench, 4096), Region(bench, 4096)
    far.view[16:24] = before.to_bytes(8, "little")
    one.send(
        wr(name), [near.at(3, 8)], remote=(far.start + 16, far.key), compare=compare, swap=swap
    )
    (completion,) = one.sends()
    assert (completion.status, completion.byte_len) == (0, 8)
    assert int.from_bytes(near.view[3:11], "little") == before
    assert int.from_bytes(far.view[16:24], "little") == after


def test_two_that_add_lose_nothing(bench: Bench):
    one, other = pair(bench)
    near, far = Region(bench, 4096), Region(bench, 4096)
    for _ in range(20):
        for user in (one, other):
            user.send(
                wr("ATOMIC_FETCH_AND_ADD"), [near.at(0, 8)], remote=(far.start, far.key), compare=1
            )
    assert len(one.sends()) == len(other.sends()) == 20
    assert int.from_bytes(far.view[:8], "little") == 40


def test_unsignaled_entries_complete_silently(ends: Ends):
    one, _ = ends
    for flags in (0, 0, SIGNALED, 0):
        one.send(wr("RDMA_WRITE"), flags=flags)
    assert [c.wqe_index for c in one.sends()] == [2]
    assert one.device_object.counters.sent_messages == 4


def test_a_queue_pair_may_signal_all(bench: Bench):
    one, _ = pair(bench, signal_all=True)
    for _ in range(3):
        one.send(wr("RDMA_WRITE"), flags=0)
    assert [c.wqe_index for c in one.sends()] == [0, 1, 2]


@pytest.mark.parametrize("name", ["SEND", "SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM"])
@pytest.mark.parametrize("solicited", [False, True])
def test_a_solicited_message_wakes_who_waits_for_one(
    bench: Bench, ends: Ends, name: str, solicited: bool
):
    one, other = ends
    other.receive_cq.arm(solicited=True)
    bench.completions()
    other.receive()
    one.send(wr(name), flags=SIGNALED | (SOLICITED if solicited else 0))
    (arrived,) = other.receives()
    assert arrived.solicited == solicited
    assert bench.completions() == ([other.receive_cq.cqn] if solicited else [])


def test_completions_come_in_order_whatever_they_are(bench: Bench, ends: Ends):
    one, other = ends
    near, far = Region(bench, 1 << 19), Region(bench, 1 << 19)
    for _ in range(8):
        other.receive([far.at(0, 64)])
    names = ["RDMA_READ", "SEND", "ATOMIC_FETCH_AND_ADD", "RDMA_WRITE", "SEND"] * 3
    for name in names:
        length = {"RDMA_READ": 400_000, "RDMA_WRITE": 200_000}.get(name, 8)
        one.put_send(
            wr(name), [near.at(0, length)], remote=(far.start, far.key), flags=SIGNALED | FENCE
        )
    one.ring_send()
    done = one.sends()
    assert [c.wqe_index for c in done] == list(range(len(names)))
    assert [c.status for c in done] == [0] * len(names)
    assert [c.wqe_index for c in other.receives()] == list(range(6))


def test_the_last_bytes_of_a_message_come_last(
    bench: Bench, ends: Ends, monkeypatch: pytest.MonkeyPatch
):
    stored: list[int] = []
    store = pieces.store

    def watched(target: memoryview, source: memoryview) -> None:
        stored.append(len(target))
        store(target, source)

    monkeypatch.setattr("kernel_proc.hca.engine.incoming_writes.store", watched)
    one, _ = ends
    near, far = Region(bench, 1 << 21), Region(bench, 1 << 21)
    data = near.fill(9)
    one.send(wr("RDMA_WRITE"), [near.at()], remote=(far.start, far.key))
    (completion,) = one.sends()
    assert completion.status == 0
    assert far.view == data
    assert stored == [1 << 20]  # of the last run of packets, which ends in 8 bytes of their own


def test_first_message_in_rtr_is_told_once(bench: Bench):
    one, other = User(bench, 2000), User(bench, 2001)
    one.connect(other)
    other.connect(one, state=table.RTR)
    bench.async_events()
    for _ in range(3):
        one.send(wr("RDMA_WRITE"))
    assert len(one.sends()) == 3
    assert bench.async_events() == [(eqe.EVENT_COMMUNICATION_ESTABLISHED, other.qpn)]


def test_a_queue_pair_may_be_its_own_peer(bench: Bench):
    one = User(bench, 2000)
    one.connect(one)
    near = Region(bench, 4096)
    data = near.fill(5)
    one.receive([near.at(2048, 64)])
    one.send(wr("SEND"), [near.at(0, 64)])
    assert [c.status for c in one.sends()] == [0]
    assert [c.byte_len for c in one.receives()] == [64]
    assert near.view[2048:2112] == data[:64]


@pytest.mark.parametrize(("port", "peer"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_both_ports_reach_both(bench: Bench, port: int, peer: int):
    one = User(bench, 2000, port=port, path_port=port)
    other = User(bench, 2001, port=peer, path_port=peer)
    one.connect(other)
    other.connect(one)
    other.receive()
    one.send(wr("SEND"))
    assert [c.status for c in one.sends()] == [0]
    assert [c.src_qp for c in other.receives()] == [one.qpn]


@pytest.mark.parametrize("mtu", [1, 2, 3, 4, 5])
def test_packets_are_counted_by_the_path_mtu(bench: Bench, mtu: int):
    one, _ = pair(bench, mtu=mtu)
    near = Region(bench, 300_000)
    size = 128 << mtu
    for length in (0, 1, size, size + 1, 299_999):
        before = one.device_object.send_psn
        one.send(wr("RDMA_READ"), [near.at(0, length)], remote=(near.start, near.key))
        assert [c.status for c in one.sends()] == [0]
        taken = (one.device_object.send_psn - before) & 0xFFFFFF
        assert taken == max(1, -(-length // size))


def test_psns_wrap(bench: Bench):
    one, other = User(bench, 2000, next_send_psn=0xFFFFFE), User(bench, 2001)
    one.connect(other)
    other.connect(one)
    near = Region(bench, 8192)
    for _ in range(3):
        one.send(wr("RDMA_WRITE"), [near.at(0, 2048)], remote=(near.start, near.key))
    assert [c.status for c in one.sends()] == [0] * 3
    assert one.device_object.send_psn == 4


def test_memory_scattered_over_pages_is_reached(bench: Bench):
    one, _ = pair(bench)
    near = Region(bench, 5 * 4096)
    data = near.fill(6)
    scattered = [bench.pages(2) for _ in range(5)]  # no two are neighbours
    key = bench.mpt(scattered, 5 * 4096, start=0x5000, flags=near_flags())
    one.send(wr("RDMA_WRITE"), [near.at(0, 20_000)], remote=(0x5000 + 100, key))
    assert [c.status for c in one.sends()] == [0]
    seen = b"".join(bytes(bench.at(page, 4096)) for page in scattered)
    assert seen[100:20_100] == data[:20_000]
    assert bench.tables.translation.page_look_ups >= 5


def near_flags() -> int:
    return (
        abi.MPT_FLAG_REGION
        | abi.MPT_FLAG_LOCAL_READ
        | abi.MPT_FLAG_LOCAL_WRITE
        | abi.MPT_FLAG_REMOTE_WRITE
    )


def test_a_changed_translation_is_seen(bench: Bench):
    one, _ = pair(bench)
    near, far = Region(bench, 4096), Region(bench, 4096)
    near.fill(7)
    one.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    assert [c.status for c in one.sends()] == [0]
    elsewhere = bench.pages(1)
    key = bench.tables.translation.named(far.key)
    assert key is not None
    bench.tables.translation.write_mtt(key.first_mtt, (elsewhere | 1).to_bytes(8, "big"))
    far.view[:] = bytes(4096)
    one.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    assert [c.status for c in one.sends()] == [0]
    assert not any(far.view)
    assert bench.at(elsewhere, 64) == near.view[:64]


def test_counters_tell_what_went(bench: Bench, ends: Ends):
    one, other = ends
    near, far = Region(bench, 4096), Region(bench, 4096)
    other.receive([far.at(0, 100)])
    one.send(wr("SEND"), [near.at(0, 100)])
    one.send(wr("RDMA_WRITE"), [near.at(0, 50)], remote=(far.start, far.key))
    one.sends()
    shown = bench.device.inspect()
    figures = shown["qps"][str(one.qpn)]["counters"]
    assert (figures["sent_messages"], figures["sent_bytes"]) == (2, 150)
    figures = shown["qps"][str(other.qpn)]["counters"]
    assert (figures["received_messages"], figures["received_bytes"]) == (2, 150)
    assert shown["ports"]["1"]["counters"]["sent_messages"] == 2
