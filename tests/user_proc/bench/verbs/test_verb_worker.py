"""User processes of the verbs' benchmark at a real kernel: programs, the kernel client, ends."""

import os
import signal
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from shared import verb_codes as codes
from shared.verb_messages import Object
from shared.verb_program import VerbStep, pack_program
from user_proc.bench.row_plan import FloorSpec
from user_proc.bench.timed_loops import Window
from user_proc.bench.verbs.verb_kernels import WORKER
from user_proc.bench.verbs.verb_programs import Program, control_mix, every_verb, registration
from user_proc.bench.worker_group import WorkerGroup
from user_proc.bench.worker_link import WorkerCrowd, WorkerFailed, WorkerRefused
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes
COUNT = 3


@pytest.fixture(scope="module")
def crowd(private_run: object) -> Iterator[WorkerCrowd]:
    """Three user processes of one kernel whose commands take their time."""
    with start_kernel("verb-worker", settings={"latency_model": "plausible"}):
        started = WorkerCrowd("verb-worker", 3, WORKER)
        try:
            started.wait_until_ready()
            yield started
        finally:
            started.close()


def prepare(group: WorkerGroup, program: Program, client: str = "user", **place: object) -> None:
    group.ask_all(
        "prepare_program",
        setup=pack_program(program.setup).hex(),
        program=pack_program(one.step for one in program.steps).hex(),
        client=client,
        floor=FloorSpec("echo", 64).as_dict(),
        **place,
    )


@pytest.mark.parametrize("client", ["user", "kernel"])
def test_steps_have_times_commands_and_what_the_model_asked(crowd: WorkerCrowd, client: str):
    group, program = WorkerGroup(crowd.members[:1]), every_verb().for_client(client)
    prepare(group, program, client)
    (answer,) = group.ask_all("steps", window=asdict(Window(COUNT, 1)))
    assert len(answer["samples"]) == len(answer["commands"]) == len(program.steps)
    for step, samples, commands in zip(
        program.steps, answer["samples"], answer["commands"], strict=True
    ):
        assert len(samples) == COUNT
        # A verb takes at least as long as its commands, and these as long as the model asked.
        for sample, took, asked in zip(
            samples, commands["took_ns"], commands["asked_ns"], strict=True
        ):
            assert sample > took >= asked, step.row
        assert bool(commands["names"]) == (min(commands["asked_ns"]) > 0)
    group.release()


def test_a_mix_of_several_processes_begins_together_and_has_a_floor(crowd: WorkerCrowd):
    group, mix = WorkerGroup(crowd.members), control_mix()
    prepare(group, mix)
    for which in ("floor", "row"):
        taken = group.take(which, Window(4))
        assert len(taken.samples) == 4 * 3
        assert taken.elapsed_ns < sum(taken.samples)
    assert taken.used.operations == 4 * 3
    assert taken.used.cpu_kernel_ns > 0
    group.release()


@pytest.mark.parametrize("memory", ["arena", "private"])
def test_memory_of_both_kinds_is_registered(crowd: WorkerCrowd, memory: str):
    group = WorkerGroup(crowd.members[:1])
    prepare(group, registration(1 << 20), memory=memory, length=1 << 20)
    (answer,) = group.ask_all("steps", window=asdict(Window(2)))
    assert [len(samples) for samples in answer["samples"]] == [2, 2]
    group.release()


def test_a_refused_verb_is_told_and_the_process_goes_on(crowd: WorkerCrowd):
    group = WorkerGroup(crowd.members[:1])
    with pytest.raises(WorkerRefused, match="dealloc_pd was refused: errno 22"):
        prepare(group, Program((VerbStep(codes.IOCTL_DEALLOC_PD, Object(77)),), ()))
    prepare(group, control_mix())
    assert len(group.take("row", Window(1)).samples) == 1
    group.release()


def test_opening_the_device_is_timed(crowd: WorkerCrowd):
    (answer,) = WorkerGroup(crowd.members[:1]).ask_all("opens", count=5)
    assert len(answer["open_ns"]) == 5
    assert all(0 < time < 1_000_000_000 for time in answer["open_ns"])


def test_a_crowd_ends_with_its_other_end(private_run: object):
    with start_kernel("verb-crowd"):
        crowd = WorkerCrowd("verb-crowd", 4, WORKER)
        crowd.wait_until_ready()
        pids = [member.pid for member in crowd.members]
        assert len(set(pids)) == 4
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="ended unexpectedly"):
            crowd.members[0].ask("opens", count=1)
        assert crowd.members[1].ask("opens", count=1)
        crowd.close()
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_crowd_without_a_kernel_says_so(private_run: object):
    crowd = WorkerCrowd("verb-nobody", 2, WORKER)
    with pytest.raises(WorkerFailed, match="verb-nobody"):
        crowd.wait_until_ready()
    crowd.close()
