"""Lifelines over real sockets, the kernel and its user in one process and one thread."""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.scheduling.timer import Timer
from kernel_proc.settings import MIB, KernelSettings
from shared.connection_file import instance_paths
from shared.envelope import MIN_VERSION, VERSION
from shared.message_codec import MAX_MESSAGE, decode, encode
from shared.messages import (
    AllocateArena,
    ArenaGranted,
    ArenaMapped,
    Done,
    FreeArena,
    Hello,
    Message,
    Refused,
    Welcome,
)
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_PARAMETER,
    STATUS_IO_TIMEOUT,
    STATUS_QUOTA_EXCEEDED,
    STATUS_REVISION_MISMATCH,
    STATUS_SUCCESS,
    STATUS_TOO_MANY_SESSIONS,
)

HELLO = Hello(MIN_VERSION, VERSION, "test")
LIMIT_NS = 5_000_000_000


class House:
    """A kernel with sockets, run by hand from the test's thread."""

    def __init__(self, **settings: Any) -> None:
        self.machine = Machine(KernelSettings(name="lifeline", verifier=True, **settings))
        self.machine.open()
        self.path = instance_paths("lifeline").lifeline
        self.visitors: list[Visitor] = []

    def run_until(self, predicate: Callable[[], bool]) -> None:
        """Run the kernel; fail rather than wait for ever."""
        limit = Timer(self.machine.processor)
        limit.set(LIMIT_NS)
        self.machine.processor.run_until(lambda: predicate() or limit.signal_state > 0)
        limit.cancel()
        assert predicate()

    def connect(self) -> "Visitor":
        visitor = Visitor(self)
        self.visitors.append(visitor)
        return visitor

    def settle(self) -> None:
        """Let everything that has arrived be served."""
        self.connect().hang_up()
        silent = self.machine._lifelines
        assert silent is not None
        self.run_until(lambda: silent.inspect()["silent_connections"] == 0)


class Visitor:
    """The user's end of one lifeline."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(house.path))
        self.socket.setblocking(False)

    def send(self, data: bytes, descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.socket, [data], descriptors or [])

    def receive(self) -> tuple[Message | None, list[int]]:
        """Run the kernel until a message is here; None when the kernel has hung up."""
        arrived: list[tuple[bytes, list[int]]] = []

        def look() -> bool:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, MAX_MESSAGE, 4)
            except BlockingIOError:
                return bool(arrived)
            arrived.append((data, descriptors))
            return True

        # The kernel cannot be woken by what it sends itself, so it is run one step at a time.
        limit = Timer(self.house.machine.processor)
        limit.set(LIMIT_NS)
        tick = Timer(self.house.machine.processor)
        tick.set(1_000_000, period_ns=1_000_000)
        self.house.machine.processor.run_until(lambda: look() or limit.signal_state > 0)
        tick.cancel()
        limit.cancel()
        assert arrived
        data, descriptors = arrived[0]
        return (decode(data) if data else None), descriptors

    def ask(self, message: Message) -> Message | None:
        """Send one message and return the answer, which brings no descriptor."""
        self.send(encode(message))
        answer, descriptors = self.receive()
        assert descriptors == []
        return answer

    def greet(self, hello: Hello = HELLO) -> Message | None:
        """Say Hello with this process's own descriptors."""
        descriptors = own_descriptors()
        self.send(encode(hello), descriptors)
        close_all(descriptors)
        return self.receive()[0]

    def welcome(self) -> Welcome:
        welcome = self.greet()
        assert isinstance(welcome, Welcome)
        return welcome

    def hang_up(self) -> None:
        self.socket.close()


def own_descriptors(process: str = "self", access: int = os.O_RDWR) -> list[int]:
    return [
        os.open(f"/proc/{process}/mem", access),
        os.open(f"/proc/{process}/maps", os.O_RDONLY),
    ]


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shl-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def open_house(folder: Path) -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def make(**settings: Any) -> House:
        houses.append(House(**settings))
        return houses[-1]

    yield make
    for house in houses:
        for visitor in house.visitors:
            visitor.hang_up()
        house.machine.request_stop("the test is over")
        house.machine.run()
        assert house.machine.stopped_clean
        house.machine.close()
    assert list((folder / "softhca").iterdir()) == []


@pytest.fixture
def house(open_house: Callable[..., House]) -> House:
    return open_house(arena_bytes_per_process=8 * MIB, max_sessions=3)


# --- being let in --------------------------------------------------------------------------------


