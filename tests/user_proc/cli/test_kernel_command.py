"""`softhca kernel`: start, stop, status and list, in words and as JSON."""

import itertools
import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drivers.mailbox_page import driver_source
from tests.ready_python import Program
from tests.user_proc.verbs.self_connected import run
from user_proc.errors import KernelNotRunning
from user_proc.process import UserProcess
from user_proc.transport.kernel_control import kernel_state, kernel_status, stop_kernel
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs.device import Context
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., Program]
NAME = "cli-test"


@pytest.fixture
def started(softhca: Run) -> Iterator[dict[str, object]]:
    """A kernel started by the command, which has ended since."""
    done = softhca("kernel", "start", "--name", NAME, "--json")
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout)
    if kernel_status(NAME).running:
        stop_kernel(NAME)


@pytest.fixture(scope="module")
def kept() -> Iterator[StartedKernel]:
    """A kernel for the tests that leave it running."""
    with start_kernel("cli-kept") as kernel:
        yield kernel
        assert kernel.running, kernel.log.read_text()


def test_a_started_kernel_serves_and_stops(softhca: Run, started: dict[str, object]):
    assert started["state"] == "running"
    with UserProcess.connect(NAME) as process:
        assert process.kernel_pid == started["pid"]
    status = softhca("kernel", "status", "--name", NAME)
    assert status.returncode == 0
    first, *details = status.stdout.splitlines()
    assert first == f"kernel 'cli-test' is running (pid {started['pid']})"
    told = dict(line.split(maxsplit=1) for line in details)
    assert told["endpoint"] == started["endpoint"]
    assert (told["sessions"], told["verifier"]) == ("0", "off")
    assert told["hca"] == "latency model none, profile built-in"
    assert {"version", "uptime", "drivers", "log"} <= told.keys()
    stopped = softhca("kernel", "stop", "--name", NAME)
    assert (stopped.returncode, stopped.stdout) == (0, "kernel 'cli-test' has stopped\n")
    assert softhca("kernel", "status", "--name", NAME).returncode == 3


SLOW_DRIVER = """
import pathlib

def driver_entry(driver):
    folder = pathlib.Path(__file__).parent
    (folder / "begun").write_text("")
    (folder / "go-on").read_text()
    return 0
"""


def slow_start(begin: Begin, tmp_path: Path, number: int, before: str = "") -> Program:
    """A start that was sent a signal while the kernel loads a driver, which waits to be let on."""
    (tmp_path / "slow.py").write_text(SLOW_DRIVER)
    for fifo in ("begun", "go-on"):
        os.mkfifo(tmp_path / fifo)
    words = ("kernel", "start", "--name", NAME, "--driver", "slow.py:driver_entry")
    start = begin(*words, before=before)
    (tmp_path / "begun").read_text()
    start.send_signal(number)
    return start


def test_a_start_that_is_ended_takes_its_kernel_with_it(begin: Begin, tmp_path: Path):
    start = slow_start(begin, tmp_path, signal.SIGTERM)
    (tmp_path / "go-on").write_text("")
    assert start.wait(20) == 143
    assert kernel_status(NAME).state == "none"


#: What gives a kernel that is no longer wanted a moment to end.
HURRIED = """
from user_proc.transport import kernel_starter
kernel_starter._GIVE_UP_SECONDS = 0.2
"""


def test_a_start_that_is_ended_kills_a_kernel_that_does_not_end(begin: Begin, tmp_path: Path):
    assert slow_start(begin, tmp_path, signal.SIGINT, HURRIED).wait(20) == 130
    assert kernel_status(NAME).state == "dead"
    with pytest.raises(KernelNotRunning):
        stop_kernel(NAME)


