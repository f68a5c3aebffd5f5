"""What tests/conftest.py does to a run as a whole: its kinds, its end, its leftovers."""

import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ready_python import Program, ReadyPython

pytestmark = pytest.mark.processes

INI = """\
[pytest]
addopts = --import-mode=importlib --dist loadgroup -p no:cacheprovider
filterwarnings = error
markers =
    processes: x
    stress: x
    benchmark: x
"""
KINDS = """\
import pytest
def test_plain(): pass
@pytest.mark.processes
def test_processes(): pass
@pytest.mark.stress
def test_stress(): pass
@pytest.mark.benchmark
@pytest.mark.processes
def test_benchmark(): pass
"""
#: A fixture that starts a process and is never told that it is ready.
STARTING = """\
import os, pytest
@pytest.fixture
def kernel():
    never, writer = os.pipe()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ, setsid=True)
    with open(os.environ["PLACE"], "w") as place:
        place.write(f"{pid}\\n")
    os.read(never, 1)
def test_it(kernel): pass
"""
LEAVING = """\
import os
def test_it():
    os.posix_spawn("/bin/sleep", ["sleep", "SECONDS"], os.environ)
"""


#: What the conftest.py has of hypothesis; importing that is most of a small run.
HYPOTHESIS = """\
class settings:
    def register_profile(*arguments, **values): pass
    load_profile = register_profile
"""


#: A run as by -m pytest, told where the stand-ins are; all that it says is its output.
PYTEST = """
import os, runpy, sys
os.dup2(1, 2)
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
"""


class SmallProject:
    """One file of tests under the project's own conftest.py, its patience shortened."""

    def __init__(self, folder: Path, conftest: str, ready: ReadyPython) -> None:
        self.folder = folder
        self._ready = ready
        (folder / "pytest.ini").write_text(INI)
        (folder / "imported").mkdir()
        (folder / "imported" / "hypothesis.py").write_text(HYPOTHESIS)
        patient = "LEAVE_SECONDS = 5.0"
        assert patient in conftest
        (folder / "conftest.py").write_text(conftest.replace(patient, "LEAVE_SECONDS = 1.0"))

    def start(self, code: str, *arguments: str, **more: str) -> Program:
        (self.folder / "test_it.py").write_text(code)
        unset = ("SOFTHCA_FAILED_CHECKS", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PLACE")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        imported = str(self.folder / "imported")
        plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": imported}
        return self._ready.start(
            PYTEST,
            *(imported, "-p", "xdist.plugin", *arguments),
            stdin=subprocess.DEVNULL,
            folder=self.folder,
            environment=environment | plugins | more,
        )

    def run(self, code: str, *arguments: str, **more: str) -> tuple[int, str]:
        """The exit code and what was said."""
        process = self.start(code, *arguments, **more)
        said, _ = process.communicate(timeout=50)
        return process.wait(), said


@pytest.fixture(scope="module")
def ready(private_run: Path) -> Iterator[ReadyPython]:
    ready = ReadyPython("pytest", "runpy")
    yield ready
    ready.close()


@pytest.fixture
def project(tmp_path: Path, repository: Path, ready: ReadyPython) -> SmallProject:
    return SmallProject(tmp_path, (repository / "tests" / "conftest.py").read_text(), ready)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"plain", "processes"}),
        (["-m", "not processes"], {"plain"}),
        (["-m", "not benchmark"], {"plain", "processes"}),
        (["-n1", "-m", "stress"], {"stress"}),
    ],
)
def test_long_load_and_measuring_run_only_when_named(
    project: SmallProject, arguments: list[str], expected: set[str]
):
    code, said = project.run(KINDS, "-v", "--color=no", *arguments)
    assert code == 0, said
    passed = [line for line in said.splitlines() if "PASSED" in line]
    assert set(re.findall(r"::test_(\w+)", "\n".join(passed))) == expected


def test_a_run_in_which_nothing_is_tested_says_so(project: SmallProject):
    code, said = project.run(KINDS, "-k", "stress")
    assert code == 5
    assert "NOTHING WAS TESTED" in said
    assert "4 deselected" in said.splitlines()[-1]
    code, said = project.run("def test_plain(): pass", "-m", "stress")
    assert code == 5
    assert "NOTHING WAS TESTED: no test fits the arguments; the exit code is 5" in said


@pytest.mark.parametrize("arguments", [[], ["-n1"]])
def test_a_check_that_failed_before_fails_the_run_and_pytest_has_the_last_word(
    project: SmallProject, arguments: list[str]
):
    code, said = project.run(
        "def test_it(): pass", *arguments, SOFTHCA_FAILED_CHECKS="mypy, import rules"
    )
    assert code == 1
    *_, told, last = said.splitlines()
    assert told == "FAILED before the tests: mypy, import rules"
    assert "1 passed" in last


def test_a_worse_end_of_pytest_is_kept_and_no_test_sees_the_failed_checks(project: SmallProject):
    assert project.run("", SOFTHCA_FAILED_CHECKS="mypy")[0] == 5
    see = "import os\ndef test_it(): assert 'SOFTHCA_FAILED_CHECKS' not in os.environ"
    _, said = project.run(see, SOFTHCA_FAILED_CHECKS="mypy")
    assert "1 passed" in said


@pytest.mark.parametrize(
    ("number", "arguments"),
    [(signal.SIGINT, []), (signal.SIGTERM, []), (signal.SIGHUP, ["-n1"])],
)
def test_a_run_that_is_ended_while_a_process_starts_ends_it_and_complains_of_nothing(
    project: SmallProject, number: signal.Signals, arguments: list[str], tmp_path: Path
):
    place = tmp_path / "place"
    os.mkfifo(place)
    process = project.start(STARTING, *arguments, PLACE=str(place))
    started = os.pidfd_open(int(place.read_text()))
    process.send_signal(number)
    # Less than the patience xdist has with a worker that has not heard of the end.
    ended, _, _ = select.select([started], [], [], 9)
    os.close(started)
    said, _ = process.communicate(timeout=50)
    assert ended
    assert process.returncode == 2
    assert "KeyboardInterrupt" in said
    assert "Traceback" not in said
    assert "outlived" not in said


def test_a_process_that_stays_is_an_error_and_one_that_is_about_to_end_is_not(
    project: SmallProject,
):
    assert project.run(LEAVING.replace("SECONDS", "0.2"))[0] == 0
    code, said = project.run(LEAVING.replace("SECONDS", "60"))
    assert code == 1
    assert re.search(r"processes outlived the tests: \['\d+ sleep 60'\]", said)
