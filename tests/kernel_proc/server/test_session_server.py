"""The way in: what is admitted, what is refused with a status, what is dropped and counted."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_proc.machine import Machine
from kernel_proc.server.answers import FULL, GONE, SENT
from kernel_proc.server.session import CREDENTIALS
from kernel_proc.server.session_server import REQUEST
from kernel_proc.settings import KernelSettings
from shared.envelope import (
    FLAG_COMPLETION_FOLLOWS,
    FLAG_INPUT_INLINE,
    FLAG_IOSB_WRITTEN,
    FLAG_NOTIFICATION,
    FLAG_OUTPUT_INLINE,
    FLAG_SIGNALED,
    HEADER,
    KIND_ASSOCIATE,
    KIND_CANCEL,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_CLOSE,
    KIND_COMPLETION,
    KIND_CREATE,
    KIND_CREATE_EVENT,
    KIND_CREATE_PORT,
    KIND_DELAY,
    KIND_DEQUEUE,
    KIND_DEVICE_CONTROL,
    KIND_DUPLICATE,
    KIND_ECHO,
    KIND_EVENT,
    KIND_POST,
    KIND_REPLY,
    KIND_THREAD_EXIT,
    KIND_WAIT,
    MAGIC,
    PACKET,
    VERSION,
    WAIT_FOREVER,
    Header,
    make_header,
    parse_header,
)
from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    noop_code,
    noop_fail_code,
)
from shared.nt_status import (
    STATUS_ALERTED,
    STATUS_CANCELLED,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_CONNECTION,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_HANDLE,
    STATUS_INVALID_PARAMETER,
    STATUS_OBJECT_NAME_INVALID,
    STATUS_OBJECT_NAME_NOT_FOUND,
    STATUS_PENDING,
    STATUS_REVISION_MISMATCH,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TIMEOUT,
    STATUS_TOO_MANY_THREADS,
)
from tests.holder_driver import HOLD

INLINE = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)


# --- the frames themselves -----------------------------------------------------------------------


def test_the_requests_fields_are_those_of_the_header():
    packed = HEADER.pack(*range(1, 21))
    header = Header._make(HEADER.unpack(packed))
    assert REQUEST.size == HEADER.size
    assert REQUEST.unpack(packed) == (
        header.kind,
        header.flags,
        header.file_handle,
        header.request_id,
        header.control_code,
        header.event_handle,
        header.input_address,
        header.output_address,
        header.input_length,
        header.output_length,
        header.apc_context,
        header.sequence,
        header.information,
    )
    assert packed[CREDENTIALS] == struct.pack("<IQI", header.session, header.epoch, header.thread)


def test_an_answer_repeats_what_identifies_its_request(client: Any):
    header, _ = client.call(KIND_CLOSE, file_handle=0x44, request_id=1 << 32 | 77)
    assert header.magic == MAGIC
    assert header.version == VERSION
    assert header.kind == KIND_REPLY
    assert header.session == client.door.welcome.session
    assert header.epoch == client.door.welcome.epoch
    assert (header.thread, header.request_id) == (1, 1 << 32 | 77)
    assert header.status == STATUS_INVALID_HANDLE


@pytest.mark.parametrize("payload", [b"", b"anything"])
def test_echo_sends_the_same_frames_back(client: Any, machine: Machine, payload: bytes):
    frames = client.frames(KIND_ECHO, payload, flags=0, input_length=12345)
    before = machine.server.wire_bytes()
    assert client.door.exchange(frames) == frames
    assert machine.server.echoes == 1
    assert machine.server.wire_bytes() - before == 2 * (HEADER.size + len(payload))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "no frame"),
        ([b""], "header of wrong length"),
        ([b"x" * (HEADER.size - 1)], "header of wrong length"),
        ([b"x" * (HEADER.size + 1)], "header of wrong length"),
        ([b"x" * HEADER.size], "foreign magic"),
        ([b"x" * HEADER.size, b"payload"], "foreign magic"),
    ],
)
def test_what_is_no_header_is_dropped_and_counted(
    machine: Machine, frames: list[bytes], reason: str
):
    machine.server.receive(b"stranger", frames)
    assert machine.server.dropped == {reason: 1}
    assert not machine.server.refused


def test_a_header_cut_on_a_bound_socket_is_dropped(client: Any, machine: Machine):
    client.open("noop")
    frames = client.frames(KIND_CLOSE)
    identity = next(iter(machine.server._callers))
    machine.server.receive(identity, [frames[0][:-1]])
    assert machine.server.dropped == {"header of wrong length": 1}


def test_a_foreign_version_is_told_ours(client: Any, machine: Machine):
    [header, *_] = client.frames(KIND_CLOSE)
    foreign = header[:4] + struct.pack("<H", VERSION + 1) + header[6:]
    answer = parse_header(client.door.exchange([foreign])[0])
    assert (answer.status, answer.version) == (STATUS_REVISION_MISMATCH, VERSION)
    assert machine.server.refused == {"foreign version": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"session": 4711},
        {"session": 0},
        {"epoch": 0},
        {"epoch": (1 << 64) - 1},
    ],
)
def test_a_forged_session_is_refused(client: Any, machine: Machine, fields: dict[str, int]):
    header, _ = client.call(KIND_CREATE, b"noop", **fields)
    assert header.status == STATUS_INVALID_CONNECTION
    assert machine.server.refused == {"no such session": 1}
    assert client.door.session.threads == {}


def test_a_bound_socket_serves_no_second_session(client: Any, second_client: Any, machine: Machine):
    client.open("noop")
    identity = next(iter(machine.server._callers))
    machine.server.receive(identity, second_client.frames(KIND_CREATE, b"noop"))
    answer = parse_header(client.door.take_answer(1)[0])
    assert answer.status == STATUS_INVALID_CONNECTION
    assert answer.session == second_client.door.welcome.session
    assert machine.server.refused == {"socket bound already": 1}
    assert second_client.door.session.threads == {}


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"kind": 0}, b""),
        ({"kind": 99}, b""),
        ({"kind": KIND_REPLY}, b""),
        ({"kind": KIND_COMPLETION}, b""),
        ({"kind": 11}, b""),
        ({"kind": KIND_CREATE, "input_length": 3}, b"noop"),
        ({"kind": KIND_CREATE, "input_length": 5}, b"noop"),
        ({"kind": KIND_CREATE, "flags": 0}, b"noop"),
        ({"kind": KIND_CREATE, "flags": FLAG_INPUT_INLINE, "input_length": 1}, b""),
        ({"kind": KIND_CLOSE}, b"unexpected" * 7),
    ],
)
def test_a_malformed_request_is_refused(
    client: Any, machine: Machine, fields: dict[str, int], payload: bytes
):
    values = {"flags": FLAG_INPUT_INLINE if fields["kind"] == KIND_CREATE else 0} | fields
    header, _ = client.call(payload=payload, **values)
    assert header.status == STATUS_INVALID_PARAMETER
    assert machine.server.refused == {"malformed request": 1}
    assert client.door.session.in_flight == 0


def test_three_frames_are_one_too_many(client: Any):
    frames = client.frames(KIND_CREATE, b"noop")
    answer = parse_header(client.door.exchange([*frames, b"third"])[0])
    assert answer.status == STATUS_INVALID_PARAMETER
    echo = client.frames(KIND_ECHO, b"one")
    answer = parse_header(client.door.exchange([*echo, b"two"])[0])
    assert (answer.kind, answer.status) == (KIND_REPLY, STATUS_INVALID_PARAMETER)


# --- services ------------------------------------------------------------------------------------


def test_a_device_is_opened_used_and_closed(client: Any):
    handle = client.open("noop")
    header, payload = client.control(handle, INLINE, b"0123456789", 64)
    assert (header.status, header.iosb_status) == (STATUS_SUCCESS, STATUS_SUCCESS)
    assert header.flags == FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE
    assert (header.information, payload) == (10, b"0123456789")
    duplicate, _ = client.call(KIND_DUPLICATE, file_handle=handle)
    assert duplicate.status == STATUS_SUCCESS
    assert client.call(KIND_CLOSE, file_handle=handle)[0].status == STATUS_SUCCESS
    assert client.control(handle, INLINE)[0].status == STATUS_INVALID_HANDLE
    header, payload = client.control(duplicate.file_handle, INLINE, b"again", 5)
    assert (header.status, payload) == (STATUS_SUCCESS, b"again")
    assert client.call(KIND_CLOSE, file_handle=duplicate.file_handle)[0].status == STATUS_SUCCESS
    assert client.machine.io.devices["noop"].open_count == 0


def test_a_request_object_keeps_nothing_of_the_last_request(client: Any):
    handle = client.open("noop")
    client.control(handle, INLINE, b"first", 5)
    header, payload = client.control(
        handle,
        noop_fail_code(METHOD_BUFFERED, COMPLETION_INLINE),
        struct.pack("<I", 0xC0000185),
        64,
    )
    assert header.status == 0xC0000185
    assert (header.flags, header.information, header.iosb_status, payload) == (0, 0, 0, b"")
    header, payload = client.control(handle, INLINE)
    assert (header.flags, header.information, payload) == (FLAG_IOSB_WRITTEN, 0, b"")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        (b"nobody", STATUS_OBJECT_NAME_NOT_FOUND),
        (b"", STATUS_OBJECT_NAME_NOT_FOUND),
        (b"\xff\xfe", STATUS_OBJECT_NAME_INVALID),
        (b"n" * 70_000, STATUS_OBJECT_NAME_NOT_FOUND),
    ],
)
def test_a_name_that_is_no_device_is_a_status(client: Any, name: bytes, status: int):
    header, _ = client.call(KIND_CREATE, name, control_code=3)
    assert (header.status, header.file_handle) == (status, 0)


def test_unknown_codes_and_kinds_without_meaning_are_statuses(client: Any):
    handle = client.open("noop")
    assert client.control(handle, 0x8001 << 16)[0].status == STATUS_INVALID_DEVICE_REQUEST
    assert client.call(KIND_DEQUEUE)[0].status == STATUS_INVALID_HANDLE


def test_events_are_waited_for(client: Any):
    made, _ = client.call(KIND_CREATE_EVENT, flags=0x20 | 0x40)
    assert made.status == STATUS_SUCCESS
    waited, _ = client.call(KIND_WAIT, file_handle=made.file_handle, information=WAIT_FOREVER)
    assert waited.status == STATUS_SUCCESS
    clear, _ = client.call(KIND_CREATE_EVENT)
    waited, _ = client.call(KIND_WAIT, file_handle=clear.file_handle, information=1_000_000)
    assert waited.status == STATUS_TIMEOUT
    assert client.machine.processor.clock.now_ns() >= 1_000_000


# --- pending requests and the listener -----------------------------------------------------------


@pytest.mark.parametrize("completion", [COMPLETION_INLINE, COMPLETION_DPC])
def test_a_request_that_is_finished_has_one_answer(client: Any, completion: int):
    handle = client.open("noop")
    header, payload = client.control(handle, noop_code(METHOD_BUFFERED, completion), b"ab", 2)
    assert not header.flags & FLAG_COMPLETION_FOLLOWS
    assert (header.information, payload, header.sequence) == (2, b"ab", 0)
    assert client.door.take_completion() is None


def test_a_request_that_is_not_finished_has_two(client: Any):
    handle = client.open("noop")
    code = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)
    header, _ = client.control(handle, code, b"later", 5, apc_context=0xABCD)
    assert (header.status, header.flags) == (STATUS_PENDING, FLAG_COMPLETION_FOLLOWS)
    done, payload = client.completion()
    assert done.kind == KIND_COMPLETION
    assert (done.request_id, done.thread) == (header.request_id, 1)
    assert (done.apc_context, done.sequence) == (0xABCD, 1)
    assert (done.status, done.iosb_status, done.information) == (0, 0, 5)
    assert done.flags == FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE
    assert payload == b"later"
    assert client.call(KIND_DEQUEUE)[0].sequence == 1


def test_a_synchronous_file_waits_and_has_one(client: Any):
    handle = client.open("noop", synchronous=True)
    code = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)
    header, payload = client.control(handle, code, b"now", 3)
    assert (header.status, payload) == (STATUS_SUCCESS, b"now")
    assert client.door.take_completion() is None


def test_completions_come_in_order(client: Any, holder: Any):
    handle = client.open("holder")
    first = client.control(handle, HOLD)[0].request_id
    second = client.control(handle, HOLD)[0].request_id
    client.release(holder)
    client.release(holder)
    assert client.call(KIND_DEQUEUE)[0].sequence == 2
    assert [client.completion()[0].request_id for _ in range(2)] == [first, second]


class Narrow:
    """A way for completions that has room only when told, and may have no reader."""

    def __init__(self) -> None:
        self.room = 0
        self.gone = False
        self.sent: list[tuple[Header, bytes | None]] = []
        self.call: Callable[[], object] | None = None

    def send(self, header: bytes, payload: bytes | None) -> int:
        if self.gone:
            return GONE
        if not self.room:
            return FULL
        self.room -= 1
        self.sent.append((parse_header(header), payload))
        return SENT

    def when_room(self, call: Callable[[], object]) -> None:
        self.call = call

    def make_room(self, count: int) -> None:
        """Have room for so many more, and say so."""
        self.room = count
        call, self.call = self.call, None
        assert call is not None
        call()

    def close(self) -> None:
        pass


@pytest.fixture
def narrow(client: Any) -> Narrow:
    client.door.session.completions = way = Narrow()
    return way


def test_completions_that_find_no_room_are_kept_in_order(client: Any, holder: Any, narrow: Narrow):
    handle = client.open("holder")
    ids = [client.control(handle, HOLD)[0].request_id for _ in range(5)]
    for _ in range(3):
        client.release(holder)
    assert narrow.sent == []
    assert client.call(KIND_DEQUEUE)[0].sequence == 3
    narrow.make_room(1)
    assert [header.request_id for header, _ in narrow.sent] == ids[:1]
    narrow.room = 5  # the next ones do not overtake those that are kept
    client.release(holder)
    assert len(narrow.sent) == 1
    narrow.make_room(5)
    client.release(holder)
    assert [header.request_id for header, _ in narrow.sent] == ids
    assert [header.sequence for header, _ in narrow.sent] == [1, 2, 3, 4, 5]
    assert not client.door.session.held_completions


def test_completions_nobody_can_read_stay_unread(client: Any, holder: Any, narrow: Narrow):
    handle = client.open("holder")
    for _ in range(2):
        client.control(handle, HOLD)
    client.release(holder)  # kept
    narrow.gone = True
    narrow.make_room(0)
    client.release(holder)
    assert not client.door.session.held_completions
    assert client.door.session.outstanding == 2
    assert client.machine.server.answers.lost == {"peer gone": 2}


def test_cancel_ends_the_threads_own_requests_on_a_file(client: Any, holder: Any):
    handle = client.open("holder")
    other = client.open("holder")
    mine, _ = client.control(handle, HOLD)
    client.control(other, HOLD)
    assert client.call(KIND_CANCEL, file_handle=handle)[0].status == STATUS_SUCCESS
    done, _ = client.completion()
    assert (done.request_id, done.iosb_status) == (mine.request_id, STATUS_CANCELLED)
    assert len(holder.held) == 1


# --- limits --------------------------------------------------------------------------------------


def test_requests_and_unread_completions_count_against_one_limit(client: Any, holder: Any):
    handle = client.open("holder")
    for _ in range(8):
        assert client.control(handle, HOLD)[0].status == STATUS_PENDING
    refused, _ = client.control(handle, HOLD)
    assert refused.status == STATUS_INSUFFICIENT_RESOURCES
    for _ in range(8):
        client.release(holder)
    assert client.control(handle, HOLD)[0].status == STATUS_INSUFFICIENT_RESOURCES
    assert client.control(handle, HOLD, sequence=3)[0].status == STATUS_PENDING
    assert client.door.session.outstanding == 6
    assert client.machine.server.refused == {"over the limit": 2}


@pytest.mark.parametrize("taken", [9, (1 << 32) - 1])
def test_credit_for_what_was_never_sent_is_ignored(client: Any, holder: Any, taken: int):
    handle = client.open("holder")
    client.control(handle, HOLD)
    client.release(holder)
    client.call(KIND_DEQUEUE, sequence=taken)
    assert client.door.session.outstanding == 1
    client.call(KIND_DEQUEUE, sequence=1)
    client.call(KIND_DEQUEUE, sequence=0)
    assert client.door.session.outstanding == 0


def test_threads_are_bounded():
    machine = Machine(KernelSettings(max_threads_per_session=2), in_process=True)
    door = machine.connect_in_process()

    def status_of(thread: int) -> int:
        welcome = door.welcome
        header = make_header(
            KIND_DEQUEUE, session=welcome.session, epoch=welcome.epoch, thread=thread
        )
        return parse_header(door.exchange([header])[0]).status

    assert [status_of(n) for n in (1, 2, 3)] == [
        STATUS_INVALID_HANDLE,
        STATUS_INVALID_HANDLE,
        STATUS_TOO_MANY_THREADS,
    ]
    door.close()


# --- threads -------------------------------------------------------------------------------------


def test_two_requests_at_once_on_one_thread_are_served_in_order(client: Any):
    handle = client.open("noop", synchronous=True)
    code = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)
    first = client.post_control(handle, code, b"1", 1)
    second = client.post_control(handle, INLINE, b"2", 1)
    answers = [client.answer(), client.answer()]
    assert [(header.request_id, payload) for header, payload in answers] == [
        (first, b"1"),
        (second, b"2"),
    ]


def test_a_thread_that_exits_takes_its_requests_with_it(client: Any, holder: Any):
    handle = client.open("holder", thread=2)
    pending, _ = client.control(handle, HOLD, thread=2)
    assert client.door.exchange(client.frames(KIND_THREAD_EXIT, thread=2)) == []
    assert holder.held == []
    assert client.completion()[0].request_id == pending.request_id
    assert list(client.door.session.threads) == []
    assert client.door.session.in_flight == 0


def test_after_its_exit_a_thread_is_unknown(client: Any, machine: Machine):
    client.call(KIND_DEQUEUE, thread=5)
    client.door.exchange(client.frames(KIND_THREAD_EXIT, thread=5))
    for kind in (KIND_THREAD_EXIT, KIND_CANCEL_SYNCHRONOUS):
        client.post(kind, thread=5)
    assert machine.server.dropped == {"thread unknown or ended": 2}
    assert client.call(KIND_DEQUEUE, thread=5)[0].status == STATUS_INVALID_HANDLE


def test_a_thread_that_leaves_is_not_heard_any_more(client: Any, machine: Machine):
    event, _ = client.call(KIND_CREATE_EVENT)
    client.post(KIND_WAIT, file_handle=event.file_handle, information=WAIT_FOREVER)
    client.settle()
    client.post(KIND_THREAD_EXIT)
    client.post(KIND_THREAD_EXIT)
    client.post(KIND_DEQUEUE)
    header, _ = client.answer()
    assert header.status == STATUS_THREAD_IS_TERMINATING
    assert machine.server.refused == {"thread leaves": 2}


def test_what_makes_room_is_admitted_over_the_limit(client: Any, holder: Any):
    handle = client.open("holder")
    event, _ = client.call(KIND_CREATE_EVENT, flags=FLAG_SIGNALED | FLAG_NOTIFICATION)
    for _ in range(8):
        client.control(handle, HOLD)
    waited, _ = client.call(KIND_WAIT, file_handle=event.file_handle)
    assert waited.status == STATUS_SUCCESS
    assert client.call(KIND_CLOSE, file_handle=event.file_handle)[0].status == STATUS_SUCCESS
    client.post(KIND_CANCEL, file_handle=handle)
    client.post(KIND_CANCEL, file_handle=handle)
    answers = [client.answer()[0].status for _ in range(2)]
    assert sorted(answers) == [STATUS_SUCCESS, STATUS_INSUFFICIENT_RESOURCES]
    assert holder.held == []


def test_an_exit_is_admitted_over_the_limit(client: Any, holder: Any):
    handle = client.open("holder")
    for _ in range(8):
        client.control(handle, HOLD)
    client.door.exchange(client.frames(KIND_THREAD_EXIT))
    assert holder.held == []
    assert client.door.session.in_flight == 0


def replaced_socket(client: Any, machine: Machine) -> tuple[Any, Any]:
    """A function that sends by the thread's new socket, and its answers."""
    answers = machine._outboxes.open(b"new socket")
    return lambda frames: machine.server.receive(b"new socket", frames), answers


