"""`softhca bench speed` as a user runs it: output, files, wrong usage, its end at any moment."""

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
from user_proc.bench.speed.speed_rows import OPS
from user_proc.run_document import HEADING, load_strict

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., Program]


def test_a_run_prints_its_tables_and_writes_its_files(softhca: Run, tmp_path: Path):
    done = softhca("bench", "speed", "--tiny", "--json", "run.json", "--csv", "run.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(HEADING)
    document = load_strict((tmp_path / "run.json").read_text())
    assert document["kind"] == "speed"
    assert {row["op"] for row in document["rows"]} == set(OPS)
    for row in document["rows"]:
        assert row["count"] > 0
        assert row["blocks"] == document["settings"]["blocks"]
        assert 0 < row["min_us"] <= row["p50_us"] <= row["max_us"]
        assert row["floor_p50_us"] > 0
        assert row["ratio"] > 0
    assert document["settings"]["load_verbs_per_s"][0] > 0
    assert len(document["answers"]) == 6
    lines = list(csv.DictReader(io.StringIO((tmp_path / "run.csv").read_text()), strict=True))
    assert [float(line["p50_us"]) for line in lines] == [r["p50_us"] for r in document["rows"]]
    assert sorted(os.listdir(tmp_path)) == ["run.csv", "run.json"]
    assert leftovers() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json", "no/such/folder/run.json"], "does not exist"),
        (["--json", "-", "--csv", "-"], "only one of"),
        (["--depth", "4"], "No such option"),
    ],
)
def test_wrong_usage_is_told_at_once(softhca: Run, arguments: list[str], words: str):
    done = softhca("bench", "speed", "--tiny", *arguments)
    assert done.returncode == 2
    assert words in re.sub(r"[│\s]+", " ", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_its_end_leaves_nothing(begin: Begin, number: int):
    code = 129 if number == signal.SIGHUP else -number
    ends_with_all_it_started(begin("bench", "speed", "--quick"), number, code, 5.0)
