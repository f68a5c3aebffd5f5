"""What `softhca show` tells of traffic between two processes, and of an HCA that has stopped."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end.conftest import Kernel, User, wait_until
from tests.end_to_end.test_engine_traffic import BACK, START, Peer
from tests.end_to_end.traffic_end import End
from tests.ready_command import ReadyCommand
from user_proc.cli.device_figures import HcaSilent
from user_proc.cli.state_tables import TABLES
from user_proc.cli.work_requests import posted_requests, request_rows
from user_proc.transport.kernel_control import kernel_state

pytestmark = pytest.mark.processes


class Scene:
    """A kernel, a queue pair here and one in another process, connected; and the command."""

    def __init__(self, kernel: Kernel, command: ReadyCommand) -> None:
        self.kernel = kernel
        self.command = command
        self.end, self.peer = End(kernel.name), Peer(kernel.name)
        self.end.connect(self.peer.qpn)
        self.peer.ask("connect", self.end.qp.qp_num)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = ("show", *arguments, "--name", self.kernel.name)
        return self.command.run(words, self.kernel.folder, dict(os.environ), 40)

    def rows(self, kind: str) -> Any:
        """The rows, as the command makes them."""
        return TABLES[kind].rows(kernel_state(self.kernel.name))

    def requests(self, number: int) -> Any:
        return request_rows(posted_requests(self.kernel.name, number))

    def queue_pairs(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rows = {row["number"]: row for row in self.rows("qp")}
        return rows[self.end.qp.qp_num], rows[self.peer.qpn]

    def device_pid(self) -> int:
        pid: int = self.kernel.state()["hca"]["link"]["process"]
        return pid

    def close(self) -> None:
        self.end.context.close()
        self.peer.end()


@pytest.fixture
def scene(start: Callable[..., Kernel], ready_command: ReadyCommand) -> Iterator[Scene]:
    scene = Scene(start(), ready_command)
    yield scene
    scene.close()


def test_the_figures_are_what_was_sent(scene: Scene):
    end, peer = scene.end, scene.peer
    end.receive(BACK, 100)
    peer.ask("receive", BACK, 5000, 3)
    for length in (1, 64, 5000):
        end.send("SEND", START, length)
    peer.ask("send", "SEND", START, 77)
    end.send("RDMA_WRITE", START, 3000, (peer.buf + BACK, peer.rkey))
    assert end.statuses(5) == [0] * 5
    assert peer.ask("statuses", 4) == [0] * 4
    ours, theirs = scene.queue_pairs()
    assert (ours["sent_messages"], ours["sent_bytes"]) == (4, 1 + 64 + 5000 + 3000)
    assert (ours["received_messages"], ours["received_bytes"]) == (1, 77)
    assert (theirs["sent_messages"], theirs["sent_bytes"]) == (1, 77)
    assert (theirs["received_messages"], theirs["received_bytes"]) == (4, 1 + 64 + 5000 + 3000)
    assert ours["flushes"] == ours["rnr_naks_received"] == ours["retries"] == 0
    one, other = scene.rows("port")
    assert (one["port"], one["state"], one["lid"], len(one["gids"])) == (1, "active", 1, 1)
    assert one["sent_messages"] == one["received_messages"] == 5
    assert one["sent_bytes"] == one["received_bytes"] == 8142
    assert other["sent_messages"] == 0
    (device,) = scene.rows("device")
    assert (device["sent_messages"], device["figures"]) == (5, None)
    assert json.loads(scene.run("port", "--json").stdout) == [one, other]
    words = scene.run("qp").stdout.splitlines()
    assert len(words) == 3
    assert "RECEIVED BYTES" in words[0]
    assert scene.run("port").stdout.splitlines()[1].split()[:3] == ["1", "active", "0x1"]


def test_naks_flushes_and_drops_are_counted_with_reason(scene: Scene):
    end, peer = scene.end, scene.peer
    end.send("SEND", START, 8)
    wait_until(lambda: scene.queue_pairs()[0]["rnr_naks_received"] > 1)
    ours, theirs = scene.queue_pairs()
    assert theirs["rnr_naks_sent"] > 1
    peer.ask("receive", BACK, 8)
    assert end.statuses() == [0]
    end.send("RDMA_WRITE", START, 8, (peer.buf, 0xBAD00))
    end.send("RDMA_WRITE", START, 8, (peer.buf, peer.rkey))
    assert end.statuses(2) == [10, 5]
    ours, theirs = scene.queue_pairs()
    assert (ours["flushes"], ours["sent_messages"]) == (1, 1)
    end.renew("UD")
    peer.qpn = peer.ask("renew", "UD")
    end.open_datagrams()
    peer.ask("open_datagrams")
    for qkey in (0x1234, 0x4321, 0x4321):
        end.send_datagram(START, 8, peer.qpn, qkey=qkey)
    wait_until(lambda: sum(scene.queue_pairs()[1]["drops"].values()) == 3)
    assert scene.queue_pairs()[1]["drops"] == {"no receive entry": 1, "Q_Key": 2}
    assert scene.rows("port")[0]["drops"] == {"no receive entry": 1, "Q_Key": 2}
    assert "Q_Key: 2, no receive entry: 1" in scene.run("port").stdout


def test_work_requests_are_shown_as_they_were_posted(scene: Scene):
    end, peer = scene.end, scene.peer
    number = hex(end.qp.qp_num)
    nothing = scene.run("wr", "--qp", number)
    assert "has no work request" in nothing.stdout
    peer.ask("receive", BACK, 100)
    end.send("SEND_WITH_IMM", START, 60)
    end.send("RDMA_READ", START, 8, (peer.buf + BACK, peer.rkey))
    assert end.statuses(2) == [0, 0]
    end.send("RDMA_WRITE", START, 8, (peer.buf, 0xBAD00))
    assert end.statuses() == [10]
    send, read, write = scene.requests(end.qp.qp_num)
    assert (send["queue"], send["position"], send["opcode"]) == ("send", 0, "send_with_imm")
    assert send["elements"] == [{"address": end.mr.buf + START, "length": 60, "lkey": end.mr.lkey}]
    assert (send["flags"], send["status"], send["progress"]) == (
        ["signaled"], "success", "completed",
    )  # fmt: skip
    assert 0 < send["ago_ns"] < 60 * 10**9
    assert send["when_ns"] < read["when_ns"] < write["when_ns"]
    assert (read["remote_address"], read["rkey"]) == (peer.buf + BACK, peer.rkey)
    assert write["status"] == "rem_access_err"
    (receive,) = scene.requests(peer.qpn)
    assert (receive["queue"], receive["status"], receive["byte_len"]) == ("receive", "success", 60)
    lines = scene.run("wr", "--qp", number, "--limit", "2").stdout.splitlines()
    assert lines[0].split()[:4] == ["POSITION", "QUEUE", "OPCODE", "FLAGS"]
    assert f"{end.mr.buf + START:#x}+60/{end.mr.lkey:#x}" in lines[1]
    assert lines[3:] == ["and 1 more"]


HOSTILE = """
    import ctypes
    from tests.end_to_end.traffic_end import End
    ctypes.CDLL(None).prctl(15, b"\\x1b[2J\\nrow")
    end = End(name)
    at(end.qp.qp_num)
    stay()
