"""Launches of real processes, and a look for what they leave."""

import os
import select
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from user_proc.groups.group_plan import Group, LaunchPlan
from user_proc.groups.supervisor import Supervisor, Verdict

MARK = "SOFTHCA_GROUPS_TEST"
GONE_SECONDS = 5.0
LOOK_SECONDS = 0.02  # between two looks at all processes

Supervise = Callable[..., tuple[Verdict, Supervisor]]


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark that everything started from here carries; nothing of it may be left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    assert left_of(value) == []


def left_of(mark: str, seconds: float = GONE_SECONDS) -> list[str]:
    """Return the command lines of what carries the mark still, after some time to end."""
    deadline = time.monotonic() + seconds
    while True:
        found = commands_of(mark)
        if not found or time.monotonic() > deadline:
            return found
        select.select([], [], [], LOOK_SECONDS)


def marked(mark: str) -> list[int]:
    """Return the processes that carry the mark, but for this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def commands_of(mark: str) -> list[str]:
    """Return number and command line of each process that carries the mark."""
    return [text for text in map(_command_of, marked(mark)) if text]


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
    return f"{pid} {words}" if words else ""


@pytest.fixture
def supervise(mark: str, tmp_path: Path) -> Supervise:
    """Supervise groups without a kernel to their end."""

    def run(
        *groups: Group, between: Callable[[Supervisor], None] | None = None, **options: object
    ) -> tuple[Verdict, Supervisor]:
        plan = LaunchPlan(groups, folder=tmp_path, time_limit=30.0, grace=0.3)
        plan = replace(plan, **options)  # type: ignore[arg-type]  # the test's own names
        with Supervisor(plan, "none", tmp_path) as supervisor:
            while not supervisor.is_over:
                supervisor.step(0.2)
                if between is not None:
                    between(supervisor)
            verdict = supervisor.conclude()
        assert not (tmp_path / "exchange").exists()
        return verdict, supervisor

    return run
