"""What a bound window grants: type by operation by way of using it, and by who uses it."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from tests.kernel_proc.hca.engine.engine_bench import User, wr
from tests.kernel_proc.hca.engine.window_bench import (
    ATOMIC,
    LENGTH,
    READ,
    TYPES,
    WRITE,
    ZERO_BASED,
    Party,
    Window,
)
from tests.kernel_proc.hca.hca_bench import PD, Bench

GOOD, REFUSED = ops.SUCCESS, ops.REM_ACCESS_ERR
START, SIZE = 4096 - 64, 4096
NEEDS = {
    "RDMA_WRITE": WRITE,
    "RDMA_WRITE_WITH_IMM": WRITE,
    "RDMA_READ": READ,
    "ATOMIC_FETCH_AND_ADD": ATOMIC,
    "ATOMIC_CMP_AND_SWP": ATOMIC,
}
#: A way to use a window: makes key, address within the region, and who uses it.
Use = tuple[int, int, User]


class Way(NamedTuple):
    """How a key is used; the status for type 1 and for type 2."""

    name: str
    status: tuple[int, int]
    use: Callable[[Party, Window, int], Use]


def by_peer(offset: int) -> Callable[[Party, Window, int], Use]:
    return lambda party, window, needed: (window.key, START + offset, party.peer)


def by_another(party: Party, window: Window, needed: int) -> Use:
    return window.key, START, party.others[1]


def with_key(change: Callable[[int], int]) -> Callable[[Party, Window, int], Use]:
    return lambda party, window, needed: (change(window.key), START, party.peer)


def unbound(party: Party, window: Window, needed: int) -> Use:
    free(party, window)
    return window.key, START, party.peer


def free(party: Party, window: Window) -> None:
    if window.kind == 1:
        assert party.bind(window, length=0) == GOOD
        return
    party.owner.send(wr("LOCAL_INV"), imm=window.key)
    assert [one.status for one in party.owner.sends()] == [GOOD]


def bound_again(party: Party, window: Window, *, old_key: bool, elsewhere: bool) -> Use:
    old = window.key
    if window.kind == 2:
        free(party, window)
    start = party.region.start + (2 * 4096 if elsewhere else START)
    assert party.bind(window, address=start, length=64) == GOOD
    return old if old_key else window.key, START, party.peer


def rebound(*, old_key: bool = False, elsewhere: bool = False) -> Callable[..., Use]:
    return lambda party, window, needed: bound_again(
        party, window, old_key=old_key, elsewhere=elsewhere
    )


def without_right(party: Party, window: Window, needed: int) -> Use:
    if window.kind == 2:
        free(party, window)
    rights = (WRITE | READ | ATOMIC) & ~needed
    start = party.region.start + START
    assert party.bind(window, address=start, length=SIZE, access=rights) == GOOD
    return window.key, START, party.peer


def with_the_right_alone(party: Party, window: Window, needed: int) -> Use:
    if window.kind == 2:
        free(party, window)
    start = party.region.start + START
    assert party.bind(window, address=start, length=SIZE, access=needed) == GOOD
    return window.key, START, party.peer


def by_another_domain(party: Party, window: Window, needed: int) -> Use:
    return window.key, START, party.pair(2020, 2021, pd=PD + 1)[1]


def given_back(party: Party, window: Window, needed: int) -> Use:
    assert window.give_back() == 0
    return window.key, START, party.peer


BOTH_GOOD, BOTH_REFUSED = (GOOD, GOOD), (REFUSED, REFUSED)
WAYS = [
    Way("at its begin", BOTH_GOOD, by_peer(0)),
    Way("at its end", BOTH_GOOD, by_peer(SIZE - 8)),
    Way("over a page", BOTH_GOOD, by_peer(64 - 8)),
    Way("below", BOTH_REFUSED, by_peer(-8)),
    Way("beyond", BOTH_REFUSED, by_peer(SIZE)),
    Way("half beyond", BOTH_REFUSED, by_peer(SIZE - 7)),
    Way("far beyond", BOTH_REFUSED, by_peer(1 << 40)),
    Way("with the right alone", BOTH_GOOD, with_the_right_alone),
    Way("without the right", BOTH_REFUSED, without_right),
    Way("by another queue pair of the domain", (GOOD, REFUSED), by_another),
    Way("by another domain", BOTH_REFUSED, by_another_domain),
    Way("another variant", BOTH_REFUSED, with_key(lambda key: key ^ 1)),
    Way("another generation", BOTH_REFUSED, with_key(lambda key: key ^ 1 << 31)),
    Way("unbound", BOTH_REFUSED, unbound),
    Way("bound again, new key", BOTH_GOOD, rebound()),
    Way("bound again, old key", BOTH_REFUSED, rebound(old_key=True)),
    Way("bound elsewhere", BOTH_REFUSED, rebound(elsewhere=True)),
    Way("given back", BOTH_REFUSED, given_back),
]
CASES = [(kind, way, name) for kind in TYPES for way in WAYS for name in NEEDS]


def test_the_matrix_is_whole():
    print(f"access: {len(CASES)} cases of {len(WAYS)} ways, {len(NEEDS)} operations, 2 types")
    assert len({way.name for way in WAYS}) == len(WAYS) == 18


@pytest.mark.parametrize(
    ("kind", "way", "name"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_an_access(bench: Bench, kind: int, way: Way, name: str):
    party, window = Party(bench), Window(bench, kind)
    before = party.region.fill(1)
    sent = party.near.fill(2)
    start = party.region.start + START
    assert party.bind(window, address=start, length=SIZE) == GOOD
    key, offset, user = way.use(party, window, NEEDS[name])
    target = party.other_ends[user.qpn]
    target.receive()
    expected = way.status[kind - 1]
    if offset % 8 and name.startswith("ATOMIC") and expected == GOOD:
        expected = ops.REM_INV_REQ_ERR
    status = party.access(name, key, party.region.start + offset, by=user)
    assert status == expected
    after = bytes(party.region.view)
    if status == GOOD and name.startswith("RDMA_WRITE"):
        assert after == before[:offset] + sent[:8] + before[offset + 8 :]
    elif status == GOOD and name.startswith("ATOMIC"):
        assert after[:offset] + after[offset + 8 :] == before[:offset] + before[offset + 8 :]
        assert party.near.view[:8] == before[offset : offset + 8]
    else:
        assert after == before
        if status == GOOD:
            assert party.near.view[:8] == before[offset : offset + 8]
    assert target.state == (table.RTS if status == GOOD else table.ERR)


@pytest.mark.parametrize("name", NEEDS)
def test_a_zero_based_window_counts_from_its_own_begin(bench: Bench, name: str):
    party, window = Party(bench), Window(bench, 2)
    before = party.region.fill(1)
    start = party.region.start + START
    access = WRITE | READ | ATOMIC | ZERO_BASED
    assert party.bind(window, address=start, length=SIZE, access=access) == GOOD
    for _ in range(2):
        party.owner.receive()
    assert party.access(name, window.key, 8) == GOOD
    if name.startswith("RDMA_WRITE"):
        assert party.region.view[START + 8 : START + 16] == party.near.view[:8]
    else:
        assert party.near.view[:8] == before[START + 8 : START + 16]
    assert party.access(name, window.key, start) == REFUSED


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("length", [0, 1, 100, LENGTH])
def test_whole_messages_over_many_packets(bench: Bench, kind: int, length: int):
    party, window = Party(bench), Window(bench, kind)
    sent = party.near.fill(3)
    assert party.bind(window) == GOOD
    assert party.access("RDMA_WRITE", window.key, length=length) == GOOD
    assert party.region.view[:length] == sent[:length]
    data = party.region.fill(4)
    assert party.access("RDMA_READ", window.key, length=length) == GOOD
    assert party.near.view[:length] == data[:length]


@pytest.mark.parametrize("kind", TYPES)
def test_no_bytes_are_read_and_written_with_any_key(bench: Bench, kind: int):
    party, window = Party(bench), Window(bench, kind)
    for name in ("RDMA_WRITE", "RDMA_READ"):
        assert party.access(name, window.key, 1 << 60, length=0) == GOOD


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["SEND", "RDMA_WRITE", "RDMA_READ", "ATOMIC_FETCH_AND_ADD"])
def test_a_window_is_no_local_key(bench: Bench, kind: int, name: str):
    party, window = Party(bench), Window(bench, kind)
    assert party.bind(window) == GOOD
    element = party.region.start, 8, window.key
    party.owner.send(wr(name), [element], remote=(party.near.start, party.near.key))
    assert [one.status for one in party.owner.sends()] == [ops.LOC_PROT_ERR]


@pytest.mark.parametrize("kind", TYPES)
def test_a_window_is_no_place_to_receive(bench: Bench, kind: int):
    party, window = Party(bench), Window(bench, kind)
    assert party.bind(window) == GOOD
    party.owner.receive([(party.region.start, 64, window.key)])
    party.peer.send(wr("SEND"), [party.near.at(0, 8)])
    assert [one.status for one in party.peer.sends()] == [ops.REM_OP_ERR]
    assert [one.status for one in party.owner.receives()] == [ops.LOC_PROT_ERR]


def test_windows_overlap_and_each_has_its_own_rights(bench: Bench):
    party = Party(bench)
    reading, writing = Window(bench, 1), Window(bench, 2)
    assert party.bind(reading, access=READ) == GOOD
    assert party.bind(writing, access=WRITE) == GOOD
    assert party.access("RDMA_READ", reading.key) == GOOD
    assert party.access("RDMA_WRITE", writing.key) == GOOD
    assert party.access("RDMA_WRITE", reading.key) == REFUSED


def test_a_region_that_is_scattered_is_reached_page_by_page(bench: Bench):
    party, window = Party(bench), Window(bench, 1)
    pages = [bench.pages(2) for _ in range(3)]  # every other page lies between
    rights = abi.MPT_FLAG_REGION | abi.MPT_FLAG_LOCAL_WRITE | abi.MPT_FLAG_BIND
    key = bench.mpt(pages, LENGTH - 16, start=0x10010, flags=rights)
    assert party.bind(window, lkey=key, address=0x10F00, length=0x1200, access=WRITE) == GOOD
    sent = party.near.fill(5)
    assert party.access("RDMA_WRITE", window.key, 0x10F80, length=0x1100) == GOOD
    stored = b"".join(bytes(bench.at(page, 4096)) for page in pages)
    assert stored[0xF80 : 0xF80 + 0x1100] == sent[:0x1100]
    assert not any(stored[:0xF80])
