"""The stages of requests as a table: a line a stage, a column a row.

Rules: made from the document alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from user_proc.bench.wording import microseconds, payload_text

_NAME_WIDTH: Final = 19
_WIDTH: Final = 13
_DASH: Final = "-"


def stage_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield the table and what its sums are compared with."""
    if not rows:
        return
    yield Text()
    yield Text("stages of a middle request, us, traced from the call to the return", style="bold")
    for key in ("path", "method", "completion"):
        yield _line("", (str(row[key]) for row in rows), "dim")
    yield _line("", (payload_text(row["payload"]) for row in rows), "dim")
    for index, stage in enumerate(rows[0]["stages"]):
        times = (row["stages"][index]["mean_us"] for row in rows)
        yield _line(stage["stage"], (microseconds(time) if time else _DASH for time in times))
    yield _line("sum of the stages", (microseconds(row["sum_us"]) for row in rows), "bold")
    yield _line("p50 without tracing", (microseconds(row["untraced_p50_us"]) for row in rows))
    yield _line("block by block:", iter(()))
    yield _line(" tracing costs", (_figure(row["tracing_cost_us"]) for row in rows))
    yield _line(" sum is more by", (_figure(row["sum_over_untraced_us"]) for row in rows))
    yield _line(
        " tracing explains",
        ("yes" if row["within_tracing_cost"] else "NO" for row in rows),
    )


def _line(name: str, cells: Iterator[str], style: str = "") -> Text:
    text = f"  {name:<{_NAME_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
    return Text(text, style=style)


def _figure(figure: Mapping[str, float]) -> str:
    """Return a figure with the larger distance to an end of its interval."""
    spread = max(figure["high"] - figure["value"], figure["value"] - figure["low"])
    return f"{figure['value']:.1f} +-{spread:.1f}"
