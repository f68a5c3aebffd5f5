"""`softhca stress` itself: clean runs, with a seed that is fixed and one that is fresh; its ends.

Half a minute of it is part of every run of the tests, of little weight, so that tests beside it are
not slowed. The long ones want `-m stress`: 64 clients for ten minutes, and a thousand kills.
"""

import contextlib
import json
import os
import random
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.connection_file import list_instances
from tests.end_to_end.conftest import wait_until
from tests.user_proc.cli.conftest import COMMAND, environment, run_to_end

pytestmark = pytest.mark.processes

GOOD = dict.fromkeys(("lost", "doubled", "corrupt", "wrong", "hangs"), 0)
KILLS = 1000
#: What clients must not see of anything.
FAULTS = """
[[fault]]
point = "interrupt-doubled"
every = 20

[[fault]]
point = "command-late"
time = "300us"
every = 50

[[fault]]
point = "interrupt-lost"
every = 100
"""


def stress(folder: Path, *arguments: str, timeout: float = 55.0) -> dict[str, Any]:
    """Run it and return its document; what it said is shown when the test fails."""
    done = subprocess.run(
        ["nice", *COMMAND, "stress", "--json", "run.json", "--no-progress", *arguments],
        env=environment(), cwd=folder, capture_output=True, text=True, check=False,
        timeout=timeout,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    document: dict[str, Any] = json.loads((folder / "run.json").read_text())
    assert {name: document[name] for name in GOOD} == GOOD, document["failures"]
    assert document["leaks"] == []
    assert done.returncode == 0
    return document


def test_a_fixed_seed(tmp_path: Path, private_run: Path):
    (tmp_path / "faults.toml").write_text(FAULTS)
    document = stress(
        tmp_path, "--clients", "4", "--seconds", "4.5", "--seed", "1", "--kill", "3", "--verifier",
        "--faults", "faults.toml",
    )  # fmt: skip
    assert (document["seed"], document["clients"], document["kind"]) == (1, 4, "stress")
    assert [one["point"] for one in document["settings"]["faults"]] == [
        "interrupt-doubled", "command-late", "interrupt-lost",
    ]  # fmt: skip
    assert document["kills"] > 0
    assert document["completions"] > 1000
    assert len(document["rows"]) >= 4
    assert sum(row["completions"] for row in document["rows"]) <= document["completions"]


@pytest.mark.timeout(180)  # a failing run looks for the shortest program
def test_a_fresh_seed(tmp_path: Path, private_run: Path):
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    document = stress(
        tmp_path, "--clients", "2,4", "--seconds", "12.5", "--seed", str(seed), timeout=170.0
    )
    assert [one["clients"] for one in document["counts"]] == [2, 4]
    assert (document["clients"], document["kills"]) == (4, 0)
    assert document["seconds"] >= 25
    assert {*GOOD, "seed", "operations", "leaks", "control_p99_us", "floor_p99_us"} < set(document)
    for count in (2, 4):
        rows = [row for row in document["rows"] if row["clients"] == count]
        assert [row["second"] for row in rows] == list(range(1, len(rows) + 1))
        assert sum(row["completions"] > 0 for row in rows) > 6, rows


def test_wrong_usage_and_programs_that_are_none(tmp_path: Path):
    assert run_to_end(tmp_path, "stress", "--clients", "0").returncode == 2
    (tmp_path / "program.json").write_text("[[7]]")
    done = run_to_end(tmp_path, "stress", "--replay", "program.json")
    assert (done.returncode, "is no step" in " ".join(done.stderr.split())) == (2, True)


def test_a_program_is_done_again(tmp_path: Path, private_run: Path):
    program = tmp_path / "program.json"
    program.write_text('[["pd", "a"], ["link", [[2, 64, 0, 1]]], ["close", "a"]]')
    done = run_to_end(tmp_path, "stress", "--replay", "program.json")
    assert (done.returncode, done.stdout) == (0, "3 steps: nothing was found\n")
    program.write_text('[["pd"]]')
    done = run_to_end(tmp_path, "stress", "--replay", "program.json")
    assert (done.returncode, done.stdout[:20]) == (1, "FOUND died at step 0")


@pytest.fixture
def running(tmp_path: Path, private_run: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of some length, well under way."""
    process = subprocess.Popen(
        [*COMMAND, "stress", "--clients", "3", "--seconds", "60"], env=environment(), cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], 30.0)[0], "no progress"
    assert "operations" in process.stderr.readline()
    yield process
    process.kill()
    process.wait()
    process.stderr.close()


def descendants(pid: int) -> list[int]:
    """Every process below one, of all generations."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # it, or its thread, has just ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            for word in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                found += [int(word), *descendants(int(word))]
    return found


def pidfds_of(pids: list[int]) -> list[int]:
    """Descriptors of those that are still there."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_it_ends_all_it_started(
    running: subprocess.Popen[str], number: signal.Signals
):
    pidfds = pidfds_of(descendants(running.pid))
    assert len(pidfds) >= 3  # kernel, HCA, nursery, clients
    running.send_signal(number)
    code = running.wait(20.0)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], 15.0)[0], "a process has stayed"
        os.close(pidfd)
    wait_until(lambda: not [one for one in list_instances() if one.name.startswith("stress-")])


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_64_clients_for_ten_minutes(tmp_path: Path, private_run: Path):
    document = stress(
        tmp_path, "--clients", "64", "--seconds", "600", "--seed", "64", timeout=1100.0
    )
    (count,) = document["counts"]
    assert count["completions_per_s"] >= 2000, count


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_a_thousand_kills(tmp_path: Path, private_run: Path):
    document = stress(
        tmp_path, "--clients", "8", "--seconds", str(KILLS / 5 * 1.15), "--seed", "1000",
        "--kill", "5", "--verifier", timeout=850.0,
    )  # fmt: skip
    assert document["kills"] >= KILLS
