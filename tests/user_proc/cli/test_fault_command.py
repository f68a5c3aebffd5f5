"""`softhca fault`: what is printed, as words and as JSON, and how it ends."""

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.fault_points import FAULT_POINTS
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

pytestmark = pytest.mark.processes

Run = Callable[..., subprocess.CompletedProcess[str]]
FILE = """
[[fault]]
point = "ack-lost"
every = 10

[[fault]]
point = "kernel-slow"
time = "1ms"
lasts = "500s"
process = "nobody"
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"fault-{uuid.uuid4().hex[:8]}") as started:
        yield started


def test_the_life_of_faults(softhca: Run, kernel: StartedKernel, tmp_path: Path):
    name = kernel.name
    (tmp_path / "faults.toml").write_text(FILE, encoding="utf-8")
    done = softhca("fault", "set", "--file", "faults.toml", "--name", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"fault 1 is set in kernel {name!r}: ack-lost",
        f"fault 2 is set in kernel {name!r}: kernel-slow",
    ]
    done = softhca("fault", "set", "command-late", "time=20ms", "nth=5", "--json", "--name", name)
    assert json.loads(done.stdout) == {"name": name, "numbers": [3]}
    done = softhca("fault", "list", "--name", name)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["#", "POINT", "SET", "WITH", "CALLS", "HITS"],
        ["1", "ack-lost", "every=10", "0", "0"],
        ["2", "kernel-slow", "process=nobody", "time=1ms", "lasts=500000ms", "0", "0"],
        ["3", "command-late", "nth=5", "time=20ms", "0", "0"],
    ]
    done = softhca("fault", "clear", "ack-lost", "--name", name)
    assert done.stdout == f"1 fault of kernel {name!r} cleared\n"
    done = softhca("fault", "clear", "--json", "--name", name)
    assert json.loads(done.stdout) == {"name": name, "cleared": 2}
    done = softhca("fault", "list", "--name", name)
    assert done.stdout == f"no fault is set in kernel {name!r}\n"
    assert "fault 3 is set: " in kernel.log.read_text()


def test_what_cannot_be_set_is_one_sentence(softhca: Run, kernel: StartedKernel):
    done = softhca("fault", "set", "ack-lost", "port=7", "--name", kernel.name, "--json")
    sentence = "the HCA has no port 7: it has 1 to 2"
    assert (done.returncode, done.stderr) == (1, f"softhca: {sentence}\n")
    assert json.loads(done.stdout) == {"error": sentence}
    for arguments, code in (
        (("set",), 2),
        (("set", "ack-lost", "every"), 2),
        (("set", "ack-lost", "every=x"), 2),
        (("set", "no-such-point"), 2),
        (("clear", "no-such-point"), 2),
        (("list", "--name", "never-started"), 3),
    ):
        done = softhca("fault", *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)


def test_the_points_are_told(softhca: Run):
    done = softhca("fault", "points", "--json")
    rows = json.loads(done.stdout)
    assert [row["point"] for row in rows] == list(FAULT_POINTS)
    assert all(row["happens"] and row["seen"] for row in rows)
    cut = next(row for row in rows if row["point"] == "message-cut")
    assert cut["needs"] == "part, session or process"
