"""By what a row of a run document is told from the others of its run, whatever was measured.

Rules: a factor that a document does not have, as it is older, has its default.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from user_proc.bench.row_plan import RowSpec
from user_proc.bench.speed.speed_rows import SpeedSpec
from user_proc.bench.verbs.verb_results import VerbSpec

AnySpec = RowSpec | VerbSpec | SpeedSpec

#: Of what kind the rows of a run are.
SPECS: Final[Mapping[str, type[AnySpec]]] = {
    "irp": RowSpec,
    "verbs": VerbSpec,
    "speed": SpeedSpec,
}


def spec_of(kind: str, row: Mapping[str, Any]) -> AnySpec:
    """Return the row whose factors stand among the values of a document's row."""
    spec = SPECS[kind]
    return spec(**{field.name: row[field.name] for field in fields(spec) if field.name in row})
