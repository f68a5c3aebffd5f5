"""What every test has: a runtime folder of its own, repeatable examples, and a look for leftovers.

Rules: a process that outlives the run is an error of the run, whoever started it. A run that is
    interrupted, or asked to end, ends its processes and complains of none. What failed before the
    tests (scripts/test says it in the environment) makes the run fail at its end.
"""

import contextlib
import gc
import os
import re
import select
import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
from hypothesis import settings

RUN_VARIABLE = "SOFTHCA_TEST_RUN"
FAILED_CHECKS = "SOFTHCA_FAILED_CHECKS"
ONLY_WHEN_NAMED = ("stress", "benchmark")
LEAVE_SECONDS = 5.0
MOST_LOOKS = 10  # for processes that stay
BEGIN_WITH = ("test_stress.py",)

settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

failed_checks = pytest.StashKey[str]()
not_named = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Take what scripts/test left, and let SIGTERM and SIGHUP end the run as Ctrl-C does."""
    config.stash[failed_checks] = os.environ.pop(FAILED_CHECKS, "")
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, partial(end_as_by_ctrl_c, config))


def end_as_by_ctrl_c(config: pytest.Config, number: int, frame: FrameType | None) -> NoReturn:
    """Interrupt the run, and the workers (-n), whom Ctrl-C reaches by itself."""
    if config.pluginmanager.has_plugin("dsession"):  # then its children are the workers alone
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                os.kill(int(pid), number)
    signal.default_int_handler(number, frame)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the kinds that -m does not name; workers (-n) begin with the longest file."""
    named = re.findall(r"\w+", config.option.markexpr or "")
    kinds = [kind for kind in ONLY_WHEN_NAMED if kind not in named]
    left_out = [item for item in items if any(map(item.get_closest_marker, kinds))]
    if left_out:
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)
    config.stash[not_named] = len(left_out)
    if hasattr(config, "workerinput"):  # the longest file must not be the last one
        items.sort(key=lambda item: item.path.name not in BEGIN_WITH)


def pytest_collection_finish() -> None:
    """Spare the garbage collector most looks.

    Each of the many machines makes ten thousand objects at once, and none of them is garbage.
    """
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Spare the garbage collector what stays until the end: thousands of tests, and their results.

    Tests that ask for a collection, some at every step, would wait for it.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Say why a run without a failed test is not a good one."""
    if config.stash[failed_checks]:
        terminalreporter.write_line(
            f"FAILED before the tests: {config.stash[failed_checks]}", red=True
        )
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        count = config.stash.get(not_named, 0)
        kinds = " or ".join(ONLY_WHEN_NAMED)
        hint = f"; {count} were left out, since -m names no {kinds}" if count else ""
        terminalreporter.write_line(
            f"NOTHING WAS TESTED: no test fits the arguments{hint}; the exit code is 5", red=True
        )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for a check that failed before it; a worse end of pytest itself is kept."""
    good = session.exitstatus == pytest.ExitCode.OK
    if good and session.config.stash[failed_checks]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds the three packages."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def private_run(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Give the run (or the worker) a short runtime folder of its own; then look for leftovers."""
    folder = Path(tempfile.mkdtemp(prefix="sht-"))
    run = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv(RUN_VARIABLE, run)
        yield folder
    interrupted = request.session.exitstatus == pytest.ExitCode.INTERRUPTED
    try:
        ends = []
        for _ in range(MOST_LOOKS):  # one that is just being begun is seen next time
            if not (found := processes_of(run)):
                break
            ends += [end_if_it_stays(pid, ask=interrupted) for pid in found]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    left = [name for name in ends if name]
    assert interrupted or not left, f"processes outlived the tests: {left}"


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


def end_if_it_stays(pid: int, ask: bool) -> str:
    """Give a process time to leave, having asked it or not; end and describe one that stays."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return ""
    try:
        if ask:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
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
