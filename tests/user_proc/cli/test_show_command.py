"""`softhca show` and `softhca devinfo` as a user runs them, on a real kernel with its own HCA."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.user_proc.cli.conftest import environment
from tests.user_proc.cli.verbs_objects import HOLDER, make_objects, session_of
from user_proc.cli.show_command import KINDS
from user_proc.cli.state_tables import TABLES
from user_proc.errors import KernelNotResponding, KernelNotRunning
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs.device import Context

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]
OBJECT_KINDS = ("pd", "mr", "mw", "ah", "cq", "qp", "srq", "xrcd")
END_SECONDS = 20.0


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"show-{uuid.uuid4().hex[:8]}") as started:
        yield started
        assert started.running, started.log.read_text()


@contextlib.contextmanager
def holding(kernel: str, light: int, heavy: int) -> Iterator[subprocess.Popen[str]]:
    """A process with `light` PDs and AHs, `heavy` MRs and CQs; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER, kernel, str(light), str(heavy)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 40)[0], "it does not hold them in time"
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def rows_of(kernel: str, kind: str) -> list[dict[str, Any]]:
    return TABLES[kind].rows(kernel_state(kernel))


def nothing_left(kernel: str) -> None:
    """Wait until the kernel itself says that no session is left; every look is its answer."""
    deadline = time.monotonic() + END_SECONDS
    while rows_of(kernel, "session"):
        assert time.monotonic() < deadline, "the session is not run down in time"


def test_every_kind_is_shown_in_words_and_as_data(softhca: Run, kernel: StartedKernel):
    with Context(name="mthca0", kernel=kernel.name) as context:
        made = make_objects(context)
        for kind in ("qp", "irp", "device", "memory"):
            words = softhca("show", kind, "--name", kernel.name)
            data = softhca("show", kind, "--name", kernel.name, "--json")
            assert (words.returncode, data.returncode) == (0, 0), words.stderr + data.stderr
            rows = json.loads(data.stdout)
            assert rows
            if kind not in ("device",):
                assert len(words.stdout.splitlines()) == 1 + len(rows)
        state = kernel_state(kernel.name)
        for kind in KINDS:
            assert TABLES[kind].rows(state), kind
        handles = {kind: TABLES[kind].rows(state)[0]["handle"] for kind in OBJECT_KINDS}
        assert handles == {kind: getattr(made, kind).handle for kind in OBJECT_KINDS}


def test_the_device_is_a_process(softhca: Run, kernel: StartedKernel):
    (device,) = json.loads(softhca("show", "device", "--name", kernel.name, "--json").stdout)
    assert device["state"] == "up"
    with open(f"/proc/{device['pid']}/cmdline", "rb") as file:
        assert b"kernel_proc.hca" in file.read()
    lines = softhca("show", "device", "--name", kernel.name).stdout.splitlines()
    told = dict(line.rsplit(maxsplit=1) for line in lines)
    assert (told["device"], told["pid"]) == ("mthca0", str(device["pid"]))


def test_commands_have_the_times_the_hca_tells(softhca: Run, kernel: StartedKernel):
    rows = json.loads(softhca("show", "command", "--name", kernel.name, "--json").stdout)
    by_name = {row["command"]: row for row in rows}
    assert by_name["INIT_HCA"]["count"] == 1
    assert all(row["asked_ns"] == 0 < row["achieved_ns"] for row in rows)


def test_a_kind_that_is_none_is_one_sentence(softhca: Run):
    done = softhca("show", "cpu", "--json")
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("softhca: there is nothing called 'cpu' to show")
    assert all(kind in sentence for kind in KINDS)
    assert json.loads(done.stdout)["error"] in sentence


def test_without_a_kind_the_kinds_are_listed(softhca: Run):
    done = softhca("show")
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence == f"softhca: say what to show: {', '.join((*KINDS, 'wr'))}"