@pytest.mark.parametrize("first", [False, True])
def test_a_request_overtaken_by_its_own_cancelling_on_a_new_socket_is_never_done(
    client: Any, machine: Machine, first: bool
):
    if not first:
        client.open("noop")
    event = client.call(KIND_CREATE_EVENT, thread=2)[0].file_handle
    send_anew, answers = replaced_socket(client, machine)
    thread = 3 if first else 1
    wait = client.frames(KIND_WAIT, thread=thread, file_handle=event, information=WAIT_FOREVER)
    number = parse_header(wait[0]).request_id
    send_anew(client.frames(KIND_CANCEL_SYNCHRONOUS, thread=thread, request_id=number))
    client.door.post(wait)  # on the old socket, too late
    send_anew(client.frames(KIND_CLOSE, thread=thread, file_handle=event))
    client.settle()
    (answer,) = answers
    assert parse_header(answer[0]).status == STATUS_SUCCESS
    assert machine.server.dropped == {"overtaken by the thread's new socket": 1}


def test_a_request_that_was_not_overtaken_is_cancelled_by_a_new_socket(
    client: Any, machine: Machine
):
    event = client.call(KIND_CREATE_EVENT, thread=2)[0].file_handle
    send_anew, answers = replaced_socket(client, machine)
    wait = client.frames(KIND_WAIT, thread=3, file_handle=event, information=WAIT_FOREVER)
    number = parse_header(wait[0]).request_id
    client.door.post(wait)
    client.settle()
    send_anew(client.frames(KIND_CANCEL_SYNCHRONOUS, thread=3, request_id=number))
    send_anew(client.frames(KIND_CLOSE, thread=3, file_handle=event))
    client.settle()
    statuses = [parse_header(answer[0]).status for answer in answers]
    assert statuses == [STATUS_ALERTED, STATUS_SUCCESS]
    assert machine.server.dropped == {}


