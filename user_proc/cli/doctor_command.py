"""`softhca doctor`: what this machine lacks, and what dead kernels have left on it.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from user_proc.cli.outcome import FAILED, ending_signals
from user_proc.cli.run_options import JsonFile

if TYPE_CHECKING:
    from user_proc.doctor.check import Check


def doctor(
    json_file: JsonFile = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="First remove what dead kernels left: their folders with logs, and HCA processes "
            "without a kernel; nothing else.",
        ),
    ] = False,
) -> None:
    """Say what this machine lacks for SoftHCA, and what cures it.

    Each thing is tried as it is used; at last a kernel is started, used and stopped. A warning is
    something one can do without. Exit code 1 if something is missing, else 0.
    """
    from user_proc.cli.run_files import STANDARD_OUTPUT, check_destinations
    from user_proc.doctor import leftovers
    from user_proc.doctor.diagnosis import diagnose, document_parts, is_well
    from user_proc.run_document import other_document, write_text
    from user_proc.run_provenance import begin_provenance, end_provenance

    check_destinations(json_file, None)
    begun = begin_provenance()
    cleaned = leftovers.clean() if clean else []
    with ending_signals():
        checks = diagnose()
    if json_file is not None:
        parts = document_parts(checks, cleaned)
        provenance = end_provenance(begun, [])
        write_text(json_file, other_document("doctor", provenance, {"clean": clean}, parts))
    if json_file != STANDARD_OUTPUT:
        for line in _lines(checks, cleaned, clean):
            typer.echo(line)
    if not is_well(checks):
        raise typer.Exit(FAILED)


def _lines(checks: "Sequence[Check]", cleaned: Sequence[str], clean: bool) -> Iterator[str]:
    from user_proc.cli.columns import text_of

    for thing in cleaned:
        yield f"removed  {text_of(thing)}"
    if clean and not cleaned:
        yield "removed  nothing: dead kernels have left nothing"
    width = max(len(check.name) for check in checks)
    indent = " " * (9 + width)
    for check in checks:
        yield f"{check.state.value:<7}  {check.name:<{width}}  {text_of(check.found)}"
        if check.cure:
            yield f"{indent}  cure: {text_of(check.cure)}"
    yield _summary(checks)


def _summary(checks: "Sequence[Check]") -> str:
    from user_proc.doctor.check import State

    lacking = [check.name for check in checks if check.state is State.MISSING]
    warnings = sum(check.state is State.WARNING for check in checks)
    note = f"; {warnings} warning{'' if warnings == 1 else 's'}" if warnings else ""
    if lacking:
        return f"missing: {', '.join(lacking)}{note}"
    return f"nothing is missing{note}"
