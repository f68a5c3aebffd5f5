"""What an experiment is to the command that runs it.

Rules: an experiment ends whatever it started, whatever ends it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from user_proc.errors import SofthcaError

Row = dict[str, Any]
Result = dict[str, Any]
Progress = Callable[[int, int, str], None]


class ExperimentFailed(SofthcaError):
    """An experiment could not be run to its end."""


class Experiment(Protocol):
    """A question and what is run to answer it."""

    @property
    def name(self) -> str:
        """The name on the command line."""

    @property
    def question(self) -> str:
        """The question in one sentence."""

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Run it and return its rows; `quick` means fewer samples."""

    def verdict(self, rows: Sequence[Row]) -> str:
        """Answer the question in words, from these rows alone."""


def result_of(experiment: Experiment, rows: list[Row]) -> Result:
    """Return what the run document and the table have of an experiment."""
    return {
        "name": experiment.name,
        "question": experiment.question,
        "verdict": experiment.verdict(rows),
        "rows": rows,
    }
