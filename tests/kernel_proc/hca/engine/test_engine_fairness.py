"""What a session gets beside one that has very much to do: many busy queues, or long messages."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_proc.hca.doorbell_pages import DoorbellPages
from kernel_proc.hca.engine.rounds import BYTES_A_RUN, BYTES_A_TURN, REQUESTS_A_TURN, Rounds
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi import qp_transitions as table
from shared import doorbell_layout as bells
from shared.live_words import words64
from tests.kernel_proc.hca.engine.engine_bench import Region, User, wr
from tests.kernel_proc.hca.hca_bench import UAR, Bench

BUSY = 1_000
LONG = 8 << 20
MESSAGES = 40


def test_one_queue_of_a_session_has_every_other_turn_beside_a_thousand_of_another():
    pages = DoorbellPages()
    for number in (1, 2):
        pages.add(number, memoryview(bytearray(bells.SEGMENT_LENGTH)))
    rounds, served, given = Rounds(pages), Counter[int](), set[tuple[int, int]]()

    def serve(queue: WorkQueue, most: int, room: int) -> bool:
        served[queue.slot] += 1
        given.add((most, room))
        return True

    rounds.serve_with(bells.RING_SEND, table.RTS, serve)
    for slot in range(BUSY + 1):
        page = pages.pages[1 if slot < BUSY else 2]
        queue: Any = SimpleNamespace(
            slot=slot, page=page, kind=bells.RING_SEND, queued=False,
            qp=SimpleNamespace(state=table.RTS),
        )  # fmt: skip
        rounds.ready(queue)
    for _ in range(2 * 3 * BUSY):
        assert rounds.turn()
    assert served.pop(BUSY) == 3 * BUSY
    assert set(served.values()) == {3}
    assert given == {(REQUESTS_A_TURN, BYTES_A_TURN)}


class OtherUser(User):
    """A queue pair of another session: it rings in a segment of its own."""

    def ring_send(self) -> None:
        words = words64(self.page)
        words[bells.FIRST_SLOT_WORD + self.send_slot] = self.sent
        rung = words[bells.RUNG_WORD]
        name = bells.RING_SEND << bells.KIND_SHIFT | self.send_slot
        words[bells.RING_WORD + rung % bells.RING_ENTRIES] = name
        words[bells.RUNG_WORD] = rung + 1

    def __init__(self, bench: Bench, qpn: int, uar: int) -> None:
        self.page = memoryview(bytearray(bells.SEGMENT_LENGTH))
        bench.device.add_doorbells(uar, self.page)
        super().__init__(bench, qpn, uar=uar)


def connected(one: User, other: User) -> User:
    one.connect(other)
    other.connect(one, state=table.RTR)
    return one


def turns_until(bench: Bench, user: User) -> int:
    """Look at the bells once, and go on until the user's next message is done; how many turns."""
    bench.tables.doorbells.serve()
    for turns in range(1, 10):
        assert bench.tables.rounds.turn()
        done = user.send_cq.poll()
        if done:
            assert [one.status for one in done] == [0]
            return turns
    raise AssertionError("it is not served")


def written(user: User) -> int:
    return user.device_object.counters.sent_bytes + user.device_object.outgoing.done


@pytest.mark.parametrize("name", ["RDMA_WRITE", "RDMA_READ", "SEND"])
def test_a_small_message_lets_one_turn_of_another_sessions_long_one_pass(bench: Bench, name: str):
    peer = User(bench, 2001)
    busy = connected(User(bench, 2000), peer)
    quick = connected(OtherUser(bench, 2002, UAR + 1), User(bench, 2003))
    near, far = Region(bench, LONG), Region(bench, LONG)
    for _ in range(4):
        peer.receive([far.at()])
        busy.send(wr(name), [near.at()], remote=(far.start, far.key))
    bench.device.run_once()
    for number in range(MESSAGES):
        before = written(busy)
        quick.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
        assert turns_until(bench, quick) <= 2, number
        assert written(busy) - before <= BYTES_A_TURN
    assert written(busy) < 4 * LONG


@pytest.mark.parametrize("name", ["RDMA_WRITE", "RDMA_READ", "SEND"])
def test_a_bell_during_a_long_message_waits_for_one_run(
    bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch
):
    peer = User(bench, 2001)
    busy = connected(User(bench, 2000), peer)
    quick = connected(OtherUser(bench, 2002, UAR + 1), User(bench, 2003))
    near, far = Region(bench, LONG), Region(bench, LONG)
    peer.receive([far.at()])
    busy.send(wr(name), [near.at()], remote=(far.start, far.key))
    ask = bench.tables.rounds.others_wait

    def ring_first(page: Any) -> bool:
        if not quick.sent:  # while the first run was under way
            quick.send(wr("RDMA_WRITE"), [near.at(0, 64)], remote=(far.start, far.key))
        return ask(page)

    monkeypatch.setattr(bench.tables.rounds, "others_wait", ring_first)
    bench.device.run_once()
    assert written(busy) == BYTES_A_RUN
    assert turns_until(bench, quick) <= 2
    assert written(busy) <= BYTES_A_RUN + BYTES_A_TURN
