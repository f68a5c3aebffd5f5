"""The benchmark's end of its user process: answers, errors, and its end whatever happens."""

import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from user_proc.bench import worker_link
from user_proc.bench.worker_link import WorkerFailed, WorkerLink
from user_proc.transport.child_environment import child_environment

LinkTo = Callable[[str], WorkerLink]

ECHO = """
import json, sys
print(json.dumps({"ready": 1}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "fail":
        print(json.dumps({"error": "it cannot be done"}), flush=True)
    elif command["do"] == "die":
        sys.exit(7)
    else:
        print(json.dumps({"got": command}), flush=True)
"""
DEAF = "import json, signal; print(json.dumps({'ready': 1}), flush=True); signal.pause()"
MUTE = "import sys; sys.stdin.read()"


@pytest.fixture
def link_to(monkeypatch: pytest.MonkeyPatch) -> LinkTo:
    """Start a link to a program of the test's instead of the worker."""

    def start(program: str) -> WorkerLink:
        popen = subprocess.Popen

        def instead(arguments: list[str], **options: object) -> object:
            return popen([sys.executable, "-c", program], **options)  # type: ignore[call-overload]  # passed on

        monkeypatch.setattr(worker_link.subprocess, "Popen", instead)
        return WorkerLink("nobody")

    return start


def ended(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.processes
def test_questions_and_answers(link_to: LinkTo):
    with link_to(ECHO) as link:
        assert link.ask("greet", name="x")["got"] == {"do": "greet", "name": "x"}
        with pytest.raises(WorkerFailed, match=r"^it cannot be done$"):
            link.ask("fail")
        assert link.ask("again")["got"] == {"do": "again"}
        pid = link.pid
        assert os.getpgid(pid) == pid  # Ctrl-C in the terminal passes it by
    assert ended(pid)


@pytest.mark.processes
def test_several_are_asked_before_any_is_waited_for(link_to: LinkTo):
    with link_to(ECHO) as one, link_to(ECHO) as other:
        for link in (one, other):
            link.send("greet", name=link.pid)
        assert [link.receive()["got"]["name"] for link in (one, other)] == [one.pid, other.pid]
        pids = [one.pid, other.pid]
        one.begin_close()
        other.begin_close()
    assert all(ended(pid) for pid in pids)


@pytest.mark.processes
def test_a_worker_that_dies_is_told_with_its_exit_code(link_to: LinkTo):
    with link_to(ECHO) as link:
        with pytest.raises(WorkerFailed, match=r"pid \d+\) ended unexpectedly, exit code 7"):
            link.ask("die")
        with pytest.raises(WorkerFailed, match="ended unexpectedly"):
            link.ask("greet")


@pytest.mark.processes
def test_a_worker_that_does_not_answer_is_given_up_and_ended(
    link_to: LinkTo, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_link, "_ANSWER_SECONDS", 0.05)
    with link_to(DEAF) as link:
        with pytest.raises(WorkerFailed, match=r"has not answered for 0.05 s"):
            link.ask("greet")
        pid = link.pid
    assert ended(pid)


@pytest.mark.processes
def test_a_worker_that_never_gets_ready_is_ended(link_to: LinkTo, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_link, "_START_SECONDS", 0.05)
    with pytest.raises(WorkerFailed, match="has not answered"):
        link_to(MUTE).wait_until_ready()


@pytest.mark.processes
def test_without_a_kernel_the_worker_says_so():
    with pytest.raises(WorkerFailed, match="no kernel named 'nobody-here' is running"):
        WorkerLink("nobody-here").wait_until_ready()


@pytest.mark.processes
def test_the_worker_ends_with_the_process_that_started_it(tmp_path: Path):
    program = (
        "import os, sys\n"
        "from user_proc.transport.kernel_starter import start_kernel\n"
        "from user_proc.bench.worker_link import WorkerLink\n"
        "kernel = start_kernel('orphan')\n"
        "link = WorkerLink('orphan')\n"
        "link.wait_until_ready()\n"
        "print(link.pid, kernel.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    for word in found.stdout.split():
        try:
            descriptor = os.pidfd_open(int(word))
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], 5)[0], f"process {word} stayed"
        finally:
            os.close(descriptor)
    assert len(found.stdout.split()) == 2


def test_a_child_finds_these_packages_first(monkeypatch: pytest.MonkeyPatch):
    root = str(Path(worker_link.__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert child_environment()["PYTHONPATH"] == f"{root}:/elsewhere"
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment()["PYTHONPATH"] == root
