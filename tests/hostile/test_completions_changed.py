"""What a user may do with the socket its completions come by: real sockets, kernel and user in one.

What is done is data: `["ask", bytes]` has the kernel send a completion of that length, `["read",
n]` takes some, `["credit", how]` says how many were taken, and the rest is done to the user's end.
Whatever it is, completions come whole, each once and in order, or not at all; what nobody reads is
bounded; nothing is left, and others are served.
"""

import os
import socket
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.envelope import (
    FLAG_INPUT_INLINE,
    FLAG_OUTPUT_INLINE,
    HEADER,
    KIND_COMPLETION,
    KIND_CREATE,
    KIND_DEVICE_CONTROL,
    MAX_PAYLOAD,
    make_header,
    parse_header,
)
from shared.ioctl_codes import COMPLETION_DEVICE, METHOD_BUFFERED, noop_code
from tests.hostile.inn import Inn, check_witness, house
from tests.hostile.recipes import kept

__all__ = ["house"]

CODE = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)
LENGTHS = (0, 1, 64, 4096, MAX_PAYLOAD - 1, MAX_PAYLOAD)
MOST = 16  # requests of a session at a time, as the inn has it
CREDITS = {"all": 0, "none": None, "too many": 5, "backwards": -1, "around": 1 << 31}
SHUT = {"read": socket.SHUT_RD, "write": socket.SHUT_WR, "both": socket.SHUT_RDWR}
Action = list[Any]


class Guest:
    """A session, what it has asked for and not read yet, and how many completions it has read."""

    def __init__(self, inn: Inn) -> None:
        self.inn = inn
        self.visitor = inn.connect()
        welcome = self.visitor.welcome()
        self.own = {"session": welcome.session, "epoch": welcome.epoch, "thread": 1}
        session = inn.machine.sessions.get(welcome.session)
        assert session is not None
        self.session = session
        (self.end,) = self.visitor.completions
        self.end.setblocking(False)
        self.copies: list[int] = []
        self.due: deque[tuple[int, int]] = deque()
        self.credit = self.taken = self.asked = 0
        self.is_whole = True  # nothing was done that costs completions
        self._send(KIND_CREATE, b"noop", flags=FLAG_INPUT_INLINE, control_code=3)
        (self.file,) = session.process.handle_table.entries

    def _send(self, kind: int, payload: bytes, **fields: Any) -> None:
        self.asked += 1
        header = make_header(
            kind, request_id=self.asked, sequence=self.credit, input_length=len(payload),
            **self.own, **fields,
        )  # fmt: skip
        identity = b"guest %d" % self.own["session"]
        self.inn.machine.server.receive(identity, [header, payload] if payload else [header])
        self.inn.machine.processor.run_thread(lambda: None)

    def ask(self, length: int) -> None:
        before = self.session.refused_requests
        self._send(
            KIND_DEVICE_CONTROL, bytes(length), file_handle=self.file, control_code=CODE,
            output_length=length, flags=FLAG_INPUT_INLINE | FLAG_OUTPUT_INLINE,
        )  # fmt: skip
        if self.session.refused_requests == before:
            self.due.append((self.asked, length))

    def read(self, count: int) -> None:
        for _ in range(count):
            try:
                packet = self.end.recv(1 << 17)
            except OSError:  # nothing there, or no end any more
                return
            if not packet:
                return
            header = parse_header(packet[: HEADER.size])
            number, length = self.due.popleft()
            assert (header.kind, header.request_id) == (KIND_COMPLETION, number)
            assert len(packet) == HEADER.size + length
            self.taken += 1
            assert header.sequence == self.taken

    def tell(self, how: str) -> None:
        """Say how many were taken; what is not true is not believed."""
        more = CREDITS[how]
        self.credit = 0 if more is None else (self.taken + more) & 0xFFFF_FFFF

    def send(self, count: int) -> None:
        """Send where nothing can be sent."""
        for _ in range(count):
            with pytest.raises(OSError, match=r"Broken pipe|Bad file descriptor"):
                socket.send_fds(self.end, [b"\xff" * 64], [0])

    def shut(self, how: str) -> None:
        if self.end.fileno() >= 0:
            self.end.shutdown(SHUT[how])
            self.is_whole = self.is_whole and how == "write"

    def leave_end(self, how: str) -> None:
        """Close it, or only have another descriptor of it."""
        if how == "copied" and self.end.fileno() >= 0:
            self.copies.append(os.dup(self.end.fileno()))
        elif how == "closed":
            self.end.close()
            self.is_whole = False

    def act(self, action: Action) -> None:
        name, value = action
        getattr(self, name)(value)
        assert len(self.session.held_completions) <= MOST
        assert self.session.outstanding <= 2 * MOST

    def _read_everything(self) -> bool:
        self.read(len(self.due))
        return not self.due

    def finish(self) -> None:
        """Take what is still due, if anything can come, and leave."""
        if self.is_whole:
            self.inn.run_until(self._read_everything)
        for copy in self.copies:
            os.close(copy)
        self.inn.run_until(lambda: self.session.in_flight == 0)
        self.inn.everybody_leaves(self.visitor)


ACTIONS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(LENGTHS)),
    st.tuples(st.just("ask"), st.sampled_from(LENGTHS)),
    st.tuples(st.just("read"), st.integers(1, 20)),
    st.tuples(st.just("tell"), st.sampled_from(sorted(CREDITS))),
    st.tuples(st.just("send"), st.integers(1, 3)),
    st.tuples(st.just("shut"), st.sampled_from(sorted(SHUT))),
    st.tuples(st.just("leave_end"), st.sampled_from(["copied", "closed"])),
)
PROGRAMS = st.lists(ACTIONS.map(list), min_size=1, max_size=40)


def run(inn: Inn, program: list[Action]) -> None:
    guest = Guest(inn)
    for action in program:
        guest.act(action)
    guest.finish()
    check_witness(inn)


@settings(max_examples=40)
@given(program=PROGRAMS)
def test_whatever_is_done_to_the_socket(house: Inn, program: list[Action]):
    run(house, program)


@pytest.mark.stress
@pytest.mark.timeout(900)
@settings(max_examples=3000)
@given(program=PROGRAMS)
def test_whatever_is_done_to_the_socket_for_long(house: Inn, program: list[Action]):
    run(house, program)


@pytest.mark.parametrize("found", kept("completions"), ids=lambda found: found["name"])
def test_what_was_kept(house: Inn, found: dict[str, Any]):
    program = [action for action, times in found["program"] for _ in range(times)]
    run(house, program)
