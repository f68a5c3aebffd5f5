"""`softhca plot` and `softhca compare` as a user runs them, on documents made for it."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ready_command import ReadyCommand
from tests.user_proc.bench.synthetic import row
from tests.user_proc.cli.conftest import COMMAND, ROOT, environment, run_to_end
from user_proc.bench import plot_view
from user_proc.bench.full_plan import BASE, kernel_row
from user_proc.bench.sample_statistics import BlockSamples
from user_proc.run_document import HEADING, RunDocument, other_document
from user_proc.stress.stress_result import Figures, StressResult

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]


def whole_row(spec: Any, p50: float, spread: float = 0.5) -> dict[str, Any]:
    from array import array

    samples = BlockSamples((array("Q", [round(p50 * 1000 + n) for n in range(2_000)]),))
    return row(
        spec,
        p50,
        spread,
        p50_interval_us=[p50 - 1, p50 + 1],
        p99_us=2 * p50,
        floor="echo",
        floor_p50_us=p50 / 2,
        hdr_histogram=samples.histogram()[0],
    )


def write_run(path: Path, factor: float = 1.0, version: str = "3.11.7") -> None:
    document = RunDocument(
        "irp",
        {
            "python": {"implementation": "CPython", "version": version, "gil": True},
            "machine": {"processor": "x", "cores": 2, "architecture": "y", "governor": None},
            "started": "now",
            "marks": ["virtual"],
        },
        {"loop": "closed", "blocks_per_round": 3},
        [],
        [
            whole_row(BASE, 100.0),
            whole_row(replace(BASE, method="neither"), 90.0 * factor),
            whole_row(kernel_row("direct"), 2.0, 0.01),
        ],
    )
    path.write_text(document.as_json())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "a.json")
    write_run(tmp_path / "b.json", 1.5)
    write_run(tmp_path / "old.json", version="3.10.0")
    return tmp_path


@pytest.fixture(scope="module")
def ready_with_plots(private_run: Path) -> Iterator[ReadyCommand]:
    pytest.importorskip("matplotlib", reason="an extra, not installed here")
    figures = ("agg", "svg")
    ready = ReadyCommand(
        "matplotlib.figure", *(f"matplotlib.backends.backend_{f}" for f in figures)
    )
    yield ready
    ready.close()


@pytest.fixture
def plot(ready_with_plots: ReadyCommand, tmp_path: Path) -> Run:
    """The command `softhca plot`, with matplotlib imported once for all runs of it."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ready_with_plots.run(["plot", *arguments], tmp_path, environment(), 50)

    return run


@pytest.mark.parametrize("kind", ["bars", "percentiles"])
def test_a_plot_is_a_picture(plot: Run, runs: Path, kind: str):
    done = plot("a.json", "--kind", kind)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote a.png\n"
    assert (runs / "a.png").read_bytes().startswith(b"\x89PNG")
    done = plot("a.json", "--out", "x.svg", "--rows", "kernel")
    assert done.returncode == 0, done.stderr
    picture = (runs / "x.svg").read_text()
    assert "<svg" in picture


def test_a_bar_reaches_from_the_floor_to_the_median(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="an extra, not installed here")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kept: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot_view, "save_figure", lambda figure, *_: kept.append(figure))
        write_run(tmp_path / "a.json")
        document = json.loads((tmp_path / "a.json").read_text())
        plot_view.plot(document, "bars", "", tmp_path / "a.png")
        plot_view.plot(document, "percentiles", "", tmp_path / "a.png")
    bars, curves = (figure.axes[0] for figure in kept)
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars.patches]
    assert ends == [(50.0, 100.0), (45.0, 90.0), (1.0, 2.0)]
    for figure in kept:
        FigureCanvasAgg(figure).draw()
    times = [text.get_text() for text in bars.get_xticklabels()]
    assert {"1", "2", "5", "10", "100"} <= set(times)
    assert not any(text.get_text() for text in bars.get_xticklabels(minor=True))
    percents = [text.get_text() for text in curves.get_xticklabels()]
    assert percents == ["50", "75", "90", "95", "99"]  # 2,000 samples tell of no 99.9th


