"""What a start clears away of a kernel that was killed, and what it says of that."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_proc.server.instance_lock import InstanceLock
from kernel_proc.server.recovery import cleared_sentence
from shared.connection_file import own_record, write_record


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shr-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    shutil.rmtree(path)


def killed(name: str) -> InstanceLock:
    """A kernel that was killed: its files are there, nobody has the lock."""
    lock = InstanceLock(name)
    lock.acquire()
    write_record(lock.paths, own_record(name, 1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(lock.paths.lifeline))
    lock.state_path.write_text("{}")
    lock.state_path.with_suffix(".tmp").write_text("{")
    (lock.paths.folder / "connection.77.tmp").write_text("{")
    lock.paths.log.write_text("its log\n")
    os.close(lock._descriptor)
    lock._descriptor = -1
    return lock


def test_a_start_after_an_orderly_stop_has_nothing_to_clear():
    for _ in range(2):
        lock = InstanceLock("one")
        lock.acquire()
        assert lock.cleared == ""
        lock.release()


def test_all_that_a_killed_kernel_left_goes_but_its_log_and_what_is_not_its():
    former = killed("one")
    foreign = former.paths.folder / "notes.txt"
    foreign.write_text("mine")
    lock = InstanceLock("one")
    lock.acquire()
    assert lock.cleared == (
        f"process {os.getpid()} had not stopped in order: removed connection.json, "
        "lifeline.sock, state.json, state.tmp, connection.77.tmp"
    )
    left = sorted(path.name for path in lock.paths.folder.iterdir())
    assert left == ["kernel.log", "lock", "notes.txt"]
    lock.release(with_log=True)
    assert [path.name for path in lock.paths.folder.iterdir()] == ["notes.txt"]


def test_a_folder_in_the_place_of_a_state_file_stops_nobody():
    lock = InstanceLock("one")
    lock.paths.folder.mkdir(parents=True, mode=0o700)
    lock.paths.folder.parent.chmod(0o700)
    lock.state_path.mkdir()
    lock.acquire()
    assert lock.cleared == ""
    assert lock.state_path.is_dir()
    lock.release()


@pytest.mark.processes
def test_an_hca_without_its_kernel_is_ended_and_told():
    # Any process that looks like one: a real one ends with its kernel.
    words = ["-m", "kernel_proc.hca", "--control-fd", "3", "--kernel", "1"]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print(flush=True); input()", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as stray:
        assert stray.stdout is not None
        assert stray.stdout.readline() == b"\n"
        clean = InstanceLock("never-used")
        clean.acquire()
        assert clean.cleared == ""
        assert stray.poll() is None
        clean.release()
        killed("one")
        lock = InstanceLock("one")
        lock.acquire()
        assert lock.cleared.endswith(f"; ended the HCA process {stray.pid}, whose kernel has gone")
        assert stray.wait(10) == -9
        lock.release(with_log=True)


@pytest.mark.processes
def test_an_hca_whose_parent_is_not_the_kernel_it_names_does_not_begin():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kernel_proc.hca", "--control-fd", "0", "--kernel", "1"],
        cwd=Path(__file__).resolve().parents[3],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=20,
    )
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("former", "files", "strays", "sentence"),
    [
        ("", [], [], ""),
        ("12", [], [], "process 12 had not stopped in order: nothing was left to remove"),
        ("x\n", ["a"], [], "a former kernel of this name had not stopped in order: removed a"),
        (
            "", [], [4, 5],
            "a former kernel of this name had not stopped in order: ended the HCA processes 4, 5, "
            "whose kernel has gone",
        ),
    ],
)  # fmt: skip
def test_the_sentence(former: str, files: list[str], strays: list[int], sentence: str):
    assert cleared_sentence(former, files, strays) == sentence
