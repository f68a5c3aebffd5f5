"""A rank and the launcher's end of its connection: calls, waits, and hostile company."""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.clock import now_ns
from user_proc.errors import SofthcaError
from user_proc.groups import exchange_server
from user_proc.groups.exchange import Exchange, RankId
from user_proc.groups.exchange_server import (
    CONNECTIONS_PER_RANK,
    SILENT_CONNECTIONS,
    ExchangeServer,
)
from user_proc.groups.rank import (
    LaunchEnded,
    NotLaunched,
    Rank,
    RankGone,
    RankRefused,
    RankTimeout,
)
from user_proc.groups.rank_wire import (
    MAX_VALUE,
    PROTOCOL,
    Answer,
    Barrier,
    FrameReader,
    Hello,
    Lookup,
    Publish,
    decode,
    encode,
)

SECONDS = 10.0
MINE, OTHER = RankId("g", 0), RankId("g", 1)


class Launcher:
    """A server that runs in a thread of its own, and its tokens."""

    def __init__(self, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.exchange = Exchange({"g": 2, "h": 1}, {"all": ["g", "h"]})
        self.server = ExchangeServer(folder / "exchange", self.exchange, self.selector)
        ids = [MINE, OTHER, RankId("h", 0)]
        self.tokens = {who: self.server.new_token(who) for who in ids}
        self._orders: list[Callable[[], None]] = []
        self._reader, self._writer = os.pipe()
        self.selector.register(self._reader, selectors.EVENT_READ, self._obey)
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            deadline = self.server.next_deadline_ns()
            wait = 5.0 if deadline is None else max(0.0, (deadline - now_ns()) / 1e9)
            for key, _ in self.selector.select(wait):
                key.data()
            self.server.expire()

    def _obey(self) -> None:
        os.read(self._reader, 1)
        self._orders.pop(0)()

    def do(self, order: Callable[[], None]) -> None:
        """Have something done in the server's thread."""
        done = threading.Event()

        def run() -> None:
            order()
            done.set()

        self._orders.append(run)
        os.write(self._writer, b"x")
        assert done.wait(SECONDS)

    def rank(self, who: RankId) -> Rank:
        path = str(self.server.path)
        return Rank(who.group, who.rank, 2, "lab", path, self.tokens[who])

    def raw(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(SECONDS)
        link.connect(str(self.server.path))
        return link

    def close(self) -> None:
        def end() -> None:
            self._over = True

        self.do(end)
        self._thread.join(SECONDS)
        self.server.close()
        self.selector.close()
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture(scope="module")
def shared_launcher() -> Iterator[Launcher]:
    folder = Path(tempfile.mkdtemp(prefix="shx-"))
    launcher = Launcher(folder)
    yield launcher
    launcher.close()
    assert os.listdir(folder) == []  # the socket's name has gone
    shutil.rmtree(folder)


@pytest.fixture
def launcher(shared_launcher: Launcher) -> Launcher:
    """The launcher, with nothing told yet."""

    def renew() -> None:
        for who in list(shared_launcher.tokens):
            shared_launcher.tokens[who] = shared_launcher.server.new_token(who)

    shared_launcher.do(renew)
    return shared_launcher


def read_answer(link: socket.socket) -> Answer | None:
    """Return the next answer; None when the other end has closed."""
    reader = FrameReader()
    while True:
        try:
            data = link.recv(1 << 16)
        except ConnectionResetError:
            return None
        if not data:
            return None
        for body in reader.feed(data):
            answer = decode(body)
            assert isinstance(answer, Answer)
            return answer


def greeted(launcher: Launcher, who: RankId = MINE) -> socket.socket:
    link = launcher.raw()
    link.sendall(encode(Hello(PROTOCOL, *who, launcher.tokens[who])))
    assert read_answer(link) == Answer(0, b"", "")
    return link


def lives(launcher: Launcher) -> None:
    """See that another rank is served as if nothing had happened."""
    with launcher.rank(OTHER) as other:
        other.publish("life", [1, "two", b"3", None])
        assert other.lookup("g", 1, "life") == [1, "two", b"3", None]


def test_two_ranks_meet(launcher: Launcher):
    with launcher.rank(MINE) as one, launcher.rank(OTHER) as two:
        found: list[object] = []

        def wait() -> None:
            found.append(two.lookup("g", 0, "address", SECONDS))
            two.barrier("go", SECONDS)

        thread = threading.Thread(target=wait)
        thread.start()
        one.publish("address", {"lid": 1})
        one.barrier("go", SECONDS)
        thread.join(SECONDS)
        assert found == [{"lid": 1}]
        one.report(ops_per_s=3)
        one.ready()
        assert launcher.exchange.figures(MINE) == {"ops_per_s": 3.0}
        assert launcher.exchange.has_reached(MINE, "ready")


def test_what_goes_wrong_is_told_apart(launcher: Launcher):
    with launcher.rank(MINE) as rank:
        with pytest.raises(RankTimeout, match=r"g\[1\] has not published 'k' within 0.02 s"):
            rank.lookup("g", 1, "k", timeout=0.02)
        with pytest.raises(RankTimeout, match=r"g\[1\] did not come to the barrier"):
            rank.barrier("x", timeout=0.02)
        with pytest.raises(RankRefused, match=r"there is no rank g\[7\]"):
            rank.lookup("g", 7, "k")
        with pytest.raises(RankRefused, match="32768 are the most"):
            rank.publish("k", bytes(MAX_VALUE))
        with pytest.raises(RankRefused, match="cannot be told"):
            rank.report(nan=float("nan"))
        with pytest.raises(RankRefused, match="no name for a point"):
            rank.reach("a b")
        launcher.do(lambda: launcher.server.leave(OTHER))
        with pytest.raises(RankGone, match=r"g\[1\] has ended"):
            rank.lookup("g", 1, "k")
        rank.publish("k", 1)  # after all of it
        launcher.do(lambda: launcher.server.cut_off(MINE))
        with pytest.raises(LaunchEnded):
            rank.publish("k", 2)


def test_a_program_that_was_not_launched_is_told_how(launcher: Launcher):
    with pytest.raises(NotLaunched, match="start it by 'softhca launch FILE'"):
        Rank.from_environment({})
    with pytest.raises(LaunchEnded, match="has it ended"):
        Rank("g", 0, 1, "lab", "/nowhere/exchange", "x")
    with pytest.raises(LaunchEnded):
        Rank("g", 0, 1, "lab", str(launcher.server.path), "a wrong token")


def test_a_forked_child_is_refused(launcher: Launcher):
    with launcher.rank(MINE) as rank:
        rank._pid += 1
        with pytest.raises(SofthcaError, match="makes one of its own"):
            rank.ready()


def test_ctrl_c_in_a_wait_closes_the_connection_and_frees_the_place(launcher: Launcher):
    with launcher.rank(MINE) as rank:

        def interrupt(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        me = threading.get_ident()
        before = signal.signal(signal.SIGUSR1, interrupt)
        timer = threading.Timer(0.05, lambda: signal.pthread_kill(me, signal.SIGUSR1))
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                rank.lookup("g", 1, "never")
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)
        with pytest.raises(LaunchEnded):
            rank.ready()
    lives(launcher)


garbage = st.one_of(
    st.binary(min_size=1, max_size=64),
    st.binary(max_size=32).map(lambda body: struct.pack("<I", len(body)) + body),
    st.just(encode(Publish("k", b"v"))),
    st.just(encode(Hello(PROTOCOL, "g", 0, "wrong"))),
    st.just(encode(Hello(PROTOCOL + 1, "g", 0, ""))),
    st.just(encode(Hello(PROTOCOL, "nobody", 9, ""))),
    st.just(struct.pack("<I", 0xFFFF_FFFF)),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage, st.booleans())
def test_hostile_bytes_end_their_own_connection_alone(
    launcher: Launcher, data: bytes, greeted_first: bool
):
    with greeted(launcher) if greeted_first else launcher.raw() as link:
        with contextlib.suppress(BrokenPipeError):
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
        while read_answer(link) is not None:
            pass
    lives(launcher)


def test_a_second_request_before_the_answer_ends_the_connection(launcher: Launcher):
    with greeted(launcher) as link:
        link.sendall(encode(Lookup("g", 1, "never", 60_000)) + encode(Publish("k", b"")))
        assert read_answer(link) is None
    lives(launcher)
    assert launcher.exchange.next_deadline_ns() is None


def test_answers_that_are_not_read_end_the_connection(launcher: Launcher):
    with greeted(launcher) as link:
        link.sendall(encode(Publish("k", bytes(MAX_VALUE))))
        with contextlib.suppress(OSError):
            for _ in range(1000):
                link.sendall(encode(Lookup("g", 0, "k", 0)))
        lives(launcher)
        with contextlib.suppress(OSError):
            while link.recv(1 << 20):
                pass


def test_connections_are_bounded(launcher: Launcher, monkeypatch: pytest.MonkeyPatch):
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS_PER_RANK):
            stack.enter_context(greeted(launcher))
        link = stack.enter_context(launcher.raw())
        link.sendall(encode(Hello(PROTOCOL, *MINE, launcher.tokens[MINE])))
        assert read_answer(link) is None
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT_CONNECTIONS):
            stack.enter_context(launcher.raw())
        assert read_answer(stack.enter_context(launcher.raw())) is None
        monkeypatch.setattr(exchange_server, "SILENT_NS", 0)
        launcher.do(launcher.server.expire)
        monkeypatch.undo()
        lives(launcher)


def test_a_rank_that_goes_away_while_it_waits_leaves_no_place_taken(launcher: Launcher):
    with greeted(launcher) as link:
        link.sendall(encode(Barrier("x", 60_000)))
    with launcher.rank(OTHER) as other, pytest.raises(RankTimeout):
        other.barrier("x", timeout=0.05)


def test_a_new_token_makes_the_old_one_void(launcher: Launcher):
    old = launcher.tokens[MINE]
    with greeted(launcher) as link:
        launcher.do(lambda: launcher.tokens.update({MINE: launcher.server.new_token(MINE)}))
        assert read_answer(link) is None
    with launcher.raw() as link:
        link.sendall(encode(Hello(PROTOCOL, *MINE, old)))
        assert read_answer(link) is None
    launcher.rank(MINE).close()


@pytest.mark.processes
def test_a_program_that_is_a_rank_needs_no_package_of_the_tools():
    code = (
        "import sys, user_proc.groups.rank; "
        "print({'psutil', 'rich', 'typer', 'numpy', 'greenlet'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True) == "set()\n"
