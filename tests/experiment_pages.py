"""What the page of an experiment says of the columns of its rows."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"


def page_of(name: str) -> Path:
    """Where the page of an experiment lies."""
    return DOCS / f"experiments-{name}.md"


def unexplained(name: str, rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys of rows that the page does not name; the number in a key may be dots there."""
    named = set(re.findall(r"`([a-z0-9_.]+)`", page_of(name).read_text(encoding="utf-8")))
    keys = {key for row in rows for key in row}
    return {key for key in keys if key not in named and re.sub(r"_\d+", "_...", key) not in named}
