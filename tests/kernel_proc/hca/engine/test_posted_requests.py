"""The last requests of a queue pair, read from its rings: every kind, and whatever lies there."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_proc.hca_abi import contexts as abi
from shared.verbs_enums import ibv_send_flags
from tests.kernel_proc.hca.engine.engine_bench import Region, User, engine_bench, pair, vector, wr
from tests.kernel_proc.hca.hca_bench import KERNEL_SEGMENT, Bench

INLINE = int(ibv_send_flags.IBV_SEND_INLINE)


def told(user: User) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(user.bench.device.inspect_queue_pair(user.qpn)))
    return found


def test_a_request_is_told_as_it_was_posted(bench: Bench, ends: tuple[User, User]):
    one, other = ends
    region = Region(bench, 8192)
    other.receive([region.at(4096, 100), region.at(5000, 24)])
    bench.now = 77_000
    one.send(wr("SEND_WITH_IMM"), [region.at(0, 60), region.at(100, 40)], imm=0x1234)
    one.send(wr("RDMA_READ"), [region.at(0, 8)], remote=(region.start + 16, region.key))
    assert len(one.sends()) == 2
    requests = told(one)["send"]
    assert list(requests) == ["1", "0"]  # the newest first
    assert requests["0"] == {
        "position": 0,
        "progress": "completed",
        "status": 0,
        "when_ns": 77_000,
        "byte_len": 0,
        "opcode": wr("SEND_WITH_IMM"),
        "flags": 2,
        "imm_data": 0x1234,
        "remote_address": 0,
        "rkey": 0,
        "compare_add": 0,
        "swap": 0,
        "elements": [[region.start, 60, region.key], [region.start + 100, 40, region.key]],
    }
    read = requests["1"]
    assert (read["remote_address"], read["rkey"]) == (region.start + 16, region.key)
    (receive,) = told(other)["receive"].values()
    assert (receive["status"], receive["byte_len"]) == (0, 100)
    assert receive["elements"] == [
        [region.start + 4096, 100, region.key],
        [region.start + 5000, 24, region.key],
    ]


def test_what_is_posted_and_what_is_in_hand(bench: Bench, ends: tuple[User, User]):
    one, other = ends
    region = Region(bench, 4096)
    for _ in range(3):
        one.send(wr("SEND"), [region.at(0, 8)])
    bench.settle()  # nobody receives: the first waits for a receive entry
    assert [request["progress"] for request in told(one)["send"].values()] == [
        "posted", "posted", "in hand",
    ]  # fmt: skip
    other.receive([region.at(64, 8)])
    assert [request["progress"] for request in told(other)["receive"].values()] == ["posted"]


def test_unsignaled_requests_have_no_status_and_inline_ones_no_elements(
    bench: Bench, ends: tuple[User, User]
):
    one, _ = ends
    region = Region(bench, 4096)
    remote = (region.start, region.key)
    one.send(wr("RDMA_WRITE"), inline=b"12345", flags=INLINE, remote=remote)
    bench.settle()
    (request,) = told(one)["send"].values()
    assert "status" not in request
    assert (request["progress"], request["inline_length"], request["elements"]) == (
        "completed", 5, [],
    )  # fmt: skip


def test_a_failure_and_what_it_flushed_have_their_status(bench: Bench, ends: tuple[User, User]):
    one, _ = ends
    region = Region(bench, 4096)
    for _ in range(2):
        one.put_send(wr("RDMA_WRITE"), [region.at(0, 8)], remote=(region.start, 0xBAD))
    one.ring_send()
    assert [completion.status for completion in one.sends()] == [10, 5]
    found = told(one)
    assert {key: one["status"] for key, one in found["send"].items()} == {"0": 10, "1": 5}
    assert found["queue_pair"]["state"] == "ERR"


def test_sixty_four_are_told_and_of_a_small_ring_its_own(bench: Bench):
    for entries, shown in ((128, 64), (16, 16)):
        one = User(bench, 1900 + entries, entries=entries)
        one.connect(one)
        region = Region(bench, 4096)
        for number in range(200):
            one.send(
                wr("RDMA_WRITE"), [region.at(0, 1 + number)], remote=(region.start, region.key)
            )
            assert len(one.sends()) == 1
        requests = told(one)["send"]
        assert list(requests) == [str(number) for number in range(199, 199 - shown, -1)]
        assert all(each["elements"][0][1] == each["position"] + 1 for each in requests.values())
        assert all(each["status"] == 0 for each in requests.values())


def test_a_datagram_is_told_with_where_it_goes(bench: Bench):
    one = User(bench, 2000, transport=abi.QPC_TRANSPORT_UD)
    one.connect(one)
    gid = bytes(range(16))
    region = Region(bench, 4096)
    there = vector(dlid=9, is_global=1, dgid=gid)
    one.send(wr("SEND"), [region.at(0, 8)], vector=there, qpn=0x777, qkey=0x88)
    bench.settle()
    (request,) = told(one)["send"].values()
    assert (request["remote_qpn"], request["remote_qkey"], request["dlid"]) == (0x777, 0x88, 9)
    assert request["dgid"] == gid.hex()
    assert "rkey" not in request


def test_of_a_queue_pair_that_is_none_nothing_is_told(bench: Bench, ends: tuple[User, User]):
    for number in (1, 1999, (1 << 24) - 1, (1 << 32) - 1):
        assert bench.device.inspect_queue_pair(number) == {}


def test_a_ring_whose_memory_is_gone_is_told_without_its_entries(
    bench: Bench, ends: tuple[User, User]
):
    one, _ = ends
    region = Region(bench, 4096)
    one.send(wr("RDMA_WRITE"), [region.at(0, 8)], remote=(region.start, region.key))
    assert len(one.sends()) == 1
    bench.device.remove_segment(KERNEL_SEGMENT)
    assert told(one)["send"] == {"0": {"position": 0, "progress": "completed"}}


@pytest.fixture(scope="module")
def hostile() -> tuple[User, User]:
    return pair(engine_bench())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entry=st.binary(min_size=128, max_size=512), completion=st.binary(min_size=64, max_size=64))
def test_whatever_lies_in_the_rings_is_told(
    hostile: tuple[User, User], entry: bytes, completion: bytes
):
    for user, is_send in ((hostile[0], True), (hostile[1], False)):
        if is_send:
            position = user.put_send(wr("SEND"))
            offset, stride = user.send_offset, user.send_stride
            user.ring_send()
        else:
            position, offset, stride = user.receive(), 0, user.receive_stride
        place = user.bus + offset + (position & user.mask) * stride
        user.bench.at(place, stride)[:] = entry[:stride].ljust(stride, b"\xff")
        user.bench.settle()
        cq = user.device_object.send_cq if is_send else user.device_object.receive_cq
        if cq.producer:
            at = (cq.producer - 1 & cq.mask) * 64
            cq.buffer.pages[0][at : at + 56] = completion[:56]
        found = told(user)["send" if is_send else "receive"]
        assert len(found) <= 64
        room = (stride - (128 if is_send else 16)) // 16
        assert all(len(request["elements"]) <= room for request in found.values())
        assert not user.bench.device.dead