def test_a_thread_may_leave_by_a_new_socket(client: Any, machine: Machine):
    client.open("noop")
    send_anew, _ = replaced_socket(client, machine)
    send_anew(client.frames(KIND_THREAD_EXIT, request_id=0))
    client.settle()
    assert client.door.session.threads == {}


def test_a_thread_that_replaced_its_socket_is_answered_there(client: Any, machine: Machine):
    handle = client.open("noop")
    new = machine._outboxes.open(b"new socket")
    machine.server.receive(b"new socket", client.frames(KIND_CLOSE, file_handle=handle))
    machine.processor.run_until(lambda: bool(new))
    assert parse_header(new.popleft()[0]).status == STATUS_SUCCESS
    assert list(machine.server._callers) == [b"new socket"]


# --- giving up -----------------------------------------------------------------------------------


def test_a_device_control_given_up_is_cancelled_and_still_answered(client: Any, holder: Any):
    handle = client.open("holder", synchronous=True)
    request = client.post_control(handle, HOLD)
    client.machine.processor.run_until(lambda: bool(holder.held))
    client.post(KIND_CANCEL_SYNCHRONOUS, request_id=request)
    header, _ = client.answer()
    assert (header.request_id, header.status) == (request, STATUS_CANCELLED)


def test_a_wait_given_up_is_alerted(client: Any):
    event, _ = client.call(KIND_CREATE_EVENT)
    request = client.post(KIND_WAIT, file_handle=event.file_handle, information=WAIT_FOREVER)
    thread = client.door.session.threads[1].kthread
    client.machine.processor.run_until(lambda: thread.is_waiting)
    client.post(KIND_CANCEL_SYNCHRONOUS, request_id=request)
    header, _ = client.answer()
    assert (header.request_id, header.status) == (request, STATUS_ALERTED)
    waited, _ = client.call(KIND_WAIT, file_handle=event.file_handle, information=1)
    assert waited.status == STATUS_TIMEOUT


