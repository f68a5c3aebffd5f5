"""A stand-in for the kernel's end of the door: real sockets, answers chosen by the test.

Only for what a real kernel never does on purpose: late, malformed, missing or reordered answers.
"""

import contextlib
import errno
import os
import queue
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from shared.connection_file import instance_paths, own_record, prepare_folder, write_record
from shared.envelope import (
    HEADER,
    KIND_COMPLETION,
    KIND_ECHO,
    KIND_REPLY,
    VERSION,
    Header,
    make_header,
    parse_header,
)
from shared.message_codec import decode, encode
from shared.messages import Hello, Welcome
from user_proc.memory.private_memory import open_own_memory
from user_proc.transport.kernel_channel import KernelChannel
from user_proc.transport.lifeline_channel import LifelineChannel

SESSION, EPOCH = 7, 0x1234567890ABCDEF
PATIENCE = 10.0


class FakeKernel:
    """Binds both sockets of an instance and answers from two threads of its own."""

    def __init__(self) -> None:
        self.paths = instance_paths(f"fake-{uuid.uuid4().hex[:8]}")
        prepare_folder(self.paths)
        self.requests: queue.Queue[tuple[bytes, Header, bytes]] = queue.Queue()
        self.lifeline_messages: queue.Queue[Any] = queue.Queue()
        self.welcome: Any = Welcome(SESSION, EPOCH, os.getpid(), VERSION, 1 << 20, 64, 64, 1 << 28)
        self.on_lifeline: Callable[[Any], list[tuple[bytes, list[int]]]] = lambda message: []
        self.completions, self.user_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.with_welcome = [self.user_end.fileno()]
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.router_mandatory = True
        self._router.bind(self.paths.endpoint)
        self._orders = self._context.socket(zmq.PAIR)
        self._orders.bind("inproc://orders")
        self._connections: dict[bytes, int] = {}
        self._voice = self._context.socket(zmq.PAIR)
        self._voice.connect("inproc://orders")
        self._voice_lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.paths.lifeline))
        self._listener.listen()
        self.connection: socket.socket | None = None
        self._threads = [
            threading.Thread(target=self._serve_requests),
            threading.Thread(target=self._serve_lifeline),
        ]
        for thread in self._threads:
            thread.start()
        write_record(self.paths, own_record(self.paths.name, VERSION))

    # The test's thread

    def next_request(self) -> tuple[bytes, Header, bytes]:
        """The next message that is no ECHO."""
        return self.requests.get(timeout=PATIENCE)

    def send(self, identity: bytes, *frames: bytes) -> None:
        """Have the request thread send frames."""
        with self._voice_lock:
            self._voice.send_multipart([identity, *frames])

    def reply(self, request: tuple[bytes, Header, bytes], payload: bytes = b"", **fields: int):
        """Answer a request."""
        identity, header, _ = request
        self.send(
            identity, answer_to(header, KIND_REPLY, **fields), *([payload] if payload else [])
        )

    def complete(self, header: Header, payload: bytes = b"", **fields: int) -> None:
        """Send a completion."""
        self.completions.send(answer_to(header, KIND_COMPLETION, **fields) + payload)

    def cut(self, request: tuple[bytes, Header, bytes]) -> None:
        """End the connection a request came by, and nothing else."""
        with socket.socket(fileno=os.dup(self._connections[request[0]])) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Close the session's lifeline and its completions."""
        with contextlib.suppress(OSError):
            if self.connection is not None:
                self.connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self.completions.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._voice.send(b"")
        self._listener.shutdown(socket.SHUT_RDWR)
        self.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        for open_socket in (self._router, self._orders, self._voice):
            open_socket.close()
        self._context.term()
        self._listener.close()
        self.completions.close()
        self.user_end.close()

    # The fake's threads

    def _serve_requests(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._orders, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._orders in ready:
                frames = self._orders.recv_multipart()
                if frames == [b""]:
                    return
                self._send(frames)
            if self._router in ready:
                frames = self._router.recv_multipart(copy=False)
                self._connections[frames[0].bytes] = frames[1].get(zmq.SRCFD)
                self._take(*[frame.bytes for frame in frames])

    def _send(self, frames: list[bytes]) -> None:
        """Answer, unless who asked has gone on with another socket."""
        try:
            self._router.send_multipart(frames)
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise

    def _take(self, identity: bytes, packed: bytes, payload: bytes = b"") -> None:
        header = parse_header(packed)
        if header.kind == KIND_ECHO:
            self._send([identity, packed, *([payload] if payload else [])])
        else:
            self.requests.put((identity, header, payload))

    def _serve_lifeline(self) -> None:
        try:
            self.connection, _ = self._listener.accept()
        except OSError:
            return
        with self.connection as connection:
            while True:
                data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 4)
                for descriptor in descriptors:
                    os.close(descriptor)
                if not data:
                    return
                message = decode(data)
                self.lifeline_messages.put(message)
                if isinstance(message, Hello):
                    if self.welcome is None:
                        return
                    raw = self.welcome if isinstance(self.welcome, bytes) else encode(self.welcome)
                    socket.send_fds(connection, [raw], self.with_welcome)
                    continue
                for answer, passed in self.on_lifeline(message):
                    socket.send_fds(connection, [answer], passed)


def answer_to(header: Header, kind: int, **fields: int) -> bytes:
    """Pack an answer to a request."""
    packed = make_header(
        kind,
        session=header.session,
        epoch=header.epoch,
        thread=header.thread,
        request_id=header.request_id,
        **fields,
    )
    assert len(packed) == HEADER.size
    return packed


@pytest.fixture
def fake() -> Iterator[FakeKernel]:
    kernel = FakeKernel()
    yield kernel
    kernel.close()


@pytest.fixture
def lifeline(fake: FakeKernel) -> Iterator[LifelineChannel]:
    with_memory = open_own_memory()
    channel = LifelineChannel(fake.paths, with_memory)
    with_memory.close()
    yield channel
    channel.close()


@pytest.fixture
def channel(fake: FakeKernel, lifeline: LifelineChannel) -> Iterator[KernelChannel]:
    made = KernelChannel(
        fake.paths.name,
        fake.paths.endpoint,
        lifeline.welcome,
        lifeline.watch,
        lifeline.completions,
    )
    yield made
    made.close()
