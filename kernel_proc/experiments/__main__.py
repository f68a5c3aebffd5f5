"""Experiments as a process: python -P -m kernel_proc.experiments NAME [--quick] | --list.

Standard output has one JSON object a line: `{"progress": [done, total, text]}` while it runs, then
`{"name", "question", "verdict", "rows"}`. `--list` writes `{"name", "question"}` for each.

Rules: it ends with its parent, as nobody reads it then.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
from typing import Any, Final

from kernel_proc.experiments.catalogue import EXPERIMENTS

_PR_SET_PDEATHSIG: Final = 1


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def _progress(done: int, total: int, text: str) -> None:
    _say({"progress": [done, total, text]})


def main() -> int:
    """Run one experiment, or list them."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(
        prog="python -P -m kernel_proc.experiments", allow_abbrev=False
    )
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("name", nargs="?", choices=sorted(EXPERIMENTS))
    wanted.add_argument("--list", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    if options.list:
        for one in EXPERIMENTS.values():
            _say({"name": one.name, "question": one.question})
        return 0
    experiment = EXPERIMENTS[options.name]
    rows = experiment.run(options.quick, _progress)
    result = {
        "name": experiment.name,
        "question": experiment.question,
        "verdict": experiment.verdict(rows),
        "rows": rows,
    }
    _say(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
