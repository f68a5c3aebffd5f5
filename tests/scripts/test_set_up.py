"""The set-up of .venv: when it is made, renewed and left alone, and what it says when it cannot."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scripts.conftest import ProjectCopy

pytestmark = pytest.mark.processes

MADE_ANEW = ["venv by python3", "pip -e ."]
ONCE = """\
setting up .venv (once)...
  making the virtual environment with python3...
  fetching and installing the packages with pip; the first time takes half a minute or more...
"""
INTERRUPTED = "softhca: the set-up of .venv was interrupted; the next start takes it up again\n"


def steps(copy: ProjectCopy) -> list[str]:
    """What the fake Python did, without the details of pip."""
    return [re.sub(r"^pip (\S+) in .*", r"pip -e \1", line) for line in copy.log]


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a start that failed."""
    assert (done.returncode, done.stdout) == (1, "")
    sentences = [line for line in done.stderr.splitlines() if line.startswith("softhca: ")]
    assert len(sentences) == 1, done.stderr
    assert done.stderr.endswith(f"{sentences[0]}\n")
    return sentences[0]


# --- made once ---------------------------------------------------------------------------------


def test_the_first_start_makes_the_environment_and_goes_on(copy: ProjectCopy):
    done = copy.run("bench", "two words", "*")
    assert done.returncode == 0
    assert re.sub(r"with /\S+/", "with ", done.stderr) == ONCE
    assert steps(copy) == MADE_ANEW
    words = [line for line in done.stdout.splitlines() if line.startswith("argument=")]
    assert words == ["argument=bench", "argument=two words", "argument=*"]


def test_the_sources_are_compiled_once_and_failing_at_it_is_no_failure(copy: ProjectCopy):
    copy.switch("compileall-fails")
    done = copy.run()
    assert done.returncode == 0
    assert done.stderr.endswith("the sources could not be compiled; processes start slower\n")
    compiled = (copy.fake / "compiled").read_text(encoding="utf-8").split("\n")[:-1]
    assert compiled == [f"{copy.root}/{room}" for room in ("kernel_proc", "shared", "user_proc")]
    (copy.fake / "compiled").unlink()
    copy.run()
    assert not (copy.fake / "compiled").exists()


def test_a_later_start_runs_no_set_up_and_says_nothing(ready: ProjectCopy):
    done = ready.run()
    assert (done.returncode, done.stderr, ready.log) == (0, "", [])


def test_the_command_takes_the_place_of_the_shell_so_that_signals_reach_it(ready: ProjectCopy):
    with ready.start() as process:
        out, _ = process.communicate(timeout=30)
    assert f"pid={process.pid}" in out.splitlines()


def test_the_callers_folder_is_kept_and_its_python_variables_are_not(copy: ProjectCopy):
    done = copy.run(PYTHONPATH="/foreign", PYTHONHOME="/foreign", VIRTUAL_ENV="/foreign")
    lines = done.stdout.splitlines()
    assert f"cwd={copy.base}/elsewhere" in lines
    assert {"home=unset", "path=unset", "virtual=unset"} <= set(lines)


def test_packages_go_into_the_environment_whatever_pip_is_told(copy: ProjectCopy):
    copy.run(PIP_TARGET="/t", PIP_PREFIX="/p", PIP_USER="1")
    assert copy.log[1] == f"pip . in {copy.root} user=0"


def test_a_start_through_a_symlink_finds_the_project(copy: ProjectCopy):
    link = copy.base / "elsewhere" / "softhca"
    link.symlink_to(copy.root / "scripts" / "softhca")
    assert copy.run(script=str(link)).returncode == 0
    assert copy.venv.is_dir()


def test_an_active_environment_of_the_project_does_not_make_itself(ready: ProjectCopy):
    (ready.venv / "softhca.stamp").write_text("unfinished\n")
    ready.forget()
    (ready.venv / "bin" / "python").rename(ready.venv / "bin" / "python3")
    done = ready.run(PATH=f"{ready.venv}/bin:{ready.bin}")
    assert (done.returncode, steps(ready)) == (0, MADE_ANEW)


# --- out of date -------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["pyproject.toml", "scripts/_setup.sh"])
def test_a_changed_source_of_the_set_up_runs_pip_again(ready: ProjectCopy, source: str):
    with (ready.root / source).open("a") as file:
        file.write("# changed\n")
    assert ready.run().stderr.startswith("setting up .venv (something is new)...\n  fetching and")
    assert steps(ready) == ["pip -e ."]
    ready.forget()
    ready.run()
    assert ready.log == []