def test_sockets_can_be_reached_by_their_owner_alone(house: House):
    for path in (instance_paths("lifeline").lifeline, instance_paths("lifeline").request_socket):
        mode = path.lstat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600


def test_hello_is_answered_with_a_session_and_its_limits(house: House):
    visitor = house.connect()
    welcome = visitor.welcome()
    settings = house.machine.settings
    assert welcome.kernel_pid == os.getpid()
    assert welcome.protocol == VERSION
    assert welcome.max_requests == settings.max_requests_per_session
    assert welcome.max_threads == settings.max_threads_per_session
    assert welcome.max_payload == settings.max_payload_bytes
    assert welcome.arena_quota == 8 * MIB
    session = house.machine.sessions.get(welcome.session)
    assert session is not None
    assert session.epoch == welcome.epoch
    assert session.process.process_id == os.getpid()
    assert session.process.name == "test"


def test_a_name_cannot_write_into_the_log(house: House):
    visitor = house.connect()
    welcome = visitor.greet(Hello(MIN_VERSION, VERSION, "bad\nname\x1b[2J" + "x" * 500))
    assert isinstance(welcome, Welcome)
    session = house.machine.sessions.get(welcome.session)
    assert session is not None
    assert session.process.name.startswith("bad?name?[2Jxxx")
    assert len(session.process.name) == 64


def test_the_end_of_a_lifeline_is_the_end_of_its_session(house: House):
    before = None
    for _ in range(3):
        visitor = house.connect()
        visitor.welcome()
        visitor.hang_up()
        house.run_until(lambda: len(house.machine.sessions) == 0)
        after = open_descriptors()
        assert before in (None, after)
        before = after
    assert house.machine.rundown.completed == 3
    assert house.machine.processor.dispatcher.inspect()["threads"] == []


def test_one_process_may_have_two_sessions(house: House):
    first, second = house.connect(), house.connect()
    assert first.welcome().session != second.welcome().session
    first.hang_up()
    house.run_until(lambda: len(house.machine.sessions) == 1)
    assert isinstance(second.ask(FreeArena(1, 99)), Done)


def test_a_new_process_with_a_pid_retires_the_sessions_of_its_former_owner(house: House):
    former, present = house.connect(), house.connect()
    number = former.welcome().session
    session = house.machine.sessions.get(number)
    assert session is not None
    assert session.peer is not None
    # As if that session had been made by an earlier owner of this process's pid.
    session.peer = replace(session.peer, start_ticks=session.peer.start_ticks - 1)
    assert isinstance(present.greet(), Welcome)
    house.run_until(lambda: house.machine.sessions.get(number) is None)
    assert former.receive() == (None, [])
    assert isinstance(present.ask(FreeArena(1, 99)), Done)


# --- being refused -------------------------------------------------------------------------------


def refused(house: House, visitor: Visitor, status: int, words: str) -> None:
    answer, _ = visitor.receive()
    assert isinstance(answer, Refused)
    assert answer.status == status
    assert words in answer.reason
    assert visitor.receive() == (None, [])
    assert len(house.machine.sessions) == 0


def test_a_protocol_that_is_not_spoken_is_refused(house: House):
    before = open_descriptors()
    visitor = house.connect()
    descriptors = own_descriptors()
    visitor.send(encode(Hello(VERSION + 1, VERSION + 3, "test")), descriptors)
    close_all(descriptors)
    refused(house, visitor, STATUS_REVISION_MISMATCH, f"protocol {MIN_VERSION} to {VERSION}")
    visitor.hang_up()
    assert open_descriptors() == before


@pytest.mark.parametrize("data", [b"\x00", b"garbage", b"\x93\x01\x01", b"x" * 5000])
@pytest.mark.parametrize("with_descriptors", [False, True])
def test_first_words_that_are_no_hello_are_refused(
    house: House, data: bytes, with_descriptors: bool
):
    before = open_descriptors()
    visitor = house.connect()
    descriptors = own_descriptors() if with_descriptors else []
    visitor.send(data, descriptors)
    close_all(descriptors)
    refused(house, visitor, STATUS_INVALID_PARAMETER, "no Hello")
    visitor.hang_up()
    assert open_descriptors() == before


def test_a_message_that_is_too_long_is_refused(house: House):
    visitor = house.connect()
    visitor.send(b"x" * (MAX_MESSAGE + 1))
    refused(house, visitor, STATUS_INVALID_PARAMETER, "at most")