def test_a_request_given_up_in_the_queue_is_not_done(client: Any, holder: Any):
    handle = client.open("holder", synchronous=True)
    first = client.post_control(handle, HOLD)
    second = client.post(KIND_CREATE_EVENT)
    client.machine.processor.run_until(lambda: bool(holder.held))
    client.post(KIND_CANCEL_SYNCHRONOUS, request_id=second)
    client.release(holder)
    assert client.answer()[0].request_id == first
    header, _ = client.answer()
    assert (header.request_id, header.status) == (second, STATUS_CANCELLED)
    assert header.file_handle == 0
    assert client.door.session.threads[1].abandoned == set()


def test_giving_up_what_does_not_exist_changes_nothing(client: Any):
    client.open("noop")
    client.post(KIND_CANCEL_SYNCHRONOUS, request_id=4711)
    assert client.door.session.threads[1].abandoned == set()
    assert client.call(KIND_DEQUEUE)[0].status == STATUS_INVALID_HANDLE


# --- the end of a session ------------------------------------------------------------------------


def test_a_session_with_everything_pending_is_run_down(client: Any, holder: Any):
    overlapped = client.open("holder")
    synchronous = client.open("holder", thread=2, synchronous=True)
    event, _ = client.call(KIND_CREATE_EVENT)
    client.control(overlapped, HOLD)
    client.post_control(synchronous, HOLD, thread=2)
    client.post(KIND_WAIT, thread=3, file_handle=event.file_handle, information=WAIT_FOREVER)
    client.machine.processor.run_until(lambda: len(holder.held) == 2)
    client.door.close()
    assert (holder.held, holder.cleanups, holder.closes) == ([], 2, 2)
    assert client.machine.rundown.completed == 1
    header, _ = client.call(KIND_DEQUEUE)
    assert header.status == STATUS_INVALID_CONNECTION