def test_another_interpreter_below_makes_the_environment_anew(ready: ProjectCopy):
    (ready.venv / "left over").touch()
    os.utime(ready.venv / "bin" / "python", (1, 1))
    ready.run()
    assert steps(ready) == MADE_ANEW
    assert not (ready.venv / "left over").exists()


def test_a_clone_that_was_moved_makes_the_environment_anew(ready: ProjectCopy):
    ready.root = ready.root.rename(ready.base / "moved")
    assert ready.run().returncode == 0
    assert steps(ready) == MADE_ANEW
    assert str(ready.root) in ready.stamp


def test_an_environment_without_interpreter_is_made_anew(ready: ProjectCopy):
    (ready.venv / "bin" / "python").unlink()
    assert ready.run().returncode == 0
    assert steps(ready) == MADE_ANEW


def test_an_extra_is_added_once_and_kept(ready: ProjectCopy):
    ready.run(script="scripts/test")
    assert steps(ready)[0] == "pip -e .[test]"
    ready.forget()
    ready.run(script="scripts/test")
    ready.run()
    assert [line for line in steps(ready) if line.startswith(("pip", "venv"))] == []
    ready.change_project()
    ready.forget()
    ready.run()
    assert steps(ready) == ["pip -e .[test]"]


def test_an_environment_made_by_hand_is_used_and_nothing_in_it_is_lost(copy: ProjectCopy):
    (copy.venv / "bin").mkdir(parents=True)
    (copy.venv / "own").touch()
    (copy.venv / "bin" / "python").symlink_to(copy.bin / "python3")
    done = copy.run()
    assert (done.returncode, steps(copy)) == (0, ["pip -e ."])
    assert (copy.venv / "own").exists()


@pytest.mark.parametrize(("switch", "text"), [("no-pip", ""), ("python-version", "3.10.1")])
def test_an_environment_made_by_hand_that_does_not_fit_is_not_touched(
    copy: ProjectCopy, switch: str, text: str
):
    (copy.venv / "bin").mkdir(parents=True)
    (copy.venv / "bin" / "python").symlink_to(copy.bin / "python3")
    copy.switch(switch, text)
    said = refusal(copy.run())
    assert "was not made by this command" in said
    assert "move it away" in said
    assert copy.log == []


# --- interrupted, and several at once ------------------------------------------------------------


def test_a_set_up_that_was_killed_takes_its_pip_with_it_and_is_done_again(copy: ProjectCopy):
    copy.have_wait("pip")
    first = copy.start()
    copy.wait_for("pip")
    first.kill()
    # The pipes end when shell and pip, which both hold them, are gone.
    first.communicate(timeout=30)
    assert copy.stamp == "unfinished\n"

    second = copy.start()
    copy.wait_for("pip")
    copy.let_go("pip")
    out, errors = second.communicate(timeout=30)
    assert second.returncode == 0, errors
    assert out.startswith("pid=")
    assert steps(copy) == MADE_ANEW * 2


@pytest.mark.parametrize(
    ("number", "group", "code"),
    [
        (signal.SIGINT, True, 130),
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, False, 143),
        (signal.SIGHUP, False, 129),
    ],
)
def test_a_signal_ends_the_set_up_and_its_pip_in_one_sentence(
    copy: ProjectCopy, number: signal.Signals, group: bool, code: int
):
    copy.have_wait("pip")
    process = copy.start(own_group=True)
    copy.wait_for("pip")
    (os.killpg if group else os.kill)(process.pid, number)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, "")
    assert re.sub(r"with /\S+/", "with ", errors) == ONCE + INTERRUPTED
    assert copy.stamp == "unfinished\n"


def test_a_start_that_waits_for_another_set_up_can_be_ended(copy: ProjectCopy):
    copy.have_wait("pip")
    first = copy.start()
    copy.wait_for("pip")
    second = copy.start()
    assert second.stderr is not None
    assert second.stderr.readline() == "waiting for another set-up of this .venv to end...\n"
    second.terminate()
    assert second.communicate(timeout=30) == ("", INTERRUPTED)
    assert second.returncode == 143
    copy.let_go("pip")
    first.communicate(timeout=30)
    assert (first.returncode, steps(copy)) == (0, MADE_ANEW)


