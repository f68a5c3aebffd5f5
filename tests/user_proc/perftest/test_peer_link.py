"""The TCP connection of the two sides: deaths, last words, strangers."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from user_proc.perftest.peer_link import PeerLink, connect, field, listen
from user_proc.perftest.tool_errors import PeerGone, ToolFailed

Pair = tuple[PeerLink, socket.socket]


def made() -> Pair:
    listener = listen(0)
    other = socket.create_connection(listener.getsockname())
    connection, _ = listener.accept()
    listener.close()
    return PeerLink(connection), other


@pytest.fixture
def pair() -> Iterator[Pair]:
    link, other = made()
    yield link, other
    link.close()
    other.close()


def look_on(link: PeerLink) -> None:
    while True:
        link.look_within(5)


def feed(link: PeerLink, other: socket.socket) -> None:
    """Have it read a line without an end."""
    while True:
        try:
            while other.send(b"x" * 65536):
                pass
        except BlockingIOError:
            link._fill()


def test_messages_pass_and_what_waits_is_seen(pair: Pair):
    link, other = pair
    assert not link.look()
    other.sendall(b'{"a": 1}\n{"b"')
    assert link.look_within(5)
    assert link.receive() == {"a": 1}
    other.sendall(b": 2}\n")
    assert link.receive() == {"b": 2}


def test_the_end_of_the_other_side_is_found_behind_what_it_sent(pair: Pair):
    link, other = pair
    other.sendall(b'{"done": 1}\n')
    other.close()
    with pytest.raises(PeerGone, match="the other side has ended before the run was over"):
        look_on(link)


def test_its_last_words_are_told(pair: Pair):
    link, other = pair
    other.sendall(b'{"done": 1}\n{"error": "the device has failed"}\n')
    other.close()
    with pytest.raises(PeerGone, match="has ended: the device has failed"):
        look_on(link)


def test_an_error_here_is_told_there(pair: Pair):
    link, other = pair
    with pytest.raises(ToolFailed), link:
        raise ToolFailed("wrong data")
    assert other.makefile().read() == '{"error": "wrong data"}\n'


@given(st.binary(max_size=200))
def test_what_a_stranger_sends_is_one_of_our_errors_or_a_message(data: bytes):
    link, other = made()
    with link, other:
        other.sendall(data + b"\n")
        other.shutdown(socket.SHUT_WR)
        said = ""
        try:
            assert isinstance(link.receive(), dict)
        except ToolFailed as error:
            said = str(error)
        assert "\n" not in said


def test_a_line_without_an_end_is_not_read_for_ever(pair: Pair):
    link, other = pair
    other.setblocking(False)
    with pytest.raises(ToolFailed, match="its line has no end"):
        feed(link, other)


def test_a_field_of_another_type_is_another_version():
    assert field({"n": 1}, "n", int) == 1
    for message in ({}, {"n": "1"}, {"n": True}):
        with pytest.raises(ToolFailed, match="another version"):
            field(message, "n", int)


@pytest.mark.parametrize("host", ["192.0.2.1", "8.8.8.8"])
def test_another_machine_is_refused_at_once(host: str):
    with pytest.raises(ToolFailed, match="is another machine"):
        connect(host, 18515)


def test_no_server_and_a_port_in_use():
    with listen(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ToolFailed, match="choose another port with -p"):
            listen(port)
    with pytest.raises(ToolFailed, match="start the same tool there first"):
        connect("127.0.0.1", port)
