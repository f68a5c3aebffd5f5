"""`softhca doctor` as a user runs it."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.user_proc.cli.conftest import COMMAND, run_to_end
from user_proc.run_document import load_strict
from user_proc.transport.kernel_control import kernel_status
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]
NAMES = [
    "python", "packages", "shared memory", "pidfd", "private memory", "sockets", "memory", "cores",
    "clock", "runtime folder", "descriptors", "kernel", "running", "leftovers",
]  # fmt: skip


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="shd-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_the_doctor_looks_cleans_and_says_so(softhca: Run, own_folder: Path, tmp_path: Path):
    with start_kernel("lives"), start_kernel("dies") as killed:
        os.kill(killed.pid, signal.SIGKILL)
        killed.stop()
        done = softhca("doctor", "--clean", "--json", "seen.json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert kernel_status("lives").running
        document = load_strict((tmp_path / "seen.json").read_text())
        checks = {check["name"]: check for check in document["checks"]}
        assert list(checks) == NAMES
        assert (document["kind"], document["missing"]) == ("doctor", 0)
        assert str(own_folder / "softhca" / "dies") in document["cleaned"]
        assert checks["kernel"]["state"] == checks["leftovers"]["state"] == "ok"
        assert "lives (pid" in checks["running"]["found"]
        assert "served a request and three verbs" in checks["kernel"]["found"]
    lines = done.stdout.splitlines()
    assert f"removed  {own_folder}/softhca/dies" in lines
    assert lines[-1].startswith("nothing is missing")
    shown = [line[:7].strip() for line in lines if line.startswith(("ok", "warning", "missing"))]
    assert shown == [check["state"] for check in checks.values()]
    assert list((own_folder / "softhca").iterdir()) == []


def test_a_limit_that_is_too_low_is_missing_with_the_number(own_folder: Path, tmp_path: Path):
    shell = ["/bin/sh", "-c", 'ulimit -n 400; exec "$0" "$@"', *COMMAND]
    done = run_to_end(tmp_path, "doctor", "--json", "-", command=shell)
    assert done.returncode == 1
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert "kernel" not in checks
    found = checks["descriptors"]
    assert found["state"] == "missing"
    assert "descriptors, the limit is 400" in found["found"]
    assert "ulimit -Hn" in found["cure"]
    assert list((own_folder / "softhca").iterdir()) == []


def test_what_cannot_be_written_is_refused_before_the_examination(softhca: Run):
    done = softhca("doctor", "--json", "/nowhere/seen.json")
    assert done.returncode == 2
    assert "/nowhere" in done.stderr
