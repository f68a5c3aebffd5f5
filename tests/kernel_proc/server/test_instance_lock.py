"""Who is the kernel of a name, and what of a dead one is cleared away."""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_proc.server.instance_lock import InstanceLock
from shared.connection_file import RuntimeFolderError, instance_paths, own_record, write_record


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shi-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    shutil.rmtree(path)


def stale_socket(path: Path, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as dead:
        dead.bind(str(path))


def test_a_lock_that_is_released_leaves_nothing(folder: Path):
    lock = InstanceLock("one")
    lock.acquire()
    assert lock.paths.lock.read_text() == f"{os.getpid()}\n"
    assert lock.paths.folder.stat().st_mode & 0o777 == 0o700
    lock.release()
    assert list((folder / "softhca").iterdir()) == []
    lock.release()


def test_the_second_of_a_name_is_told_who_is_first():
    first, second, other = InstanceLock("one"), InstanceLock("one"), InstanceLock("other")
    first.acquire()
    with pytest.raises(RuntimeFolderError, match=f"running already .process {os.getpid()}"):
        second.acquire()
    other.acquire()
    other.release()
    first.release()
    second.acquire()
    second.release()


def test_who_asks_whether_a_kernel_runs_keeps_none_from_starting(monkeypatch: pytest.MonkeyPatch):
    lock = InstanceLock("one")
    lock.acquire()
    lock.release()
    lock.paths.folder.mkdir(mode=0o700)
    asker = os.open(lock.paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(asker, fcntl.LOCK_SH)
    looks = []

    def leave_after_three() -> None:
        looks.append(1)
        if len(looks) == 3:
            os.close(asker)

    monkeypatch.setattr(os, "sched_yield", leave_after_three)
    lock.acquire()
    assert len(looks) == 3
    lock.release()


def test_a_lock_file_removed_under_the_hand_is_not_taken_for_the_lock(
    monkeypatch: pytest.MonkeyPatch,
):
    first, second = InstanceLock("one"), InstanceLock("one")
    first.acquire()
    real, released = fcntl.flock, []

    def lock_after_release(descriptor: int, operation: int) -> None:
        if not released:  # the first stops between the second's open and its lock
            released.append(1)
            first.release()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_after_release)
    second.acquire()
    assert os.path.samestat(os.fstat(second._descriptor), second.paths.lock.stat())
    second.release()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_what_a_dead_kernel_left_is_cleared_away(kind: int):
    dead = InstanceLock("one")
    dead.acquire()
    write_record(dead.paths, own_record("one", 1))
    stale_socket(dead.paths.lifeline, kind)
    stale_socket(dead.paths.request_socket, kind)
    os.close(dead._descriptor)  # as its death would
    lock = InstanceLock("one")
    lock.acquire()
    assert sorted(path.name for path in lock.paths.folder.iterdir()) == ["lock"]
    lock.release()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_socket_that_answers_is_left_alone(kind: int):
    paths = instance_paths("one")
    InstanceLock("one").acquire()
    with socket.socket(socket.AF_UNIX, kind) as live:
        live.bind(str(paths.lifeline))
        live.listen()
        paths.lock.unlink()
        with pytest.raises(RuntimeFolderError, match="somebody who is not the kernel"):
            InstanceLock("one").acquire()
        assert paths.lifeline.exists()


def test_an_ordinary_file_in_a_sockets_place_is_left_alone():
    lock = InstanceLock("one")
    lock.acquire()
    lock.release()
    lock.paths.folder.mkdir(mode=0o700)
    lock.paths.request_socket.write_text("precious")
    with pytest.raises(RuntimeFolderError, match=r"is no socket: move it away"):
        lock.acquire()
    assert lock.paths.request_socket.read_text() == "precious"
    lock.paths.request_socket.unlink()
    lock.acquire()
    lock.release()


def test_a_lock_that_is_a_link_is_not_followed(folder: Path):
    paths = instance_paths("one")
    paths.folder.mkdir(parents=True, mode=0o700)
    os.chmod(paths.folder.parent, 0o700)
    victim = folder / "victim"
    victim.write_text("precious")
    paths.lock.symlink_to(victim)
    with pytest.raises(RuntimeFolderError, match="cannot open"):
        InstanceLock("one").acquire()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "x" * 65, "a b"])
def test_a_name_that_could_be_a_path_is_refused(name: str):
    with pytest.raises(RuntimeFolderError, match="cannot name an instance"):
        InstanceLock(name)


def test_a_folder_open_to_others_is_refused():
    paths = instance_paths("one")
    paths.folder.mkdir(parents=True)
    os.chmod(paths.folder.parent, 0o700)
    os.chmod(paths.folder, 0o755)
    with pytest.raises(RuntimeFolderError, match="open to other users"):
        InstanceLock("one").acquire()


def test_a_log_in_the_folder_keeps_it():
    lock = InstanceLock("one")
    lock.acquire()
    lock.paths.log.write_text("what happened")
    lock.release()
    assert [path.name for path in lock.paths.folder.iterdir()] == ["kernel.log"]


def test_the_log_goes_only_when_nobody_needs_it(folder: Path):
    for with_log in (False, True):
        lock = InstanceLock("one")
        lock.acquire()
        lock.paths.log.write_text("words")
        lock.release(with_log=with_log)
        assert lock.paths.folder.exists() is not with_log
