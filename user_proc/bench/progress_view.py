"""Progress of a long run on standard error: a bar on a terminal, else a line now and then.

Rules: called between blocks only, and shown at most once a second.
"""

import sys
from types import TracebackType
from typing import Final, Protocol

from shared.clock import now_ns

_EVERY_NS: Final = 1_000_000_000


class Progress(Protocol):
    """Where a run tells how far it is."""

    def advance(self, done: int, total: int, text: str) -> None:
        """Tell that `done` of `total` steps are finished and `text` comes next."""

    def __enter__(self) -> "Progress": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class NoProgress:
    """Shows nothing."""

    def advance(self, done: int, total: int, text: str) -> None:
        """Take note of nothing."""

    def __enter__(self) -> "NoProgress":
        return self

    def __exit__(self, *details: object) -> None:
        return None


class LineProgress(NoProgress):
    """A plain line, at most once a second, for logs and pipes."""

    def __init__(self) -> None:
        self._last_ns = now_ns()

    def advance(self, done: int, total: int, text: str) -> None:
        """Write a line if the last one is a second old."""
        if now_ns() - self._last_ns >= _EVERY_NS:
            self._last_ns = now_ns()
            print(f"{100 * done // total:3} %  {text}", file=sys.stderr, flush=True)


class BarProgress(NoProgress):
    """A bar with the time left, drawn from here only: no thread of its own disturbs the run."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.percentage:3.0f} %"),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._last_ns = 0

    def advance(self, done: int, total: int, text: str) -> None:
        """Move the bar, and draw it if the last drawing is a second old."""
        self._bar.update(self._task, completed=done, total=total, description=text)
        if now_ns() - self._last_ns >= _EVERY_NS:
            self._last_ns = now_ns()
            self._bar.refresh()

    def __enter__(self) -> "BarProgress":
        self._bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._bar.stop()


def make_progress(wanted: bool) -> Progress:
    """Return the progress that fits standard error."""
    if not wanted:
        return NoProgress()
    return BarProgress() if sys.stderr.isatty() else LineProgress()
