"""Programs as files, and their reduction: what a failing run leaves to be seen again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from user_proc.stress.program_trial import Found, Trials
from user_proc.stress.reducer import Reducer
from user_proc.stress.step_table import Step, UnknownStep, check_steps
from user_proc.stress.stress_result import Failure
from user_proc.stress.stress_settings import StressSettings

_REPLAY_S: Final = 60.0


def read_program(path: Path) -> list[Step]:
    """Return the steps in a file: a list, `{"steps": ...}`, or a run document of a failing run.

    UnknownStep or OSError says why there are none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownStep(f"not JSON: {error}") from error
    if isinstance(value, dict) and value.get("kind") == "stress":
        value = value.get("reduced") or next(iter(value.get("failures", [])), {})
    if isinstance(value, dict):
        value = value.get("steps")
    return check_steps(value)


def program_text(steps: Sequence[Step]) -> str:
    """Return a program as JSON, a step a line."""
    lines = ",\n".join(json.dumps(one) for one in steps)
    return f"[\n{lines}\n]\n"


def replay(settings: StressSettings, steps: Sequence[Step]) -> Found | None:
    """Do a program once at a kernel of its own; return what it found."""
    with Trials(settings) as trials:
        return trials.run(steps, _REPLAY_S)


def reduce_failure(settings: StressSettings, failure: Failure) -> dict[str, Any]:
    """Find the shortest program that finds the same as a failure, as far as time permits."""
    with Trials(settings) as trials:

        def still_fails(steps: Sequence[Step]) -> bool:
            found = trials.run(steps)
            return found is not None and found["kind"] == failure.kind

        reducer = Reducer(still_fails, settings.reduce_seconds)
        left = reducer.reduce(failure.steps)
    return {
        "reproduced": left is not None,
        "tried": reducer.tried,
        "steps": [list(one) for one in (failure.steps if left is None else left)],
    }
