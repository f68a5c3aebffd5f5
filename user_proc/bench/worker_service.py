"""A user process of a benchmark as its other end sees it: commands by line, answers by line.

Started with `--crowd IN:OUT,...` a process becomes as many as there are pairs of descriptors, each
with such a pair as its standard input and output: what all of them import is imported once.

It reads commands from standard input, a JSON object a line, and answers each with one line; at
the end of its input, which the death of the benchmark brings about too, it ends. A command is
`{"do": name, ...}`; an answer has the asked-for members, or `error` with one sentence.

Rules: nothing is printed or parsed while something is timed.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TextIO

from user_proc.errors import SofthcaError

CROWD_OPTION: Final = "--crowd"


class Service(Protocol):
    """What carries out the commands."""

    def commands(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """Return the commands by name."""

    def close(self) -> None:
        """Leave the kernel, which need not be alive."""


def serve_worker(make: Callable[[str], Service], arguments: list[str]) -> int:
    """Be one worker, or a crowd of them: NAME [CPU] [--crowd IN:OUT,...]."""
    name, *others = arguments
    pairs: list[tuple[int, int]] = []
    if CROWD_OPTION in others:
        place = others.index(CROWD_OPTION)
        pairs = [_pair(text) for text in others[place + 1].split(",")]
        del others[place : place + 2]
    if others:
        os.sched_setaffinity(0, {int(others[0])})
    return _serve_crowd(make, name, pairs) if pairs else _serve_one(make, name)


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split(":")
    return int(first), int(second)


def _serve_crowd(make: Callable[[str], Service], name: str, pairs: list[tuple[int, int]]) -> int:
    """Fork a worker for each pair of descriptors, and end with the last of them."""
    gc.freeze()
    for own in pairs:
        if os.fork():
            continue
        for number, descriptor in enumerate(own):
            os.dup2(descriptor, number)
        _close_all(pairs)
        code = 1
        try:
            code = _serve_one(make, name)
        finally:
            os._exit(code)
    _close_all(pairs)
    worst = 0
    for _ in pairs:
        _, status = os.wait()
        worst = max(worst, os.waitstatus_to_exitcode(status) != 0)
    return worst


def _close_all(pairs: list[tuple[int, int]]) -> None:
    for pair in pairs:
        for descriptor in pair:
            os.close(descriptor)


def _serve_one(make: Callable[[str], Service], name: str) -> int:
    """Connect to the kernel of that name and serve; the first line says that it is ready."""
    # Whatever prints by mistake must not disturb the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        worker = make(name)
    except (SofthcaError, OSError) as error:
        answers.write(json.dumps({"error": str(error)}) + "\n")
        answers.close()
        return 1
    answers.write(json.dumps({"ready": os.getpid()}) + "\n")
    answers.flush()
    try:
        _serve(worker, sys.stdin, answers)
    except BrokenPipeError:
        # Nobody listens any more; flushing the rest at exit would only complain.
        worker.close()
        os._exit(1)
    worker.close()
    return 0


def _serve(worker: Service, commands: TextIO, answers: TextIO) -> None:
    """Answer commands until the other side closes its end."""
    known = worker.commands()
    for line in commands:
        answers.write(json.dumps(_answer(known, line)) + "\n")
        answers.flush()


def _answer(known: Mapping[str, Callable[..., dict[str, Any]]], line: str) -> dict[str, Any]:
    """Carry out one command; turn what is foreseen to go wrong into an answer."""
    command = json.loads(line)
    try:
        return known[command.pop("do")](**command)
    except (SofthcaError, OSError, MemoryError) as error:
        return {"error": str(error) or type(error).__name__}
