"""Run documents as arguments of a command, and as what a command writes.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from user_proc.run_document import RunDocument

STANDARD_OUTPUT: Final = "-"


def read_run(file: Path, hint: str, others: Sequence[str] = ()) -> dict[str, Any]:
    """Return the run document in a file, a benchmark's or of one of `others`.

    A usage error says what is wrong with it.
    """
    from user_proc.bench.row_identity import SPECS
    from user_proc.run_document import DocumentError, load_strict

    try:
        document = load_strict(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(
            f"{file} cannot be read: {error.strerror}", param_hint=hint
        ) from None
    except (UnicodeDecodeError, DocumentError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint=hint) from None
    kinds = (*SPECS, *others)
    if document["kind"] not in kinds:
        raise typer.BadParameter(
            f"{file} is of the kind {document['kind']!r}; this takes {', '.join(kinds)}",
            param_hint=hint,
        )
    return document


def check_destinations(json_file: str | None, csv_file: str | None) -> None:
    """Refuse before the run what could not be written after it."""
    from user_proc.run_document import require_writable

    if json_file == csv_file == STANDARD_OUTPUT:
        raise typer.BadParameter("only one of --json and --csv can be standard output")
    for destination, option in ((json_file, "--json"), (csv_file, "--csv")):
        if destination is not None:
            try:
                require_writable(destination)
            except OSError as error:
                raise typer.BadParameter(str(error), param_hint=option) from None


def publish(
    document: "RunDocument",
    json_file: str | None,
    csv_file: str | None,
    as_csv: Callable[[Mapping[str, Any]], str],
) -> dict[str, Any]:
    """Write the document and its CSV view; return it as a strict reader sees it."""
    from user_proc.run_document import load_strict, write_text

    text = document.as_json()
    views = load_strict(text)
    if json_file is not None:
        write_text(json_file, text)
    if csv_file is not None:
        write_text(csv_file, as_csv(views))
    sys.stdout.flush()
    return views
