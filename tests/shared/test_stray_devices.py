"""Which processes count as an HCA without its kernel: in doubt none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared import stray_devices as strays


@pytest.mark.parametrize(
    ("words", "kernel"),
    [
        ("python -P -m kernel_proc.hca --control-fd 3 --kernel 77", 77),
        ("python -m kernel_proc.hca --kernel 77 --control-fd 3", 77),
        ("python -m kernel_proc.hca --control-fd 3", None),
        ("python -m kernel_proc.hca --control-fd 3 --kernel", None),
        ("python -m kernel_proc.hca --kernel -1", None),
        ("python -m kernel_proc.hca --kernel x", None),
        ("python -m kernel_proc --kernel 77", None),
        ("grep kernel_proc.hca --kernel 77", None),
        ("kernel_proc.hca", None),
        ("", None),
    ],
)
def test_an_hca_is_known_by_its_command_line(words: str, kernel: int | None):
    assert strays._kernel_of(words.encode().split(b" ")) == kernel


@pytest.mark.processes
def test_one_whose_kernel_is_its_parent_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # nobody else ends ours
    script = "print(flush=True); input()"
    line = [sys.executable, "-I", "-S", "-c", script, "-m", "kernel_proc.hca", "--kernel"]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen([*line, str(os.getpid())], stdin=pipe, stdout=pipe) as ours,
        subprocess.Popen([*line, str(os.getpid() + 1)], stdin=pipe, stdout=pipe) as stray,
    ):
        for process in (ours, stray):
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
        found = strays.stray_devices()
        assert stray.pid in found
        assert ours.pid not in found
        with monkeypatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", "/elsewhere")
            assert strays.stray_devices() == []
        assert strays._end(stray.pid)
        assert not strays._end(ours.pid)
        assert stray.wait(10) == -9
        assert stray.pid not in strays.stray_devices()
        assert ours.poll() is None
        assert ours.stdin is not None
        ours.stdin.write(b"\n")
        ours.stdin.flush()
        assert ours.wait(10) == 0
