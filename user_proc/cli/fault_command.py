"""`softhca fault points|set|clear|list`: things that go wrong in a running kernel, on purpose.

With `--json` whatever goes wrong is told on standard output too, as an object with "error".

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.runtime_folder import DEFAULT_INSTANCE
from user_proc.cli.help_pages import Command, Group
from user_proc.cli.kernel_command import AsJson, Name, errors_as_json
from user_proc.cli.outcome import WRONG_USAGE, complain

if TYPE_CHECKING:
    from shared.fault_messages import Fault

fault_commands = typer.Typer(cls=Group, no_args_is_help=True)

_MS = 1_000_000


@fault_commands.callback(cls=Group)
def fault() -> None:
    """Have things go wrong in a running kernel or its HCA, as a program must expect of hardware.

    A fault strikes where it is set; everything else goes on. Without one nothing is paid for that.
    """


@fault_commands.command("points", cls=Command)
def points(as_json: AsJson = False) -> None:
    """Tell where faults can be set, what each takes, and what a program sees of it."""
    from user_proc.cli.columns import Column, lines_of, terminal_width

    rows = _points()
    if as_json:
        typer.echo(json.dumps(rows))
        return
    keys = {
        "point": "POINT", "needs": "NEEDS", "happens": "WHAT HAPPENS", "takes": "MAY HAVE",
    }  # fmt: skip
    columns = [Column(key, title) for key, title in keys.items()]
    for line in lines_of(columns, rows, terminal_width()):
        typer.echo(line)


@fault_commands.command("set", cls=Command)
def set_one(
    point: Annotated[
        str | None, typer.Argument(metavar="[POINT]", help="See: softhca fault points.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="every=10, queue-pair=0x405, time=20ms."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Set the faults of a TOML file.")
    ] = None,
    name: Name = DEFAULT_INSTANCE,
    as_json: AsJson = False,
) -> None:
    """Set a fault, or those of a file.

    nth=N strikes the N-th call that fits, every=N each N-th, probability=P (with seed=N) some,
    and nothing of these all; times=N is at most how many. Those whose time is over end by
    themselves, all others when they are cleared or the kernel ends.
    """
    if (point is None) == (file is None):
        complain("name either a POINT or a file by --file; 'softhca fault points' lists the points")
        raise typer.Exit(WRONG_USAGE)
    with errors_as_json(as_json):
        faults = _faults(point, values or [], file)
        numbers = _set(name, faults)
    if as_json:
        typer.echo(json.dumps({"name": name, "numbers": numbers}))
        return
    for number, one in zip(numbers, faults, strict=True):
        typer.echo(f"fault {number} is set in kernel {name!r}: {one.point}")


@fault_commands.command("clear", cls=Command)
def clear(
    point: Annotated[
        str | None, typer.Argument(metavar="[POINT]", help="Only the faults of this point.")
    ] = None,
    name: Name = DEFAULT_INSTANCE,
    as_json: AsJson = False,
) -> None:
    """Take faults back: all, or those of a point."""
    from user_proc.faults.fault_control import clear_faults
    from user_proc.faults.fault_values import require_point
    from user_proc.process import UserProcess

    with errors_as_json(as_json):
        if point is not None:
            require_point(point)
        with UserProcess.connect(name) as process:
            count = clear_faults(process, point or "")
    if as_json:
        typer.echo(json.dumps({"name": name, "cleared": count}))
        return
    typer.echo(f"{count} fault{'' if count == 1 else 's'} of kernel {name!r} cleared")


@fault_commands.command("list", cls=Command)
def list_set(name: Name = DEFAULT_INSTANCE, as_json: AsJson = False) -> None:
    """List the faults that are set, with how many calls fitted each and how many it struck."""
    from user_proc.faults.fault_control import list_faults
    from user_proc.process import UserProcess

    with errors_as_json(as_json), UserProcess.connect(name) as process:
        faults, why_old = list_faults(process)
    if why_old:
        complain(f"{why_old}: calls and hits of the HCA's own faults are not shown")
    if as_json:
        typer.echo(json.dumps(faults))
        return
    if not faults:
        typer.echo(f"no fault is set in kernel {name!r}")
        return
    from user_proc.cli.columns import Column, lines_of

    rows = [{**one, "given": _given(one)} for one in faults]
    keys = {"number": "#", "point": "POINT", "given": "SET WITH", "calls": "CALLS", "hits": "HITS"}
    for line in lines_of([Column(key, title) for key, title in keys.items()], rows):
        typer.echo(line)


def _points() -> list[dict[str, Any]]:
    from shared.fault_points import COUNTED, FAULT_POINTS, word_of
    from user_proc.faults.fault_words import FAULT_WORDS

    return [
        {
            "point": name,
            "place": point.place,
            "needs": ", ".join(
                (*map(word_of, point.needs), *(("session or process",) * point.of_somebody))
            ),
            "takes": ", ".join((*map(word_of, point.takes), *(COUNTED if point.counts else ()))),
            "happens": FAULT_WORDS[name].happens,
            "seen": FAULT_WORDS[name].seen,
        }
        for name, point in FAULT_POINTS.items()
    ]


def _faults(point: str | None, values: list[str], file: Path | None) -> "tuple[Fault, ...]":
    from user_proc.faults.fault_file import read_fault_file
    from user_proc.faults.fault_values import FaultFileError, parse_fault

    if file is not None:
        return read_fault_file(file)
    given: dict[str, str] = {}
    for value in values:
        word, sign, text = value.partition("=")
        if not sign or word in given:
            raise FaultFileError(f"{value!r} is no NAME=VALUE, or the second of its name")
        given[word] = text
    return (parse_fault(point or "", given),)


def _set(name: str, faults: "tuple[Fault, ...]") -> list[int]:
    from user_proc.faults.fault_control import set_fault
    from user_proc.process import UserProcess

    with UserProcess.connect(name) as process:
        return [set_fault(process, one) for one in faults]


def _given(row: dict[str, Any]) -> str:
    left_out = ("number", "point", "calls", "hits")
    parts = []
    for word, value in row.items():
        if word.endswith("_ns"):
            parts.append(f"{word.removesuffix('_ns')}={value / _MS:g}ms")
        elif word not in left_out:
            parts.append(f"{word}={value}")
    return " ".join(parts)
