"""A picture of a stress run: latencies by count of clients, and completions from second to second.

Rules: made from the document alone. matplotlib is imported when a plot is asked for, and only then.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from user_proc.bench.plot_view import NothingToPlot, plain_times, save_figure, use_matplotlib
from user_proc.stress.stress_view import AIM

_CURVES: Final = (
    ("control_p99_us", "control verb, p99", "tab:red", "o-"),
    ("control_p50_us", "control verb, p50", "tab:red", "o:"),
    ("floor_p99_us", "echo (its floor), p99", "tab:blue", "s-"),
    ("floor_p50_us", "echo (its floor), p50", "tab:blue", "s:"),
)


def plot_stress(document: Mapping[str, Any], destination: Path) -> None:
    """Draw a run to a file, whose ending is its format; ValueError for one nobody knows."""
    use_matplotlib()
    from matplotlib.figure import Figure

    if not document["counts"]:
        raise NothingToPlot("the run has no count of clients")
    figure = Figure(figsize=(9, 8), layout="constrained")
    above, below = figure.subplots(2)
    _latencies(above, document["counts"])
    _completions(below, document["rows"])
    save_figure(figure, document, destination)


def _latencies(axes: Any, counts: list[Mapping[str, Any]]) -> None:
    for name, label, colour, style in _CURVES:
        known = [(one["clients"], one[name]) for one in counts if one[name] is not None]
        if known:
            axes.plot(*zip(*known, strict=True), style, color=colour, label=label, markersize=4)
    floors = [(one["clients"], AIM * one["floor_p99_us"]) for one in counts if one["floor_p99_us"]]
    if floors:
        axes.plot(*zip(*floors, strict=True), "k_--", label=f"aim: {AIM:g} times the echo's p99")
    places = [one["clients"] for one in counts]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(places, [str(place) for place in places])
    axes.xaxis.minorticks_off()
    plain_times(axes.yaxis)
    axes.set_xlabel("clients")
    axes.set_ylabel("microseconds")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)


def _completions(axes: Any, rows: list[Mapping[str, Any]]) -> None:
    for count in sorted({row["clients"] for row in rows}):
        of_count = [row for row in rows if row["clients"] == count]
        seconds = [row["second"] for row in of_count]
        axes.plot(seconds, [row["completions"] for row in of_count], ".-", label=f"{count} clients")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("seconds since these clients began")
    axes.set_ylabel("completions a second")
    axes.grid(visible=True, alpha=0.3)
    if rows:
        axes.legend(fontsize=7)
