"""Real kernel processes: started, refused, stopped, killed, left by their owner, looked at."""

import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared import connection_file as cf
from shared.version import softhca_version
from user_proc.errors import (
    InvalidInstanceName,
    KernelNotRunning,
    KernelStartFailed,
    RuntimeFolderUnusable,
    WrongKernelSetting,
)
from user_proc.process import UserProcess
from user_proc.transport import kernel_control
from user_proc.transport.kernel_control import kernel_status, list_kernels, stop_kernel
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

pytestmark = pytest.mark.processes


@pytest.fixture
def name() -> str:
    return f"k-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def kept() -> Iterator[StartedKernel]:
    """A kernel for the tests that leave it running."""
    with start_kernel("starter-kept") as started:
        yield started
        assert started.running, started.log.read_text()


def readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_a_started_kernel_is_ready_and_a_stopped_one_leaves_nothing(name: str):
    folder = cf.instance_paths(name).folder
    kernel = start_kernel(name)
    assert kernel.running
    status = kernel_status(name)
    assert (status.running, status.pid, status.folder) == (True, kernel.pid, folder)
    assert name in [one.name for one in list_kernels()]
    with UserProcess.connect(name) as process:
        assert process.kernel_pid == kernel.pid
    assert os.getsid(kernel.pid) == kernel.pid
    assert kernel.stop()
    assert kernel.stop()
    assert not kernel.running
    assert kernel.exit_code == 0
    assert not folder.exists()
    assert kernel_status(name).state == "none"
    assert name not in [one.name for one in list_kernels()]
    with pytest.raises(ChildProcessError):
        os.waitpid(kernel.pid, os.WNOHANG)


def test_descriptors_are_given_back(name: str):
    before = os.listdir("/proc/self/fd")
    with start_kernel(name):
        pass
    assert os.listdir("/proc/self/fd") == before


def test_second_kernel_of_a_name_is_refused_and_leaves_the_first_alone(kept: StartedKernel):
    before = kept.log.read_text()
    with pytest.raises(KernelStartFailed) as refused:
        start_kernel(kept.name)
    words = rf"kernel '{kept.name}' did not start: .*running.* stop it with 'softhca kernel stop "
    assert re.search(words, str(refused.value))
    assert kernel_status(kept.name).pid == kept.pid
    assert kept.log.read_text() == before
    with UserProcess.connect(kept.name) as process:
        assert process.echo(b"still here") == b"still here"


def test_settings_are_options_and_what_a_kernel_tells_of_itself(name: str):
    settings = {"verifier": True, "max_sessions": 1, "seed": None}
    with start_kernel(name, settings=settings) as kernel, UserProcess.connect(name):
        arguments = Path(f"/proc/{kernel.pid}/cmdline").read_bytes().split(b"\0")
        assert b"--verifier" in arguments
        assert arguments[arguments.index(b"--max-sessions") + 1] == b"1"
        assert b"--seed" not in arguments
        paths = cf.instance_paths(name)
        status = kernel_status(name, ask=True)
        assert (status.endpoint, status.log) == (paths.endpoint, paths.log)
        assert (status.version, status.verifier) == (softhca_version(), True)
        assert status.uptime_ns is not None
        assert 0 <= status.uptime_ns < 60_000_000_000
        assert status.sessions is not None
        assert [one["pid"] for one in status.sessions] == [os.getpid()]
        assert status.drivers == []
        assert kernel_status(name).sessions is None


def test_a_wrong_setting_is_a_sentence(name: str):
    with pytest.raises(WrongKernelSetting, match=r"did not start: .*--max-sessions must lie"):
        start_kernel(name, settings={"max_sessions": 0})
    with pytest.raises(KernelStartFailed, match=r"did not start: .*no-such-setting"):
        start_kernel(name, settings={"no_such_setting": 1})


def test_an_hca_that_is_not_wanted(name: str):
    with start_kernel(name, settings={"hca": False}):
        assert kernel_control.kernel_state(name)["hca"] == {}