def write_stress_run(path: Path) -> None:
    result = StressResult(7)
    for clients in (1, 16):
        rows = [{"clients": clients, "second": n, "completions": 100 * n} for n in (1, 2)]
        samples = [clients * 100_000] * 2000
        result.counts.append(Figures(clients, 2.0, 9, 8, control=samples, floor=samples, rows=rows))
    provenance = {
        "python": {"implementation": "CPython", "version": "3.11.7"},
        "machine": {"processor": "x"}, "started": "now", "marks": [],
    }  # fmt: skip
    path.write_text(other_document("stress", provenance, {}, result.parts()))


def test_a_stress_run_has_a_picture_of_its_own(plot: Run, tmp_path: Path):
    write_stress_run(tmp_path / "run.json")
    done = plot("run.json", "--out", "x.svg")
    assert done.returncode == 0, done.stderr
    picture = (tmp_path / "x.svg").read_text()
    for text in ("control verb, p99", "times the echo", "16 clients", "completions a second"):
        assert f"<!-- {text}" in picture or text in picture, text
    done = plot("run.json", "--rows", "kernel")
    assert done.returncode == 2
    assert "leave --kind and --rows out" in " ".join(done.stderr.split())


def test_without_matplotlib_one_sentence_has_the_cure(runs: Path):
    (runs / "no").mkdir()
    (runs / "no" / "matplotlib.py").write_text("raise ImportError('not here')")
    command = ["env", f"PYTHONPATH=no:{ROOT}", *COMMAND]
    done = run_to_end(runs, "plot", "a.json", command=command)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert "plots need matplotlib" in sentence
    assert "-m pip install 'matplotlib" in sentence
    assert not (runs / "a.png").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["none.json"], 2, "none.json cannot be read: No such file or directory; see"),
        (["a.json", "--kind", "pie"], 2, "choose from bars, percentiles"),
        (["a.json", "--out", "a.nothing"], 2, "not supported"),
        (["a.json", "--rows", "nothing like it"], 1, "no row's name contains"),
    ],
)
def test_what_cannot_be_plotted(plot: Run, runs: Path, arguments: list[str], code: int, words: str):
    done = plot(*arguments)
    assert done.returncode == code
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_a_comparison_names_each_change(softhca: Run, runs: Path):
    done = softhca("compare", "a.json", "b.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == HEADING
    where = lines.index("user irp neither arena device 64 B")
    assert "90.0 ->     135.0 us  slower (95 % interval 4" in lines[where + 1]
    assert lines[-1] == "3 rows by p50: 2 no change shown, 1 slower"


def test_a_comparison_as_json(softhca: Run, runs: Path):
    done = softhca("compare", "b.json", "a.json", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["forced_over"] == []
    verdicts = [entry["p50"]["verdict"] for entry in found["rows"]]
    assert verdicts == ["no change shown", "faster", "no change shown"]


def test_unequal_runs_are_refused_unless_forced(softhca: Run, runs: Path):
    done = softhca("compare", "a.json", "old.json")
    assert done.returncode == 1
    assert "python version: 3.11.7 and 3.10.0" in done.stderr
    assert "--force" in done.stderr
    done = softhca("compare", "a.json", "old.json", "--force")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{HEADING}\nForced, although the runs differ: python version")


def test_what_is_no_run_is_refused(softhca: Run, runs: Path):
    (runs / "bad.json").write_text("{}")
    (runs / "other.json").write_text((runs / "a.json").read_text().replace('"irp"', '"rc"', 1))
    write_stress_run(runs / "stress.json")
    (runs / "verbs.json").write_text((runs / "a.json").read_text().replace('"irp"', '"verbs"', 1))
    for name, words in (
        ("stress.json", "'stress'; this takes irp"),
        ("verbs.json", "take two runs of one benchmark"),
    ):
        done = softhca("compare", "a.json", name, "--force")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr
    for name, words in (("bad.json", "parts missing"), ("other.json", "of the kind 'rc'")):
        done = softhca("compare", "a.json", name)
        assert done.returncode == 2
        assert words in " ".join(done.stderr.replace("│", " ").split())
