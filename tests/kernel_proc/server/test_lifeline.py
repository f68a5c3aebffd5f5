"""Lifelines over real sockets, the kernel and its user in one process and one thread."""

import contextlib
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.timer import Timer
from kernel_proc.server.instance_lock import InstanceLock
from kernel_proc.settings import MIB, KernelSettings
from shared.connection_file import instance_paths
from shared.envelope import MAX_PAYLOAD, MIN_VERSION, VERSION
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
TICK_NS = 1_000_000


class House:
    """A kernel with sockets, run by hand from the test's thread."""

    def __init__(self, **settings: Any) -> None:
        self.lock = InstanceLock("lifeline")
        self.lock.acquire()
        values = {"hca": False} | settings  # nothing here is the HCA's to do
        self.machine = Machine(KernelSettings(name="lifeline", verifier=True, **values))
        self.machine.open(self.lock)
        self.path = instance_paths("lifeline").lifeline
        self.visitors: list[Visitor] = []

    def run_until(self, predicate: Callable[[], bool]) -> None:
        """Run the kernel; fail rather than wait for ever."""
        processor = self.machine.processor
        limit, tick = Timer(processor), Timer(processor)
        limit.set(LIMIT_NS)
        tick.set(TICK_NS, period_ns=TICK_NS)  # not all that is waited for wakes the kernel
        processor.run_until(lambda: predicate() or limit.signal_state > 0)
        tick.cancel()
        limit.cancel()
        assert predicate()

    def descriptors_become(self, count: int) -> None:
        """Wait until so many are open: lanes close what visitors brought."""
        self.run_until(lambda: open_descriptors() == count)

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
        self.completions: list[socket.socket] = []

    def send(self, data: bytes, descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.socket, [data], descriptors or [])

    def receive(self) -> tuple[Message | None, list[int]]:
        """Run the kernel until a message is here; None when the kernel has hung up."""
        arrived: list[tuple[bytes, list[int]]] = []

        def look() -> bool:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, MAX_MESSAGE, 4)
            except (BlockingIOError, ConnectionResetError):  # a reset is told first, once
                return bool(arrived)
            arrived.append((data, descriptors))
            return True

        self.house.run_until(look)
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
        answer, passed = self.receive()
        assert len(passed) == isinstance(answer, Welcome)
        self.completions += [socket.socket(fileno=one) for one in passed]
        return answer

    def welcome(self) -> Welcome:
        welcome = self.greet()
        assert isinstance(welcome, Welcome)
        return welcome

    def hang_up(self) -> None:
        self.socket.close()
        for end in self.completions:
            end.close()


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
        house.lock.release()
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
    assert welcome.max_payload == MAX_PAYLOAD
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
    before = open_descriptors()
    for _ in range(3):
        visitor = house.connect()
        visitor.welcome()
        visitor.hang_up()
        house.run_until(lambda: len(house.machine.sessions) == 0)
        house.descriptors_become(before)
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
    session.peer = session.peer._replace(start_ticks=session.peer.start_ticks - 1)
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
    house.descriptors_become(before)


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
    house.descriptors_become(before)


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
    house.descriptors_become(before)


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
    house.descriptors_become(before)


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
        house.descriptors_become(before)
        other.communicate(b"\n")


def test_a_silent_connection_is_hung_up_in_time(open_house: Callable[..., House]):
    house = open_house(hello_timeout_ms=20)
    before = open_descriptors()
    visitor = house.connect()
    refused(house, visitor, STATUS_IO_TIMEOUT, "no Hello came in time")
    visitor.hang_up()
    house.descriptors_become(before)