def test_a_kernel_is_started_with_what_its_options_say(softhca: Run, tmp_path: Path):
    (tmp_path / "fast.toml").write_text("[mad]\nmedian_us = 1\n")
    (tmp_path / "small.toml").write_text("ports = 1\n")
    options = {
        "--latency-model": "fast.toml",
        "--latency-factor": "2.5",
        "--hca-profile": "small.toml",
        "--command-mode": "polling",
        "--fragmentation": "16",
        "--allocation": "smaller",
        "--max-qp-rd-atom": "8",
        "--spin-us": "10",
        "--hca-spin-us": "20",
    }
    words = [word for pair in options.items() for word in pair]
    done = softhca("kernel", "start", "--name", NAME, *words, "--json")
    assert done.returncode == 0, done.stderr
    pid = json.loads(done.stdout)["pid"]
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    device = json.loads(softhca("show", "device", "--name", NAME, "--json").stdout)
    told = softhca("kernel", "status", "--name", NAME).stdout
    stop_kernel(NAME)
    model, profile = str(tmp_path / "fast.toml"), str(tmp_path / "small.toml")
    assert f"latency model {model} times 2.5, profile {profile}\n" in told
    files = {"--latency-model": model, "--hca-profile": profile}
    for option, value in (options | files).items():
        assert arguments[arguments.index(option) + 1] == value
    assert device[0]["command_mode"] == "polling"


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--latency-model", "slow", "--latency-model must be none, plausible, prm-ceiling"),
        ("--latency-factor", "-1", "--latency-factor must lie between"),
        ("--command-mode", "telepathy", "--command-mode must be event or polling"),
        ("--fragmentation", "-1", "--fragmentation must lie between"),
        ("--allocation", "luck", "--allocation must be direct, common-buffer, smaller, pages or"),
        ("--max-qp-rd-atom", "3", "--max-qp-rd-atom is a power of two"),
        ("--spin-us", "-1", "--spin-us must lie between"),
        ("--hca-spin-us", "-1", "--hca-spin-us must lie between"),
    ],
)
def test_an_option_that_cannot_be_is_one_sentence(
    softhca: Run, option: str, value: str, sentence: str
):
    done = softhca("kernel", "start", "--name", NAME, option, value)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"softhca: the kernel {NAME!r} did not start: ")
    assert sentence in line


def test_the_hca_is_reset_dead_or_alive(softhca: Run, kept: StartedKernel):
    with Context(name="mthca0", kernel=kept.name) as old:
        before = kernel_state(kept.name)["hca"]["link"]["process"]
        os.kill(before, signal.SIGKILL)
        with pytest.raises(PyverbsRDMAError):
            old.get_async_event() and old.query_device()
        (device,) = json.loads(softhca("show", "device", "--name", kept.name, "--json").stdout)
        assert (device["state"], device["asleep"], device["pid"]) == ("dead", None, None)
        done = softhca("kernel", "reset-hca", "--name", kept.name)
        assert done.returncode == 0, done.stderr
        pid = kernel_state(kept.name)["hca"]["link"]["process"]
        assert done.stdout == f"the HCA of kernel 'cli-kept' has been reset (pid {pid})\n"
        with pytest.raises(PyverbsRDMAError):
            old.query_device()
        with Context(name="mthca0", kernel=kept.name) as fresh:
            assert fresh.session().process is old.session().process
            run(fresh)
            with pytest.raises(PyverbsRDMAError):
                old.query_device()
    again = json.loads(softhca("kernel", "reset-hca", "--name", kept.name, "--json").stdout)
    assert again["resets"] == 2
    assert again["pid"] not in (before, pid)
    with Context(name="mthca0", kernel=kept.name) as fresh:
        run(fresh)


def test_a_reset_without_an_hca_is_one_sentence(softhca: Run):
    done = softhca("kernel", "reset-hca", "--name", "never-started")
    assert done.returncode == 3
    assert softhca("kernel", "start", "--name", NAME, "--no-hca").returncode == 0
    done = softhca("kernel", "reset-hca", "--name", NAME, "--json")
    stop_kernel(NAME)
    assert done.returncode == 1
    assert done.stderr == "softhca: the kernel 'cli-test' runs without an HCA\n"
    assert json.loads(done.stdout) == {"error": "the kernel 'cli-test' runs without an HCA"}


