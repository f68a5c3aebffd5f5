"""The CSV view of a run document: one line per row.

Rules: made from the document alone; what is None is an empty field, as CSV has no null; true and
false are written as in JSON; the members of a list are parted by spaces.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

COLUMNS: Final = (
    "client",
    "path",
    "method",
    "memory",
    "completion",
    "payload",
    "depth",
    "processes",
    "verifier",
    "count",
    "blocks",
    "p50_us",
    "p90_us",
    "p99_us",
    "p999_us",
    "max_us",
    "mean_us",
    "ops_per_s",
    "elapsed_us",
    "copies",
    "bytes_copied",
    "wire_bytes",
    "cpu_user_us",
    "cpu_kernel_us",
    "floor",
    "floor_p50_us",
    "ratio",
    "convention",
)


def rows_as_csv(document: Mapping[str, Any], columns: Sequence[str] = COLUMNS) -> str:
    """Return the rows of a run document as CSV text with a line of names first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in document["rows"]:
        writer.writerow([_field(row[name]) for name in columns])
    return text.getvalue()


def _field(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else value