def test_a_latency_model_is_found_from_the_folder_of_the_starter(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    file = tmp_path / "fast.toml"
    file.write_text("[mad]\nmedian_us = 1\n")
    monkeypatch.chdir(tmp_path)
    with start_kernel(name, settings={"latency_model": "fast.toml"}) as kernel:
        arguments = Path(f"/proc/{kernel.pid}/cmdline").read_bytes().split(b"\0")
        assert arguments[arguments.index(b"--latency-model") + 1] == str(file).encode()
    monkeypatch.setattr(sys, "executable", "/bin/echo")  # a kernel that says its options and ends
    for model in ("./fast.toml", file):
        with pytest.raises(KernelStartFailed, match=f"--latency-model {file}"):
            start_kernel(name, settings={"latency_model": model})


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("/nowhere/model.toml", "the latency model '/nowhere/model.toml' cannot be read: No such"),
        ("{folder}/wrong.toml", "{folder}/wrong.toml: there is no group 'mda'"),
        (
            "{folder}/based.toml",
            "{folder}/based.toml: the base is none or plausible, not 'prm-ceiling'",
        ),
    ],
)
def test_a_latency_model_that_cannot_be_is_the_hcas_sentence(
    name: str, tmp_path: Path, model: str, sentence: str
):
    (tmp_path / "wrong.toml").write_text("[mda]\nmedian_us = 1\n")
    (tmp_path / "based.toml").write_text("base = 'prm-ceiling'\n")
    expected = f"kernel '{name}' did not start: the HCA did not come up: {sentence}"
    with pytest.raises(KernelStartFailed) as caught:
        start_kernel(name, settings={"latency_model": model.format(folder=tmp_path)})
    assert expected.format(folder=tmp_path) in str(caught.value)