@pytest.mark.parametrize("command", [("show", "qp"), ("devinfo",)])
def test_without_a_kernel_there_is_one_sentence_with_the_cure(
    softhca: Run, command: tuple[str, ...]
):
    done = softhca(*command, "--name", "never-started", "--json")
    assert done.returncode == 3
    (sentence,) = done.stderr.splitlines()
    assert "'softhca kernel start --name never-started'" in sentence
    assert json.loads(done.stdout)["error"] in sentence


def test_what_there_is_none_of_is_said(softhca: Run, kernel: StartedKernel):
    nothing_left(kernel.name)
    done = softhca("show", "qp", "--name", kernel.name)
    assert (done.returncode, done.stdout) == (0, f"the kernel {kernel.name!r} has no qp\n")
    assert softhca("show", "qp", "--name", kernel.name, "--json").stdout == "[]\n"


def test_a_killed_process_leaves_no_row(softhca: Run, kernel: StartedKernel):
    with holding(kernel.name, 20, 20) as holder:
        rows = rows_of(kernel.name, "cq")
        assert len(rows) == 20
        (session,) = session_of(rows)
        assert {row["pid"] for row in rows} == {holder.pid}
        limited = softhca("show", "cq", "--name", kernel.name, "--limit", "3").stdout.splitlines()
        assert len(limited) == 5
        assert limited[-1] == "and 17 more"
    nothing_left(kernel.name)
    state = kernel_state(kernel.name)
    assert not any(session in session_of(TABLES[kind].rows(state)) for kind in OBJECT_KINDS)


LONG_LISTS = [
    (990, 10),
    *(pytest.param(*counts, marks=pytest.mark.stress) for counts in ((4950, 50), (2500, 2500))),
]


@pytest.mark.parametrize(("light", "heavy"), LONG_LISTS)
def test_thousands_of_objects_are_printed_and_go_with_their_process(
    softhca: Run, kernel: StartedKernel, light: int, heavy: int
):
    nothing_left(kernel.name)
    before = rows_of(kernel.name, "device")[0]
    with holding(kernel.name, light, heavy):
        began = time.monotonic()
        for kind, count in {"pd": light, "ah": light, "mr": heavy, "cq": heavy}.items():
            lines = softhca("show", kind, "--name", kernel.name).stdout.splitlines()
            assert len(lines) == 1 + count
        assert time.monotonic() - began < END_SECONDS
    nothing_left(kernel.name)
    state = kernel_state(kernel.name)
    assert all(TABLES[kind].rows(state) == [] for kind in OBJECT_KINDS)
    (after,) = TABLES["device"].rows(state)
    for name in ("pd_used", "mpt_used", "cq_used", "mtt_used", "icm_chunks"):
        assert after[name] == before[name], name
    assert TABLES["irp"].rows(state) == []


def test_a_kernel_that_does_not_answer_is_told(kernel: StartedKernel):
    os.kill(kernel.pid, signal.SIGSTOP)
    try:
        with pytest.raises(KernelNotResponding):
            kernel_state(kernel.name, timeout=0.2)
    finally:
        os.kill(kernel.pid, signal.SIGCONT)
    assert kernel_state(kernel.name)["hca"]
    with pytest.raises(KernelNotRunning):
        kernel_state("never-started")


def test_a_dead_hca_is_told(softhca: Run):
    with start_kernel(f"show-{uuid.uuid4().hex[:8]}") as kernel:
        (device,) = rows_of(kernel.name, "device")
        descriptor = os.pidfd_open(device["pid"])
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        deadline = time.monotonic() + END_SECONDS
        while rows_of(kernel.name, "device")[0]["state"] != "dead":
            assert time.monotonic() < deadline
        done = softhca("show", "device", "--name", kernel.name)
        told = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
        assert ["state", "dead"] in told
        assert ["failure", "signal 9"] in told
        assert not any(label == "pid" for label, _ in told)
        asked = softhca("devinfo", "--name", kernel.name)
        assert asked.returncode == 1
        (sentence,) = asked.stderr.splitlines()
        assert "has failed and has not been reset" in sentence
        assert f"'softhca show device --name {kernel.name}'" in sentence
