"""Experiments that run inside an emulated machine, in a child process of the command's.

Rules: the child ends with this process, however that ends.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Final

from user_proc.experiments.experiment import ExperimentFailed, Progress, Result
from user_proc.transport.child_environment import child_environment

_MODULE: Final = "kernel_proc.experiments"


def listed() -> dict[str, str]:
    """Return the questions of all experiments that run inside a machine, by name."""
    with _lines("--list") as lines:
        return {one["name"]: one["question"] for one in lines}


def run_in_child(name: str, quick: bool, progress: Progress) -> Result:
    """Run one of them; ExperimentFailed says why it did not end as it should."""
    result: Result | None = None
    with _lines(name, *(["--quick"] if quick else [])) as lines:
        for one in lines:
            if "progress" in one:
                progress(*one["progress"])
            else:
                result = one
    if result is None:
        raise ExperimentFailed(f"the experiment {name!r} ended without a result")
    return result


@contextlib.contextmanager
def _lines(*arguments: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Start the child and give the objects it writes; it has ended when this is left."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment(),
            process_group=0,  # Ctrl-C in the terminal is the command's to handle
        )
        assert child.stdout is not None
        with child.stdout:
            try:
                yield map(json.loads, child.stdout)
            except BaseException:
                child.kill()
                raise
            finally:
                code = child.wait()
        if code:
            errors.seek(0)
            last = [line.strip() for line in errors if line.strip()][-1:]
            why = f": {last[0]}" if last else ""
            raise ExperimentFailed(f"{_MODULE} {arguments[0]} ended with {code}{why}")
