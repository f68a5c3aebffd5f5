"""Rings, index words, doorbells and completion queues, written over by whoever owns them.

What is written is data, as the other hostile input is, and what was kept is written in every run;
tests/kernel_proc/hca/engine/test_engine_garbage.py writes at random. One user has a pair of each
kind of queue pair, and somebody else a pair that must go on: see `Crowd.check`.

    ["post", user, opcode, {...}]   a send request; what is not said is right
    ["take", user, elements, length]   a receive entry
    ["store", area, user, offset, hex]   bytes of a ring or completion queue
    ["word", which, user, value]   an index or arm word
    ["bell", place, value], ["rung", more]   an entry of the doorbell ring; its counter
    ["ring", kind, which, user]   a slot is rung as of that kind
    ["run", rounds]   the HCA goes on
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.hca_abi import contexts as abi
from shared import doorbell_layout as bells
from tests.hostile.recipes import NUMBERS, kept
from tests.kernel_proc.hca.engine.engine_bench import SIGNALED, SRQ_STRIDE, User, vector
from tests.kernel_proc.hca.engine.test_engine_garbage import Crowd

USERS = 7  # as Crowd has them
OPCODES = range(18)
AREAS = ("ring", "send cq", "receive cq", "shared")
WORDS = ("send", "receive", "send arm", "send read", "receive arm", "receive read", "shared")
KINDS = ("RING_SEND", "RING_RECEIVE", "RING_SRQ", "RING_CQ_ARM")
KEYS = ("near", "guard", "next", "none", "all")
RUNG = (1, 2, 63, 4095, 4096, 4097, 1 << 40, (1 << 64) - 1)
Step = list[Any]


class Author:
    """Who does the steps to a crowd."""

    def __init__(self) -> None:
        self.crowd = Crowd()
        self.bench = self.crowd.bench

    def user(self, number: int) -> User:
        bad: list[User] = self.crowd.bad
        return bad[number % len(bad)]

    def do(self, step: Step) -> None:
        name, *rest = step
        getattr(self, f"_{name}")(*rest)

    def _key(self, word: str) -> int:
        crowd = self.crowd
        keys = {"near": crowd.near.key, "guard": crowd.guard.key, "next": crowd.near.key ^ 1}
        return int({**keys, "none": 0, "all": (1 << 32) - 1}[word])

    def _elements(self, count: int, length: int, key: str, offset: int = 0) -> list[Any]:
        address = (self.crowd.near.start + offset) & ((1 << 64) - 1)
        return [(address, length, self._key(key))] * count

    def _post(self, number: int, opcode: int, given: dict[str, Any]) -> None:
        user = self.user(number)
        values = {
            "flags": SIGNALED, "elements": 1, "length": 64, "key": "near", "offset": 0,
            "remote": "near", "remote_offset": 0, "count": None, "qpn": 0, "inline_length": 0,
        } | given  # fmt: skip
        remote = (self.crowd.near.start + values["remote_offset"]) & ((1 << 64) - 1)
        shared = user.context.transport == abi.QPC_TRANSPORT_XRC_SEND
        user.send(
            opcode,
            self._elements(values["elements"], values["length"], values["key"], values["offset"]),
            flags=values["flags"],
            remote=(remote, self._key(values["remote"])),
            vector=vector(),
            qpn=self.user(values["qpn"]).qpn,
            count=values["count"],
            inline=b"\xa5" * values["inline_length"],
            srqn=self.crowd.shared.srqn if shared else 0,
        )

    def _take(self, number: int, elements: int, length: int) -> None:
        user = self.user(number)
        if user.context.transport == abi.QPC_TRANSPORT_XRC_SEND:
            self.crowd.shared.post(self._elements(elements, length, "near"))
        else:
            user.receive(self._elements(elements, length, "near"))

    def _store(self, area: str, number: int, offset: int, text: str) -> None:
        user, data = self.user(number), bytes.fromhex(text)
        place, size = {
            "ring": (user.bus, user.send_offset + user.entries * user.send_stride),
            "send cq": (user.send_cq.bus, user.send_cq.size * 64),
            "receive cq": (user.receive_cq.bus, user.receive_cq.size * 64),
            "shared": (self.crowd.shared.bus, self.crowd.shared.entries * SRQ_STRIDE),
        }[area]
        memory = self.bench.at(place, size)
        first = offset % (size - len(data) + 1)
        memory[first : first + len(data)] = data

    def _slot(self, which: str, number: int) -> int:
        user = self.user(number)
        slots = {
            "send": user.send_slot, "receive": user.receive_slot,
            "send arm": user.send_cq.arm_slot, "send read": user.send_cq.consumer_slot,
            "receive arm": user.receive_cq.arm_slot, "receive read": user.receive_cq.consumer_slot,
            "shared": self.crowd.shared.slot,
        }  # fmt: skip
        return int(slots[which])

    def _word(self, which: str, number: int, value: int) -> None:
        self.bench.slots[bells.FIRST_SLOT_WORD + self._slot(which, number)] = value

    def _bell(self, place: int, value: int) -> None:
        self.bench.slots[bells.RING_WORD + place % bells.RING_ENTRIES] = value

    def _rung(self, more: int) -> None:
        rung = self.bench.slots[bells.RUNG_WORD]
        self.bench.slots[bells.RUNG_WORD] = (rung + more) & ((1 << 64) - 1)

    def _ring(self, kind: str, which: str, number: int) -> None:
        rung = self.bench.slots[bells.RUNG_WORD]
        entry = getattr(bells, kind) << bells.KIND_SHIFT | self._slot(which, number)
        self._bell(rung, entry)
        self._rung(1)

    def _run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.bench.device.run_once()


_user = st.integers(0, USERS - 1)
_given = st.fixed_dictionaries(
    {},
    optional={
        "flags": st.integers(0, 63) | st.integers(0, (1 << 32) - 1),
        "elements": st.integers(0, 4),
        "length": st.sampled_from((0, 1, 8, 600, 65_536, 70_000, (1 << 31) - 1, (1 << 32) - 1)),
        "key": st.sampled_from(KEYS),
        "offset": st.sampled_from((0, 1, 7, 65_530, -1, -(1 << 16), 1 << 63)),
        "remote": st.sampled_from(KEYS),
        "remote_offset": st.sampled_from((0, 1, 4, 65_530, -1, -(1 << 16), 1 << 63)),
        "count": st.sampled_from((0, 1, 25, 1 << 16, (1 << 32) - 1)),
        "qpn": _user,
        "inline_length": st.sampled_from((0, 1, 64, 384)),
    },
)
_steps = st.one_of(
    st.tuples(st.just("post"), _user, st.sampled_from(OPCODES), _given),
    st.tuples(st.just("post"), _user, st.sampled_from(OPCODES), _given),
    st.tuples(st.just("take"), _user, st.integers(0, 4), st.sampled_from((0, 1, 64, 70_000))),
    st.tuples(
        st.just("store"), st.sampled_from(AREAS), _user, st.integers(0, 1 << 16),
        st.binary(min_size=1, max_size=64).map(bytes.hex),
    ),
    st.tuples(st.just("word"), st.sampled_from(WORDS), _user, st.sampled_from(NUMBERS)),
    st.tuples(st.just("bell"), st.integers(0, 4096), st.sampled_from(NUMBERS)),
    st.tuples(st.just("rung"), st.sampled_from(RUNG)),
    st.tuples(st.just("ring"), st.sampled_from(KINDS), st.sampled_from(WORDS), _user),
    st.tuples(st.just("run"), st.integers(1, 4)),
)  # fmt: skip
PROGRAMS = st.lists(_steps.map(list), min_size=1, max_size=30)


def run(program: list[Step]) -> None:
    author = Author()
    for step in program:
        author.do(step)
    author.crowd.check()


def test_everything_a_user_writes_is_written_over():
    author = Author()
    assert len(author.crowd.bad) == USERS
    assert set(KINDS) == {
        name for name in vars(bells) if name.startswith("RING_") and "WORD" not in name
    } - {"RING_ENTRIES"}
    words = {author._slot(which, number) for which in WORDS for number in range(USERS)}
    others = set()
    for user in author.crowd.good:
        others |= {user.send_slot, user.receive_slot}
        for cq in (user.send_cq, user.receive_cq):
            others |= {cq.arm_slot, cq.consumer_slot}
    assert not words & others
    assert len(words) == 6 * USERS + 1


@settings(max_examples=25)
@given(program=PROGRAMS)
def test_whatever_is_written(program: list[Step]):
    run(program)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@settings(max_examples=4000)
@given(program=PROGRAMS)
def test_whatever_is_written_for_long(program: list[Step]):
    run(program)


@pytest.mark.parametrize("found", kept("rings"), ids=lambda found: found["name"])
def test_what_was_kept(found: dict[str, Any]):
    run(found["program"])
