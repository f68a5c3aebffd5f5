"""How runs end that do not go well: a kernel of one's own, deaths, Ctrl-C, disagreement."""

import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.connection_file import instance_paths
from tests.ready_python import Program, ReadyPython
from user_proc.transport.kernel_control import kernel_status

pytestmark = pytest.mark.processes

END_SECONDS = 20.0
NAME = "tool-ends"
LONG = ["-n", "10000000"]

Side = Program
Start = Callable[..., Side]


@pytest.fixture(scope="module")
def ready(private_run: Path) -> Iterator[ReadyPython]:
    """What both tools have imported; that each starts by itself is a matter of the scripts."""
    ready = ReadyPython("user_proc.perftest.pingpong_main", "user_proc.perftest.tool_main")
    yield ready
    ready.close()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start(ready: ReadyPython, port: int) -> Iterator[Start]:
    """Start a side of a tool; those left are killed at the end."""
    sides: list[Side] = []

    def begin(tool: str, *arguments: str, before: str = "") -> Side:
        module = "pingpong_main" if tool.endswith("pingpong") else "tool_main"
        code = f"import sys; from user_proc.perftest.{module} import main; sys.exit(main({tool!r}))"
        words = (before + code, *arguments, "-p", str(port))
        sides.append(ready.start(*words, stdin=subprocess.DEVNULL))
        return sides[-1]

    yield begin
    for side in sides:
        side.kill()
        side.communicate()


def wait_for(side: Side, word: str) -> None:
    """Read what it prints until a word is there."""
    assert side.stdout is not None
    said = ""
    while word not in said:
        assert select.select([side.stdout], [], [], END_SECONDS)[0], said
        more = os.read(side.stdout.fileno(), 4096).decode()
        assert more, (said, side.communicate(timeout=END_SECONDS))
        said += more


def pair(start: Start, tool: str, *options: str) -> tuple[Side, Side]:
    """Start a long run; give server and client, both under way."""
    server = start(tool, "--name", NAME, *options)
    wait_for(server, "ait")
    client = start(tool, *options, "127.0.0.1")
    for side in (server, client):
        wait_for(side, "remote address")
    return server, client


def end_of(side: Side) -> tuple[int, str]:
    errors = side.communicate(timeout=END_SECONDS)[1]
    return side.returncode, errors


def folder() -> Path:
    return instance_paths(NAME).folder


@pytest.mark.parametrize(
    ("tool", "who"),
    [("ib_send_lat", 0), ("ib_write_lat", 1), ("ib_read_bw", 1), ("rc_pingpong", 0)],
)
def test_a_side_that_is_killed_is_one_sentence_at_the_other(start: Start, tool: str, who: int):
    sides = pair(start, tool, *LONG)
    assert folder().exists()
    kernel = os.pidfd_open(kernel_status(NAME).pid or 0)
    sides[who].kill()
    killed = time.monotonic()
    code, errors = end_of(sides[1 - who])
    assert time.monotonic() - killed < 2.0
    assert code == 1
    assert errors == f"{tool}: the other side has ended before the run was over\n"
    if who == 0:  # nobody waits for its kernel; a server that is left has stopped its own by then
        assert select.select([kernel], [], [], END_SECONDS)[0]
    os.close(kernel)
    assert not folder().exists()


@pytest.mark.parametrize("who", [0, 1])
def test_ctrl_c_leaves_nothing(start: Start, who: int):
    sides = pair(start, "ib_send_bw", *LONG)
    sides[who].send_signal(signal.SIGINT)
    assert end_of(sides[who]) == (130, "ib_send_bw: ended by SIGINT\n")
    told = "ib_send_bw: the other side has ended: it was interrupted\n"
    assert end_of(sides[1 - who]) == (1, told)
    assert not folder().exists()


def test_ctrl_c_while_the_server_waits_leaves_nothing(start: Start):
    server = start("ib_write_bw", "--name", NAME)
    wait_for(server, "Waiting")
    server.send_signal(signal.SIGINT)
    assert end_of(server) == (130, "ib_write_bw: ended by SIGINT\n")
    assert not folder().exists()


@pytest.mark.parametrize(
    ("there", "here", "sentence"),
    [
        ((), ("-n", "20"), "-n must be the same on both sides: here 1000, at the client 20"),
        (("-m", "512"), (), "-m must be the same on both sides: here 512, at the client not given"),
    ],
)
def test_sides_that_were_told_differently(
    start: Start, there: tuple[Any, ...], here: tuple[Any, ...], sentence: str
):
    server = start("ib_send_lat", "--name", NAME, *there)
    wait_for(server, "Waiting")
    client = start("ib_send_lat", *here, "127.0.0.1")
    assert end_of(client) == (1, f"ib_send_lat: the other side has ended: {sentence}\n")
    assert end_of(server) == (1, f"ib_send_lat: {sentence}\n")


def test_a_client_of_another_kernel(start: Start):
    server = start("rc_pingpong", "--name", NAME)
    wait_for(server, "waiting")
    client = start("rc_pingpong", "--name", "another", "127.0.0.1")
    sentence = f"the server is on the kernel '{NAME}', not 'another'"
    assert end_of(client) == (1, f"rc_pingpong: {sentence}\n")
    assert end_of(server) == (1, f"rc_pingpong: the other side has ended: {sentence}\n")


#: Both sides run for seconds of 0.2 s.
SHORT = """
from user_proc.perftest import measured_window
measured_window._SECOND //= 5
"""


def test_durations_and_bare_numbers(start: Start, tmp_path: Path):
    words = ("--name", NAME, "-D", "1", "-e", "-c", "UD")
    server = start("ib_send_lat", *words, before=SHORT)
    wait_for(server, "Waiting")
    file = tmp_path / "out.json"
    options = ["-D", "1", "--output", "latency", "--out_json_file", str(file)]
    client = start("ib_send_lat", "-e", "-c", "UD", *options, "127.0.0.1", before=SHORT)
    out, errors = client.communicate(timeout=END_SECONDS)
    assert errors == ""
    assert float(out) > 0
    assert '"avg_lat"' in file.read_text()
    assert end_of(server) == (0, "")


def test_both_directions_and_a_limit_that_is_not_reached(start: Start):
    options = ["-b", "--report-both", "-n", "40", "-q", "2", "-s", "3000"]
    server = start("ib_send_bw", "--name", NAME, *options)
    wait_for(server, "Waiting")
    client = start("ib_send_bw", *options, "-w", "1e12", "127.0.0.1")
    out, errors = client.communicate(timeout=END_SECONDS)
    assert client.returncode == 1
    assert re.fullmatch(r"ib_send_bw: [\d.e+]+ is below the limit of -w, 1e\+12\n", errors)
    rows = [line.split() for line in out.splitlines()[-3:-1]]
    assert [row[:2] for row in rows] == [["3000", "80"]] * 2
    theirs, errors = server.communicate(timeout=END_SECONDS)
    assert (server.returncode, errors) == (0, "")
    same = [line.split()[3:] for line in theirs.splitlines()[-3:-1]]
    assert same == [row[3:] for row in reversed(rows)]  # each has its own direction first


def test_the_failure_that_came_first_is_told(start: Start):
    server = start("ib_send_lat", "--name", NAME, "-u", "1")
    wait_for(server, "Waiting")
    client = start("ib_send_lat", "-u", "1", "--dlid", "40", "127.0.0.1")
    sentence = "a request failed with 'retry exceeded error' (vendor error 0x0)"
    assert end_of(client) == (1, f"ib_send_lat: {sentence}\n")
    assert end_of(server) == (1, f"ib_send_lat: the other side has ended: {sentence}\n")
