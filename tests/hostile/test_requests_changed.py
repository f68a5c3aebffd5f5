"""Requests of every kind that are nearly right: answered, refused or dropped, and counted."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.server.services import SERVICES
from shared.envelope import (
    FLAG_SYNCHRONOUS,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_CREATE,
    KIND_CREATE_EVENT,
    KIND_CREATE_PORT,
    KIND_ECHO,
    KIND_THREAD_EXIT,
    parse_header,
)
from shared.nt_status import STATUS_SUCCESS
from tests.hostile.headers import KINDS, VALID, frames, requests
from tests.hostile.machines import User, check_as_before, check_witness, holdings, make_machine
from tests.hostile.recipes import kept
from tests.hostile.sandbox import Sandbox

IDENTITIES = 3
SETTLE_NS = 5_000_000_000
Sent = tuple[str, dict[str, Any], bytes | None]


class Scene:
    """A machine, a witness, and memory to be named."""

    def __init__(self) -> None:
        self.machine = make_machine(max_requests_per_session=16)
        self.sandbox = Sandbox()
        self.other = User(self.machine, "witness")
        self.witness = self.other.verbs()
        Attacker(self).end()
        check_witness(self.machine, self.witness)
        self.before = holdings(self.machine)

    def check(self) -> None:
        check_as_before(self.machine, self.witness, self.before)


class Attacker:
    """A session that has a handle of every kind, and sends frames of its own."""

    def __init__(self, scene: Scene) -> None:
        self.machine = scene.machine
        self.door = scene.machine.connect_in_process("attacker")
        welcome = self.door.welcome
        self.own = {"session": welcome.session, "epoch": welcome.epoch, "thread": 1}
        self._count = 0
        synchronous = {"flags": FLAG_SYNCHRONOUS | VALID["KIND_CREATE"][0]["flags"]}
        self.names = {
            "file": self._make(KIND_CREATE, "KIND_CREATE", synchronous),
            "overlapped": self._make(KIND_CREATE, "KIND_CREATE", {}),
            "event": self._make(KIND_CREATE_EVENT, "KIND_CREATE_EVENT", {}),
            "port": self._make(KIND_CREATE_PORT, "KIND_CREATE_PORT", {}),
        } | scene.sandbox.addresses()
        for number in range(IDENTITIES):
            self.machine._outboxes.open(self._identity(number))

    def _identity(self, number: int) -> bytes:
        return b"%d/%d" % (self.own["session"], 100 + number)

    def _make(self, kind: int, name: str, changes: dict[str, Any]) -> int:
        answer = parse_header(self.door.exchange(self.frames((name, changes, None), {}))[0])
        assert (answer.status, kind) == (STATUS_SUCCESS, KINDS[name])
        return answer.file_handle

    def frames(self, sent: Sent, names: dict[str, int]) -> list[bytes]:
        self._count += 1
        kind, changes, payload = sent
        return frames(kind, {"request_id": self._count} | changes, payload, self.own, names)

    def send(self, number: int, sent: Sent) -> None:
        """Send one by one of the sockets; it must end somewhere."""
        server = self.machine.server
        before = self._accounted_for()
        server.receive(self._identity(number), self.frames(sent, self.names))
        assert self._accounted_for() == before + 1
        ready = self.machine.processor.dispatcher.ready_queue
        self.machine.processor.run_until(lambda: not ready.summary)

    def _accounted_for(self) -> int:
        server = self.machine.server
        counted = sum(server.dropped.values()) + sum(server.refused.values())
        return int(counted + server.echoes + server.immediate + self.door.session.requests)

    def end(self) -> None:
        self.door.run(lambda: False, SETTLE_NS)
        self.door.close()
        assert self.door.session.in_flight == 0
        assert self.door.session.process.pool_charged == 0


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    built = Scene()
    yield built
    built.other.close()
    built.sandbox.close()
    built.machine.close()


def run(scene: Scene, batch: list[tuple[int, Sent]]) -> None:
    attacker = Attacker(scene)
    for number, sent in batch:
        attacker.send(number, sent)
    attacker.end()
    scene.check()


def test_there_is_a_valid_request_of_every_kind(scene: Scene):
    served = {*SERVICES, KIND_ECHO, KIND_THREAD_EXIT, KIND_CANCEL_SYNCHRONOUS}
    assert {KINDS[name] for name in VALID} == served == set(KINDS.values())
    for name in VALID:
        if name == "KIND_DEQUEUE":
            continue  # there is no packet: it waits
        attacker = Attacker(scene)
        answer = attacker.door.exchange(attacker.frames((name, {}, None), attacker.names))
        if answer and name != "KIND_ECHO":
            assert parse_header(answer[0]).status in (STATUS_SUCCESS, 0x102, 0xC000_0225), name
        attacker.end()
    scene.check()


BATCHES = st.lists(st.tuples(st.integers(0, IDENTITIES - 1), requests), min_size=6, max_size=16)


@settings(max_examples=40)
@given(batch=BATCHES)
def test_what_is_nearly_a_request(scene: Scene, batch: list[tuple[int, Sent]]):
    run(scene, batch)


@pytest.mark.stress
@pytest.mark.timeout(900)
@settings(max_examples=5000)
@given(batch=BATCHES)
def test_what_is_nearly_a_request_for_long(scene: Scene, batch: list[tuple[int, Sent]]):
    run(scene, batch)


@pytest.mark.parametrize("found", kept("requests"), ids=lambda found: found["name"])
def test_what_was_kept(scene: Scene, found: dict[str, Any]):
    names = [found["kind"]] if found["kind"] else sorted(VALID)
    payload = None if found["payload"] is None else bytes.fromhex(found["payload"])
    run(scene, [(0, (name, found["changes"], payload)) for name in names])
