"""`softhca bench` as a user runs it: output, files, wrong usage, and its end at any moment."""

import contextlib
import csv
import io
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.ready_command import ReadyCommand
from tests.ready_python import Program
from tests.user_proc.cli.command_ends import (
    end_of,
    ends_with_all_it_started,
    leftovers,
    wait_for_children,
)
from tests.user_proc.cli.conftest import COMMAND, environment
from user_proc.run_document import HEADING, load_strict

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., Program]


# --- output -----------------------------------------------------------------------------------


class Measured(NamedTuple):
    """A run that has ended, and the folder with its files."""

    done: subprocess.CompletedProcess[str]
    folder: Path
    pair: str


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, ready_command: ReadyCommand) -> Measured:
    folder = tmp_path_factory.mktemp("bench")
    cores = sorted(os.sched_getaffinity(0))
    pair = f"{cores[0]},{cores[-1]}"
    words = ["bench", "--tiny", "--json", "run.json", "--csv", "run.csv", "--pin", pair]
    return Measured(ready_command.run(words, folder, environment(), 50), folder, pair)


def test_a_run_prints_its_table_and_writes_its_files(measured: Measured):
    done, folder, pair = measured
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(HEADING)
    document = load_strict((folder / "run.json").read_text())
    check_document(document)
    lines = list(csv.DictReader(io.StringIO((folder / "run.csv").read_text()), strict=True))
    assert [float(line["p50_us"]) for line in lines] == [r["p50_us"] for r in document["rows"]]
    assert sorted(os.listdir(folder)) == ["run.csv", "run.json"]
    assert "unpinned" not in document["provenance"]["marks"]
    assert f"{document['settings']['kernel_cpu']},{document['settings']['user_cpu']}" == pair
    assert leftovers() == []


#: The command, whose run ends at once with what another one measured.
MEASURED_BEFORE = """
import json
from user_proc.cli import bench_command
from user_proc.cli.main import main
from user_proc.run_document import RunDocument
with open("run.json") as file:
    parts = json.load(file)
del parts["schema"]
bench_command._measure = lambda *_: RunDocument(**parts)
main()
"""


def test_a_reader_that_leaves_is_no_crash(measured: Measured):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-P", "-c", MEASURED_BEFORE, "bench", "--tiny", "--no-progress"],
            env=environment(),
            cwd=measured.folder,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=50,
        )
    assert (done.returncode, done.stderr) == (1, "")


#: What a reader of a document may count on, whatever else it says.
PARTS = {"schema", "kind", "provenance", "settings", "floors", "rows", "stages", "answers"}
ROW_FIELDS = set(
    re.findall(
        r"\w+",
        """client path method memory completion payload depth processes count blocks p50_us p90_us
    p99_us p999_us max_us mean_us ops_per_s copies bytes_copied wire_bytes cpu_user_us
    cpu_kernel_us floor floor_p50_us ratio convention""",
    )
)
FLOOR_FIELDS = {"name", "payload", "p50_us"}


def check_document(document: dict[str, Any]) -> None:
    assert document["kind"] == "irp"
    assert document.keys() >= PARTS
    assert all(row.keys() >= ROW_FIELDS for row in document["rows"])
    assert all(floor.keys() >= FLOOR_FIELDS for floor in document["floors"])
    assert len(document["rows"]) == 7
    for row in document["rows"]:
        assert row["count"] == 48 or row["processes"] == 2
        assert row["blocks"] == 4
        assert 0 < row["min_us"] <= row["p50_us"] <= row["max_us"]
        assert row["p999_us"] is None
        assert row["ratio"] == pytest.approx(row["p50_us"] / row["floor_p50_us"], abs=1e-3)
        assert row["sum_us"] == pytest.approx(row["count"] * row["mean_us"], rel=0.01)
        if row["processes"] == 1:
            assert row["ops_per_s"] * row["mean_us"] == pytest.approx(1e6, rel=0.01)
        assert not {"copies", "overloaded"} & set(row["marks"])
    user, two, neither, fast, private, irp, direct = document["rows"]
    for row in (user, two):
        assert (row["copies"], row["bytes_copied"], row["wire_bytes"]) == (2, 128, 336)
    assert 20 <= two["count"] <= 96
    assert (neither["path"], fast["path"]) == ("irp", "fast_io")
    assert neither["copies"] == fast["copies"] == 0
    assert (private["copies"], private["bytes_copied"]) == (2, 8192)
    assert irp["copies"] == direct["copies"] == irp["wire_bytes"] == 0
    assert {floor["name"] for floor in document["floors"]} == {
        "echo", "thread_switch", "clock", "user_clock", "sample_store", "memory_copy",
        "private_copy",
    }  # fmt: skip
    for floor in document["floors"]:
        assert floor["p50_us"] > 0
    assert document["settings"]["mode"] == "tiny"
    questions = [answer["question"] for answer in document["answers"]]
    assert len(questions) == 3
    assert "over a direct call" in questions[0]