def test_more_descriptors_than_anybody_needs_are_closed(house: House):
    before = open_descriptors()
    visitor = house.connect()
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    visitor.send(encode(HELLO), descriptors)
    close_all(descriptors)
    refused(house, visitor, STATUS_INVALID_PARAMETER, "too many descriptors")
    visitor.hang_up()
    assert open_descriptors() == before


def swapped() -> list[int]:
    return own_descriptors()[::-1]


def only_one() -> list[int]:
    memory, maps = own_descriptors()
    os.close(maps)
    return [memory]


def one_more() -> list[int]:
    return [*own_descriptors(), os.open("/dev/null", os.O_RDONLY)]


def not_writable() -> list[int]:
    return own_descriptors(access=os.O_RDONLY)


def ordinary_files() -> list[int]:
    return [os.open("/dev/null", os.O_RDWR), os.open("/dev/null", os.O_RDONLY)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (list, "needs 2 descriptors"),
        (only_one, "needs 2 descriptors"),
        (one_more, "needs 2 descriptors"),
        (swapped, "/proc/self/mem was expected"),
        (ordinary_files, "/proc/self/mem was expected"),
        (not_writable, "was opened read only"),
    ],
)
def test_wrong_descriptors_are_refused_and_closed(
    house: House, make: Callable[[], list[int]], words: str
):
    before = open_descriptors()
    visitor = house.connect()
    descriptors = make()
    visitor.send(encode(HELLO), descriptors)
    close_all(descriptors)
    refused(house, visitor, STATUS_ACCESS_DENIED, words)
    visitor.hang_up()
    assert open_descriptors() == before


@pytest.mark.processes
@pytest.mark.parametrize("own_maps", [False, True])
def test_the_memory_of_another_process_is_refused(house: House, own_maps: bool):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        before = open_descriptors()
        memory, maps = own_descriptors(str(other.pid))
        if own_maps:
            os.close(maps)
            maps = os.open("/proc/self/maps", os.O_RDONLY)
        visitor = house.connect()
        visitor.send(encode(HELLO), [memory, maps])
        close_all([memory, maps])
        refused(house, visitor, STATUS_ACCESS_DENIED, f"the memory of process {other.pid}")
        visitor.hang_up()
        assert open_descriptors() == before
        other.communicate(b"\n")


def test_a_silent_connection_is_hung_up_in_time(open_house: Callable[..., House]):
    house = open_house(hello_timeout_ms=20)
    before = open_descriptors()
    visitor = house.connect()
    refused(house, visitor, STATUS_IO_TIMEOUT, "no Hello came in time")
    visitor.hang_up()
    assert open_descriptors() == before


def test_silent_connections_are_bounded(open_house: Callable[..., House]):
    house = open_house(max_silent_connections=2)
    silent = [house.connect(), house.connect()]
    third = house.connect()
    refused(house, third, STATUS_INSUFFICIENT_RESOURCES, "too many connections are silent")
    assert isinstance(silent[0].greet(), Welcome)
    assert isinstance(house.connect().greet(), Welcome)


def test_the_session_after_the_last_is_refused(house: House):
    visitors = [house.connect() for _ in range(4)]
    answers = [visitor.greet() for visitor in visitors]
    assert [isinstance(answer, Welcome) for answer in answers] == [True, True, True, False]
    last = answers[-1]
    assert isinstance(last, Refused)
    assert (last.status, last.reason) == (
        STATUS_TOO_MANY_SESSIONS,
        "the kernel serves 3 processes already",
    )
    visitors[0].hang_up()
    house.run_until(lambda: len(house.machine.sessions) == 2)
    assert isinstance(house.connect().greet(), Welcome)


