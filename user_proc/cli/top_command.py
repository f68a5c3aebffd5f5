"""`softhca top`: what a running kernel does, again and again, as text or as JSON.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.runtime_folder import DEFAULT_INSTANCE
from user_proc.cli.kernel_command import Name, errors_as_json
from user_proc.cli.outcome import NOT_RUNNING, complain
from user_proc.errors import KernelDied, KernelNotRunning

if TYPE_CHECKING:
    from user_proc.top.sample import Watch

Show = Callable[[dict[str, Any]], None]


def top(
    name: Name = DEFAULT_INSTANCE,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="S", min=0.1, help="Seconds from one look to the next."),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Tell of one interval, then end.")] = False,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=1, help="Rows of each table, in words.")
    ] = 12,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, a line for each interval.")
    ] = False,
) -> None:
    """Show what a running kernel does: sessions, rates, queues, load, ports and queue pairs.

    On a terminal the picture is drawn anew after each interval, else the lines follow each other.
    It goes on until Ctrl-C, or until the kernel ends.
    """
    try:
        from user_proc.top.sample import Watch

        with errors_as_json(as_json):
            watch = Watch(name)
        with _shown(rows, as_json, once) as show:
            ended = _go_on(watch, interval, once, show)
    except KeyboardInterrupt:
        return
    if ended:
        if as_json:
            typer.echo(json.dumps({"error": ended}))
        complain(ended)
        raise typer.Exit(NOT_RUNNING)


def _go_on(watch: "Watch", interval: float, once: bool, show: Show) -> str:
    """Tell of interval after interval; return why there are no more, empty if that was wanted."""
    while True:
        try:
            sample = watch.next_sample(interval)
        except (KernelDied, KernelNotRunning):
            return f"the kernel {watch.name!r} has ended"
        show(sample)
        if once:
            return ""


@contextmanager
def _shown(rows: int, as_json: bool, once: bool) -> Iterator[Show]:
    """Give what shows a sample; a terminal is as it was before afterwards."""
    if as_json:
        yield _print_json
    elif once or not sys.stdout.isatty():
        yield lambda sample: _print_lines(sample, rows)
    else:
        yield from _live(rows)


def _print_json(sample: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(sample) + "\n")
    sys.stdout.flush()


def _print_lines(sample: dict[str, Any], rows: int) -> None:
    from user_proc.cli.top_view import lines_of_sample

    sys.stdout.writelines(f"{line}\n" for line in (*lines_of_sample(sample, rows), ""))
    sys.stdout.flush()


def _live(rows: int) -> Iterator[Show]:
    from rich.live import Live
    from rich.text import Text

    from user_proc.cli.top_view import lines_of_sample

    with Live(screen=True, auto_refresh=False) as live:
        live.update(Text("the first interval is running ..."), refresh=True)

        def draw(sample: dict[str, Any]) -> None:
            lines = lines_of_sample(sample, rows, live.console.width)
            text = Text("\n".join(lines), no_wrap=True, overflow="crop")
            live.update(text, refresh=True)

        yield draw
