"""Plots of a run document: a bar a row from its floor, or percentile curves.

Rules: made from the document alone; every plot shows the floors, on a logarithmic axis of time.
matplotlib is imported when a plot is asked for, and only then.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from user_proc.bench.row_identity import spec_of
from user_proc.errors import SofthcaError
from user_proc.run_document import HEADING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: Final = ("bars", "percentiles")
_CURVES_AT_MOST: Final = 12
_NINES: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.999)
_LABELLED: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999)
_BEYOND: Final = 10  # samples a percentile must leave beyond itself


class PlotsUnavailable(SofthcaError):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "plots need matplotlib, which is not installed: "
            f"{sys.executable} -m pip install 'matplotlib>=3.11'"
        )


class NothingToPlot(SofthcaError):
    """No row is left to be drawn."""


def plot(document: Mapping[str, Any], kind: str, words: str, destination: Path) -> None:
    """Draw the rows whose label contains `words` and write them to a file.

    The ending of the file's name is its format; raises ValueError for one nobody knows.
    """
    use_matplotlib()
    labelled = [(spec_of(document["kind"], row).label(), row) for row in document["rows"]]
    rows = {label: row for label, row in labelled if words in label}
    if not rows:
        raise NothingToPlot(f"no row's name contains {words!r}")
    save_figure(_bars(rows) if kind == "bars" else _percentiles(rows), document, destination)


def use_matplotlib() -> None:
    """Make matplotlib ready to draw; PlotsUnavailable says how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise PlotsUnavailable from None
    matplotlib.use("Agg")  # no window, whatever the environment says


def save_figure(figure: "Figure", document: Mapping[str, Any], destination: Path) -> None:
    """Head a figure with where its numbers come from, and write it."""
    figure.suptitle(f"{HEADING}\n{_origin(document)}", fontsize=8)
    figure.savefig(destination, dpi=120)


def plain_times(axis: Any) -> None:
    """Label a logarithmic axis of microseconds by 1, 2, 5, 10 ... as the tables write them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())


def _origin(document: Mapping[str, Any]) -> str:
    provenance = document["provenance"]
    tool = document["settings"].get("tool", document["kind"])
    return (
        f"{tool}: {provenance['machine']['processor']}, {provenance['python']['implementation']} "
        f"{provenance['python']['version']}, {provenance['started']}, "
        f"marks: {', '.join(provenance['marks']) or 'none'}"
    )


def _bars(labelled: Mapping[str, Mapping[str, Any]]) -> "Figure":
    """Draw each row's median with its interval and the 99th percentile, and its floor.

    A bar reaches from the floor to the median: on this axis its length is their ratio.
    """
    from matplotlib.figure import Figure

    rows = list(labelled.values())
    figure = Figure(figsize=(11, 1.9 + 0.19 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    medians = [row["p50_us"] for row in rows]
    floors = [row["floor_p50_us"] for row in rows]
    lengths = [median - floor for median, floor in zip(medians, floors, strict=True)]
    below = [row["p50_us"] - row["p50_interval_us"][0] for row in rows]
    above = [row["p50_interval_us"][1] - row["p50_us"] for row in rows]
    axes.barh(places, lengths, left=floors, color="tab:blue", alpha=0.4)
    axes.plot(floors, places, "k|", markersize=8, label="p50 of its floor")
    axes.errorbar(
        medians, places, xerr=(below, above), fmt=".", color="tab:blue", label="p50, 95 % interval"
    )
    tails = [(row["p99_us"], place) for place, row in zip(places, rows, strict=True)]
    known = [(tail, place) for tail, place in tails if tail is not None]
    axes.plot(
        [tail for tail, _ in known], [place for _, place in known], "r.", label="p99, where known"
    )
    axes.set_yticks(places, list(labelled), fontsize=6)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xscale("log")
    plain_times(axes.xaxis)
    axes.set_xlabel("microseconds")
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.legend(fontsize=7, loc="outside lower center", ncols=3)
    return figure


def _percentiles(rows: Mapping[str, Mapping[str, Any]]) -> "Figure":
    """Draw the percentile curve of each row, and the medians of their floors."""
    from matplotlib.figure import Figure

    if len(rows) > _CURVES_AT_MOST:
        raise NothingToPlot(
            f"{len(rows)} curves cannot be told apart: choose at most {_CURVES_AT_MOST} by --rows"
        )
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots()
    highest = 0.0
    for label, row in rows.items():
        percents, times = percentile_curve(row)
        highest = max([highest, *percents])
        (line,) = axes.plot([100.0 / (100.0 - p) for p in percents], times, label=label)
        axes.axhline(row["floor_p50_us"], color=line.get_color(), linestyle=":", alpha=0.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    shown = [percent for percent in _LABELLED if percent <= highest]
    axes.set_xticks([100.0 / (100.0 - p) for p in shown], [f"{p:g}" for p in shown])
    axes.xaxis.minorticks_off()
    plain_times(axes.yaxis)
    axes.set_xlabel("percentile; dotted: p50 of the row's floor")
    axes.set_ylabel("microseconds")
    axes.grid(visible=True, alpha=0.3)
    figure.legend(fontsize=7, loc="outside right upper")
    return figure


def percentile_curve(row: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return the percentiles that rest on enough samples, and their times in microseconds."""
    from hdrh.histogram import HdrHistogram

    histogram = HdrHistogram.decode(row["hdr_histogram"])
    count = histogram.get_total_count()
    percents = [p for p in _NINES if count * (100.0 - p) / 100.0 + 1e-6 >= _BEYOND]
    return percents, [histogram.get_value_at_percentile(p) / 1000.0 for p in percents]
