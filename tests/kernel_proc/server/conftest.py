"""A machine in this process, a session in it, and a device that keeps what it is sent."""

from collections.abc import Iterator
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.server.in_process import InProcessSession
from kernel_proc.settings import KernelSettings
from shared.envelope import (
    FLAG_INPUT_INLINE,
    FLAG_OUTPUT_INLINE,
    FLAG_SYNCHRONOUS,
    KIND_CREATE,
    KIND_DEVICE_CONTROL,
    Header,
    make_header,
    parse_header,
)
from shared.nt_status import STATUS_SUCCESS
from tests.holder_driver import Holder


class Client:
    """Speaks the envelope for one in-process session."""

    def __init__(self, machine: Machine, session: InProcessSession) -> None:
        self.machine = machine
        self.door = session
        self._requests = 0

    def frames(
        self, kind: int, payload: bytes = b"", thread: int = 1, **fields: Any
    ) -> list[bytes]:
        """Make a message with this session's credentials; any field can be set otherwise."""
        self._requests += 1
        values: dict[str, Any] = {
            "session": self.door.welcome.session,
            "epoch": self.door.welcome.epoch,
            "request_id": thread << 32 | self._requests,
            "input_length": len(payload),
            "flags": FLAG_INPUT_INLINE if payload else 0,
        }
        header = make_header(kind, thread=thread, **(values | fields))
        return [header, payload] if payload else [header]

    def call(
        self, kind: int, payload: bytes = b"", thread: int = 1, **fields: Any
    ) -> tuple[Header, bytes]:
        """Exchange one message; return header and payload of the answer."""
        return parsed(self.door.exchange(self.frames(kind, payload, thread, **fields)))

    def post(self, kind: int, payload: bytes = b"", thread: int = 1, **fields: Any) -> int:
        """Send one message without running the kernel; return its request id."""
        frames = self.frames(kind, payload, thread, **fields)
        self.door.post(frames)
        return parse_header(frames[0]).request_id

    def answer(self, thread: int = 1) -> tuple[Header, bytes]:
        """Run the kernel until an answer for the thread is there."""
        return parsed(self.door.take_answer(thread))

    def open(self, name: str, thread: int = 1, *, synchronous: bool = False) -> int:
        """Open a device; return the handle."""
        flags = FLAG_INPUT_INLINE | (FLAG_SYNCHRONOUS if synchronous else 0)
        header, _ = self.call(KIND_CREATE, name.encode(), thread, flags=flags, control_code=3)
        assert header.status == STATUS_SUCCESS
        return header.file_handle

    def completion(self) -> tuple[Header, bytes]:
        """Run the kernel until a completion is there."""
        arrived = self.door.completions.arrived
        self.machine.processor.run_until(lambda: bool(arrived))
        return parsed(arrived.popleft())

    def control(
        self, handle: int, code: int, data: bytes = b"", room: int = 0, **fields: Any
    ) -> tuple[Header, bytes]:
        """Send a device control with inline buffers."""
        return self.call(
            KIND_DEVICE_CONTROL, data, **self.control_fields(handle, code, room, fields)
        )

    def post_control(
        self, handle: int, code: int, data: bytes = b"", room: int = 0, **fields: Any
    ) -> int:
        """Post a device control with inline buffers."""
        return self.post(
            KIND_DEVICE_CONTROL, data, **self.control_fields(handle, code, room, fields)
        )

    def control_fields(
        self, handle: int, code: int, room: int, fields: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the header fields of such a request."""
        return {
            "file_handle": handle,
            "control_code": code,
            "output_length": room,
            "flags": FLAG_INPUT_INLINE | FLAG_OUTPUT_INLINE,
        } | fields

    def settle(self) -> None:
        """Run the kernel until no thread is ready."""
        dispatcher = self.machine.processor.dispatcher
        self.machine.processor.run_until(lambda: not dispatcher.ready_queue.summary)

    def release(self, holder: Holder) -> None:
        """Have the holder complete its oldest request, and the completion APC run."""
        self.machine.processor.run_thread(holder.release)
        self.settle()


def parsed(frames: list[bytes]) -> tuple[Header, bytes]:
    """Read an answer."""
    assert len(frames) <= 2
    return parse_header(frames[0]), frames[1] if len(frames) == 2 else b""


@pytest.fixture
def machine() -> Machine:
    return Machine(KernelSettings(verifier=True, max_requests_per_session=8), in_process=True)


@pytest.fixture
def holder(machine: Machine) -> Holder:
    return Holder(machine.io)


@pytest.fixture
def client(machine: Machine) -> Iterator[Client]:
    session = machine.connect_in_process("test")
    yield Client(machine, session)
    if not session.session.ending:
        session.close()
    assert len(machine.sessions) == 0
    assert machine.server.inspect()["bound_sockets"] == 0
    assert machine.processor.dispatcher.inspect()["threads"] == []
    assert machine.reception.arena_total.used == 0


@pytest.fixture
def second_client(machine: Machine) -> Iterator[Client]:
    session = machine.connect_in_process("second")
    yield Client(machine, session)
    if not session.session.ending:
        session.close()
