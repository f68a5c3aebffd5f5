"""The completion socket by itself: whole packets, in order, never waiting, one way only."""

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from kernel_proc.scheduling.processor import Processor
from kernel_proc.server import completion_socket
from kernel_proc.server.answers import FULL, GONE, SENT
from kernel_proc.server.completion_socket import CompletionSocket
from shared.envelope import HEADER, MAX_PAYLOAD

HEAD = bytes(range(HEADER.size))
LONGEST = bytes(MAX_PAYLOAD)


class Sources:
    """What a processor is asked to watch."""

    def __init__(self) -> None:
        self.watched: dict[Any, Callable[[], object]] = {}

    def add_source(self, source: Any, callback: Callable[[], object]) -> None:
        assert source not in self.watched
        self.watched[source] = callback

    def remove_source(self, source: Any) -> None:
        self.watched.pop(source, None)

    def serve(self) -> bool:
        """Call back for what is ready; tell whether there was any."""
        ready = [source for source in self.watched if source.poll(0)]
        for source in ready:
            self.watched[source]()
        return bool(ready)


@pytest.fixture
def sources() -> Sources:
    return Sources()


@pytest.fixture
def pair(sources: Sources) -> Iterator[CompletionSocket]:
    made = CompletionSocket(cast("Processor", sources))
    yield made
    made.close()


@pytest.fixture
def user(pair: CompletionSocket) -> Iterator[socket.socket]:
    end = socket.socket(fileno=os.dup(pair.user_end.fileno()))
    pair.passed_on()
    with end:
        yield end


def fill(pair: CompletionSocket, payload: bytes) -> int:
    sent = 0
    while pair.send(HEAD, payload) == SENT:
        sent += 1
        assert sent < 10_000
    return sent


def test_a_packet_is_a_completion(pair: CompletionSocket, user: socket.socket):
    for payload in (None, b"", b"x", LONGEST):
        assert pair.send(HEAD, payload) == SENT
    packets = [user.recv(1 << 17) for _ in range(4)]
    assert packets == [HEAD, HEAD, HEAD + b"x", HEAD + LONGEST]


@pytest.mark.parametrize("payload", [b"", LONGEST])
def test_what_nobody_reads_is_bounded_and_never_waited_for(
    pair: CompletionSocket, user: socket.socket, payload: bytes
):
    sent = fill(pair, payload)
    assert sent >= 2
    assert sent * (HEADER.size + len(payload)) <= (1 << 20) + MAX_PAYLOAD
    assert pair.send(HEAD, payload) == FULL
    assert [len(user.recv(1 << 17)) for _ in range(sent)] == [HEADER.size + len(payload)] * sent
    assert pair.send(HEAD, payload) == SENT


def test_room_is_told_once(pair: CompletionSocket, user: socket.socket, sources: Sources):
    sent, calls = fill(pair, LONGEST), []
    pair.when_room(lambda: calls.append("former"))
    pair.when_room(lambda: calls.append("latter"))
    assert not sources.serve()
    for _ in range(sent):
        user.recv(1 << 17)
    assert sources.serve()
    assert calls == ["latter"]
    assert not sources.serve()
    assert sources.watched == {}


def test_a_send_that_is_told_of_room_finds_some(
    pair: CompletionSocket, user: socket.socket, sources: Sources
):
    # Else the processor would be called again and again.
    fill(pair, LONGEST)
    for _ in range(20):
        pair.when_room(lambda: None)
        while not sources.serve():
            user.recv(1 << 17)
        assert pair.send(HEAD, LONGEST) == SENT
        fill(pair, LONGEST)


def test_a_reader_that_has_gone_is_told(
    pair: CompletionSocket, user: socket.socket, sources: Sources
):
    fill(pair, LONGEST)
    pair.when_room(lambda: None)
    user.close()
    assert sources.serve()
    assert pair.send(HEAD, None) == GONE


def test_nothing_can_be_sent_the_other_way(pair: CompletionSocket, user: socket.socket):
    with pytest.raises(BrokenPipeError):
        user.send(b"garbage")
    with pytest.raises(BrokenPipeError):
        socket.send_fds(user, [b"garbage"], [user.fileno()])
    assert pair.send(HEAD, None) == SENT
    assert user.recv(1 << 17) == HEAD


def test_what_was_sent_is_read_to_the_end(
    pair: CompletionSocket, user: socket.socket, sources: Sources
):
    sent = fill(pair, b"")
    pair.when_room(lambda: None)
    pair.close()
    pair.close()
    pair.when_room(lambda: None)
    assert sources.watched == {}
    assert pair.send(HEAD, None) == GONE
    assert [len(user.recv(1 << 17)) for _ in range(sent + 1)] == [HEADER.size] * sent + [0]


def test_descriptors_are_given_back():
    before = os.listdir("/proc/self/fd")
    CompletionSocket(cast("Processor", Sources())).close()
    assert os.listdir("/proc/self/fd") == before


def test_a_system_that_grants_too_little_is_told(monkeypatch: pytest.MonkeyPatch):
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(completion_socket, "_ROOM", 4096)
    with pytest.raises(OSError, match=r"net\.core\.wmem_max is too low"):
        CompletionSocket(cast("Processor", Sources()))
    assert os.listdir("/proc/self/fd") == before
