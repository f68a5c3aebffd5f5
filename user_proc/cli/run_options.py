"""Options that every benchmark has.

Rules: imported with the command line, so it imports nothing of weight.
"""

from typing import Annotated

import typer

JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the run document; - is standard output."),
]
CsvFile = Annotated[
    str | None,
    typer.Option("--csv", metavar="FILE", help="Write the rows as CSV; - is standard output."),
]
NoProgress = Annotated[
    bool, typer.Option("--no-progress", help="Show no progress on standard error.")
]
Tiny = Annotated[bool, typer.Option("--tiny", hidden=True)]
