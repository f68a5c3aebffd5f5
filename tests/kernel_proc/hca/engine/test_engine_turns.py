"""Whose turn it is: bounds of a turn, and that nobody waits for somebody's long message."""

import pytest

from kernel_proc.hca.engine.rounds import BYTES_A_RUN, BYTES_A_TURN, REQUESTS_A_TURN
from kernel_proc.hca_abi import qp_transitions as table
from tests.kernel_proc.hca.engine.engine_bench import Region, User, wr
from tests.kernel_proc.hca.hca_bench import Bench

LONG = 5 << 20


def connected(bench: Bench, count: int) -> list[User]:
    users = []
    for number in range(count):
        one, other = User(bench, 2000 + 2 * number), User(bench, 2001 + 2 * number)
        one.connect(other)
        other.connect(one, state=table.RTR)
        users.append(one)
    return users


def done_bytes(users: list[User]) -> list[int]:
    return [user.device_object.outgoing.done for user in users]


def test_long_messages_share_turn_by_turn(bench: Bench):
    users = connected(bench, 3)
    near, far = Region(bench, LONG), Region(bench, LONG)
    for user in users:
        user.send(wr("RDMA_WRITE"), [near.at()], remote=(far.start, far.key))
    bench.tables.doorbells.serve()
    seen = [0, 0, 0]
    for turn in range(9):
        assert bench.tables.rounds.turn()
        now = done_bytes(users)
        moved = [after - before for before, after in zip(seen, now, strict=True)]
        assert moved == [BYTES_A_TURN if index == turn % 3 else 0 for index in range(3)]
        seen = now
    bench.settle()
    assert [[c.status for c in user.sends()] for user in users] == [[0]] * 3


@pytest.mark.parametrize("name", ["RDMA_WRITE", "RDMA_READ"])
def test_a_small_message_does_not_wait_for_a_long_one(bench: Bench, name: str):
    busy, quick = connected(bench, 2)
    near, far = Region(bench, LONG), Region(bench, LONG)
    busy.send(wr(name), [near.at()], remote=(far.start, far.key))
    bench.device.run_once()  # alone: it moves what it may
    assert 0 < busy.device_object.outgoing.done < LONG
    quick.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
    bench.device.run_once()
    assert quick.send_cq.entry(0) is not None
    assert busy.send_cq.entry(0) is None


def test_alone_a_run_is_bounded_all_the_same(bench: Bench):
    (busy,) = connected(bench, 1)
    near, far = Region(bench, LONG), Region(bench, LONG)
    busy.send(wr("RDMA_WRITE"), [near.at()], remote=(far.start, far.key))
    turns = bench.tables.rounds.turns
    bench.device.run_once()
    assert busy.device_object.outgoing.done == 2 * BYTES_A_RUN
    assert bench.tables.rounds.turns == turns + 1


def test_a_turn_is_so_many_requests(bench: Bench):
    one, other = connected(bench, 2)
    for user in (one, other):
        for _ in range(40):
            user.put_send(wr("RDMA_WRITE"))
        user.ring_send()
    bench.tables.doorbells.serve()
    counts = []
    for _ in range(4):
        bench.tables.rounds.turn()
        counts.append((len(one.send_cq.poll()), len(other.send_cq.poll())))
    assert counts == [(REQUESTS_A_TURN, 0), (0, REQUESTS_A_TURN)] * 2


def test_many_busy_queues_leave_room_for_one_more(bench: Bench):
    users = connected(bench, 30)
    for user in users:
        for _ in range(60):
            user.put_send(wr("RDMA_WRITE"))
        user.ring_send()
    bench.device.run_once()
    quick = users.pop()
    rounds = 1
    while quick.send_cq.entry(0) is None:
        bench.device.run_once()
        rounds += 1
    assert rounds <= 1 + 30 // 4  # four turns a round, one for each queue
    bench.settle()
    assert all(len(user.send_cq.poll()) == 60 for user in users)