def test_list_tells_each_kernel(softhca: Run, kept: StartedKernel):
    assert (
        f"kernel 'cli-kept' is running (pid {kept.pid})"
        in softhca("kernel", "list").stdout.splitlines()
    )
    listed = json.loads(softhca("kernel", "list", "--json").stdout)
    assert [one["pid"] for one in listed if one["name"] == kept.name] == [kept.pid]


def test_a_second_kernel_of_the_name_is_one_sentence(softhca: Run, kept: StartedKernel):
    done = softhca("kernel", "start", "--name", kept.name)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("softhca: ")
    assert kept.name in sentence


def test_a_killed_kernel_is_told_and_replaced(softhca: Run, started: dict[str, object]):
    pid = int(str(started["pid"]))
    descriptor = os.pidfd_open(pid)
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    assert select.select([descriptor], [], [], 5)[0]
    os.close(descriptor)
    status = softhca("kernel", "status", "--name", NAME)
    assert status.returncode == 3
    assert f"was killed (pid {pid} is gone)" in status.stdout
    again = softhca("kernel", "start", "--name", NAME)
    assert again.returncode == 0, again.stderr
    assert started["cleared"] is None
    cleared = kernel_status(NAME).cleared
    assert cleared is not None
    assert cleared.startswith(f"process {pid} had not stopped in order: removed connection.json")
    assert again.stdout.splitlines()[1] == f"  cleared   {cleared}"


@pytest.mark.parametrize("command", ["stop", "status"])
def test_without_a_kernel_the_exit_code_says_so(softhca: Run, command: str):
    done = softhca("kernel", command, "--name", "never-started")
    assert done.returncode == 3
    assert "never-started" in done.stdout + done.stderr


def test_status_of_none_as_json(softhca: Run):
    done = softhca("kernel", "status", "--name", "never-started", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["state"] == "none"
    assert json.loads(done.stdout)["pid"] is None


@pytest.mark.parametrize("name", ["../up", "", "a" * 65, "with space"])
def test_a_name_that_cannot_be_is_one_sentence(softhca: Run, name: str):
    done = softhca("kernel", "start", "--name", name)
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert "cannot name an instance" in sentence


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("stop",), 3, "there is nothing to stop"),
        (("stop", "--name", "a b"), 2, "cannot name an instance"),
        (("status", "--name", "../x"), 2, "cannot name an instance"),
    ],
)
def test_an_error_is_told_as_json_too(
    softhca: Run, arguments: tuple[str, ...], code: int, words: str
):
    done = softhca("kernel", *arguments, "--json")
    assert done.returncode == code
    sentence = json.loads(done.stdout)["error"]
    assert words in sentence
    assert done.stderr == f"softhca: {sentence}\n"


def test_nothing_to_stop_is_no_advice_to_start(softhca: Run):
    done = softhca("kernel", "stop", "--name", "never-started")
    assert "kernel start" not in done.stderr


#: What gives a kernel a moment to stop.
IMPATIENT = """
import functools
from user_proc.transport import kernel_control
kernel_control.stop_kernel = functools.partial(kernel_control.stop_kernel, timeout=0.2)
"""