def test_a_user_of_another_uid_is_refused(house: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refused(house, house.connect(), STATUS_ACCESS_DENIED, "may not use the kernel of user")


def test_when_descriptors_run_out_the_peer_is_told(house: House, monkeypatch: pytest.MonkeyPatch):
    visitor = house.connect()
    listener = house.machine._lifelines
    assert listener is not None
    real = listener._socket
    assert real is not None

    class Exhausted:
        failures = 1

        def accept(self) -> Any:
            if Exhausted.failures:
                Exhausted.failures -= 1
                raise OSError(24, "Too many open files")
            return real.accept()

        def fileno(self) -> int:
            return real.fileno()

        def close(self) -> None:
            real.close()

    monkeypatch.setattr(listener, "_socket", Exhausted())
    refused(house, visitor, STATUS_INSUFFICIENT_RESOURCES, "no descriptors left")
    assert isinstance(house.connect().greet(), Welcome)


# --- the open lifeline ---------------------------------------------------------------------------


def test_an_arena_is_made_placed_and_freed(house: House):
    visitor = house.connect()
    visitor.welcome()
    visitor.send(encode(AllocateArena(7, 100)))
    granted, descriptors = visitor.receive()
    assert granted == ArenaGranted(7, 1, 4096)
    (descriptor,) = descriptors
    assert os.fstat(descriptor).st_size == 4096
    os.close(descriptor)
    base = 0x7000_0000_0000
    assert visitor.ask(ArenaMapped(8, 1, base)) == Done(8, STATUS_SUCCESS, "")
    assert visitor.ask(ArenaMapped(9, 1, base)) == Done(
        9, STATUS_INVALID_PARAMETER, "STATUS_INVALID_PARAMETER"
    )
    assert house.machine.reception.arena_total.used == 4096
    assert visitor.ask(FreeArena(10, 1)) == Done(10, STATUS_SUCCESS, "")
    answer = visitor.ask(FreeArena(11, 1))
    assert isinstance(answer, Done)
    assert answer.status == STATUS_INVALID_PARAMETER
    assert house.machine.reception.arena_total.used == 0


def test_arenas_are_bounded_by_the_quota_and_go_with_the_session(house: House):
    visitor = house.connect()
    visitor.welcome()
    visitor.send(encode(AllocateArena(1, 5 * MIB)))
    granted, descriptors = visitor.receive()
    assert isinstance(granted, ArenaGranted)
    close_all(descriptors)
    answer = visitor.ask(AllocateArena(2, 5 * MIB))
    assert answer == Done(2, STATUS_QUOTA_EXCEEDED, "STATUS_QUOTA_EXCEEDED")
    visitor.hang_up()
    house.run_until(lambda: len(house.machine.sessions) == 0)
    assert house.machine.reception.arena_total.used == 0


def test_requests_sent_together_are_served_in_order(house: House):
    visitor = house.connect()
    visitor.welcome()
    for number in range(1, 6):
        visitor.send(encode(AllocateArena(number, 4096)))
    for number in range(1, 6):
        granted, descriptors = visitor.receive()
        assert granted == ArenaGranted(number, number, 4096)
        close_all(descriptors)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xc1garbage", "not msgpack"),
        (encode(HELLO), "Hello has no place"),
        (encode(Done(1, 0, "")), "Done has no place"),
        (b"x" * (MAX_MESSAGE + 1), "at most"),
    ],
)
def test_nonsense_on_an_open_lifeline_is_answered(house: House, data: bytes, words: str):
    visitor = house.connect()
    visitor.welcome()
    visitor.send(data)
    answer, _ = visitor.receive()
    assert isinstance(answer, Done)
    assert (answer.request, answer.status) == (0, STATUS_INVALID_PARAMETER)
    assert words in answer.reason
    assert isinstance(visitor.ask(FreeArena(1, 99)), Done)


def test_descriptors_nobody_asked_for_are_closed(house: House):
    visitor = house.connect()
    visitor.welcome()
    before = open_descriptors()
    for count in (1, 20):
        descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
        visitor.send(encode(AllocateArena(1, 4096)), descriptors)
        close_all(descriptors)
        answer, _ = visitor.receive()
        assert isinstance(answer, Done)
        assert answer.status == STATUS_INVALID_PARAMETER
        assert open_descriptors() == before


def test_who_does_not_read_its_lifeline_loses_it(house: House):
    visitor = house.connect()
    visitor.welcome()
    visitor.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = encode(FreeArena(1, 99))

    def flooded() -> bool:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            visitor.send(request)
        return len(house.machine.sessions) == 0

    house.run_until(flooded)
    assert house.machine.rundown.completed == 1


def test_a_session_that_ends_while_its_arena_is_made_leaves_nothing(house: House):
    visitor = house.connect()
    visitor.welcome()
    before = house.machine.reception.arena_total.used
    visitor.send(encode(AllocateArena(1, 4 * MIB)))
    visitor.hang_up()
    house.run_until(lambda: len(house.machine.sessions) == 0)
    assert house.machine.reception.arena_total.used == before == 0


def test_the_listener_survives_a_peer_that_left_before_it_was_accepted(house: House):
    for _ in range(5):
        house.connect().hang_up()
    house.settle()
    assert isinstance(house.connect().greet(), Welcome)