def test_a_session_ends_once(client: Any):
    client.open("noop")
    client.machine.rundown.begin(client.door.session, "first")
    client.machine.rundown.begin(client.door.session, "second")
    client.machine.processor.run_until(lambda: len(client.machine.sessions) == 0)
    assert client.machine.rundown.completed == 1


def test_numbers_and_epochs_are_never_used_again(machine: Machine):
    seen = set()
    for _ in range(5):
        door = machine.connect_in_process()
        seen.add((door.welcome.session, door.welcome.epoch))
        door.close()
    assert len({number for number, _ in seen}) == 5
    assert len({epoch for _, epoch in seen}) == 5


# --- anything at all -----------------------------------------------------------------------------

KINDS = st.sampled_from(
    [
        KIND_CREATE, KIND_CLOSE, KIND_DUPLICATE, KIND_DEVICE_CONTROL, KIND_CANCEL, KIND_DEQUEUE,
        KIND_THREAD_EXIT, KIND_CREATE_EVENT, KIND_ECHO, KIND_CANCEL_SYNCHRONOUS,
        KIND_REPLY, KIND_COMPLETION, KIND_WAIT, KIND_DELAY, KIND_EVENT, KIND_CREATE_PORT,
        KIND_ASSOCIATE, KIND_POST, 0, 77, 0xFFFF,
    ]
)  # fmt: skip
U32 = st.one_of(st.integers(0, 20), st.integers(0, (1 << 32) - 1))
U64 = st.one_of(st.integers(0, 20), st.integers(0, (1 << 64) - 1))
PAYLOADS = st.one_of(
    st.just(b""), st.just(b"noop"), st.just(bytes(PACKET.size)), st.binary(max_size=64)
)


