"""What every test has: a runtime folder of its own, repeatable examples, and a look for leftovers.

Rules: a process that outlives the run is an error of the run, whoever started it.
"""

import os
import select
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

RUN_VARIABLE = "SOFTHCA_TEST_RUN"
LEAVE_SECONDS = 5.0

settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests with real processes to one worker when the run is spread over several (-n)."""
    for item in items:
        if item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds the three packages."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def private_run() -> Iterator[Path]:
    """Give the run (or the worker) a short runtime folder of its own; then look for leftovers."""
    folder = Path(tempfile.mkdtemp(prefix="sht-"))
    run = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv(RUN_VARIABLE, run)
        yield folder
    try:
        left = [name for pid in processes_of(run) if (name := end_if_it_stays(pid))]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"processes outlived the tests: {left}"


def processes_of(run: str) -> list[int]:
    """The processes started with this run's variable in their environment."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def end_if_it_stays(pid: int) -> str:
    """Give a process time to leave; end one that does not, and return its description."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return ""
    try:
        if select.select([descriptor], [], [], LEAVE_SECONDS)[0]:
            return ""
        name = describe(pid)
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return name
    finally:
        os.close(descriptor)


def describe(pid: int) -> str:
    """Name a process by number and command line."""
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    return f"{pid} {b' '.join(words).decode(errors='replace').strip()}"
