"""Random work against a model: each request completes exactly once, and all bytes are as said."""

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel_proc.hca.engine.engine_bench import (
    FENCE,
    SIGNALED,
    Region,
    User,
    engine_bench,
    pair,
    wr,
)

SIZE = 300_000
NAMES = (
    "SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ",
    "ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP",
)  # fmt: skip
LENGTHS = st.one_of(st.integers(0, 40), st.integers(0, 3000), st.integers(100_000, 200_000))


@dataclass(frozen=True)
class Work:
    """One request, as drawn."""

    name: str
    length: int
    near: int
    far: int
    flags: int
    operand: int
    pieces: int


WORK = st.builds(
    Work,
    st.sampled_from(NAMES),
    LENGTHS,
    st.integers(0, SIZE - 200_000),
    st.integers(0, (SIZE - 200_000) // 8).map(lambda word: word * 8),
    st.sampled_from([0, SIGNALED, SIGNALED | FENCE]),
    st.integers(0, 2**64 - 1),
    st.integers(1, 3),
)


@dataclass
class Side:
    """One end, and what its memory must hold."""

    user: User
    region: Region
    memory: bytearray
    sent: list[tuple[int, int]] = field(default_factory=list)
    due: list[int] = field(default_factory=list)


@cache
def shared_ends() -> tuple[tuple[User, User], tuple[Region, Region]]:
    """One pair for all examples: after each everything is complete."""
    bench = engine_bench()
    return pair(bench), (Region(bench, SIZE), Region(bench, SIZE))


def make_sides() -> tuple[Side, Side]:
    """Both ends with fresh memory."""
    users, regions = shared_ends()
    one, other = (
        Side(user, region, bytearray(region.fill(number)))
        for number, (user, region) in enumerate(zip(users, regions, strict=True))
    )
    return one, other


def elements(region: Region, start: int, length: int, pieces: int) -> list[tuple[int, int, int]]:
    step = length // pieces
    cuts = [start + n * step for n in range(pieces)] + [start + length]
    return [region.at(low, high - low) for low, high in pairwise(cuts)]


def post(side: Side, peer: Side, work: Work) -> None:
    """Post the request, a receive for it, and do in the model what it does."""
    length = 8 if work.name.startswith("ATOMIC") else work.length
    near, far = work.near, work.far
    if work.name.startswith("SEND") or work.name.endswith("IMM"):
        peer.due.append(length)
        peer.user.receive(elements(peer.region, far, max(length, 1), work.pieces))
    position = side.user.put_send(
        wr(work.name),
        elements(side.region, near, length, 1 if length == 8 else work.pieces),
        flags=work.flags,
        remote=(peer.region.start + far, peer.region.key),
        imm=work.operand & 0xFFFFFFFF,
        compare=work.operand,
        swap=work.operand ^ 1,
    )
    side.sent.append((position & 0xFFFFFFFF, work.flags))
    if work.name.startswith("ATOMIC"):
        original = int.from_bytes(peer.memory[far : far + 8], "little")
        changed = original
        if work.name.endswith("ADD"):
            changed = (original + work.operand) % 2**64
        elif original == work.operand:
            changed = work.operand ^ 1
        peer.memory[far : far + 8] = changed.to_bytes(8, "little")
        side.memory[near : near + 8] = original.to_bytes(8, "little")
    elif work.name == "RDMA_READ":
        side.memory[near : near + length] = peer.memory[far : far + length]
    else:
        peer.memory[far : far + length] = side.memory[near : near + length]


@given(st.lists(WORK, min_size=1, max_size=20), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_one_side_asks_for_is_done_in_order(works: list[Work], turned: bool):
    sides = make_sides()
    side, peer = reversed(sides) if turned else sides
    bench = side.user.bench
    for work in works:
        post(side, peer, work)
    side.user.ring_send()
    bench.settle()
    done = side.user.sends()
    assert [c.status for c in done] == [0] * len(done)
    expected = [position for position, flags in side.sent if flags & SIGNALED]
    assert [c.wqe_index for c in done] == expected
    arrived = peer.user.receives()
    assert [c.byte_len for c in arrived] == peer.due
    assert side.region.view == side.memory
    assert peer.region.view == peer.memory


@given(st.tuples(*[st.lists(WORK, min_size=1, max_size=10)] * 2), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_both_sides_at_once_complete_each_request_once(
    asked: tuple[list[Work], list[Work]], rounds: int
):
    sides = make_sides()
    bench = sides[0].user.bench
    for side, peer, works in zip(sides, reversed(sides), asked, strict=True):
        for work in works:
            post(side, peer, work)
    for side in sides:
        side.user.ring_send()
        for _ in range(rounds):
            bench.device.run_once()
    bench.settle()
    for side in sides:
        done = side.user.sends()
        assert [c.status for c in done] == [0] * len(done)
        expected = [position for position, flags in side.sent if flags & SIGNALED]
        assert [c.wqe_index for c in done] == expected
        assert [c.byte_len for c in side.user.receives()] == side.due