@st.composite
def plausible_messages(draw: st.DrawFn) -> tuple[str, dict[str, int], list[bytes]]:
    """A message that is nearly right: fields, and what becomes of the credentials."""
    payload = draw(PAYLOADS)
    fields = {
        "kind": draw(KINDS),
        "flags": draw(st.integers(0, 0x7FF)),
        "thread": draw(st.integers(0, 3)),
        "file_handle": draw(st.integers(0, 24)),
        "request_id": draw(U64),
        "control_code": draw(
            st.sampled_from([INLINE, INLINE | 1, INLINE | 2, INLINE | 3, HOLD, 1, 2, 3, 4])
        ),
        "event_handle": draw(st.integers(0, 24)),
        "input_address": draw(U64),
        "output_address": draw(U64),
        "input_length": draw(st.one_of(st.just(len(payload)), U32)),
        "output_length": draw(st.integers(0, 4096)),
        "apc_context": draw(U64),
        "sequence": draw(U32),
        "information": draw(U64),
    }
    forgery = draw(st.sampled_from(["", "", "", "session", "epoch", "version", "magic", "cut"]))
    return forgery, fields, [payload] if payload else []


def forged(header: bytes, forgery: str) -> bytes:
    places = {"magic": 0, "version": 4, "session": 12, "epoch": 16}
    if forgery == "cut":
        return header[:50]
    if forgery:
        at = places[forgery]
        return header[:at] + bytes([header[at] ^ 0x55]) + header[at + 1 :]
    return header


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(
        st.one_of(
            plausible_messages(),
            st.lists(st.binary(max_size=HEADER.size + 2), max_size=4),
        ),
        max_size=12,
    ),
    identities=st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=12, max_size=12),
)
def test_no_bytes_raise_an_exception_and_each_message_is_accounted_for(
    messages: list[Any], identities: list[bytes]
):
    machine = Machine(KernelSettings(verifier=True, max_requests_per_session=8), in_process=True)
    door = machine.connect_in_process()
    for identity in identities:
        machine._outboxes.open(identity)
    server = machine.server
    for identity, message in zip(identities, messages, strict=False):
        if isinstance(message, tuple):
            forgery, fields, payload = message
            welcome = door.welcome
            header = make_header(session=welcome.session, epoch=welcome.epoch, **fields)
            message = [forged(header, forgery), *payload]
        before = accounted_for(server, door)
        server.receive(identity, message)
        assert accounted_for(server, door) == before + 1
        machine.processor.run_until(lambda: not machine.processor.dispatcher.ready_queue.summary)
    door.close()
    assert door.session.in_flight == 0
    assert door.session.process.pool_charged == 0
    assert server.inspect()["bound_sockets"] == 0
    assert machine.processor.dispatcher.inspect()["threads"] == []
    assert machine.reception.arena_total.used == 0


def accounted_for(server: Any, door: Any) -> int:
    """Messages that ended somewhere: dropped, refused, echoed, acted on at once, or admitted."""
    counted = sum(server.dropped.values()) + sum(server.refused.values())
    return int(counted + server.echoes + server.immediate + door.session.requests)
