"""Run documents as arguments of a command.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from pathlib import Path
from typing import Any

import typer


def read_run(file: Path, hint: str) -> dict[str, Any]:
    """Return the benchmark's run document in a file; a usage error says what is wrong with it."""
    from user_proc.run_document import DocumentError, load_strict

    try:
        document = load_strict(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DocumentError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint=hint) from None
    if document["kind"] != "irp":
        raise typer.BadParameter(
            f"{file} is a run of another kind: {document['kind']}", param_hint=hint
        )
    return document
