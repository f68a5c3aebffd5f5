"""Table and CSV: views of the document, complete, honest and readable by others."""

import csv
import io
import json
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from user_proc.bench.bench_run import BenchRun
from user_proc.bench.bench_settings import full_run
from user_proc.bench.csv_view import COLUMNS, rows_as_csv
from user_proc.bench.progress_view import LineProgress, NoProgress, make_progress
from user_proc.bench.table_view import HEADING, figure, payload_text, print_table, render
from user_proc.run_document import load_strict

ISSUED_FIELDS = (
    "client", "path", "method", "memory", "completion", "payload", "depth", "processes", "count",
    "blocks", "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "mean_us", "ops_per_s", "copies",
    "bytes_copied", "wire_bytes", "cpu_user_us", "cpu_kernel_us", "floor", "floor_p50_us", "ratio",
    "convention",
)  # fmt: skip


class OneNumberWorker:
    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        if do != "block":
            return {}
        count = values["count"]
        return {"samples": [1_500_000] * count, "used": {"operations": count, "copies": 3 * count}}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    @contextmanager
    def open_round(settings: object) -> Any:
        yield OneNumberWorker()

    settings = replace(full_run(), operations_per_block=10)
    return load_strict(BenchRun(settings, open_round, NoProgress()).run().as_json())


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
    rows = [
        line for line in text.splitlines() if line.startswith(("  inline", "  dpc", "  device"))
    ]
    assert len(rows) == len(document["rows"])
    assert rows[0].split()[1:4] == ["0", "B", "1,500"]
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
    rows = [line for line in lines if line.startswith(("  inline", "  dpc", "  device"))]
    assert len(rows) == len(document["rows"])
    assert all(line.endswith("x!") for line in rows)


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


@pytest.mark.parametrize(
    ("payload", "text"),
    [(0, "0 B"), (64, "64 B"), (1000, "1000 B"), (4096, "4 KiB"), (65536, "64 KiB"),
     (1 << 20, "1 MiB"), (1536, "1536 B")],
)  # fmt: skip
def test_sizes_are_never_mixed_units(payload: int, text: str):
    assert payload_text(payload) == text


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
