"""`softhca launch` as a user runs it: output, files, exit codes, logs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.connection_file import runtime_root
from user_proc.run_document import load_strict
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """
from user_proc.groups.rank import Rank
from user_proc.process import UserProcess

def main():
    with Rank.from_environment() as rank, UserProcess.connect(rank.kernel):
        print("here is", rank.rank, "of", rank.size)
        rank.ready()
        rank.report(ops_per_s=12.5)
"""
GOOD = """
sample_interval = 0.1
[kernel]
hca = false
spin_us = 0
[[group]]
name = "first"
count = 2
run = "program:main"
[[group]]
name = "second"
command = ["sleep", "0.15"]
after = "first:ready"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_a_success_prints_its_ranks_and_keeps_no_logs(softhca: Run, folder: Path):
    (folder / "good.toml").write_text(GOOD)
    done = softhca("launch", "good.toml", "--logs", ".", "--json", "run.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:5] == ["rank", "state", "end", "starts", "seconds"]
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["first[0]", "done", "exit"],
        ["first[1]", "done", "exit"],
        ["second[0]", "done", "exit"],
    ]
    assert "ops_per_s 12.5" in lines[1]
    assert lines[4].startswith("success after ")
    assert len(lines) == 5
    told = done.stderr.splitlines()
    assert "first[0] done" in told
    assert any(line.startswith("second[0] running (pid ") for line in told)
    left = set(os.listdir(folder)) - {"__pycache__"}  # which is Python's own
    assert left == {"good.toml", "program.py", "run.json"}
    document = load_strict((folder / "run.json").read_text())
    assert document["kind"] == "launch"
    assert document["outcome"]["result"] == "success"
    assert document["settings"]["kernel"] == {"hca": False, "spin_us": 0}
    assert [group["name"] for group in document["groups"]] == ["first", "second"]
    assert document["groups"][1]["after"] == ["first:ready"]
    assert document["ranks"][0]["figures"] == {"ops_per_s": 12.5}
    # The ranks may have ended before a second look at them is due, which waits long if one is slow.
    of_kernel = [one for one in document["samples"] if one["group"] == "kernel"]
    assert of_kernel
    assert all(one["rss_bytes"] > 0 for one in of_kernel)


def test_a_failure_says_which_rank_and_keeps_its_log(softhca: Run, folder: Path):
    text = GOOD.replace('["sleep", "0.15"]', '["bash", "-c", "echo what it was; exit 4"]')
    (folder / "bad.toml").write_text(text)
    done = softhca("launch", "bad.toml", "--logs", ".", "--no-progress", "--json", "-")
    assert done.returncode == 1
    outcome = load_strict(done.stdout)["outcome"]
    reason = "second[0]: exit code 4; its last words: what it was"
    assert (outcome["result"], outcome["reason"], outcome["exit_code"]) == ("failed", reason, 1)
    (kept,) = folder.glob("softhca-launch-*")
    assert outcome["logs"] == str(kept.relative_to(folder))
    assert done.stderr.splitlines()[-1] == f"logs: {kept.relative_to(folder)}"
    assert (kept / "first-1.log").read_text() == "here is 1 of 2\n"
    names = ["first-0.log", "first-1.log", "kernel.log", "second-0.log"]
    assert sorted(os.listdir(kept)) == names


STRUCK = """
from shared.ioctl_codes import COMPLETION_INLINE, METHOD_BUFFERED, noop_code
from user_proc.errors import NtStatusError
from user_proc.groups.rank import Rank
from user_proc.process import UserProcess

def main():
    with Rank.from_environment() as rank, UserProcess.connect(rank.kernel) as process:
        with process.open_device("noop") as noop:
            code = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
            try:
                noop.device_io_control(code, b"x")
            except NtStatusError as error:
                return error.status & 0xFF
"""
FAULTY = """
[kernel]
hca = false
[[fault]]
point = "pool-fails"
process = "struck[1]"
after = "first:ended"
[[group]]
name = "first"
command = "true"
[[group]]
name = "struck"
count = 2
run = "struck:main"
after = "first:ended"
success = { exit_codes = [0, 0x44] }
"""


