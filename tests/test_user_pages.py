"""docs/writing-a-user-program.md and docs/limits.md say what is so."""

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kernel_proc import settings as kernel_settings
from kernel_proc.memory.arenas import DEFAULT_ARENA_COUNT
from kernel_proc.settings import KernelSettings
from shared.envelope import MAX_PACKETS, MAX_WAIT_OBJECTS
from user_proc.transport import kernel_control, kernel_starter
from user_proc.transport.kernel_starter import start_kernel

ROOT = Path(__file__).resolve().parents[1]
PROGRAM_PAGE = (ROOT / "docs" / "writing-a-user-program.md").read_text()
LIMITS_PAGE = (ROOT / "docs" / "limits.md").read_text()
NO_LIMITS = {
    "name", "verifier", "guarded_mutexes_at_apc_level", "threaded_dpcs", "seed", "log", "driver",
    "hca", "latency_model", "command_mode", "allocation", "hca_profile",
}  # fmt: skip


def program() -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```$", PROGRAM_PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


def run(folder: Path, name: str) -> "subprocess.CompletedProcess[str]":
    (folder / "program.py").write_text(program())
    return subprocess.run(
        [sys.executable, "-W", "error", "program.py", name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.processes
def test_the_program_of_the_page_runs(tmp_path: Path):
    name = f"page-{uuid.uuid4().hex[:8]}"
    with start_kernel(name, settings={"verifier": True}):
        done = run(tmp_path, name)
    assert (done.returncode, done.stderr) == (0, "")
    first, unknown, *packets, event = done.stdout.splitlines()
    assert first == "a call gave b'hello'"
    assert unknown.startswith("an unknown code: STATUS_INVALID_DEVICE_REQUEST")
    assert sorted(packets) == [f"request {n} gave 4096" for n in (1, 2, 3)]
    assert event == "the event came: True 16"


@pytest.mark.processes
def test_the_program_says_that_there_is_no_kernel(tmp_path: Path):
    done = run(tmp_path, "page-nobody")
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("KernelNotRunning: no kernel named 'page-nobody' is running in /")


def test_every_limit_is_on_the_page_with_its_default():
    told = dict(re.findall(r"^\| `(\w+)` \| (\d[\d.]*)", LIMITS_PAGE, re.MULTILINE))
    defaults = KernelSettings._field_defaults
    limits = {name: str(value) for name, value in defaults.items() if name not in NO_LIMITS}
    assert told == limits
    assert limits.keys() == kernel_settings._RANGES.keys()


@pytest.mark.parametrize(
    "words",
    [
        f"| arenas of a process | {DEFAULT_ARENA_COUNT} |",
        f"| objects in one wait | {MAX_WAIT_OBJECTS} |",
        f"| packets taken at once from a port | {MAX_PACKETS} |",
        f"| time a kernel may take to get ready | {kernel_starter.READY_SECONDS:g} s |",
        f"| time `kernel stop` waits | {kernel_control.STOP_SECONDS:g} s |",
    ],
)
def test_fixed_bounds_are_those_of_the_code(words: str):
    assert words in LIMITS_PAGE
