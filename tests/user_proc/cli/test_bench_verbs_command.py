"""`softhca bench verbs` as a user runs it: output, files, wrong usage, its end at any moment."""

import csv
import io
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ready_python import Program
from tests.user_proc.cli.command_ends import ends_with_all_it_started, leftovers
from user_proc.bench.verbs.verb_programs import every_verb
from user_proc.run_document import HEADING, load_strict
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., Program]


def test_a_run_prints_its_tables_and_writes_its_files(softhca: Run, tmp_path: Path):
    files = ("--json", "run.json", "--csv", "run.csv")
    done = softhca("bench", "verbs", "--tiny", *files)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(HEADING)
    document = load_strict((tmp_path / "run.json").read_text())
    assert document["kind"] == "verbs"
    verbs = {row["verb"] for row in document["rows"] if row["bytes"] is None}
    assert verbs == {*every_verb().rows, "control_mix"}
    for row in document["rows"]:
        assert row["count"] > 0
        assert 0 < row["min_us"] <= row["p50_us"] <= row["max_us"]
        assert row["asked_us"] == 0  # the model is none
        # What the driver waits is measured in passes of its own, so it is compared with what the
        # same passes tell of the HCA: it waits at least as long as the HCA executes.
        if row["commands"] and row["device_us"] is not None:
            assert 0 < row["device_us"] <= row["command_us"]
        assert row["ratio"] > 0
    assert {row["layout"] for row in document["rows"]} == {None, "contiguous", "scattered"}
    assert {row["memory"] for row in document["rows"]} == {None, "arena", "private", "kernel"}
    assert document["kernel"]["open_device_ms"] > 0
    assert document["settings"]["not_measured"] == []
    assert len(document["answers"]) == 4
    lines = list(csv.DictReader(io.StringIO((tmp_path / "run.csv").read_text()), strict=True))
    assert [float(line["p50_us"]) for line in lines] == [r["p50_us"] for r in document["rows"]]
    assert sorted(os.listdir(tmp_path)) == ["run.csv", "run.json"]
    assert leftovers() == []


def test_a_running_kernel_is_measured_and_left_running(private_run: object, softhca: Run):
    with start_kernel("bench-verbs-mine") as kernel:
        choice = ("--processes", "2", "--name", kernel.name, "--json", "-")
        done = softhca("bench", "verbs", "--tiny", *choice)
        assert done.returncode == 0, done.stderr
        document = load_strict(done.stdout)
        assert kernel.running
    assert {row["latency_model"] for row in document["rows"]} == {"none"}
    assert document["provenance"]["hcas"] == [
        {"latency_model": "none", "latency_factor": 1.0, "hca_profile": None}
    ]
    mixes = [row["processes"] for row in document["rows"] if row["verb"] == "control_mix"]
    assert mixes == [2]
    assert HEADING in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "fast"], "'fast' is neither none, plausible, prm-ceiling nor a file"),
        (["--model", "none", "--name", "x"], "has its latency model already"),
        (["--processes", "0"], "between 1 and 200"),
        (["--processes", "1,many"], "--processes 1,8,64"),
        (["--json", "no/such/folder/run.json"], "does not exist"),
        (["--json", "-", "--csv", "-"], "only one of"),
        (["--depth", "4"], "No such option"),
    ],
)
def test_wrong_usage_is_told_at_once(softhca: Run, arguments: list[str], words: str):
    done = softhca("bench", "verbs", "--tiny", *arguments)
    assert done.returncode == 2
    assert words in re.sub(r"[│\s]+", " ", done.stderr)
    assert "Traceback" not in done.stderr


def test_options_of_the_other_benchmark_are_not_swallowed(softhca: Run):
    done = softhca("bench", "--quick", "verbs")
    assert done.returncode == 2
    assert "options stand behind" in re.sub(r"[│\s]+", " ", done.stderr)


def test_a_kernel_that_does_not_run_is_one_sentence(softhca: Run):
    done = softhca("bench", "verbs", "--tiny", "--no-progress", "--name", "verbs-nobody")
    assert done.returncode == 3
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("softhca: ")
    assert "verbs-nobody" in sentence


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_its_end_leaves_nothing(begin: Begin, number: int):
    code = 130 if number == signal.SIGINT else -number
    ends_with_all_it_started(
        begin("bench", "verbs", "--quick", "--processes", "16"), number, code, 5.0
    )
