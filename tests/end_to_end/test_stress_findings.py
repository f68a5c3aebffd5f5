"""That the stress clients see what is wrong: each kind of fault is made, and found as that kind."""

import ctypes
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from user_proc.stress import payloads
from user_proc.stress.client_world import World
from user_proc.stress.completion_source import CompletionSource
from user_proc.stress.findings import CORRUPT, DIED, DOUBLED, LOST, WRONG, Finding
from user_proc.stress.kernel_holdings import what_is_held, what_is_left
from user_proc.stress.planner import Planner
from user_proc.stress.refused_work import REFUSALS
from user_proc.stress.shapes import SEND, WRITE
from user_proc.stress.step_table import Step, perform
from user_proc.stress.stress_programs import reduce_failure
from user_proc.stress.stress_result import Failure
from user_proc.stress.stress_settings import StressSettings
from user_proc.stress.wrong_steps import ABOUT_ENDS, CALLS
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs.completion import WC
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD

pytestmark = pytest.mark.processes

SHORT_S = 0.3


@pytest.fixture(scope="module")
def kernel(private_run: object) -> Iterator[StartedKernel]:
    with start_kernel(f"finds-{uuid.uuid4().hex[:8]}", settings={"verifier": True}) as started:
        yield started
        assert started.running, started.log.read_text()


@pytest.fixture(scope="module")
def before(kernel: StartedKernel) -> dict[str, Any]:
    """What the kernel held before its first user."""
    return what_is_held(kernel.name)


@pytest.fixture
def world(
    kernel: StartedKernel, before: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    made = World(kernel.name, lambda operations, completions: None)
    yield made
    monkeypatch.undo()
    made.context.close()
    made.process.close()


def connect(kind: str = "rc", **shape: Any) -> Step:
    return ["connect", "c", {"kind": kind, **shape}]


def burst(opcode: int, *lengths: int) -> Step:
    return ["burst", "c", 0, [[opcode, length, 1, 0, 1, 0, 0] for length in lengths]]


SETTLE: Step = ["settle", "c"]


def do(world: World, *steps: Step) -> list[bool]:
    return [perform(world, step) for step in steps]


def found_by(world: World, *steps: Step) -> str:
    with pytest.raises(Finding) as caught:
        do(world, *steps)
    print(caught.value)
    return caught.value.kind


def only_once(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Change the next completions that are looked at."""
    look = CompletionSource._look

    def changed(source: CompletionSource) -> list[WC]:
        found = look(source)
        if found:
            monkeypatch.setattr(CompletionSource, "_look", look)
            found = change(found)
        return found

    monkeypatch.setattr(CompletionSource, "_look", changed)


def test_a_completion_that_never_comes(world: World, monkeypatch: pytest.MonkeyPatch):
    do(world, connect())
    only_once(monkeypatch, lambda found: found[1:])
    world.patience_s = SHORT_S
    assert found_by(world, burst(WRITE, 8), SETTLE) == LOST


def test_a_completion_that_comes_twice(world: World, monkeypatch: pytest.MonkeyPatch):
    do(world, connect())
    only_once(monkeypatch, lambda found: [found[0], *found])
    assert found_by(world, burst(WRITE, 8), SETTLE) == DOUBLED


@pytest.mark.parametrize("opcode", [SEND, WRITE])
def test_a_byte_that_changes_on_its_way(world: World, opcode: int, monkeypatch: pytest.MonkeyPatch):
    def store(address: int, stream: int, sequence: int, length: int) -> None:
        data = bytearray(payloads.payload(stream, sequence, length))
        data[-1] ^= 1
        ctypes.memmove(address, bytes(data), length)

    do(world, connect())
    monkeypatch.setattr(payloads, "store", store)
    assert found_by(world, burst(opcode, 100), SETTLE) == CORRUPT


def test_a_status_the_model_does_not_allow(world: World):
    do(world, connect())
    made = world.things["c"]
    made.modify(made.ends[0], 6)  # behind the model's back
    assert found_by(world, burst(WRITE, 8), SETTLE) == WRONG


def test_a_wrong_call_that_succeeds_and_one_that_is_refused_otherwise(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Context, "query_port", lambda context, port: None)
    assert found_by(world, ["wrong call", "query of port 9"]) == WRONG
    monkeypatch.setitem(CALLS, "cq of no entries", (CALLS["cq of no entries"][0], 12))
    assert found_by(world, ["wrong call", "cq of no entries"]) == WRONG


def test_a_good_call_that_is_refused(world: World, monkeypatch: pytest.MonkeyPatch):
    limit = PD(world.context)
    monkeypatch.setattr(PD, "handle", 0xFFFF_FF)
    assert found_by(world, ["pd", "a"], ["mr", "b", "a", 64, 1, 0]) == WRONG
    monkeypatch.undo()
    limit.close()


def test_an_event_that_never_comes(world: World, monkeypatch: pytest.MonkeyPatch):
    do(world, connect(channel=True), ["event", "c"])
    monkeypatch.setattr(CQ, "req_notify", lambda cq, solicited_only=False: None)
    world.patience_s = SHORT_S
    assert found_by(world, ["event", "c"]) == LOST


@pytest.mark.parametrize(
    ("kind", "shared"),
    [("rc", False), ("rc", True), ("xrc", False), ("uc", False), ("ud", False), ("ud", True)],
)
def test_every_way_to_be_refused_is_seen_as_the_table_says(world: World, kind: str, shared: bool):
    """No finding: what the engine does is what the model says."""
    ways = [name for name, one in REFUSALS.items() if kind in one.kinds]
    shape = connect(kind, shared=shared, patient=False)
    for name in ways:
        for choice in range(len(REFUSALS[name].opcodes)):
            done = do(world, shape, ["refuse", "c", 0, name, choice, 2], ["heal", "c"],
                      burst(SEND, 0, 8), SETTLE, ["disconnect", "c"])  # fmt: skip
            assert all(done), (name, choice)


def test_every_wrong_call_is_refused_and_harms_nothing(world: World):
    done = do(world, *(["wrong call", name] for name in CALLS))
    do(world, connect("rc", shared=True))
    done += do(world, *(["wrong use", "c", 0, how] for how in ABOUT_ENDS if "receive" not in how))
    done += do(world, burst(SEND, 8), SETTLE, ["disconnect", "c"])
    assert all(done), done


def test_what_is_left_is_named(kernel: StartedKernel, before: dict[str, Any]):
    world = World(kernel.name, lambda operations, completions: None)
    left = what_is_left(kernel.name, before, 0.0)
    assert any(one.startswith("sessions: 0 before, 1 now") for one in left), left
    world.context.close()
    world.process.close()
    assert what_is_left(kernel.name, before, 10.0) == []


def test_a_failing_program_is_reduced(private_run: object):
    steps: list[Any] = [*Planner(3).steps()[:12], ["pd"], ["query", 1]]
    failure = Failure(1, 0, 0, 3, 13, DIED, "it has no name", steps)
    reduced = reduce_failure(StressSettings(reduce_seconds=20.0), failure)
    assert reduced["reproduced"], reduced
    assert reduced["steps"] == [["pd"]]
    print(f"{reduced['tried']} programs, in {os.getpid()}")