def test_who_finds_the_places_of_the_silent_taken_waits_until_they_are_given_up(
    open_house: Callable[..., House],
):
    house = open_house(max_silent_connections=2, hello_timeout_ms=600_000)
    silent = [house.connect(), house.connect()]
    house.run_until(lambda: silent_connections(house) == 2)
    third = house.connect()
    assert isinstance(third.greet(), Welcome)
    for visitor in silent:
        answer, _ = visitor.receive()
        assert isinstance(answer, Refused)
        assert answer.status == STATUS_IO_TIMEOUT
        assert answer.reason == "too many connections are silent"
        assert visitor.receive() == (None, [])
    house.run_until(lambda: silent_connections(house) == 0)


def silent_connections(house: House) -> int:
    lifelines = house.machine._lifelines
    assert lifelines is not None
    count: int = lifelines.inspect()["silent_connections"]
    return count


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


def test_without_descriptors_who_knocks_waits(house: House, monkeypatch: pytest.MonkeyPatch):
    visitor = house.connect()
    listener = house.machine._lifelines
    assert listener is not None
    real = listener._socket
    assert real is not None

    class Exhausted:
        failures = 3

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
    assert isinstance(visitor.greet(), Welcome)
    assert listener.refused == {"accept failed": 3}


def test_without_an_os_thread_who_says_hello_is_told(house: House, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        visitor = house.connect()
        descriptors = own_descriptors()
        visitor.send(encode(HELLO), descriptors)
        close_all(descriptors)
        refused(house, visitor, STATUS_INSUFFICIENT_RESOURCES, "no thread or descriptor left")
        visitor.hang_up()
    house.descriptors_become(before)
    assert isinstance(house.connect().greet(), Welcome)


# --- what can be handed over ---------------------------------------------------------------------


class Gate:
    """Stands for a file system that does not answer: whoever closes such a descriptor waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.waiting = 0
        self._close = os.close
        self._main = threading.get_ident()
        self._device = os.makedev(1, 5)  # /dev/zero
        monkeypatch.setattr(os, "close", self.close)

    def close(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_rdev == self._device:
            assert threading.get_ident() != self._main, "the processor would wait"
            self.waiting += 1
            assert self.opened.wait(20)
            self._close(descriptor)
            raise OSError(5, "Input/output error")
        self._close(descriptor)

    def descriptors(self) -> list[int]:
        return [os.open("/dev/zero", os.O_RDWR), os.open("/dev/zero", os.O_RDONLY)]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    with monkeypatch.context() as patch:
        gate = Gate(patch)
        yield gate
        gate.opened.set()


def hand_over(visitor: Visitor, data: bytes, descriptors: list[int], gate: Gate) -> None:
    visitor.send(data, descriptors)
    for descriptor in descriptors:
        gate._close(descriptor)


@pytest.mark.parametrize("data", [encode(HELLO), b"garbage"])
def test_a_descriptor_that_cannot_be_closed_holds_its_own_connection_alone(
    house: House, gate: Gate, data: bytes
):
    before = open_descriptors()
    visitor = house.connect()
    hand_over(visitor, data, gate.descriptors(), gate)
    house.run_until(lambda: gate.waiting == 1)
    assert isinstance(house.connect().greet(), Welcome)
    assert silent_connections(house) == 1
    gate.opened.set()
    answer, _ = visitor.receive()
    assert isinstance(answer, Refused)  # what closing reported was nobody's end
    house.run_until(lambda: silent_connections(house) == 0)
    for each in house.visitors:
        each.hang_up()
    house.run_until(lambda: len(house.machine.sessions) == 0)
    house.descriptors_become(before)


def test_a_stuck_hello_is_given_up_in_time_and_keeps_its_place(
    open_house: Callable[..., House], gate: Gate
):
    house = open_house(hello_timeout_ms=20)
    visitor = house.connect()
    hand_over(visitor, encode(HELLO), gate.descriptors(), gate)
    refused(house, visitor, STATUS_IO_TIMEOUT, "no Hello came in time")
    assert silent_connections(house) == 1
    gate.opened.set()
    house.run_until(lambda: silent_connections(house) == 0)


def test_a_descriptor_that_cannot_be_closed_holds_its_own_session_alone(house: House, gate: Gate):
    visitor, other = house.connect(), house.connect()
    visitor.welcome()
    other.welcome()
    hand_over(visitor, encode(FreeArena(1, 99)), gate.descriptors(), gate)
    house.run_until(lambda: gate.waiting == 1)
    assert isinstance(other.ask(FreeArena(1, 99)), Done)
    gate.opened.set()
    answer, _ = visitor.receive()
    assert isinstance(answer, Done)
    assert answer.reason == "no descriptors were expected"
    assert isinstance(visitor.ask(FreeArena(2, 99)), Done)


@pytest.mark.parametrize("in_session", [False, True])
def test_connections_are_closed_by_their_lane(
    house: House, monkeypatch: pytest.MonkeyPatch, in_session: bool
):
    # With what is queued there, and that can be anything.
    closed_by: list[int] = []
    close = socket.socket.close

    def watched(self: socket.socket) -> None:
        if self.fileno() >= 0 and self.getsockname() == str(house.path):
            closed_by.append(threading.get_ident())
        close(self)

    visitor = house.connect()
    if in_session:
        visitor.welcome()
    monkeypatch.setattr(socket.socket, "close", watched)
    if in_session:
        visitor.send(b"")
    else:
        visitor.send(b"garbage")
    house.run_until(lambda: len(closed_by) == 1)
    assert closed_by[0] != threading.get_ident()


# --- how a session ends --------------------------------------------------------------------------


def look_at(visitor: Visitor) -> int:
    poll = select.poll()
    poll.register(visitor.socket, select.POLLRDHUP)
    events = poll.poll(0)
    return events[0][1] if events else 0


def test_the_end_of_a_session_is_told_at_once_and_the_hang_up_when_memory_is_out_of_reach(
    house: House,
):
    visitor = house.connect()
    number = visitor.welcome().session
    session = house.machine.sessions.get(number)
    assert session is not None
    gate = threading.Event()
    thread = create_system_thread(
        house.machine.processor, session.lane.run, gate.wait, 10, name="a stuck page"
    )
    house.run_until(lambda: thread.is_waiting)
    assert look_at(visitor) == 0
    house.machine.rundown.begin(session, "the test says so")
    house.run_until(lambda: house.machine.sessions.get(number) is None)
    assert look_at(visitor) == select.POLLRDHUP
    gate.set()
    house.run_until(lambda: bool(look_at(visitor) & select.POLLHUP))


def test_an_empty_packet_is_a_goodbye(house: House):
    visitor = house.connect()
    visitor.welcome()
    visitor.send(b"")
    house.run_until(lambda: bool(look_at(visitor) & select.POLLHUP))
    assert len(house.machine.sessions) == 0


@pytest.mark.parametrize("full", [False, True])
def test_a_session_whose_process_runs_another_program_gives_way(
    house: House, monkeypatch: pytest.MonkeyPatch, full: bool
):
    former = [house.connect() for _ in range(3 if full else 1)]
    number = former[0].welcome().session
    for visitor in former[1:]:
        visitor.welcome()
    session = house.machine.sessions.get(number)
    assert session is not None
    assert session.peer is not None
    # As if its process had run another program, with its stack elsewhere.
    session.peer = session.peer._replace(stack=session.peer.stack - 4096)
    newcomer = house.connect()
    answer = newcomer.greet()
    assert isinstance(answer, Refused if full else Welcome)
    house.run_until(lambda: house.machine.sessions.get(number) is None)
    assert len(house.machine.sessions) == (2 if full else 1)
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
    answer = visitor.ask(ArenaMapped(9, 1, base))
    assert isinstance(answer, Done)
    assert answer.status == STATUS_INVALID_PARAMETER
    assert "arena 1 " in answer.reason
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
    assert isinstance(answer, Done)
    assert answer.status == STATUS_QUOTA_EXCEEDED
    assert "5 MiB" in answer.reason
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
        house.descriptors_become(before)


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
