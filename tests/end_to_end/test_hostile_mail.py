"""Whatever arrives on the request socket of a real kernel, everybody else goes on."""

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from shared.envelope import (
    FLAG_INPUT_INLINE,
    HEADER,
    KIND_CLOSE,
    KIND_CREATE,
    KIND_DEQUEUE,
    KIND_DEVICE_CONTROL,
    KIND_ECHO,
    MAX_PAYLOAD,
    make_header,
    parse_header,
)
from shared.nt_status import STATUS_INVALID_CONNECTION, STATUS_INVALID_HANDLE
from tests.end_to_end.conftest import wait_until
from tests.hostile.headers import HANDLES, VALID, frames
from tests.hostile.recipes import kept
from tests.hostile.sandbox import Sandbox
from user_proc.process import UserProcess

pytestmark = pytest.mark.processes

ANSWER_MS = 10_000


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def kernel(shared_kernel: Any) -> Any:
    """Each test leaves it serving, and looks at what it adds itself."""
    return shared_kernel


@pytest.fixture
def stranger(kernel: Any, context: Any) -> Iterator["zmq.Socket[bytes]"]:
    """A socket of somebody who has no session."""
    with dealer(context, kernel) as socket:
        yield socket


@contextlib.contextmanager
def dealer(context: Any, kernel: Any, **options: int) -> Iterator["zmq.Socket[bytes]"]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, ANSWER_MS)
    for name, value in options.items():
        socket.setsockopt(getattr(zmq, name), value)
    socket.connect(kernel.paths.endpoint)
    try:
        yield socket
    finally:
        socket.close()


def check_witness(kernel: Any) -> None:
    with UserProcess.connect(kernel.name) as process, process.open_device("noop") as device:
        output = bytearray(4)
        assert device.device_io_control(0x80012000, b"well", output) == 4
        assert output == b"well"


def dropped(kernel: Any) -> Counter[str]:
    return Counter(kernel.state()["server"]["dropped"])


def test_garbage_is_dropped_and_counted(kernel: Any, stranger: Any):
    before = dropped(kernel)
    dice = random.Random(5)
    for length in (0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 1, 5000):
        stranger.send(dice.randbytes(length))
        stranger.send_multipart([dice.randbytes(length)] * 3)
    stranger.send_multipart([b"x"] * 5000)
    wait_until(lambda: (dropped(kernel) - before).total() == 13)
    assert dropped(kernel) - before == {"header of wrong length": 11, "foreign magic": 2}
    check_witness(kernel)


@pytest.mark.parametrize("found", kept("requests"), ids=lambda found: found["name"])
def test_what_was_kept_of_others_is_served_by_real_sockets(
    kernel: Any, stranger: Any, found: dict[str, Any]
):
    """Hostile requests of every kind of somebody who has a session; he is answered afterwards."""
    sandbox = Sandbox()
    with UserProcess.connect(kernel.name) as process:
        own = {"session": process.session, "epoch": process.channel.epoch, "thread": 1000}
        names = dict.fromkeys(HANDLES, 0) | sandbox.addresses()
        payload = None if found["payload"] is None else bytes.fromhex(found["payload"])
        for number, kind in enumerate([found["kind"]] if found["kind"] else sorted(VALID), 1):
            changes = {"request_id": number} | found["changes"]
            stranger.send_multipart(frames(kind, changes, payload, own, names))
        assert process.echo(b"still here") == b"still here"
        check_witness(kernel)
    sandbox.close()
    check_witness(kernel)


def test_who_guesses_a_session_is_told_that_there_is_none(kernel: Any, stranger: Any):
    with UserProcess.connect(kernel.name) as process:
        for epoch in (0, 1, process.channel.epoch ^ 1):
            header = make_header(
                KIND_CREATE,
                session=process.session,
                epoch=epoch,
                thread=1,
                flags=FLAG_INPUT_INLINE,
                input_length=4,
            )
            stranger.send_multipart([header, b"noop"])
            assert parse_header(stranger.recv()).status == STATUS_INVALID_CONNECTION
    check_witness(kernel)


def test_a_frame_that_is_too_long_costs_its_sender_the_connection(kernel: Any, stranger: Any):
    header = make_header(KIND_DEVICE_CONTROL, flags=FLAG_INPUT_INLINE, input_length=MAX_PAYLOAD + 1)
    stranger.send_multipart([header, bytes(MAX_PAYLOAD + 1)])
    check_witness(kernel)
    stranger.send(make_header(KIND_CLOSE))
    assert parse_header(stranger.recv()).status == STATUS_INVALID_CONNECTION


def test_who_floods_and_never_reads_hurts_himself_alone(start: Any, context: Any):
    kernel = start("--verifier")  # its own: what was sent last may arrive after the test
    with (
        UserProcess.connect(kernel.name) as process,
        dealer(context, kernel, RCVHWM=1, RCVBUF=4096, SNDHWM=10) as flooder,
    ):
        echo = make_header(
            KIND_ECHO,
            session=process.session,
            epoch=process.channel.epoch,
            thread=7,
            flags=FLAG_INPUT_INLINE,
            input_length=10_000,
        )
        payload = bytes(10_000)

        def lost() -> bool:
            for _ in range(200):
                with contextlib.suppress(zmq.Again):
                    flooder.send(echo, zmq.SNDMORE | zmq.DONTWAIT)
                    flooder.send(payload, zmq.DONTWAIT)
            return kernel.state()["server"]["lost_answers"].get("peer full", 0) > 10

        wait_until(lost)
        check_witness(kernel)
        assert process.echo(b"me too") == b"me too"
    kernel.wait_for_sessions(0)


def test_more_requests_than_allowed_are_refused_one_by_one(kernel: Any, context: Any):
    with UserProcess.connect(kernel.name) as process, dealer(context, kernel) as socket:
        count = 300
        for number in range(count):
            socket.send(
                make_header(
                    KIND_DEQUEUE,
                    session=process.session,
                    epoch=process.channel.epoch,
                    thread=7,
                    request_id=number,
                )
            )
        answers = [parse_header(socket.recv()) for _ in range(count)]
        assert {answer.request_id for answer in answers} == set(range(count))
        assert STATUS_INVALID_HANDLE in {answer.status for answer in answers}
        assert process.echo(b"x") == b"x"
