"""Runtime folder, paths within their limit, ownership, and records that name one process."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import connection_file as cf


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hca-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_root_follows_xdg(base: Path):
    assert cf.runtime_root() == base / "softhca"


@pytest.mark.parametrize("setting", ["", "relative/path", "/nonexistent/softhca-test"])
def test_root_falls_back_to_tmp(monkeypatch: pytest.MonkeyPatch, setting: str):
    monkeypatch.setenv("XDG_RUNTIME_DIR", setting)
    assert cf.runtime_root() == Path(f"/tmp/softhca-{os.getuid()}")


def test_foreign_xdg_folder_is_one_clear_sentence(base: Path, monkeypatch: pytest.MonkeyPatch):
    owner = os.getuid()
    monkeypatch.setattr(cf.os, "getuid", lambda: owner + 1)
    with pytest.raises(cf.RuntimeFolderError, match=f"belongs to user id {owner}, not to you"):
        cf.runtime_root()


@pytest.mark.parametrize("depth", [1, 40, 60, 80, 200, 3000])
@pytest.mark.parametrize("length", [1, 30, 64])
def test_every_socket_path_stays_within_100_bytes(
    base: Path, monkeypatch: pytest.MonkeyPatch, depth: int, length: int
):
    deep = base
    while len(str(deep)) < depth:
        deep = deep / ("d" * min(100, max(1, depth - len(str(deep)) - 1)))
    deep.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    paths = cf.instance_paths("n" * length)
    for path in (paths.lifeline, paths.request_socket):
        assert len(os.fsencode(path)) <= 100
    assert paths == cf.instance_paths("n" * length)
    assert paths.folder != cf.instance_paths("m" * length).folder
    assert paths.endpoint == f"ipc://{paths.request_socket}"


def test_a_hashed_name_never_is_a_legal_name(base: Path):
    root = base / ("r" * 55)
    folder = cf.instance_paths("n" * 64, root).folder
    assert folder.parent == root
    with pytest.raises(cf.RuntimeFolderError):
        cf.check_name(folder.name)


@pytest.mark.parametrize("name", ["a", "default", "A.b-c_9", "x" * 64])
def test_legal_names(name: str):
    assert cf.check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "~a", "a b", "é", "x" * 65, "a\n"])
def test_illegal_names(name: str):
    with pytest.raises(cf.RuntimeFolderError, match="cannot name an instance"):
        cf.instance_paths(name)


def test_prepared_folders_are_ours_alone(base: Path):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    cf.prepare_folder(paths)
    for folder in (paths.folder, paths.folder.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_loose_umask_does_not_open_the_folder(base: Path):
    old = os.umask(0)
    try:
        cf.prepare_folder(cf.instance_paths("one"))
    finally:
        os.umask(old)
    assert (base / "softhca" / "one").stat().st_mode & 0o777 == 0o700


def test_open_link_and_file_in_place_of_the_folder_are_refused(base: Path):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    paths.folder.chmod(0o755)
    with pytest.raises(cf.RuntimeFolderError, match="chmod 700"):
        cf.prepare_folder(paths)
    with pytest.raises(cf.RuntimeFolderError, match="chmod 700"):
        cf.read_record(paths)
    paths.folder.rmdir()
    paths.folder.symlink_to(base)
    with pytest.raises(cf.RuntimeFolderError, match="is not a folder"):
        cf.prepare_folder(paths)
    paths.folder.unlink()
    paths.folder.write_text("")
    with pytest.raises(cf.RuntimeFolderError, match=r"cannot make|not a folder"):
        cf.prepare_folder(paths)


def test_foreign_folder_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    owner = os.getuid()
    monkeypatch.setattr(cf.os, "getuid", lambda: owner + 1)
    with pytest.raises(cf.RuntimeFolderError, match="not to you"):
        cf.check_folder(paths.folder)


def test_record_round_trip_and_withdrawal(base: Path):
    paths = cf.instance_paths("one")
    assert cf.read_record(paths) is None
    cf.prepare_folder(paths)
    assert cf.read_record(paths) is None
    record = cf.own_record("one", 1)
    cf.write_record(paths, record)
    assert cf.read_record(paths) == record
    assert cf.is_running(record)
    assert [path.name for path in paths.folder.iterdir()] == ["connection.json"]
    assert paths.connection_file.stat().st_mode & 0o777 == 0o600
    cf.remove_record(paths)
    cf.remove_record(paths)
    assert cf.read_record(paths) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "null", '{"name": 1}', '{"name": "one", "pid": "7"}', "\udcff", "[" * 9000],
)
def test_what_is_no_connection_file_is_said_so(base: Path, text: str):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    paths.connection_file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(cf.RuntimeFolderError, match=r"is not a connection file .*: remove it"):
        cf.read_record(paths)


def test_unknown_members_of_a_record_are_ignored(base: Path):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    record = cf.own_record("one", 1)
    cf.write_record(paths, record)
    values = json.loads(paths.connection_file.read_text())
    paths.connection_file.write_text(json.dumps({**values, "later": True}))
    assert cf.read_record(paths) == record


def test_another_boot_and_a_reused_pid_are_not_the_process(base: Path):
    record = cf.own_record("one", 1)
    assert not cf.is_running(record._replace(boot_id="other"))
    assert not cf.is_running(record._replace(start_ticks=record.start_ticks + 1))


def test_start_ticks_of_a_process_that_ended_and_a_name_with_parentheses(base: Path):
    target = base / "a) R 1 (b"
    target.symlink_to(sys.executable)
    child = subprocess.Popen([target, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = cf.process_start_ticks(child.pid)
    own = cf.process_start_ticks(os.getpid())
    assert ticks is not None
    assert own is not None
    assert ticks >= own
    child.communicate(b"\n")
    assert cf.process_start_ticks(child.pid) is None


def test_running_means_alive_and_holding_the_lock(base: Path):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    record = cf.own_record("one", 1)
    cf.write_record(paths, record)
    assert cf.running_record(paths) is None
    with open(paths.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cf.lock_is_held(paths)
        assert cf.running_record(paths) == record
        cf.write_record(paths, record._replace(start_ticks=1))
        assert cf.running_record(paths) is None
    assert not cf.lock_is_held(paths)


def test_list_instances_finds_plain_and_hashed_names(base: Path):
    assert cf.list_instances() == []
    root = base / ("r" * 55)
    names = ["b", "a", "n" * 64]
    for name in names:
        paths = cf.instance_paths(name, root)
        cf.prepare_folder(paths)
        cf.write_record(paths, cf.own_record(name, 1))
    (root / "~0123456789abcdef").mkdir(mode=0o700)
    (root / "file").write_text("")
    assert [paths.name for paths in cf.list_instances(root)] == sorted(names)
    assert cf.list_instances(root)[2] == cf.instance_paths("n" * 64, root)


def test_unknown_to_an_older_kernel_are_the_later_members(base: Path):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    record = cf.own_record("one", 1, "9.9", True, "/x/log")
    cf.write_record(paths, record)
    assert cf.read_record(paths) == record
    values = json.loads(paths.connection_file.read_text())
    for later in ("version", "verifier", "log"):
        del values[later]
    paths.connection_file.write_text(json.dumps(values))
    assert cf.read_record(paths) == record._replace(version="", verifier=False, log="")


@pytest.mark.parametrize("what", ["pipe", "folder", "device", "link to nothing"])
def test_what_is_no_file_keeps_nobody_waiting(base: Path, what: str):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    if what == "pipe":
        os.mkfifo(paths.connection_file)
    elif what == "folder":
        paths.connection_file.mkdir()
    else:
        target = "/dev/zero" if what == "device" else "/nonexistent"
        paths.connection_file.symlink_to(target)
    if what == "link to nothing":
        assert cf.read_record(paths) is None
        return
    with pytest.raises(cf.RuntimeFolderError, match="it is no ordinary file"):
        cf.read_record(paths)


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 10**30])
def test_a_record_that_names_no_process_is_none(base: Path, pid: int):
    paths = cf.instance_paths("one")
    cf.prepare_folder(paths)
    record = cf.own_record("one", 1, "9.9", True, "/x/log")
    cf.write_record(paths, record._replace(pid=pid))
    with pytest.raises(cf.RuntimeFolderError, match="is not a connection file"):
        cf.read_record(paths)


needs_other_user = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


def as_nobody(base: Path, setting: Path) -> str:
    """What user 65534 is told who starts a kernel, looks for one, and connects."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(cf.__file__).parents[1])!r})