"""


def test_a_process_with_a_hostile_name_spoils_no_table(scene: Scene):
    user = User(scene.kernel, HOSTILE)
    try:
        assert int(user.said()) in {row["number"] for row in scene.rows("qp")}
        for kind in ("session", "qp"):
            done = scene.run(kind)
            assert done.returncode == 0
            assert "\x1b" not in done.stdout
            assert len(done.stdout.splitlines()) == 1 + len(scene.rows(kind))
    finally:
        user.kill()


def test_a_stopped_hca_is_told_in_bounded_time_and_holds_up_nothing(scene: Scene):
    pid = scene.device_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        silent = scene.run("qp", "--json")
        ports, requests = scene.run("port", "--json"), scene.run("wr", "--qp", "7", "--json")
        state = scene.kernel.state()
        assert time.monotonic() - began < 15
    finally:
        os.kill(pid, signal.SIGCONT)
    assert silent.returncode == 0
    assert "the HCA does not answer" in silent.stderr
    rows = json.loads(silent.stdout)
    assert len(rows) == 2
    assert {row["sent_messages"] for row in rows} == {None}
    for done in (ports, requests):
        assert done.returncode == 1
        assert "does not answer" in json.loads(done.stdout)["error"]
    assert state["hca"]["device"] == {"error": "the HCA does not answer"}
    wait_until(lambda: "error" not in scene.kernel.state()["hca"]["device"])
    assert scene.rows("port")
    scene.peer.ask("receive", BACK, 8)
    scene.end.send("SEND", START, 8)
    assert scene.end.statuses() == [0]


def test_a_dead_hca_is_told(scene: Scene):
    os.kill(scene.device_pid(), signal.SIGKILL)
    wait_until(lambda: not scene.kernel.state()["hca"]["driver"]["up"])
    (device,) = scene.rows("device")
    assert (device["state"], device["figures"], device["sent_messages"]) == (
        "dead", "the HCA does not answer", None,
    )  # fmt: skip
    assert all(row["dead"] and row["sent_messages"] is None for row in scene.rows("qp"))
    with pytest.raises(HcaSilent):
        scene.requests(7)