def test_the_document_is_alone_on_standard_output_the_bar_and_the_stages_on_the_terminal(
    tmp_path: Path,
):
    words = ("bench", "--tiny", "--stages", "--json", "-")
    code, output, shown = run_on_a_terminal(tmp_path, *words)
    assert code == 0, shown
    document = load_strict(output)
    check_document(document)
    assert len(document["stages"]) == 6
    for row in document["stages"]:
        assert row["incomplete"] <= row["requests"]
        total = sum(stage["mean_us"] for stage in row["stages"])
        assert total == pytest.approx(row["sum_us"], abs=0.01)
        # A sum of stages is the time of a middle request, far from half or twice of it.
        assert 0.4 < row["sum_us"] / row["traced_p50_us"] < 2.5
    for said in ("%", HEADING, "sum of the stages", "p50 without tracing", "copy to caller"):
        assert said in shown


def run_on_a_terminal(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run with a terminal for standard error; return exit code, output, and what was shown."""
    parent, child = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments],
        env={**environment(), "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=child,
        cwd=folder,
        text=True,
    ) as process:
        os.close(child)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while data := os.read(parent, 65536):
                shown += data
        os.close(parent)
        output, _ = process.communicate(timeout=50)
    return process.returncode, output, shown.decode()


def test_an_open_loop_is_not_mixed_with_closed_rows_and_its_csv_is_alone(
    softhca: Run, tmp_path: Path
):
    words = ("--rate", "2000", "--json", "run.json", "--csv", "-", "--no-progress")
    done = softhca("bench", "--tiny", *words)
    assert done.returncode == 0, done.stderr
    document = load_strict((tmp_path / "run.json").read_text())
    lines = list(csv.DictReader(io.StringIO(done.stdout), strict=True))
    assert len(lines) == len(document["rows"])
    assert document["settings"]["loop"] == "open"
    for row in document["rows"]:
        assert row["client"] == "user"
        assert row["open_loop"]["rate_per_s"] == 2000
    assert "Open loop: 2000 starts a second" in done.stderr


# --- wrong usage ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pin", "0"], "two core numbers"),
        (["--pin", "zero,one"], "two core numbers"),
        (["--pin", "0,99999"], "core 99999 cannot be used"),
        (["--json", "no/such/folder/run.json"], "does not exist"),
        (["--csv", "/"], "is a folder"),
        (["--json", "-", "--csv", "-"], "only one of"),
        (["--depth", "4"], "No such option"),
        (["--rate", "0"], "starts a second"),
        (["--rate", "-5"], "starts a second"),
        (["--rate", "nan"], "starts a second"),
        (["--rate", "many"], "number"),
    ],
)
def test_wrong_usage_is_told_at_once(softhca: Run, arguments: list[str], words: str):
    done = softhca("bench", "--tiny", *arguments)
    assert done.returncode == 2
    assert words in re.sub(r"[│\s]+", " ", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_runtime_folder_open_to_all_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, softhca: Run
):
    with tempfile.TemporaryDirectory(prefix="sh-") as short:
        folder = Path(short) / "softhca"
        folder.mkdir()
        folder.chmod(0o777)
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        done = softhca("bench", "--tiny", "--no-progress")
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("softhca: ")
    assert "chmod 700" in sentence


# --- its end ----------------------------------------------------------------------------------


# The three signals are one matter to every command: each benchmark has one of them here, and
# SIGKILL, which is for those it started to notice.


def test_a_signal_ends_all_it_started_within_a_second(begin: Begin):
    ends_with_all_it_started(begin("bench", "--quick"), signal.SIGTERM, 143, 1.0)


def test_an_impatient_second_ctrl_c_does_not_stop_the_cleaning(begin: Begin):
    process = begin("bench", "--quick")
    wait_for_children(process.pid, 2)
    for _ in range(20):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            os.sched_yield()
    assert process.wait(5) == 130
    assert leftovers() == []


def test_a_killed_benchmark_leaves_nothing(begin: Begin):
    process = begin("bench", "--quick")
    descriptors = [os.pidfd_open(pid) for pid in wait_for_children(process.pid, 2)]
    try:
        process.kill()
        assert all(end_of(descriptor, 5.0) for descriptor in descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert leftovers() == []


def test_importing_the_command_does_not_import_the_benchmark():
    code = (
        "import sys, user_proc.cli.main\n"
        "heavy = {'zmq', 'hdrh', 'user_proc.bench.bench_run', 'user_proc.process'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.check_output(
        [sys.executable, "-P", "-c", code], env=environment(), text=True
    )
    assert found == "[]\n"
