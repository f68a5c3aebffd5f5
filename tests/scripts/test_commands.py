"""The commands that judge the code: each check runs, pytest has the last word, failure is kept."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scripts.conftest import ProjectCopy

pytestmark = pytest.mark.processes

REWRITING = "-m pytest --collect-only -qq"
CHECKS = ["-m ruff check", "-m ruff format --check", "-m mypy", "lint-imports --no-logo"]


def checks(copy: ProjectCopy) -> list[str]:
    """The checks that ran, in order, after the set-up."""
    ran = [line for line in copy.log if not line.startswith(("venv", "pip"))]
    names = [line.replace(f"{copy.venv}/bin/", "") for line in ran]
    return [name for name in names if name != REWRITING]  # beside them, at any time


def test_all_checks_run_and_pytest_gets_the_arguments(ready_for_tests: ProjectCopy):
    done = ready_for_tests.run("-m", "stress", "tests/x y", script="scripts/test")
    assert done.returncode == 0
    assert checks(ready_for_tests) == [*CHECKS, "-m pytest -m stress tests/x y"]
    assert REWRITING not in ready_for_tests.log
    assert done.stdout.endswith("output of pytest\n")
    assert "FAILED" not in done.stdout


def test_without_arguments_the_tests_are_spread_over_two_workers(ready_for_tests: ProjectCopy):
    ready_for_tests.run(script="scripts/test")
    assert checks(ready_for_tests)[-1] == "-m pytest -n 2"
    assert ready_for_tests.log.count(REWRITING) == 1
    ready_for_tests.run(script="scripts/test", PYTEST_ADDOPTS="-n 0")
    assert checks(ready_for_tests)[-1] == "-m pytest"


@pytest.mark.parametrize("failing", ["ruff", "mypy", "lint-imports"])
def test_a_failed_check_stops_nothing_and_is_told_to_pytest(
    ready_for_tests: ProjectCopy, failing: str
):
    ready_for_tests.switch(f"fail-{failing}", "3")
    done = ready_for_tests.run("-x", script="scripts/test")
    assert checks(ready_for_tests) == [*CHECKS, "-m pytest -x"]
    assert done.stdout.endswith("output of pytest\n")
    failed = done.stdout.partition("== FAILED: ")[2].partition(" (see above)")[0]
    assert failing.replace("lint-imports", "import rules") in failed
    assert f" failed={failed}\n" in done.stdout


def test_every_check_that_failed_is_named(ready_for_tests: ProjectCopy):
    ready_for_tests.switch("fail-mypy", "1")
    ready_for_tests.switch("fail-lint-imports", "1")
    assert "== FAILED: mypy, import rules (" in ready_for_tests.run(script="scripts/test").stdout


def test_pytest_takes_the_place_of_the_script_so_that_signals_and_its_code_count(
    ready_for_tests: ProjectCopy,
):
    ready_for_tests.switch("fail-pytest", "5")
    with ready_for_tests.start(script="scripts/test") as process:
        out, _ = process.communicate(timeout=30)
    assert f"pid={process.pid} failed=\n" in out
    assert process.returncode == 5


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_signal_in_a_check_ends_the_check_and_no_test_begins(
    ready_for_tests: ProjectCopy, number: signal.Signals, code: int
):
    ready_for_tests.have_wait("mypy")
    process = ready_for_tests.start(script="scripts/test")
    check = os.pidfd_open(int(ready_for_tests.wait_for("mypy")))
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors == ("" if code < 0 else "softhca: interrupted before the tests began\n")
    ended, _, _ = select.select([check], [], [], 30)
    os.close(check)
    assert ended
    assert checks(ready_for_tests) == CHECKS[:3]


def test_ci_takes_nothing_from_apt_when_python_is_complete(copy: ProjectCopy):
    copy.add_tool("apt-get", 'echo "apt-get $*" >>"$FAKE/log"')
    done = copy.run(script=".ci/run")
    assert done.returncode == 0
    assert not any(line.startswith("apt-get") for line in copy.log)
    assert done.stdout.endswith("output of pytest\n")


def test_ci_on_a_bare_machine_installs_what_the_set_up_needs_first(copy: ProjectCopy):
    copy.switch("no-ensurepip")
    copy.add_tool(
        "apt-get",
        'echo "apt-get $*" >>"$FAKE/log"; [ "$1" != install ] || /bin/rm "$FAKE/no-ensurepip"',
    )
    done = copy.run(script=".ci/run")
    assert done.returncode == 0, done.stderr
    apt = ["apt-get update -q", "apt-get install -y -q python3 python3-venv"]
    assert copy.log[:3] == [*apt, "venv by python3"]
    assert checks(copy)[-1] == "-m pytest -n 2"


def test_ci_ends_when_apt_fails(copy: ProjectCopy):
    copy.switch("no-ensurepip")
    copy.add_tool("apt-get", "exit 100")
    done = copy.run(script=".ci/run")
    assert done.returncode == 100
    assert copy.log == []
