"""The gate: real connections, of this process and of others, are counted and bounded."""

import os
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel_proc.server import connection_gate
from kernel_proc.server.connection_gate import AHEAD, ConnectionGate
from kernel_proc.server.descriptor_plan import raise_descriptor_limit
from kernel_proc.server.process_memory import private_bytes
from kernel_proc.server.request_socket import RequestSocket

SECONDS = 10.0
KNOCKS = AHEAD + 2000  # more than libzmq and the backlog take together
STRANGERS = 4
ALLOWED = 6


ALONE = "SOFTHCA_TEST_ALONE"


class Door:
    """A bound request socket with its gate, and who knocks."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "r"
        self.sessions: Counter[int] = Counter()
        self.asked: deque[Callable[[], object]] = deque()
        self.gate = ConnectionGate(
            lambda: self.sessions, str(self.path), ALLOWED, STRANGERS, self.asked.append
        )
        self.socket = RequestSocket()
        self.socket.bind(f"ipc://{self.path}", self.gate)
        self.knocking: list[socket.socket] = []

    def knock(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self.path))
        connection.settimeout(SECONDS)
        self.knocking.append(connection)
        return connection

    def serve(self) -> None:
        """Do what the dispatcher does: the ROUTER's thread is the test's own."""
        self.socket.drain()
        while self.asked:
            self.asked.popleft()()

    def becomes(self, predicate: Callable[[], bool]) -> None:
        ticks = threading.Event()
        for _ in range(1000):
            if predicate():
                return
            ticks.wait(SECONDS / 1000)
        raise AssertionError(f"it did not come to pass: {self.gate.inspect()}")

    def settled(self, connections: int) -> None:
        self.becomes(lambda: self.gate.inspect()["connections"] == connections)


def is_turned_away(connection: socket.socket) -> bool:
    """Wait for the end; a greeting may come before it."""
    try:
        while connection.recv(100):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def is_let_in(connection: socket.socket) -> bool:
    """Tell whether there is no end, once the gate has judged."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return not poll.poll(0)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(connection_gate, "_LOOK_MS", 50)
    folder = Path(tempfile.mkdtemp(prefix="shg-"))
    door = Door(folder)
    yield door
    for connection in door.knocking:
        connection.close()
    door.socket.close()
    shutil.rmtree(folder)


def test_strangers_share_a_few_connections(door: Door):
    inside = [door.knock() for _ in range(STRANGERS)]
    door.settled(STRANGERS)
    for _ in range(20):
        assert is_turned_away(door.knock())
    assert all(is_let_in(connection) for connection in inside)
    door.settled(STRANGERS)
    assert door.gate.turned_away == 20
    inside[0].close()
    door.settled(STRANGERS - 1)
    another = door.knock()
    door.settled(STRANGERS)
    assert is_let_in(another)


def test_a_process_has_as_many_as_its_sessions_need(door: Door):
    door.sessions[os.getpid()] = 2
    inside = [door.knock() for _ in range(2 * ALLOWED)]
    door.settled(2 * ALLOWED)
    assert is_turned_away(door.knock())
    assert all(is_let_in(connection) for connection in inside)
    door.settled(2 * ALLOWED)


@pytest.mark.processes
def test_who_has_no_session_any_more_is_the_first_to_go(door: Door):
    door.sessions[os.getpid()] = 1
    inside = [door.knock() for _ in range(ALLOWED)]
    door.settled(ALLOWED)
    door.sessions.clear()
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); "
        "s.connect(sys.argv[1]); s.recv(10); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(door.path)], stdin=subprocess.PIPE
    ) as other:
        assert all(is_turned_away(connection) for connection in inside)
        door.settled(1)
        assert door.gate.turned_away == ALLOWED
        other.communicate()
    door.settled(0)


def test_connections_that_come_and_go_leave_nothing(door: Door):
    for _ in range(300):
        door.knock().close()
    door.settled(0)
    last = door.knock()
    door.settled(1)
    assert is_let_in(last)


def test_a_number_that_means_something_else_by_now_is_let_be(door: Door):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for descriptor in (ours.fileno(), os.open("/dev/null", os.O_RDONLY), 1 << 20):
            door.gate._judge(descriptor)
        theirs.send(b"unharmed")
        assert ours.recv(8) == b"unharmed"
    assert door.gate.inspect() == {"connections": 0, "turned_away": 0, "floods": 0}


