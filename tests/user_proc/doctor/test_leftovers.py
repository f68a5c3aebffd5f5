"""What dead kernels left is found, and `clean` removes that and nothing else."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from user_proc.doctor.check import State
from user_proc.doctor.leftovers import Leftovers, _has_lost_its_lock, clean, find_leftovers


def folder_of(root: Path, name: str, *files: str) -> Path:
    folder = root / name
    folder.mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    for file in files:
        if file.endswith(".sock"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
                dead.bind(str(folder / file))
        else:
            (folder / file).write_text("x")
    return folder


def test_without_a_runtime_folder_there_is_nothing(root: Path):
    assert clean() == []
    assert find_leftovers().check().state is State.OK


def test_dead_kernels_are_cleaned_and_all_else_stays(root: Path):
    dead = folder_of(
        root, "dead", "lock", "connection.json", "lifeline.sock", "state.json", "state.tmp",
        "connection.5.tmp", "kernel.log", "kernel.log.bugcheck.json",
    )  # fmt: skip
    hashed = folder_of(root, "~0123456789abcdef", "lock")
    mixed = folder_of(root, "mixed", "lock", "kernel.log", "notes.txt")
    (mixed / "connection.json").mkdir()
    living = folder_of(root, "living", "lock", "kernel.log")
    open_to_all = folder_of(root, "open", "lock")
    open_to_all.chmod(0o755)
    (root / "stray").write_text("x")
    (root / "link").symlink_to(dead)
    with open(living / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = find_leftovers()
        assert set(found.folders) == {dead, hashed, mixed}
        assert set(found.foreign) == {
            root / "stray", root / "link", open_to_all, mixed / "notes.txt",
            mixed / "connection.json",
        }  # fmt: skip
        removed = clean()
        assert {str(dead), str(dead / "lifeline.sock"), str(hashed)} <= set(removed)
        assert str(mixed / "kernel.log") in removed
        assert not any("living" in path or "open" in path for path in removed)
        assert {path.name for path in root.iterdir()} == {
            "mixed", "living", "open", "stray", "link",
        }  # fmt: skip
        assert {path.name for path in mixed.iterdir()} == {"notes.txt", "connection.json"}
        assert {path.name for path in living.iterdir()} == {"lock", "kernel.log"}
        assert clean() == []


def test_a_name_that_is_being_taken_is_left_alone(root: Path):
    folder = folder_of(root, "one", "lock", "connection.json")
    with open(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # somebody asks whether it runs
        assert clean() == []
    assert {path.name for path in folder.iterdir()} == {"lock", "connection.json"}


@pytest.mark.processes
def test_a_kernel_whose_folder_was_removed_is_told_and_lives(root: Path):
    folder = folder_of(root, "lost", "lock")
    script = "import sys; file = open(sys.argv[1]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script, str(folder / "lock"), "-m", "kernel_proc"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as kernel:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == b"\n"
        assert not _has_lost_its_lock(kernel.pid)
        (folder / "lock").unlink()
        assert kernel.pid in find_leftovers().lost
        clean()
        assert kernel.poll() is None
        kernel.kill()
    assert not _has_lost_its_lock(os.getpid())


def test_every_leftover_has_its_cure():
    check = Leftovers((Path("/r/dead"),), (Path("/r/x"),), (7,), (8, 9)).check()
    assert check.state is State.WARNING
    assert check.found == (
        "folders of kernels that ended: dead; HCA processes without a kernel: 7; no files of "
        "kernels: /r/x; kernels whose folder was removed: 8, 9"
    )
    assert "doctor --clean" in check.cure
    assert "kill 8 9" in check.cure
