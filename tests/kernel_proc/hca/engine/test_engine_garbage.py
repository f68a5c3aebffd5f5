"""Random bytes over everything a user writes: at worst a queue pair of its own ends in error."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from shared import doorbell_layout as bells
from tests.kernel_proc.hca.engine.engine_bench import (
    ALL_RIGHTS,
    SRQ_STRIDE,
    Region,
    User,
    engine_bench,
    pair,
    vector,
    wr,
    xrc_pair,
    xrc_queue,
)
from tests.kernel_proc.hca.hca_bench import Bench

SEEDS = [0, 1, 7, 42, 1234, 99_991]  # kept: each found something once, or covers a way
ERRORS = {
    eqe.EVENT_WQ_CATASTROPHIC, eqe.EVENT_INVALID_REQUEST, eqe.EVENT_ACCESS_ERROR,
    eqe.EVENT_CQ_ERROR, eqe.EVENT_LAST_WQE_REACHED,
}  # fmt: skip


class Crowd:
    """A pair of each kind of one bad user, a shared queue of his, and a pair of somebody good."""

    def __init__(self) -> None:
        self.bench = bench = engine_bench()
        self.good = pair(bench)
        self.bad = []
        kinds = (abi.QPC_TRANSPORT_RC, abi.QPC_TRANSPORT_UC, abi.QPC_TRANSPORT_UD)
        for first, transport in zip((2010, 2020, 2022), kinds, strict=True):
            users = [User(bench, first + n, transport=transport) for n in range(2)]
            users[0].connect(users[1])
            users[1].connect(users[0])
            self.bad += users
        sender, self.target = xrc_pair(bench, 15)
        self.bad.append(sender)
        self.shared = xrc_queue(bench)
        self.near = Region(bench, 1 << 16)
        self.guard = Region(bench, 1 << 16, flags=ALL_RIGHTS & ~abi.MPT_FLAG_REMOTE_WRITE
                            & ~abi.MPT_FLAG_LOCAL_WRITE & ~abi.MPT_FLAG_ATOMIC)  # fmt: skip
        self.guarded = self.guard.fill(3)
        bench.async_events()

    def check(self) -> None:
        bench = self.bench
        for _ in range(40):  # timeouts and retries too
            bench.settle()
            due = bench.device.next_deadline_ns()
            if due is None:
                break
            bench.now = max(bench.now, due)
        assert not bench.device.dead, bench.device.failure
        assert self.guard.view == self.guarded
        kinds = {kind for kind, _ in bench.async_events()}
        for user in self.bad:
            assert user.state in (table.RTS, table.ERR, table.SQE)
        assert self.target.state in (table.RTS, table.ERR)
        lost = any(user.state == table.ERR for user in self.bad)
        statuses = [c.status for user in self.bad for c in user.send_cq.poll(publish=False)]
        statuses += [c.status for user in self.bad for c in user.receive_cq.poll(publish=False)]
        assert not lost or kinds & ERRORS or any(statuses)
        one, other = self.good
        for number in range(3):
            other.receive([self.near.at(0, 64)])
            one.send(wr("SEND"), [self.near.at(64, 64)])
            assert [c.status for c in one.sends()] == [0], number
            assert len(other.receives()) == 1


def scribble(crowd: Crowd, randomness: random.Random) -> None:
    """Write over rings, index words, arm words, CQ entries and the doorbell ring."""
    bench = crowd.bench
    for _ in range(randomness.randrange(1, 12)):
        user = randomness.choice(crowd.bad)
        what = randomness.randrange(10)
        if what <= 2:
            ring = bench.at(user.bus, user.send_offset + user.entries * user.send_stride)
            start = randomness.randrange(len(ring) - 256)
            size = randomness.choice([1, 4, 16, 64, 256])
            ring[start : start + size] = randomness.randbytes(size)
        elif what == 3:
            slot = randomness.choice([user.send_slot, user.receive_slot])
            word = randomness.choice([0, 1, 5, 63, 64, 65, 2**63, 2**64 - 1])
            bench.slots[bells.FIRST_SLOT_WORD + slot] = word
        elif what == 4:
            cq = randomness.choice([user.send_cq, user.receive_cq])
            slot = randomness.choice([cq.arm_slot, cq.consumer_slot])
            bench.slots[bells.FIRST_SLOT_WORD + slot] = randomness.getrandbits(64)
            bench.ring(bells.RING_CQ_ARM, cq.arm_slot)
        elif what == 5:
            cq = randomness.choice([user.send_cq, user.receive_cq])
            memory = bench.at(cq.bus, cq.size * 64)
            start = randomness.randrange(len(memory) - 64)
            memory[start : start + 64] = randomness.randbytes(64)
        elif what == 6:
            place = bells.RING_WORD + randomness.randrange(bells.RING_ENTRIES)
            bench.slots[place] = randomness.getrandbits(64)
        elif what == 7:
            bench.slots[bells.RUNG_WORD] += randomness.choice([1, 3, 5000])
        elif what == 8:
            ring = bench.at(crowd.shared.bus, crowd.shared.entries * SRQ_STRIDE)
            start = randomness.randrange(len(ring) - 64)
            ring[start : start + 64] = randomness.randbytes(64)
        else:
            word = randomness.choice([0, 1, 5, 15, 16, 17, 2**64 - 1])
            bench.ring(bells.RING_SRQ, crowd.shared.slot, word)


def work(crowd: Crowd, randomness: random.Random) -> None:
    """Post what is nearly right, so that checks further in are reached."""
    user = randomness.choice(crowd.bad)
    region = randomness.choice([crowd.near, crowd.guard])
    key = randomness.choice([region.key, region.key, region.key ^ 0x100, 0])
    address = region.start + randomness.choice([0, 8, 65_000, 65_530, -1])
    length = randomness.choice([0, 1, 8, 600, 70_000])
    element = (max(0, address), length, key)
    if randomness.random() < 0.5:
        if user.context.transport == abi.QPC_TRANSPORT_XRC_SEND:
            crowd.shared.post([element] * randomness.randrange(4))
        else:
            user.receive([element] * randomness.randrange(4))
        return
    user.send(
        randomness.randrange(18),
        [element] * randomness.randrange(4),
        flags=randomness.randrange(32),
        remote=(max(0, address), key),
        vector=randomness.choice([vector(), randomness.randbytes(48)]),
        qpn=randomness.choice([other.qpn for other in crowd.bad]),
        count=randomness.choice([None, None, None, 25, 2**32 - 1]),
        srqn=randomness.choice([crowd.shared.srqn, crowd.shared.srqn, randomness.getrandbits(32)]),
    )


@given(st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
@example(SEEDS[0])
@example(SEEDS[1])
@example(SEEDS[2])
@example(SEEDS[3])
@example(SEEDS[4])
@example(SEEDS[5])
def test_garbage_harms_nobody_else(seed: int):
    randomness = random.Random(seed)
    crowd = Crowd()
    for _ in range(30):
        if randomness.random() < 0.6:
            work(crowd, randomness)
        else:
            scribble(crowd, randomness)
        if randomness.random() < 0.5:
            crowd.bench.device.run_once()
    crowd.check()


def test_a_ring_whose_memory_goes_is_a_broken_queue(bench: Bench):
    one, other = pair(bench)
    other.receive()
    found = one.device_object
    assert found.buffer is not None
    found.buffer._cut()
    one.send(wr("SEND"))
    bench.settle()
    assert one.state == table.ERR
    assert (eqe.EVENT_WQ_CATASTROPHIC, one.qpn) in bench.async_events()
    assert not bench.device.dead


@pytest.mark.parametrize("side", ["near", "far"])
def test_a_segment_that_goes_is_a_fault_of_its_keys(bench: Bench, side: str):
    one, _ = pair(bench)
    memory = memoryview(bytearray(1 << 16))
    bench.device.add_segment(5, memory)
    key = bench.mpt([5 << 48 | n * 4096 for n in range(16)], 1 << 16, start=0, flags=ALL_RIGHTS)
    near = Region(bench, 4096)
    away, here = (0, 64, key), near.at(0, 64)
    source, target = (away, here) if side == "near" else (here, away)

    def write() -> list[int]:
        one.send(wr("RDMA_WRITE"), [source], remote=(target[0], target[2]))
        return [c.status for c in one.sends()]

    assert write() == [0]
    bench.device.remove_segment(5)
    memory.release()  # no view of it is left anywhere
    assert write() == [4 if side == "near" else 10]


@pytest.mark.parametrize("side", ["near", "far"])
def test_a_key_that_goes_under_a_long_message(bench: Bench, side: str):
    one, _ = pair(bench)
    busy, peer = User(bench, 2010), User(bench, 2011)
    busy.connect(peer)
    peer.connect(busy)
    near, far = Region(bench, 4 << 20), Region(bench, 4 << 20)
    near.fill(1)
    for user in (one, busy):
        user.send(wr("RDMA_WRITE"), [near.at()], remote=(far.start, far.key))
    bench.device.run_once()
    assert one.device_object.outgoing.busy
    gone = near if side == "near" else far
    bench.ok(op.HW2SW_MPT, modifier=bench.tables.translation.index_of(gone.key), opmod=1)
    far.view[:] = bytes(far.length)
    statuses = [c.status for user in (one, busy) for c in user.sends()]
    assert statuses == [4 if side == "near" else 10] * 2
    assert not any(far.view)
