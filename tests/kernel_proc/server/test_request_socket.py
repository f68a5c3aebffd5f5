"""The ROUTER with real DEALERs: nothing waits, nothing is endless, nothing is silent."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from kernel_proc.server.answers import FULL, GONE, SENT
from kernel_proc.server.request_socket import (
    BURST,
    THREAD_ANSWERS,
    THREAD_REQUESTS,
    RequestSocket,
)
from shared.envelope import MAX_PAYLOAD

WAIT_MS = 5_000


class Post:
    """A RequestSocket, what it has received, and its peers."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/r"
        self.path = folder / "r"
        self.socket = RequestSocket()
        self.socket.receive = self._receive
        self.received: list[tuple[bytes, list[bytes]]] = []
        self.dealers: list[zmq.Socket[bytes]] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def _receive(self, identity: bytes, frames: Sequence[bytes]) -> None:
        self.received.append((identity, list(frames)))

    def peer(self, **options: Any) -> "zmq.Socket[bytes]":
        dealer = self.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            dealer.setsockopt(getattr(zmq, name), value)
        dealer.connect(self.endpoint)
        self.dealers.append(dealer)
        return dealer

    def drain_until(self, count: int) -> None:
        """Drain as the dispatcher does: whenever the socket is readable."""
        while len(self.received) < count:
            assert self.socket.socket.poll(WAIT_MS)
            self.socket.drain()


@pytest.fixture
def post() -> Iterator[Post]:
    folder = Path(tempfile.mkdtemp(prefix="shr-"))
    post = Post(folder)
    post.socket.bind(post.endpoint, None)
    yield post
    for dealer in post.dealers:
        dealer.close(linger=0)
    post.context.term()
    post.socket.close()
    shutil.rmtree(folder)


def test_only_the_owner_reaches_the_endpoint(post: Post):
    assert stat.S_IMODE(post.path.lstat().st_mode) == 0o600


def test_binding_restores_the_umask(post: Post):
    mask = os.umask(0o022)
    os.umask(mask)
    other = RequestSocket()
    other.bind(post.endpoint + "2", None)
    other.close()
    assert os.umask(mask) == mask


@pytest.mark.parametrize("frames", [[b"head"], [b"head", b"body"], [b""], [b"head", b""]])
def test_frames_arrive_as_they_were_sent(post: Post, frames: list[bytes]):
    dealer = post.peer()
    dealer.send_multipart(frames)
    post.drain_until(1)
    identity, received = post.received[0]
    assert received == frames
    payload = b"answer"
    assert post.socket.send(identity, b"header", payload) == SENT
    assert post.socket.send(identity, b"header", None) == SENT
    assert [dealer.recv_multipart(), dealer.recv_multipart()] == [
        [b"header", payload],
        [b"header"],
    ]


def test_of_many_frames_enough_are_kept_to_see_it(post: Post):
    dealer = post.peer()
    dealer.send_multipart([b"%d" % n for n in range(1000)])
    dealer.send_multipart([b"next"])
    post.drain_until(2)
    assert [frames for _, frames in post.received] == [[b"0", b"1", b"2"], [b"next"]]


def test_one_drain_skips_a_bounded_number_of_frames(post: Post):
    dealer = post.peer()
    dealer.send_multipart([b""] * 100_000)
    dealer.send(b"next")
    post.drain_until(1)
    drains = 0
    while len(post.received) == 1:
        post.socket.is_busy = lambda: False
        post.socket.drain()
        drains += 1
    assert drains > 300
    assert post.received[-1][1] == [b"next"]


def test_one_drain_takes_a_bounded_number(post: Post):
    dealer = post.peer(SNDHWM=0)
    for _ in range(3 * BURST):
        dealer.send(b"message")
    assert post.socket.socket.poll(WAIT_MS)
    post.socket.drain()
    assert 1 <= len(post.received) <= BURST
    post.drain_until(3 * BURST)
    post.socket.drain()
    assert len(post.received) == 3 * BURST


def test_an_answer_to_nobody_is_told(post: Post):
    assert post.socket.send(b"nobody", b"header", None) == GONE
    assert not post.socket.errors


def test_an_answer_to_a_peer_that_left_is_told(post: Post):
    dealer = post.peer()
    dealer.send(b"hello")
    post.drain_until(1)
    dealer.close(linger=0)
    identity = post.received[0][0]
    results = set()
    for _ in range(WAIT_MS):
        results.add(post.socket.send(identity, b"header", None))
        if GONE in results:
            break
        post.socket.socket.poll(1)
    assert GONE in results
    assert post.socket.send(identity, b"header", None) == GONE


def test_a_peer_that_does_not_read_is_full_and_others_are_not(post: Post):
    lazy, keen = post.peer(RCVHWM=1, RCVBUF=4096), post.peer()
    lazy.send(b"lazy")
    keen.send(b"keen")
    post.drain_until(2)
    identity = {frames[0]: identity for identity, frames in post.received}
    results = {post.socket.send(identity[b"lazy"], b"h", bytes(MAX_PAYLOAD)) for _ in range(1000)}
    assert results == {SENT, FULL}
    assert post.socket.send(identity[b"keen"], b"header", None) == SENT
    assert keen.recv() == b"header"


def test_as_many_answers_as_promised_always_find_room(post: Post):
    dealer, count = post.peer(RCVHWM=1), THREAD_ANSWERS // 2
    dealer.send(b"hello")
    post.drain_until(1)
    identity = post.received[0][0]
    for _ in range(50):
        assert [post.socket.send(identity, b"h", None) for _ in range(count)] == [SENT] * count
        assert [dealer.recv() for _ in range(count)] == [b"h"] * count


def test_what_a_peer_may_leave_unread_is_bounded(post: Post):
    lazy = post.peer(RCVHWM=1, RCVBUF=4096)
    lazy.send(b"lazy")
    post.drain_until(1)
    identity = post.received[0][0]
    payload, sent = bytes(MAX_PAYLOAD), 0
    while post.socket.send(identity, b"h", payload) == SENT:
        sent += 1
        assert sent < 200
    # Some more are in the buffers of the system and of the peer.
    assert THREAD_ANSWERS <= sent <= THREAD_ANSWERS + 12


def test_a_peer_whose_requests_are_not_taken_is_not_read_on(post: Post):
    peer = post.peer(SNDHWM=1, SNDBUF=4096)
    payload, sent = bytes(MAX_PAYLOAD), 0
    while peer.poll(200, zmq.POLLOUT):
        peer.send(payload, zmq.DONTWAIT)
        sent += 1
        assert sent < 200
    assert sent <= THREAD_REQUESTS + 12
    post.drain_until(sent)
    assert peer.poll(WAIT_MS, zmq.POLLOUT)


def test_a_frame_that_is_too_long_never_arrives_and_harms_nobody_else(post: Post):
    good, bad = post.peer(), post.peer()
    bad.send(bytes(MAX_PAYLOAD + 1))
    good.send(bytes(MAX_PAYLOAD))
    post.drain_until(1)
    good.send(b"again")
    post.drain_until(2)
    assert [len(frames[0]) for _, frames in post.received] == [MAX_PAYLOAD, 5]
    bad.send(b"reconnected")
    post.drain_until(3)
    assert post.received[-1][1] == [b"reconnected"]


def test_unexpected_errors_are_counted_not_raised(post: Post):
    def fail(*_: Any) -> None:
        raise zmq.ZMQError(errno.EINTR)

    post.socket._send = post.socket._recv = fail
    assert post.socket.send(b"peer", b"header", None) == GONE
    post.socket.drain()
    assert post.socket.errors == {"EINTR": 2}
