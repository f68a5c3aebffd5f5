"""What was there before a set-up that failed or was ended: kept, and used where it suffices."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scripts.conftest import ProjectCopy

pytestmark = pytest.mark.processes

GOING_ON = "going on with it as it was"


@pytest.fixture
def ready(ready: ProjectCopy) -> ProjectCopy:
    """A copy whose environment is complete, and holds a file that only a new one would lack."""
    (ready.venv / "kept").touch()
    return ready


@pytest.fixture
def ready_for_tests(ready_for_tests: ProjectCopy) -> ProjectCopy:
    """The same with what the tests need."""
    (ready_for_tests.venv / "kept").touch()
    return ready_for_tests


def sentences(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if line.startswith("softhca: ")]


def test_an_extra_that_cannot_be_had_leaves_the_environment_to_the_command(ready: ProjectCopy):
    before = ready.stamp
    ready.switch("pip-fails")
    done = ready.run(script="scripts/test")
    assert (done.returncode, done.stdout) == (1, "")
    assert [".venv stays as it was" in line for line in sentences(done.stderr)] == [True]
    assert ready.stamp == before
    later = ready.run()
    assert (later.returncode, later.stderr) == (0, "")
    assert (ready.venv / "kept").exists()


@pytest.mark.parametrize(
    ("state", "script"), [("ready", "scripts/softhca"), ("ready_for_tests", "scripts/test")]
)
def test_a_refresh_that_cannot_be_had_is_said_and_the_command_goes_on(
    request: pytest.FixtureRequest, state: str, script: str
):
    ready = request.getfixturevalue(state)
    ready.change_project()
    ready.switch("pip-fails")
    done = ready.run(script=script)
    assert done.returncode == 0
    assert done.stdout
    assert [GOING_ON in line for line in sentences(done.stderr)] == [True]
    ready.switch_off("pip-fails")
    ready.forget()
    assert GOING_ON not in ready.run(script=script).stderr
    assert ready.log[0].startswith("pip ")
    assert (ready.venv / "kept").exists()
    assert not (ready.venv / "softhca.stamp.before").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_refresh_that_is_ended_before_pip_changed_anything_loses_nothing(
    ready: ProjectCopy, number: signal.Signals
):
    ready.change_project()
    ready.have_wait("pip")
    process = ready.start()
    ready.wait_for("pip")
    process.send_signal(number)
    process.communicate(timeout=30)
    for fifo in ("pip-waits", "pip-started"):
        ready.switch_off(fifo)
    ready.switch("pip-fails")
    done = ready.run()
    assert done.returncode == 0
    assert GOING_ON in done.stderr
    assert (ready.venv / "kept").exists()


def test_a_refresh_that_failed_half_way_is_begun_again_from_an_empty_folder(ready: ProjectCopy):
    ready.change_project()
    ready.switch("pip-fails")
    ready.switch("pip-changes")
    done = ready.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert "could not install" in sentences(done.stderr)[0]
    ready.switch_off("pip-fails")
    ready.forget()
    assert ready.run().returncode == 0
    assert ready.log[0] == "venv by python3"
    assert not (ready.venv / "kept").exists()


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_an_environment_made_by_hand_is_never_emptied(
    copy: ProjectCopy, changes: bool, known: bool
):
    (copy.venv / "bin").mkdir(parents=True)
    (copy.venv / "own").touch()
    (copy.venv / "bin" / "python").symlink_to(copy.bin / "python3")
    if known:
        assert copy.run().returncode == 0
        copy.root = copy.root.rename(copy.base / "moved")
    copy.switch("pip-fails")
    if changes:
        copy.switch("pip-changes")
    assert copy.run().returncode == 1
    copy.switch_off("pip-fails")
    copy.forget()
    assert copy.run().returncode == 0
    assert [line.split()[0] for line in copy.log] == ["pip"]
    assert (copy.venv / "own").exists()
    assert copy.stamp.endswith("\nnone\nhand\n")


def test_a_stamp_without_the_last_line_counts_as_our_own(ready: ProjectCopy):
    stamp = ready.venv / "softhca.stamp"
    stamp.write_text("".join(stamp.read_text().splitlines(keepends=True)[:3]))
    assert ready.run().returncode == 0
    assert ready.log == []
