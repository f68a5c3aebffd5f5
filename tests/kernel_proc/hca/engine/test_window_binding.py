"""What a bind needs: type by rule, each rule broken on its own; a refused bind changes nothing."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from tests.kernel_proc.hca.engine.engine_bench import INLINE, SIGNALED, Region, wr
from tests.kernel_proc.hca.engine.window_bench import (
    ATOMIC,
    BINDABLE,
    LENGTH,
    READ,
    TYPES,
    WRITE,
    ZERO_BASED,
    Party,
    Window,
)
from tests.kernel_proc.hca.hca_bench import PD, Bench

GOOD, BAD = ops.SUCCESS, ops.MW_BIND_ERR
ERR, RTS = table.ERR, table.RTS


class Rule(NamedTuple):
    """One change to a bind that is well; its status for a window of type 1 and of type 2."""

    name: str
    status: tuple[int, int]
    make: Callable[[Party, Window], dict[str, int]]


def changed(**changes: int) -> Callable[[Party, Window], dict[str, int]]:
    return lambda party, window: changes


def region_with(**arguments: int) -> Callable[[Party, Window], dict[str, int]]:
    """Another region, bound with what `access` says."""

    def make(party: Party, window: Window) -> dict[str, int]:
        access = {"access": arguments["access"]} if "access" in arguments else {}
        values = {name: value for name, value in arguments.items() if name != "access"}
        region = Region(party.bench, LENGTH, **{"flags": BINDABLE, **values})
        return {"lkey": region.key, **access}

    return make


def at(offset: int, length: int) -> Callable[[Party, Window], dict[str, int]]:
    return lambda party, window: {"address": party.region.start + offset, "length": length}


def bound_before(party: Party, window: Window) -> dict[str, int]:
    assert party.bind(window, address=party.region.start, length=8) == GOOD
    return {"new_rkey": window.next_key}


def freed_before(party: Party, window: Window) -> dict[str, int]:
    bound_before(party, window)
    if window.kind == 2:
        party.owner.send(wr("LOCAL_INV"), imm=window.key)
        assert [one.status for one in party.owner.sends()] == [GOOD]
    else:
        assert party.bind(window, length=0) == GOOD
    return {"new_rkey": window.next_key}


RULES = [
    Rule("everything", (GOOD, GOOD), changed()),
    *(
        Rule(f"rights {rights}", (GOOD, GOOD), changed(access=rights))
        for rights in map(sum, itertools.product((0, WRITE), (0, READ), (0, ATOMIC)))
    ),
    *(
        Rule(f"registration flag {bit}", (GOOD, GOOD), changed(access=READ | bit))
        for bit in (1, 16, 64, 128, 256, 512, 1 << 20, 1 << 29)
    ),
    *(
        Rule(f"unknown bit {bit}", (BAD, BAD), changed(access=READ | 1 << bit))
        for bit in (10, 19, 30, 31)
    ),
    Rule("zero based", (BAD, GOOD), changed(access=READ | ZERO_BASED)),
    Rule("no bytes", (GOOD, BAD), changed(length=0)),
    Rule("no bytes of nothing", (GOOD, BAD), changed(length=0, lkey=0, address=0)),
    Rule("no bytes, zero based", (BAD, BAD), changed(length=0, access=ZERO_BASED)),
    Rule("one byte", (GOOD, GOOD), at(LENGTH - 1, 1)),
    Rule("the middle", (GOOD, GOOD), at(4000, 200)),
    Rule("below the region", (BAD, BAD), at(-1, 8)),
    Rule("beyond the region", (BAD, BAD), at(LENGTH - 7, 8)),
    Rule("longer than the region", (BAD, BAD), at(0, LENGTH + 1)),
    Rule("wrapped", (BAD, BAD), changed(address=2**64 - 8, length=16)),
    Rule("as long as can be", (BAD, BAD), changed(length=2**64 - 1)),
    Rule("region without binding", (BAD, BAD), region_with(flags=BINDABLE & ~abi.MPT_FLAG_BIND)),
    Rule(
        "zero-based region", (BAD, BAD),
        region_with(flags=BINDABLE | abi.MPT_FLAG_ZERO_BASED),
    ),
    *(
        Rule(
            f"rights {access} of a region that is only read", (status, status),
            region_with(flags=BINDABLE & ~abi.MPT_FLAG_LOCAL_WRITE, access=access),
        )
        for access, status in (
            (READ, GOOD), (WRITE, BAD), (ATOMIC, BAD), (READ | WRITE, BAD), (0, GOOD),
        )
    ),
    Rule(
        "region without remote rights", (GOOD, GOOD),
        region_with(
            flags=BINDABLE
            & ~(abi.MPT_FLAG_REMOTE_READ | abi.MPT_FLAG_REMOTE_WRITE | abi.MPT_FLAG_ATOMIC)
        ),
    ),
    Rule("region of another PD", (BAD, BAD), region_with(pd=PD + 1)),
    Rule("region unknown", (BAD, BAD), changed(lkey=0x7700)),
    Rule(
        "region of another generation", (BAD, BAD),
        lambda party, window: {"lkey": party.region.key ^ 1},
    ),
    Rule("region that is a window", (BAD, BAD), lambda party, window: {"lkey": window.key}),
    Rule("window unknown", (BAD, BAD), changed(new_rkey=0x7700)),
    Rule("window beyond the table", (BAD, BAD), changed(new_rkey=0xFFFF_FFFF)),
    Rule(
        "window of another generation", (BAD, BAD),
        lambda party, window: {"new_rkey": window.next_key ^ 1 << 31},
    ),
    Rule(
        "window that is a region", (BAD, BAD),
        lambda party, window: {"new_rkey": party.region.key},
    ),
    *(
        Rule(
            f"variant {variant:#x}", (GOOD, GOOD),
            lambda party, window, variant=variant: {"new_rkey": window.key & ~0xFF | variant},
        )
        for variant in (0, 0x50, 0xFF)
    ),
    Rule("bound before", (GOOD, BAD), bound_before),
    Rule("bound and freed before", (GOOD, GOOD), freed_before),
]  # fmt: skip
CASES = [(kind, rule) for kind in TYPES for rule in RULES]


def test_the_matrix_is_whole():
    print(f"bind: {len(CASES)} cases of {len(RULES)} rules and {len(TYPES)} types")
    assert len({rule.name for rule in RULES}) == len(RULES) == 53
    assert {status for rule in RULES for status in rule.status} == {GOOD, BAD}


def state_of(window: Window, party: Party) -> Any:
    return window.device_object.inspect(), party.bench.tables.translation.named(party.region.key)


@pytest.mark.parametrize(("kind", "rule"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_bind(bench: Bench, kind: int, rule: Rule):
    party, window = Party(bench), Window(bench, kind)
    changes = rule.make(party, window)
    before, region = state_of(window, party)
    assert region is not None
    windows = region.windows
    status = party.bind(window, **changes)
    expected = rule.status[kind - 1]
    assert status == expected
    assert party.owner.state == (RTS if status == GOOD else ERR)
    if status != GOOD:
        assert state_of(window, party)[0] == before
        assert region.windows == windows
        return
    told = window.device_object.inspect()
    length = changes.get("length", LENGTH)
    assert (told["key"], told["length"]) == (window.key, length)
    assert told["queue_pair"] == (party.owner.qpn if kind == 2 and length else 0)
    bound_to = changes.get("lkey", party.region.key) if length else 0
    assert told["region"] == bound_to
    assert region.windows == int(bound_to == party.region.key)


@pytest.mark.parametrize("kind", TYPES)
def test_a_window_of_another_domain_is_not_bound(bench: Bench, kind: int):
    party, foreign = Party(bench), Window(bench, kind, PD + 1)
    assert party.bind(foreign) == BAD
    assert foreign.device_object.region is None


@pytest.mark.parametrize("kind", TYPES)
def test_the_rights_of_the_queue_pair_are_not_needed_to_bind(bench: Bench, kind: int):
    party, window = Party(bench, access=0), Window(bench, kind)
    assert party.bind(window) == GOOD
    assert party.access("RDMA_WRITE", window.key) == ops.REM_INV_REQ_ERR


@pytest.mark.parametrize(
    "transport", [abi.QPC_TRANSPORT_RC, abi.QPC_TRANSPORT_UC, abi.QPC_TRANSPORT_XRC_SEND]
)
def test_every_transport_that_can_binds(bench: Bench, transport: int):
    region = Region(bench, LENGTH, flags=BINDABLE)
    party = Party(bench)
    entries = 0 if transport == abi.QPC_TRANSPORT_XRC_SEND else 64
    user = type(party.owner)(bench, 2020, transport=transport, receive_entries=entries)
    user.connect(party.peer)
    window = Window(bench, 1)
    assert party.bind(window, user, lkey=region.key) == GOOD


def test_a_datagram_queue_pair_does_not_bind(bench: Bench):
    party, window = Party(bench), Window(bench, 1)
    user = type(party.owner)(bench, 2020, transport=abi.QPC_TRANSPORT_UD)
    user.connect(party.peer)
    assert party.bind(window, user) == ops.LOC_QP_OP_ERR


@pytest.mark.parametrize("arguments", [{"flags": INLINE | SIGNALED}, {"count": 1}])
def test_an_entry_of_another_form_is_no_bind(bench: Bench, arguments: dict[str, int]):
    party = Party(bench)
    party.owner.send(wr("BIND_MW"), **arguments)
    assert [one.status for one in party.owner.sends()] == [ops.LOC_QP_OP_ERR]
