"""The commands that judge the code: each check runs, pytest has the last word, failure is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scripts.conftest import ProjectCopy

pytestmark = pytest.mark.processes

CHECKS = ["-m ruff check", "-m ruff format --check", "-m mypy", "lint-imports --no-logo"]


def checks(copy: ProjectCopy) -> list[str]:
    """The checks that ran, in order, after the set-up."""
    ran = [line for line in copy.log if not line.startswith(("venv", "pip"))]
    return [line.replace(f"{copy.venv}/bin/", "") for line in ran]


def test_all_checks_run_and_pytest_gets_the_arguments(copy: ProjectCopy):
    done = copy.run("-m", "stress", "tests/x y", script="scripts/test")
    assert done.returncode == 0
    assert checks(copy) == [*CHECKS, "-m pytest -m stress tests/x y"]
    assert done.stdout.endswith("output of pytest\n")
    assert "FAILED" not in done.stdout


@pytest.mark.parametrize("failing", ["ruff", "mypy", "lint-imports"])
def test_a_failed_check_fails_the_whole_and_stops_nothing(copy: ProjectCopy, failing: str):
    copy.switch(f"fail-{failing}", "3")
    done = copy.run(script="scripts/test")
    assert done.returncode == 1
    assert checks(copy) == [*CHECKS, "-m pytest"]
    assert done.stdout.endswith("output of pytest\n")
    assert "== FAILED: " in done.stdout


@pytest.mark.parametrize("also_failing", [False, True])
def test_the_exit_code_of_pytest_is_kept(copy: ProjectCopy, also_failing: bool):
    copy.switch("fail-pytest", "5")
    if also_failing:
        copy.switch("fail-mypy", "1")
    assert copy.run(script="scripts/test").returncode == 5


def test_a_check_that_failed_is_named(copy: ProjectCopy):
    copy.switch("fail-mypy", "1")
    copy.switch("fail-lint-imports", "1")
    assert "== FAILED: mypy, import rules (" in copy.run(script="scripts/test").stdout


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
    assert checks(copy)[-1] == "-m pytest"


def test_ci_ends_when_apt_fails(copy: ProjectCopy):
    copy.switch("no-ensurepip")
    copy.add_tool("apt-get", "exit 100")
    done = copy.run(script=".ci/run")
    assert done.returncode == 100
    assert copy.log == []
