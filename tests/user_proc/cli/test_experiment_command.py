"""`softhca experiment` as a user starts it."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from user_proc.cli.experiment_command import _publish
from user_proc.cli.experiment_table import experiment_lines
from user_proc.run_document import load_strict, other_document

pytestmark = pytest.mark.processes

Run = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., subprocess.Popen[str]]
HERE = ("irp-or-direct", "buffering", "command-share")
IN_A_MACHINE = ("command-times", "notification", "one-path", "scheduling")


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": "one", "question": "Which?", "verdict": "This one.", "rows": rows}


def test_the_list_has_every_experiment_with_its_question(softhca: Run):
    done = softhca("experiment", "list")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[1:])
    assert set(lines) >= {*HERE, *IN_A_MACHINE}
    assert all(question.endswith("?") for question in lines.values())


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


def test_the_document_alone_on_standard_output(capsys: pytest.CaptureFixture[str]):
    parts = {"experiments": [result([{"way": "a"}])]}
    _publish(other_document("experiment", {}, {}, parts), "-")
    shown = capsys.readouterr()
    assert load_strict(shown.out)["experiments"] == parts["experiments"]
    assert "Verdict: This one." in shown.err


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


def test_its_end_leaves_nothing(begin: Begin):
    # That no process outlives the tests is what the whole run looks for at its end.
    process = begin("experiment", "run", "one-path", "--json", "-")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM


def test_a_table_has_plain_values_and_no_column_for_the_rest():
    rows = [{"way": "a", "time_us": 1.25, "steps": ["x"]}, {"way": "b", "outcome": "bug check"}]
    lines = list(experiment_lines([result(rows)]))
    heading = next(line for line in lines if line.startswith("way"))
    assert heading.split("  ") == ["way", "time us", "outcome"]
    assert "b             bug check" in lines
    assert lines[-1] == "Verdict: This one."