import shared.connection_file as cf
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ["XDG_RUNTIME_DIR"] = {str(setting)!r}
try:
    cf.prepare_folder(cf.instance_paths("one"))
except cf.RuntimeFolderError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    (sentence,) = done.stdout.splitlines()
    return sentence


@needs_other_user
def test_a_folder_left_by_su_is_told_with_the_cure(base: Path):
    (base / "inner").mkdir()
    assert as_nobody(base, base / "inner") == (  # mkdtemp: nobody else may enter
        f"XDG_RUNTIME_DIR={base}/inner cannot be entered by you (user id 65534): "
        "Permission denied; unset it or point it to a folder of yours"
    )
    base.chmod(0o755)
    assert "belongs to user id 0, not to you (65534): unset it" in as_nobody(base, base / "inner")


@needs_other_user
def test_a_folder_that_cannot_be_written_is_told_with_the_cure(base: Path):
    base.chmod(0o755)
    own = base / "own"
    own.mkdir()
    os.chown(own, 65534, 65534)
    own.chmod(0o500)
    assert as_nobody(base, own) == (
        f"cannot make {own}/softhca: Permission denied; make {own} writable for you, or set "
        "XDG_RUNTIME_DIR to another folder of yours"
    )
    (own / "softhca").mkdir(mode=0o500)
    os.chown(own / "softhca", 65534, 65534)
    assert f"{own}/softhca cannot be written to: run 'chmod 700" in as_nobody(base, own)