def test_a_kernel_that_ends_without_a_word(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/bin/cat")
    with pytest.raises(KernelStartFailed, match=r"it ended at once; its last words: .*help"):
        start_kernel(name)


def test_a_kernel_that_never_gets_ready(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script = tmp_path / "sleeper"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KernelStartFailed, match=r"not ready within 0\.1 s"):
        start_kernel(name, timeout=0.1)
    assert os.listdir("/proc/self/fd") == before


def test_stop_by_name(name: str):
    kernel = start_kernel(name, owner_bound=False)
    assert stop_kernel(name)
    assert readable(kernel.pidfd, 5)
    with pytest.raises(KernelNotRunning):
        stop_kernel(name)
    assert not kernel.log.parent.exists()  # nothing unusual was in its log
    kernel.stop()


CHATTY = """
def driver_entry(driver):
    print("the driver says a word", flush=True)
    driver.driver_unload = lambda driver: None
    return 0
"""


def chatty_kernel(name: str, tmp_path: Path, owner_bound: bool) -> StartedKernel:
    (tmp_path / "chatty.py").write_text(CHATTY)
    driver = [f"{tmp_path}/chatty.py:driver_entry"]
    return start_kernel(name, owner_bound=owner_bound, settings={"driver": driver})


def test_a_log_with_more_than_ordinary_lines_stays_and_is_listed(name: str, tmp_path: Path):
    kernel = chatty_kernel(name, tmp_path, owner_bound=False)
    assert stop_kernel(name)
    kernel.stop()
    assert "the driver says a word" in kernel.log.read_text()
    assert [one.state for one in list_kernels() if one.name == name] == ["ended"]
    with pytest.raises(KernelNotRunning, match="nothing to stop; the log of the last one is"):
        stop_kernel(name)
    shutil.rmtree(kernel.log.parent)


def test_a_bound_kernel_takes_its_log_with_it(name: str, tmp_path: Path):
    kernel = chatty_kernel(name, tmp_path, owner_bound=True)
    assert "the driver says a word" in kernel.log.read_text()
    assert kernel.stop()
    assert not kernel.log.parent.exists()


def test_a_log_of_ones_own_stays(name: str, tmp_path: Path):
    log = tmp_path / "own.log"
    with start_kernel(name, settings={"log": log}) as kernel:
        assert kernel.log == log
        assert kernel_status(name).log == log
    assert "stopped: SIGTERM" in log.read_text()


def test_a_failed_start_leaves_nothing(name: str):
    with pytest.raises(KernelStartFailed, match="missing"):
        start_kernel(name, settings={"driver": ["missing.py:driver_entry"]})
    assert not cf.instance_paths(name).folder.exists()


def test_a_kernel_that_does_not_answer_is_running_all_the_same(
    kept: StartedKernel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kernel_control, "STATE_SECONDS", 0.05)
    os.kill(kept.pid, signal.SIGSTOP)
    status = kernel_status(kept.name, ask=True)
    os.kill(kept.pid, signal.SIGCONT)
    assert status.running
    assert status.sessions is None


def test_a_kernel_killed_before_it_was_ready_is_dead(name: str):
    paths = cf.instance_paths(name)
    cf.prepare_folder(paths)
    paths.lock.write_text("12345\n")
    assert (kernel_status(name).state, kernel_status(name).pid) == ("dead", 12345)
    with open(paths.lock) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert kernel_status(name).state == "starting"
        with pytest.raises(KernelNotRunning, match="just starting or stopping"):
            stop_kernel(name)
    with start_kernel(name):
        pass
    assert not paths.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_owner_that_ends_during_the_start_leaves_nothing(name: str, number: int):
    """The signal comes as soon as the kernel has made the first file."""
    folder = cf.instance_paths(name).folder
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, name, "bound"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    wait_until(lambda: (folder / "lock").exists())
    process.send_signal(number)
    process.communicate()
    wait_until(lambda: not folder.exists())
    assert kernel_status(name).state == "none"


def wait_until(predicate: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not predicate():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.002)


def test_a_kernel_that_does_not_stop_is_killed(name: str):
    kernel = start_kernel(name, owner_bound=False)
    os.kill(kernel.pid, signal.SIGSTOP)
    assert not stop_kernel(name, timeout=0.1)
    assert readable(kernel.pidfd, 5)
    assert kernel_status(name).state == "dead"
    assert [one.state for one in list_kernels() if one.name == name] == ["dead"]
    with pytest.raises(KernelNotRunning):
        stop_kernel(name)
    kernel.stop()


def test_start_after_a_kill_recovers(name: str):
    first = start_kernel(name)
    os.kill(first.pid, signal.SIGKILL)
    assert readable(first.pidfd, 5)
    assert not first.running
    assert kernel_status(name).state == "dead"
    with start_kernel(name) as second:
        assert kernel_status(name).pid == second.pid
    assert not first.stop()
    assert first.exit_code == -signal.SIGKILL


def test_a_record_of_a_stranger_kills_nobody(name: str):
    """Our own pid, with another start time, another boot, or without the lock."""
    paths = cf.instance_paths(name)
    cf.prepare_folder(paths)
    cf.write_record(paths, cf.own_record(name, 1))
    paths.lock.touch()
    with pytest.raises(KernelNotRunning):
        stop_kernel(name)
    assert kernel_status(name).state == "dead"


def test_broken_files_are_a_sentence(name: str):
    paths = cf.instance_paths(name)
    cf.prepare_folder(paths)
    paths.connection_file.write_text("{")
    for look in (stop_kernel, kernel_status):
        with pytest.raises(RuntimeFolderUnusable, match="is not a connection file"):
            look(name)
    paths.folder.chmod(0o755)
    with pytest.raises(RuntimeFolderUnusable, match="chmod 700"):
        start_kernel(name)
    for look in (start_kernel, stop_kernel, kernel_status, UserProcess.connect):
        with pytest.raises(InvalidInstanceName, match="cannot name an instance") as refused:
            look("../x")
        assert isinstance(refused.value, ValueError)
    paths.folder.chmod(0o700)
    paths.connection_file.unlink()


ROOT = Path(__file__).resolve().parents[3]
OWNER = """
import os, sys
from user_proc.transport.kernel_starter import start_kernel
kernel = start_kernel(sys.argv[1], owner_bound=sys.argv[2] == "bound")
print(kernel.pid, flush=True)
sys.stdin.read()
"""


def owner(name: str, kind: str) -> tuple["subprocess.Popen[str]", int]:
    """Start a program that starts a kernel; give it, and the kernel's pidfd."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", OWNER, name, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    return process, os.pidfd_open(int(process.stdout.readline()))


def test_a_kernel_ends_with_its_owner(name: str):
    process, pidfd = owner(name, "bound")
    process.kill()
    process.communicate()
    try:
        assert readable(pidfd, 5)
    finally:
        os.close(pidfd)
    assert kernel_status(name).state == "none"


def test_a_kernel_without_owner_goes_on(name: str):
    process, pidfd = owner(name, "free")
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    try:
        assert not readable(pidfd, 0)
        with UserProcess.connect(name) as user:
            assert user.echo(b"alone") == b"alone"
        assert stop_kernel(name)
        assert readable(pidfd, 5)
    finally:
        os.close(pidfd)