# --- messages without end ------------------------------------------------------------------------


def shake_hands(connection: socket.socket) -> None:
    """Do what ZMTP wants before messages: greeting and READY of a DEALER."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    connection.sendall(greeting)
    left = len(greeting)
    while left:
        left -= len(connection.recv(left))
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    connection.sendall(bytes([4, len(ready)]) + ready)
    assert connection.recv(1000)


def run_alone(request: pytest.FixtureRequest) -> bool:
    """Run the test in a process whose memory no other test uses; True in that process."""
    if ALONE in os.environ:
        return True
    node = request.node.nodeid
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", node],
        cwd=request.config.rootpath,
        env={**os.environ, ALONE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return False


@pytest.mark.processes
def test_a_message_without_end_costs_its_process_connections_and_sessions(
    door: Door, request: pytest.FixtureRequest
):
    if not run_alone(request):
        return
    flooded: list[int] = []
    door.gate._on_flood = flooded.append
    door.gate._flood_bytes = private_bytes() + (32 << 20)
    bad, good = door.knock(), door.knock()
    door.sessions[os.getpid()] = 1
    shake_hands(bad)
    shake_hands(good)
    frame = b"\x03" + struct.pack(">Q", 1 << 16) + bytes(1 << 16)  # long, more to come
    with pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):
        deque((bad.sendall(frame) for _ in range(1 << 17)), maxlen=0)

    def found() -> bool:
        door.serve()
        return flooded == [os.getpid()]

    door.becomes(found)
    assert door.gate.inspect()["floods"] == 1
    door.becomes(lambda: door.gate.inspect()["connections"] == 0)


def test_what_a_message_without_end_leaves_is_given_back(
    door: Door, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    if not run_alone(request):
        return
    monkeypatch.setattr(connection_gate, "_TRIM_ABOVE", 0)
    before = private_bytes()
    bad = door.knock()
    shake_hands(bad)
    frame = b"\x03" + struct.pack(">Q", 1 << 16) + bytes(1 << 16)
    for _ in range(1 << 10):
        bad.sendall(frame)
    door.becomes(lambda: private_bytes() > before + (32 << 20))
    bad.close()
    door.settled(0)

    def given_back() -> bool:
        door.socket.drain()  # libzmq ends what it has of a peer in the thread that reads
        return private_bytes() < before + (8 << 20)

    door.becomes(given_back)


MORE = b"\x01\x01x"  # a frame of one byte, with more to come
LAST = b"\x00\x01x"


def test_who_finishes_messages_is_not_among_the_first_suspects(
    door: Door, monkeypatch: pytest.MonkeyPatch
):
    """However much comes from one that is seen sending all the time."""
    monkeypatch.setattr(connection_gate, "_has_input", lambda descriptor: True)
    sends: list[Callable[[], object]] = []
    busy = door.knock()
    shake_hands(busy)
    door.settled(1)
    pause = SimpleNamespace(sleep=lambda _: sends[0](), monotonic=time.monotonic)
    monkeypatch.setattr(connection_gate, "time", pause)
    sends.append(lambda: (busy.sendall(LAST), take(door)))
    assert door.gate._seen_sending() == []
    sends[0] = lambda: busy.sendall(MORE)
    assert door.gate._seen_sending() == [os.getpid()]


def test_who_is_merely_seen_sending_keeps_its_sessions(door: Door, monkeypatch: pytest.MonkeyPatch):
    """A busy machine leaves everybody's bytes lying: it costs a connection, and no more."""
    flooded: list[int] = []
    door.gate._on_flood = flooded.append
    monkeypatch.setattr(connection_gate, "_has_input", lambda descriptor: True)
    monkeypatch.setattr(connection_gate, "private_bytes", lambda: 1 << 30)  # nothing comes back
    innocent = door.knock()
    shake_hands(innocent)
    door.settled(1)
    door.gate._flood_bytes = 0
    assert is_turned_away(innocent)

    def is_judged() -> bool:
        door.serve()
        return not door.gate._suspects.has_been_cut

    door.becomes(is_judged)
    assert (flooded, door.gate.floods) == ([], 0)


def take(door: Door) -> None:
    assert door.socket.socket.poll(SECONDS * 1000)
    door.socket.drain()


