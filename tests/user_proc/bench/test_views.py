"""Table and CSV: views of the document, complete, honest and readable by others."""

import csv
import io
import json
import re
from array import array
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from user_proc.bench.bench_run import BenchRun
from user_proc.bench.bench_settings import BenchSettings, full_run
from user_proc.bench.csv_view import COLUMNS, rows_as_csv
from user_proc.bench.progress_view import LineProgress, NoProgress, make_progress
from user_proc.bench.row_plan import RowSpec
from user_proc.bench.row_results import Usage
from user_proc.bench.stage_times import STAGES
from user_proc.bench.table_view import figure, print_table, render
from user_proc.bench.timed_loops import Window
from user_proc.bench.worker_group import Block, WorkerGroup
from user_proc.run_document import HEADING, load_strict

ISSUED_FIELDS = (
    "client", "path", "method", "memory", "completion", "payload", "depth", "processes",
    "verifier", "count", "blocks", "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "mean_us",
    "ops_per_s", "elapsed_us", "copies", "bytes_copied", "wire_bytes", "cpu_user_us",
    "cpu_kernel_us", "floor", "floor_p50_us", "ratio", "convention",
)  # fmt: skip
ROW_LINE = re.compile(r"  (inline|dpc|device)\b.*\d\.\d\dx[! ]$")


class OneNumberGroup(WorkerGroup):
    """Every operation takes 1.5 ms, and makes the copies it should."""

    _rows: tuple[RowSpec, ...] = ()

    def prepare(self, *rows: RowSpec) -> None:
        self._rows = rows

    def take(self, which: str, window: Window, index: int = 0) -> Block:
        count = window.count
        copies = self._rows[index].copies if which == "row" else 0
        used = Usage(operations=count, copies=copies * count)
        late = window.interval_ns
        return Block(array("Q", [1_500_000] * count), 1_500_000 * count, used, late, late)

    def take_traced(self, count: int) -> Any:
        return array("Q", [1_500_000] * count), [dict.fromkeys(STAGES, 100_000)] * count


class OneNumberWorker:
    def send(self, do: str, **values: Any) -> None:
        pass

    def receive(self) -> dict[str, Any]:
        return {}

    def group(self, verifier: bool, processes: int) -> WorkerGroup:
        worker: Any = self
        return OneNumberGroup([worker])


def document_of(settings: BenchSettings) -> dict[str, Any]:
    @contextmanager
    def open_round(settings: object) -> Any:
        yield OneNumberWorker()

    settings = replace(settings, operations_per_block=10, time_limit_ns=10**12)
    return load_strict(BenchRun(settings, open_round, NoProgress()).run().as_json())


@pytest.fixture(autouse=True)
def no_width_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return document_of(full_run().with_stages())


def test_csv_has_every_row_and_field(document: dict[str, Any]):
    read = list(csv.DictReader(io.StringIO(rows_as_csv(document)), strict=True))
    assert ISSUED_FIELDS == COLUMNS
    assert len(read) == len(document["rows"])
    for line, row in zip(read, document["rows"], strict=True):
        assert None not in line
        for name in COLUMNS:
            value = row[name]
            if value is None:
                assert line[name] == ""
            elif isinstance(value, bool):
                assert line[name] == json.dumps(value)
            elif isinstance(value, str):
                assert line[name] == value
            else:
                assert float(line[name]) == pytest.approx(value)


def test_the_table_says_first_whose_numbers_they_are(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    print_table(document)
    text = capsys.readouterr().out
    assert text.startswith(HEADING)
    assert "not of hardware" in text.splitlines()[0]
    assert all(len(line) <= 100 for line in text.splitlines())
    rows = [line for line in text.splitlines() if ROW_LINE.match(line)]
    assert len(rows) == len(document["rows"])
    assert rows[0].split()[1:4] == ["0", "B", "1,500"]
    kinds = {row[:12].strip() for row in rows}
    assert {"dpc", "dpc x16", "device p2", "device p8", "device v"} <= kinds
    assert "-" in rows[0].split()  # p99.9 rests on too few samples
    for floor in document["floors"]:
        assert floor["name"] in text


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_its_terminal(document: dict[str, Any], width: int):
    marked = json.loads(json.dumps(document))
    for row in marked["rows"]:
        row["marks"] = ["unsteady"]
        row["ops_per_s"] = 1_234_567.8
    shown = io.StringIO()
    Console(file=shown, width=width).print(render(marked, width))
    lines = shown.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    rows = [line for line in lines if ROW_LINE.match(line)]
    assert len(rows) == len(document["rows"])
    assert all(line.endswith("x!") for line in rows)


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("140", 140), ("", 100), ("x", 100)])
def test_without_a_terminal_columns_is_the_width(
    document: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    width: int,
):
    monkeypatch.setenv("COLUMNS", columns)
    print_table(document)
    printed = capsys.readouterr().out
    with (console := Console(width=width, no_color=True)).capture() as captured:
        console.print(render(document, width))
    assert printed == captured.get()


def test_marks_are_explained_in_words(document: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    marked = json.loads(json.dumps(document))
    marked["provenance"]["marks"] = ["unsteady", "unpinned", "virtual", "busy"]
    marked["rows"][0]["marks"] = ["unsteady"]
    print_table(marked, to_stderr=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    for mark in marked["provenance"]["marks"]:
        assert f"\n{mark}: " in printed.err
    assert printed.err.count("x!\n") == 1


def test_the_last_lines_are_the_answers(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    print_table(document)
    words = " ".join(capsys.readouterr().out.split())
    assert document["answers"]
    places = [words.index(answer["question"]) for answer in document["answers"]]
    assert places == sorted(places)
    assert words.endswith(" ".join(document["answers"][-1]["answer"].split()))


def test_the_stages_are_a_table_with_its_sum(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    print_table(document)
    lines = capsys.readouterr().out.splitlines()
    (total,) = [line for line in lines if line.startswith("  sum of the stages")]
    assert total.split()[4:] == ["1,100"] * len(document["stages"])
    for name in STAGES:
        found = [line.split() for line in lines if line.startswith(f"  {name} ")]
        assert [*name.split(), *["100.0"] * len(document["stages"])] in found
    (verdict,) = [line for line in lines if line.startswith("   tracing explains")]
    assert verdict.split()[2:] == ["NO"] * len(document["stages"])  # 1,500 are not 1,100


def test_an_open_loop_s_table_says_how_the_schedule_was_kept(
    capsys: pytest.CaptureFixture[str],
):
    scheduled = document_of(full_run().scheduled(200.0))
    print_table(scheduled)
    text = capsys.readouterr().out
    assert "Open loop: 200 starts a second" in text
    assert text.count(" overloaded\n") == len(scheduled["rows"])
    assert "fell behind its schedule" in text


def test_a_missing_figure_is_a_dash():
    assert figure(None) == "-"
    assert figure(1234.56) == "1,234.6"


def test_progress_without_a_terminal_is_a_line_at_most_once_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    times = iter(range(0, 10**12, 400_000_000))
    monkeypatch.setattr("user_proc.bench.progress_view.now_ns", lambda: next(times))
    progress = make_progress(True)
    assert isinstance(progress, LineProgress)
    for step in range(12):
        progress.advance(step, 12, f"step {step}")
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 5
    assert all("%  step" in line for line in lines)


def test_no_progress_shows_nothing(capsys: pytest.CaptureFixture[str]):
    with make_progress(False) as progress:
        progress.advance(1, 2, "text")
    assert capsys.readouterr() == ("", "")