def test_a_kernel_that_had_to_be_killed_has_not_stopped(softhca: Run, started: dict[str, object]):
    os.kill(int(str(started["pid"])), signal.SIGSTOP)
    done = softhca("kernel", "stop", "--name", NAME, "--json", before=IMPATIENT)
    assert done.returncode == 1
    assert done.stderr == "softhca: the kernel 'cli-test' did not stop in time and was killed\n"
    told = json.loads(done.stdout)
    assert told["state"] == "dead"
    assert f"softhca: {told['error']}\n" == done.stderr
    stop_again = softhca("kernel", "stop", "--name", NAME)
    assert stop_again.returncode == 3
    assert "it was killed and there is nothing to stop" in stop_again.stderr


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "command",
    [("bench",), ("compare",), ("kernel", "start"), ("kernel",), ("show",), ("devinfo",)],
)
def test_help_fills_the_width_it_has(softhca: Run, width: int, command: tuple[str, ...]):
    lines = softhca(*command, "--help", columns=width).stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("<bool>" in line for line in lines)
    prose = itertools.takewhile(lambda line: "Options" not in line, lines)
    text = [line.rstrip() for line in prose if line.strip()]
    text = text[1 + next(n for n, line in enumerate(text) if "[OPTIONS]" in line) :]
    for line, following in itertools.pairwise(text):
        if not line.endswith("."):  # broken only where the next word would not have fitted
            assert len(line) + 1 + len(following.split()[0]) > width - 2, line


def test_help_and_version(softhca: Run):
    text = softhca("--help").stdout
    for word in ("bench", "kernel", "--version", "Exit codes"):
        assert word in text
    assert softhca("--version").stdout.startswith("softhca 0.")
    for command in (["bench"], ["kernel"], ["kernel", "start"]):
        done = softhca(*command, "--help")
        assert done.returncode == 0
        assert "--tiny" not in done.stdout
    assert softhca("kernel", "explode").returncode == 2


def test_a_verifier_kernel_starts_and_loads_a_driver_by_its_file(softhca: Run, tmp_path: Path):
    (tmp_path / "mailbox.py").write_text(driver_source())
    words = ("--name", "cli-driver", "--driver", "mailbox.py:driver_entry", "--verifier")
    done = softhca("kernel", "start", *words)
    assert done.returncode == 0, done.stderr
    assert kernel_status("cli-driver").verifier
    with UserProcess.connect("cli-driver") as process:
        for device in ("noop", "mailbox"):
            process.open_device(device).close()
    assert stop_kernel("cli-driver")


def test_a_driver_that_cannot_be_loaded_is_one_sentence(softhca: Run):
    words = ("--name", "cli-driver", "--driver", "missing.py:driver_entry", "--json")
    done = softhca("kernel", "start", *words)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert f"softhca: {json.loads(done.stdout)['error']}" == sentence
    assert sentence.startswith("softhca: the kernel 'cli-driver' did not start: the driver ")
    assert "missing.py; look at the path" in sentence


def test_a_port_is_set_and_a_program_hears_of_it(softhca: Run, kept: StartedKernel):
    with Context(name="mthca0", kernel=kept.name) as context:
        done = softhca(
            "kernel", "set-port", "2", "--name", kept.name, "--pkey", "3=0x8001",
            "--guid", "1=0x77", "--lid", "9", "--reregister",
        )  # fmt: skip
        assert (done.stdout.splitlines(), done.stderr) == (
            ["port 2: P_Key[3] is 0x8001", "port 2: GUID[1] is 0x77", "port 2: LID is 0x9",
             "port 2: clients are asked to register anew"], "",
        )  # fmt: skip
        events = [context.get_async_event() for _ in range(4)]
        assert [event.event_type for event in events] == [12, 18, 11, 17]
        for event in events:
            event.ack()
        assert context.query_port(2).lid == 9
        assert context.query_gid(2, 1).raw[8:] == bytes(7) + b"\x77"
        done = softhca("kernel", "set-port", "2", "--name", kept.name, "--pkey", "64=1", "--json")
        assert done.returncode == 1
        assert "64" in json.loads(done.stdout)["error"]
        for wrong in (["--pkey", "3"], ["--lid", "x"], [], ["--guid", f"1={1 << 64}"]):
            assert softhca("kernel", "set-port", "1", "--name", kept.name, *wrong).returncode == 2
        done = softhca("kernel", "set-port", "1", "--name", kept.name, "--lid", "70000")
        sentence = "port 1 was not set so that LID is 0x11170: a port cannot have 0x11170 there"
        assert (done.returncode, done.stderr) == (1, f"softhca: {sentence}\n")