@pytest.mark.processes
def test_who_has_stopped_in_a_message_without_end_is_found_by_trying(
    door: Door, request: pytest.FixtureRequest
):
    """Of two processes that are silent, the one whose end gives much memory back."""
    if not run_alone(request):
        return
    flooded: list[int] = []
    door.gate._on_flood = flooded.append
    bad = door.knock()
    shake_hands(bad)
    before = private_bytes()
    frame = b"\x03" + struct.pack(">Q", 1 << 16) + bytes(1 << 16)
    for _ in range(1 << 10):
        bad.sendall(frame)
    door.becomes(lambda: private_bytes() > before + (48 << 20))
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); "
        "s.connect(sys.argv[1]); s.recv(10); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(door.path)], stdin=subprocess.PIPE
    ) as other:
        door.settled(2)
        door.gate._flood_bytes = before + (16 << 20)

        def found() -> bool:
            door.serve()
            return bool(flooded)

        door.becomes(found)
        other.communicate()
    assert flooded == [os.getpid()]
    assert door.gate.floods == 1
    assert is_turned_away(bad)
    door.becomes(lambda: private_bytes() < before + (16 << 20))


@pytest.mark.processes
@pytest.mark.parametrize("ends_by", ["leaving", "finishing"])
def test_who_gives_memory_back_while_another_is_judged_costs_that_one_nothing(
    door: Door, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, ends_by: str
):
    """Of two processes the innocent is cut just as the other gives back what it held."""
    if not run_alone(request):
        return
    flooded: list[int] = []
    door.gate._on_flood = flooded.append
    cut: list[int] = []
    turn_out = door.gate._turn_out
    bad = door.knock()
    shake_hands(bad)
    before = private_bytes()
    frame = b"\x03" + struct.pack(">Q", 1 << 16) + bytes(1 << 16)
    for _ in range(1 << 10):
        bad.sendall(frame)
    door.becomes(lambda: private_bytes() > before + (48 << 20))

    def give_back(pid: int) -> None:
        cut.append(pid)
        if ends_by == "leaving":
            bad.shutdown(socket.SHUT_RDWR)
        else:
            bad.sendall(LAST)
        turn_out(pid)

    monkeypatch.setattr(door.gate, "_turn_out", give_back)
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); "
        "s.connect(sys.argv[1]); s.recv(10); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(door.path)], stdin=subprocess.PIPE
    ) as innocent:
        door.settled(2)
        door.gate._flood_bytes = before + (16 << 20)

        def is_over() -> bool:
            door.serve()
            return private_bytes() < before + (16 << 20) and not door.gate._suspects.has_been_cut

        door.becomes(is_over)
        innocent.communicate()
    assert cut == [innocent.pid]
    assert (flooded, door.gate.floods) == ([], 0)


def test_memory_that_is_merely_much_costs_everybody_one_connection_and_nobody_a_session(
    door: Door,
):
    flooded: list[int] = []
    door.gate._on_flood = flooded.append
    door.gate._flood_bytes = 0
    quiet = door.knock()
    shake_hands(quiet)
    assert is_turned_away(quiet)
    again = door.knock()
    shake_hands(again)
    door.gate._look_at_memory()
    door.gate._look_at_memory()
    assert is_let_in(again)
    assert (flooded, door.gate.floods) == ([], 0)


# --- too many at once ----------------------------------------------------------------------------


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Room for both ends of all connections: libzmq would end this process without."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if raise_descriptor_limit() < 3 * KNOCKS:
        pytest.skip("this system allows too few descriptors")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_accept_waits_for_a_gate_that_is_behind(door: Door, monkeypatch: pytest.MonkeyPatch):
    gate = threading.Event()
    count = door.gate._count_sessions
    monkeypatch.setattr(door.gate, "_count_sessions", lambda: (gate.wait(SECONDS), count())[1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(KNOCKS):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        door.knocking.append(connection)
        try:
            connection.connect(str(door.path))
        except BlockingIOError:  # neither accepted nor room in the backlog
            break
    else:
        pytest.fail("nobody has had to wait")
    accepted = len(os.listdir("/proc/self/fd")) - before - len(door.knocking)
    assert accepted <= AHEAD + 10
    gate.set()
    door.becomes(lambda: door.gate.turned_away > AHEAD)
    door.becomes(lambda: door.gate.inspect()["connections"] <= STRANGERS)
