"""A kernel's life: ready, alone under its name, stopped in order, killed, broken."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shared.connection_file import instance_paths, list_instances, read_record
from tests.end_to_end.conftest import Kernel, wait_until
from tests.holder_driver import BREAK, HOG, HOG_IN_DPC, KEEP
from user_proc.errors import KernelDied, KernelNotRunning, KernelRefused
from user_proc.process import UserProcess

pytestmark = pytest.mark.processes

SILENT = 24  # six times what it has places for
KNOCKS = 1500  # more than a kernel of 1300 descriptors can have

#: A kernel with the holder whose watchdog waits for a fifth of what it has by default: 1 s.
IMPATIENT = """
import sys
from kernel_proc.scheduling import watchdog
from tests.end_to_end.kernel_with_holder import main
patient = watchdog.Watchdog
def impatient(processor, on_held, on_violation):
    return patient(processor, on_held, on_violation, watchdog.DEFAULT_LIMIT_NS // 5)
watchdog.Watchdog = impatient
sys.exit(main(sys.argv[1:]))
"""

BUSY = """
    process = UserProcess.connect(name)
    sync = process.open_device("holder")
    overlapped = process.open_device("holder", overlapped=True)
    event = process.create_event()
    one_at_a_time = threading.Lock()
    def tell(what, call):
        try:
            call()
            end = "returned"
        except SofthcaError as error:
            end = type(error).__name__
        with one_at_a_time:
            print(what, end, flush=True)
    started = overlapped.start(HOLD)
    calls = {"sync": lambda: sync.device_io_control(HOLD), "wait": event.wait,
             "overlapped": started.wait}
    threads = [threading.Thread(target=tell, args=item, daemon=True) for item in calls.items()]
    for thread in threads: thread.start()
    at("here")
    for thread in threads: thread.join()
"""


@pytest.fixture
def start(start: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """Start kernels as users do."""
    return partial(start, executed=True)


def busy(kernel: Any, run: Callable[[str], Any], users: int = 2) -> list[Any]:
    """Users whose threads all wait for the kernel."""
    found = [run(BUSY) for _ in range(users)]
    assert [user.said() for user in found] == ["here"] * users

    def waiting() -> bool:
        threads = kernel.state()["dispatcher"]["threads"]
        return sum("waiting" in text for text in threads) >= 2 * users

    wait_until(waiting)
    return found


# --- start ---------------------------------------------------------------------------------------


def test_ready_means_that_a_user_can_connect(start: Any):
    kernel = start()
    assert kernel.first_words == "ready\n"
    record = read_record(kernel.paths)
    assert record is not None
    assert record.pid == kernel.process.pid
    with UserProcess.connect(kernel.name) as process:
        assert process.kernel_pid == kernel.process.pid
    assert kernel.paths.folder.stat().st_mode & 0o777 == 0o700
    assert kernel.stop() == 0


def test_the_second_kernel_of_a_name_is_refused_and_harms_nobody(start: Any):
    first = start()
    with UserProcess.connect(first.name) as process:
        second = start(name=first.name)
        assert second.first_words == (
            f"error: a kernel named {first.name!r} is running already "
            f"(process {first.process.pid}): stop it with 'softhca kernel stop --name "
            f"{first.name}', or use another --name\n"
        )
        assert second.end() == 1
        assert second.errors() == second.first_words
        assert process.echo(b"still here") == b"still here"
    other = start()
    assert other.first_words == "ready\n"


def test_what_a_killed_kernel_left_is_cleared_by_the_next(start: Any):
    killed = start()
    killed.process.kill()
    killed.end()
    left = {path.name for path in killed.paths.folder.iterdir()}
    assert left == {"lock", "connection.json", "lifeline.sock", "requests.sock"}
    with pytest.raises(KernelNotRunning):
        UserProcess.connect(killed.name)
    following = start(name=killed.name)
    assert following.first_words == "ready\n"
    with UserProcess.connect(killed.name) as process:
        assert process.kernel_pid == following.process.pid
    assert following.stop() == 0
    assert not killed.paths.folder.exists()


def test_a_file_in_a_sockets_place_stops_the_start(start: Any, runtime_folder: Path):
    paths = instance_paths("odd")
    paths.folder.mkdir(parents=True, mode=0o700)
    paths.folder.parent.chmod(0o700)
    paths.lifeline.write_text("precious")
    kernel = start(name="odd")
    assert kernel.first_words == (
        f"error: {paths.lifeline} is in the way and is no socket: move it away\n"
    )
    assert kernel.end() == 1
    assert paths.lifeline.read_text() == "precious"


def test_a_long_runtime_path_is_no_obstacle(
    start: Any, runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    long = runtime_folder / ("x" * 90) / ("y" * 90)
    long.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    kernel = start()
    assert kernel.first_words == "ready\n"
    assert len(os.fsencode(kernel.paths.lifeline)) <= 100
    with UserProcess.connect(kernel.name) as process:
        assert process.echo(b"x") == b"x"
    assert [paths.name for paths in list_instances()] == [kernel.name]
    assert kernel.stop() == 0
    shutil.rmtree(kernel.paths.folder.parent)


@pytest.mark.parametrize("what", ["open to others", "a link", "a file"])
def test_a_folder_that_is_not_ours_alone_is_refused(start: Any, runtime_folder: Path, what: str):
    root = runtime_folder / "softhca"
    if what == "open to others":
        root.mkdir()
        root.chmod(0o755)
    elif what == "a link":
        (runtime_folder / "elsewhere").mkdir(mode=0o700)
        root.symlink_to(runtime_folder / "elsewhere")
    else:
        root.write_text("")
    kernel = start()
    assert kernel.first_words.startswith("error: ")
    assert str(root) in kernel.first_words
    assert kernel.end() == 1
    assert len(kernel.errors().splitlines()) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder that is another user's")
def test_a_folder_of_another_user_is_refused(start: Any, runtime_folder: Path):
    root = runtime_folder / "softhca"
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)
    kernel = start()
    assert "belongs to user id 12345" in kernel.first_words
    assert kernel.end() == 1


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--nonsense"], 2, "error: unrecognized arguments: --nonsense"),
        (["--max-sessions", "0"], 2, "error: --max-sessions must lie between"),
        (["--log", "/nowhere/log"], 1, "error: cannot write /nowhere/log: No such file"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    start: Any, options: list[str], code: int, words: str
):
    kernel = start(*options)
    assert kernel.first_words.startswith(words)
    assert kernel.end() == code
    assert kernel.errors() == kernel.first_words


def test_who_has_closed_its_standard_output_gets_the_exit_code_all_the_same():
    closed = ["/bin/sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-P", "-m", "kernel_proc"]
    done = subprocess.run([*closed, "--nonsense"], stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "error: unrecognized arguments: --nonsense\n"
    assert done.returncode == 2


def test_a_name_that_could_be_a_path_is_refused_before_anything_is_written(
    start: Any, runtime_folder: Path
):
    kernel = start(name=f"../elsewhere-{uuid.uuid4().hex}")
    assert "cannot name an instance" in kernel.first_words
    assert kernel.end() == 2
    assert not kernel.log_path.resolve().exists()
    assert list(runtime_folder.iterdir()) == []


def test_who_is_refused_writes_no_log(start: Any):
    first = start()
    before = first.log
    second = start("--log", str(first.log_path), "--take-output", name=first.name)
    assert second.end() == 1
    assert first.log == before


# --- stop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_a_busy_kernel_in_order(kernel: Any, run: Callable[[str], Any], number: int):
    users = busy(kernel, run)
    asked = time.monotonic()
    assert kernel.stop(number) == 0
    for user in users:
        ends = dict(line.split() for line in user.finish().splitlines())
        assert ends == dict.fromkeys(("sync", "wait", "overlapped"), "KernelDied")
    assert time.monotonic() - asked < 2 + 2
    assert not kernel.paths.folder.exists()
    assert kernel.log.count("the kernel stops") == 2
    assert kernel.log.splitlines()[-1].endswith(f"stopped: {signal.Signals(number).name}")


def test_a_stop_does_not_wait_for_ever_for_a_driver(start: Any):
    kernel = start("--stop-timeout-ms", "200", holder=True)
    with UserProcess.connect(kernel.name) as process:
        device = process.open_device("holder", overlapped=True)
        device.start(KEEP)
        number = process.session
    with UserProcess.connect(kernel.name):
        assert kernel.state()["server"]["sessions"][0]["ending"]
    assert kernel.stop() == 4
    assert f"stopping although not run down in time: session {number} " in kernel.log
    assert not kernel.paths.folder.exists()


def test_the_end_of_its_owner_stops_a_kernel(kernel: Any, run: Callable[[str], Any]):
    users = busy(kernel, run, 1)
    kernel.close()
    assert kernel.process.wait(10) == 0
    users[0].finish()
    assert "stopping: its owner has ended" in kernel.log
    assert not kernel.paths.folder.exists()


def test_a_killed_kernel_is_an_error_to_everybody_within_two_seconds(
    kernel: Any, run: Callable[[str], Any]
):
    users = busy(kernel, run, 3)
    killed = time.monotonic()
    kernel.process.kill()
    for user in users:
        ends = dict(line.split() for line in user.finish().splitlines())
        assert ends == dict.fromkeys(("sync", "wait", "overlapped"), "KernelDied")
    assert time.monotonic() - killed < 2 + 1
    kernel.end()


def test_a_user_that_comes_after_the_kill_is_told(kernel: Any):
    with UserProcess.connect(kernel.name) as process:
        kernel.process.kill()
        kernel.end()
        with pytest.raises(KernelDied):
            process.open_device("noop")


def test_sessions_are_bounded(start: Any):
    kernel = start("--max-sessions", "2")
    check_bound_of_two(kernel.name)
    kernel.wait_for_sessions(0)
    with UserProcess.connect(kernel.name) as process:
        assert process.echo(b"x") == b"x"


def check_bound_of_two(name: str) -> None:
    with (
        UserProcess.connect(name),
        UserProcess.connect(name),
        pytest.raises(KernelRefused, match="serves 2 processes already"),
    ):
        UserProcess.connect(name)


def test_a_kernel_short_of_descriptors_admits_fewer_and_lives(start: Any):
    kernel = start("--max-silent-connections", "1000", descriptors=1300)
    check_bound_of_two(kernel.name)
    kernel.wait_for_sessions(0)
    with contextlib.ExitStack() as open_ones:
        for _ in range(SILENT):
            open_ones.enter_context(connect_silently(kernel.name))
        for _ in range(KNOCKS):  # libzmq ends a process that has no descriptor for one more
            connection = open_ones.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(kernel.paths.request_socket))
        process = open_ones.enter_context(UserProcess.connect(kernel.name))  # behind the silent
        with pytest.raises(KernelRefused, match="all processes together may hold"):
            deque((process.allocate(5 << 20) for _ in range(1000)), maxlen=50)
        assert process.echo(b"x") == b"x"
    assert kernel.wait_for_sessions(0)["request_sockets"]["turned_away"] > KNOCKS - 100
    assert kernel.stop() == 0


def connect_silently(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(instance_paths(name).lifeline))  # waits for room in the backlog
    connection.settimeout(10)
    return connection


def test_of_kernels_that_start_at_once_one_runs(start: Any):
    with ThreadPoolExecutor(6) as pool:
        kernels = list(pool.map(lambda _: start(name="only"), range(6)))
    words = [kernel.first_words for kernel in kernels]
    assert words.count("ready\n") == 1
    assert sum("is running already" in line for line in words) == 5
    with UserProcess.connect("only") as process:
        assert process.echo(b"x") == b"x"


def test_a_kernel_whose_folder_was_removed_leaves_its_successor_alone(start: Any):
    first = start(name="same")
    shutil.rmtree(first.paths.folder)
    second = start(name="same")
    assert second.first_words == "ready\n"
    assert first.stop() == 0
    with UserProcess.connect("same") as process:
        assert process.kernel_pid == second.process.pid


@pytest.mark.parametrize("what", ["file", "nothing"])
def test_a_kernel_whose_folder_is_gone_stops_in_order(start: Any, what: str):
    kernel = start(name="gone")
    shutil.rmtree(kernel.paths.folder)
    if what == "file":
        kernel.paths.folder.write_text("in the way")
    kernel.process.send_signal(signal.SIGUSR1)
    assert kernel.stop() == 0
    assert kernel.errors() == ""


# --- bug checks ----------------------------------------------------------------------------------


def test_a_bug_check_stops_the_kernel_with_a_report(kernel: Any, run: Callable[[str], Any]):
    users = busy(kernel, run, 1)
    with UserProcess.connect(kernel.name) as process, process.open_device("holder") as device:
        with pytest.raises(KernelDied):
            device.device_io_control(BREAK)
        assert kernel.end() == 3
    ends = dict(line.split() for line in users[0].finish().splitlines())
    assert ends == dict.fromkeys(("sync", "wait", "overlapped"), "KernelDied")
    report = kernel.errors()
    assert report.startswith("*** bug check 0x1e KMODE_EXCEPTION_NOT_HANDLED")
    assert "ZeroDivisionError" in report
    document = json.loads(Path(f"{kernel.log_path}.bugcheck.json").read_text())
    assert document["code"] == 0x1E
    assert "the driver is broken" in document["detail"]
    assert not kernel.paths.folder.exists()


def test_a_bug_check_that_cannot_be_written_beside_the_log_is_in_the_log(kernel: Any):
    beside = Path(f"{kernel.log_path}.bugcheck.json")
    beside.mkdir()
    with UserProcess.connect(kernel.name) as process, process.open_device("holder") as device:
        with pytest.raises(KernelDied):
            device.device_io_control(BREAK)
        assert kernel.end() == 3
    assert "the driver is broken" in kernel.log
    assert f"Is a directory: '{beside}'" in kernel.log


def test_a_thread_that_holds_the_processor_is_endured_and_a_dpc_is_a_bug_check(start: Any):
    kernel = start("--verifier", code=IMPATIENT, executed=False)
    with UserProcess.connect(kernel.name) as process, process.open_device("holder") as device:
        device.device_io_control(HOG, (1_000).to_bytes(4, "little"))
        assert process.echo(b"after") == b"after"
        assert "processor held for over 0.2 s at PASSIVE_LEVEL" in kernel.log
        assert "in _hog" in kernel.log
        with pytest.raises(KernelDied):
            device.device_io_control(HOG_IN_DPC, (20_000).to_bytes(4, "little"))
        assert kernel.end() == 3
    report = kernel.errors()
    assert report.startswith("*** bug check 0x133 DPC_WATCHDOG_VIOLATION")
    assert "in _hog" in report
    document = json.loads(Path(f"{kernel.log_path}.bugcheck.json").read_text())
    assert document["code"] == 0x133
    assert not kernel.paths.folder.exists()


def test_signals_the_starter_had_blocked_still_stop_it(start: Any):
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        kernel = start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    assert kernel.state()["sessions_opened"] == 0
    assert kernel.stop() == 0