def test_a_change_made_while_pip_runs_is_seen_at_the_next_start(copy: ProjectCopy):
    copy.have_wait("pip")
    process = copy.start()
    copy.wait_for("pip")
    copy.change_project()
    copy.let_go("pip")
    process.communicate(timeout=30)
    for fifo in ("pip-waits", "pip-started"):
        copy.switch_off(fifo)
    copy.forget()
    copy.run()
    assert steps(copy) == ["pip -e ."]


def test_starts_at_the_same_time_make_one_environment(copy: ProjectCopy):
    starts = [copy.start() for _ in range(6)]
    ends = [process.communicate(timeout=30) for process in starts]
    assert [process.returncode for process in starts] == [0] * 6
    assert all(out.startswith("pid=") for out, _ in ends)
    assert steps(copy) == MADE_ANEW


# --- it cannot -----------------------------------------------------------------------------------


def test_a_failing_pip_names_network_and_configuration_and_is_tried_again(copy: ProjectCopy):
    copy.switch("pip-fails")
    said = refusal(copy.run())
    assert "check the network or pip's configuration" in said
    assert copy.stamp == "unfinished\n"
    copy.switch_off("pip-fails")
    copy.forget()
    assert copy.run().returncode == 0
    assert steps(copy) == MADE_ANEW


def test_a_failing_venv_is_said(copy: ProjectCopy):
    copy.switch("venv-fails")
    assert f"could not make {copy.venv}" in refusal(copy.run())


def test_a_python_that_is_too_old_is_named_with_the_cure(copy: ProjectCopy):
    copy.add_python("python3", "3.9.18")
    copy.add_python("python", "2.7.18")
    said = refusal(copy.run())
    assert "CPython 3.11 or later" in said
    assert "(python3 is 3.9.18, python is 2.7.18)" in said
    assert said.endswith("apt install python3 python3-venv")
    assert not copy.venv.exists()


@pytest.mark.parametrize(
    ("change", "unfit", "said"),
    [
        ("sys.version_info = (3, 11, 0)", 0, "3.11.0"),
        ("sys.version_info = (3, 14, 1)", 0, "3.14.1"),
        ("sys.version_info = (3, 10, 9)", 1, "3.10.9"),
        ("sys.version_info = (2, 7, 18)", 1, "2.7.18"),
        ("sys.version_info = (3, 12, 0); sys.implementation.name = 'pypy'", 1, "3.12.0 (pypy)"),
        (
            "sys.version_info = (3, 13, 0); import sysconfig; sysconfig.get_config_var = bool",
            1,
            "3.13.0 (free-threaded)",
        ),
    ],
)
def test_the_question_asked_of_an_interpreter(
    copy: ProjectCopy, change: str, unfit: int, said: str
):
    question = subprocess.check_output(
        ["bash", "-c", '. scripts/_setup.sh; printf %s "$fitness"'], cwd=copy.root, text=True
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; {change}\n{question}"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (unfit, f"{said}\n")


def test_a_python_that_is_missing_is_said_with_the_cure(copy: ProjectCopy):
    (copy.bin / "python3").unlink()
    said = refusal(copy.run())
    assert "was not found;" in said
    assert said.endswith("apt install python3 python3-venv")


def test_a_newer_python_under_its_own_name_is_found(copy: ProjectCopy):
    copy.add_python("python3", "3.9.18")
    copy.add_python("python3.12", "3.12.1")
    assert copy.run().returncode == 0
    assert copy.log[0] == "venv by python3.12"


def test_a_missing_ensurepip_names_the_package(copy: ProjectCopy):
    copy.switch("no-ensurepip")
    assert refusal(copy.run()).endswith("apt install python3-venv")


def test_another_system_is_refused(copy: ProjectCopy):
    copy.add_tool("uname", "echo Darwin")
    assert "Linux is needed and this is Darwin" in refusal(copy.run())


def test_a_folder_without_the_right_to_write_is_named(copy: ProjectCopy, another_user: int | None):
    copy.root.chmod(0o555)
    try:
        said = refusal(copy.run(user=another_user))
    finally:
        copy.root.chmod(0o755)
    assert f"cannot write to {copy.root}" in said


def test_a_ready_environment_needs_no_right_to_write(ready: ProjectCopy, another_user: int | None):
    ready.root.chmod(0o555)
    try:
        assert ready.run(user=another_user).returncode == 0
    finally:
        ready.root.chmod(0o755)