def test_a_fault_strikes_the_rank_it_is_for_when_it_is_due(softhca: Run, folder: Path):
    (folder / "struck.py").write_text(STRUCK)
    (folder / "faulty.toml").write_text(FAULTY)
    done = softhca("launch", "faulty.toml", "--no-progress", "--json", "run.json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = load_strict((folder / "run.json").read_text())
    assert [rank["exit_code"] for rank in document["ranks"]] == [0, 0, 0x44]  # QUOTA_EXCEEDED
    (fault,) = document["settings"]["faults"]
    assert (fault["point"], fault["process"], fault["after"]) == (
        "pool-fails", "struck[1]", ["first:ended"],
    )  # fmt: skip
    text = FAULTY.replace("pool-fails", "ack-lost").replace('process = "struck[1]"', "")
    (folder / "faulty.toml").write_text(text)
    done = softhca("launch", "faulty.toml", "--no-progress", "--logs", ".")
    assert (done.returncode, done.stderr) == (1, "")
    assert "the fault 'ack-lost' cannot be set: this kernel runs without an HCA" in done.stdout


def test_a_running_kernel_is_used_and_left_running(private_run: object, softhca: Run, folder: Path):
    settings = '[kernel]\nrunning = "launch-mine"\n[[group]]'
    text = GOOD.partition("[kernel]")[0] + "".join(GOOD.partition("[[group]]")[2:])
    (folder / "good.toml").write_text(text.replace("\nname", settings + "\nname", 1))
    absent = softhca("launch", "good.toml", "--no-progress")
    assert absent.returncode == 3
    assert absent.stderr.startswith("softhca: no kernel named 'launch-mine' is running")
    with start_kernel("launch-mine", settings={"hca": False}) as kernel:
        done = softhca("launch", "good.toml", "--no-progress", "--keep-logs", "--logs", ".")
        assert (done.returncode, done.stderr) == (0, "")
        assert kernel.running
    (kept,) = folder.glob("softhca-launch-*")
    assert sorted(os.listdir(kept)) == ["first-0.log", "first-1.log", "second-0.log"]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("[[group]]\nname = 'a'\n", 2, "wrong.toml:1: group[0].run: give one of run"),
        ("x = 1", 2, "wrong.toml:1: x: there is no such key"),
        ("time_limit = 0.3\n[kernel]\nhca = false\n[[group]]\nname = 'a'\n"
         "command = ['sleep', '60']\n", 124, "the time limit of 0.3 s has passed: a[0] still ran"),
        ("[kernel]\ncommand_mode = 'fast'\n[[group]]\nname = 'a'\ncommand = 'true'\n", 2,
         "--command-mode"),
    ],
)  # fmt: skip
def test_exit_codes(softhca: Run, folder: Path, text: str, code: int, words: str):
    (folder / "wrong.toml").write_text(text)
    done = softhca("launch", "wrong.toml", "--no-progress", "--logs", ".")
    assert done.returncode == code
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not list(runtime_root().glob("launch-*"))


def test_wrong_usage_is_told_at_once(softhca: Run, folder: Path):
    (folder / "good.toml").write_text(GOOD)
    done = softhca("launch", "good.toml", "--logs", "no")
    assert done.returncode == 2
    assert "no is no folder" in done.stderr


def test_a_program_that_kills_its_kernel_is_told(softhca: Run, folder: Path):
    kill = (
        "import os, signal; from user_proc.groups.rank import Rank; "
        "from user_proc.transport.kernel_control import kernel_status; "
        "os.kill(kernel_status(Rank.from_environment().kernel).pid, signal.SIGKILL); signal.pause()"
    )
    command = [sys.executable, "-P", "-c", kill]
    text = f"[kernel]\nhca = false\n[[group]]\nname = 'a'\ncommand = {command}\n"
    (folder / "kill.toml").write_text(text)
    done = softhca("launch", "kill.toml", "--no-progress", "--logs", ".")
    assert done.returncode == 1
    assert "has ended by itself: its log is" in done.stdout
    assert not list(runtime_root().glob("launch-*"))
