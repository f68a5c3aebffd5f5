"""`softhca experiment` as a user starts it."""

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.ready_python import Program
from tests.user_proc.cli.command_ends import end_of, wait_for_children
from user_proc import run_document
from user_proc.cli import experiment_command
from user_proc.errors import SofthcaError
from user_proc.experiments import catalogue
from user_proc.experiments.experiment import ExperimentFailed
from user_proc.run_document import load_strict

pytestmark = pytest.mark.processes

Run = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., Program]
HERE = ("irp-or-direct", "buffering", "command-share", "speed-path")
IN_A_MACHINE = ("command-times", "notification", "one-path", "scheduling")


def test_the_list_has_every_experiment_with_its_question(softhca: Run):
    done = softhca("experiment", "list")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[1:])
    assert set(lines) >= {*HERE, *IN_A_MACHINE}
    assert all(question.endswith("?") for question in lines.values())
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_run_prints_its_table_and_writes_its_document(softhca: Run, tmp_path: Path):
    file = tmp_path / "run.json"
    done = softhca("experiment", "run", "scheduling", "--quick", "--json", str(file))
    assert done.returncode == 0, done.stderr
    document = load_strict(file.read_text(encoding="utf-8"))
    assert document["kind"] == "experiment"
    assert document["settings"]["quick"] is True
    (experiment,) = document["experiments"]
    assert experiment["name"] == "scheduling"
    assert len(experiment["rows"]) == 9
    shown = done.stdout.replace("\n", " ")
    assert experiment["question"] in shown
    assert experiment["verdict"] in shown
    assert done.stdout.startswith("Numbers of an emulator")
    assert max(map(len, done.stdout.splitlines())) <= 100


def found(name: str) -> dict[str, Any]:
    return {"name": name, "question": "Which?", "verdict": "This one.", "rows": [{"way": "a"}]}


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, quick: bool, progress: object) -> dict[str, Any]:
        if name == "fails":
            raise ExperimentFailed("it could not be run")
        return found(name)

    monkeypatch.setattr(catalogue, "run_experiment", run)
    names = ("fails", "one", "two")
    monkeypatch.setattr(catalogue, "questions", lambda: dict.fromkeys(names, "Which?"))


@pytest.mark.usefixtures("experiments")
def test_the_document_alone_on_standard_output(capsys: pytest.CaptureFixture[str]):
    experiment_command.run(["one"], quick=True, json_file="-", no_progress=True)
    shown = capsys.readouterr()
    assert load_strict(shown.out)["experiments"] == [found("one")]
    assert "Verdict: This one." in shown.err


@pytest.mark.usefixtures("experiments")
def test_one_that_fails_does_not_keep_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    file = tmp_path / "run.json"
    with pytest.raises(typer.Exit) as end:
        experiment_command.run(["all"], quick=True, json_file=str(file), no_progress=True)
    assert end.value.exit_code == 1
    assert [one["name"] for one in load_strict(file.read_text())["experiments"]] == ["one", "two"]
    shown = capsys.readouterr()
    assert shown.err == "softhca: it could not be run\n"
    assert shown.out.count("Verdict: This one.") == 2


@pytest.mark.usefixtures("experiments")
def test_a_document_that_cannot_be_written_costs_no_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(destination: str, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_document, "write_text", full)
    with pytest.raises(SofthcaError, match=r"x\.json cannot be written \(No space .*name another"):
        experiment_command.run(["one"], json_file=str(tmp_path / "x.json"), no_progress=True)
    assert "Verdict: This one." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "none-such"), "none of them"),
        (("run",), "Missing argument"),
        (("run", "all", "--json", "/nowhere/x.json"), "does not exist"),
    ],
)
def test_wrong_usage_is_told_at_once(softhca: Run, arguments: tuple[str, ...], words: str):
    done = softhca("experiment", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def child_with_the_experiment(pid: int) -> int:
    """Wait until the command has started it, beyond the child that lists them; its pidfd."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in wait_for_children(pid, 1):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"one-path" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return os.pidfd_open(child)
        select.select([], [], [], 0.002)  # nobody is told of another's children
    raise AssertionError("it has not been started")


def test_its_end_leaves_nothing(begin: Begin):
    process = begin("experiment", "run", "one-path", "--json", "-")
    child = child_with_the_experiment(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM
    assert end_of(child, 5.0)
    os.close(child)
