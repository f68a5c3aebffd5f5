"""Waits, packets and user APCs as frames: what is answered, in which order, what is given up."""

import struct
from typing import Any

import pytest

from kernel_proc.scheduling.apc import UserApc
from shared.envelope import (
    FLAG_ALERTABLE,
    FLAG_COMPLETION_FOLLOWS,
    FLAG_INPUT_INLINE,
    FLAG_IOSB_WRITTEN,
    FLAG_OUTPUT_INLINE,
    FLAG_USER_APC,
    KIND_ASSOCIATE,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_COMPLETION,
    KIND_CREATE_EVENT,
    KIND_CREATE_PORT,
    KIND_DELAY,
    KIND_DEQUEUE,
    KIND_DEVICE_CONTROL,
    KIND_EVENT,
    KIND_POST,
    KIND_THREAD_EXIT,
    KIND_WAIT,
    PACKET,
    WAIT_FOREVER,
)
from shared.ioctl_codes import (
    COMPLETION_DEVICE,
    COMPLETION_DPC,
    COMPLETION_INLINE,
    METHOD_BUFFERED,
    noop_code,
)
from shared.nt_status import (
    STATUS_ALERTED,
    STATUS_CANCELLED,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_PARAMETER,
    STATUS_PENDING,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    STATUS_USER_APC,
)
from tests.holder_driver import HOLD
from tests.kernel_proc.server.conftest import parsed

INLINE = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
ROOM = PACKET.size


def make_port(client: Any, *files: int) -> int:
    port: int = client.call(KIND_CREATE_PORT)[0].file_handle
    for file in files:
        header, _ = client.call(KIND_ASSOCIATE, file_handle=file, event_handle=port, apc_context=9)
        assert header.status == STATUS_SUCCESS
    return port


def ids(payload: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(payload) // 8}Q", payload)


# --- the result before the news of it ------------------------------------------------------------


@pytest.mark.parametrize("completion", [COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE])
@pytest.mark.parametrize("by_event", [True, False])
def test_the_listener_has_the_result_before_anybody_is_told(
    client: Any, completion: int, by_event: bool
):
    file = client.open("noop")
    port = make_port(client, file)
    event = client.call(KIND_CREATE_EVENT)[0].file_handle
    if by_event:
        client.post(KIND_WAIT, thread=2, file_handle=event, information=WAIT_FOREVER)
    else:
        client.post(
            KIND_DEQUEUE, thread=2, file_handle=port, output_length=ROOM, information=WAIT_FOREVER
        )
    client.settle()
    more = {"event_handle": event} if by_event else {"apc_context": 5}
    code = noop_code(METHOD_BUFFERED, completion)
    header, payload = client.control(file, code, b"abc", 3, **more)
    assert header.flags == FLAG_COMPLETION_FOLLOWS
    assert header.status == (STATUS_SUCCESS if completion == COMPLETION_INLINE else STATUS_PENDING)
    assert payload == b""
    told, packet = client.answer(2)
    assert (told.status, told.sequence) == (STATUS_SUCCESS, 1)
    assert packet == (b"" if by_event else PACKET.pack(9, 5, 3, 0))
    completed, output = parsed(client.door.take_completion())
    assert (completed.kind, completed.sequence, output) == (KIND_COMPLETION, 1, b"abc")
    assert completed.flags == FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE
    assert client.door.session.in_flight == 0


def test_a_result_nobody_else_can_be_told_of_is_in_the_reply(client: Any):
    file = client.open("noop")
    make_port(client, file)
    header, payload = client.control(file, INLINE, b"abc", 3)  # no context, no packet
    assert (header.flags, payload) == (FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE, b"abc")
    assert client.door.take_completion() is None
    event = client.call(KIND_CREATE_EVENT)[0].file_handle
    synchronous = client.open("noop", synchronous=True)
    header, _ = client.control(synchronous, INLINE, b"abc", 3, event_handle=event)
    assert header.flags == FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE


def test_the_request_object_is_used_again_after_either_way(client: Any):
    file = client.open("noop")
    port = make_port(client, file)
    for number in range(1, 5):
        header, _ = client.control(file, INLINE, b"x", 1, apc_context=number)
        assert header.flags == FLAG_COMPLETION_FOLLOWS
        assert client.control(file, INLINE, b"y", 1)[1] == b"y"
    _, packets = client.call(KIND_DEQUEUE, file_handle=port, output_length=9 * ROOM)
    assert [one[1] for one in PACKET.iter_unpack(packets)] == [1, 2, 3, 4]
    outputs = [parsed(client.door.take_completion())[1] for _ in range(4)]
    assert outputs == [b"x"] * 4


# --- packets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, PACKET.size - 1, PACKET.size + 1, 2 * PACKET.size])
def test_a_packet_has_its_length(client: Any, length: int):
    header, _ = client.call(KIND_POST, bytes(length), file_handle=make_port(client))
    assert header.status == STATUS_INVALID_PARAMETER


@pytest.mark.parametrize("room", [0, 1, PACKET.size - 1])
def test_a_packet_needs_its_room(client: Any, room: int):
    port = make_port(client)
    client.call(KIND_POST, bytes(PACKET.size), file_handle=port)
    header, _ = client.call(KIND_DEQUEUE, file_handle=port, output_length=room)
    assert header.status == STATUS_INVALID_PARAMETER
    header, payload = client.call(KIND_DEQUEUE, file_handle=port, output_length=ROOM)
    assert (header.status, payload) == (STATUS_SUCCESS, bytes(PACKET.size))


def test_packets_left_at_the_end_of_a_session_are_paid_back(client: Any):
    file = client.open("noop")
    port = make_port(client, file)
    for number in range(5):
        client.call(KIND_POST, PACKET.pack(number, 0, 0, 0), file_handle=port)
        client.control(file, INLINE, b"x" * 100, 3, apc_context=1)
    process = client.door.session.process
    assert process.pool_charged == 5 * 0x40 + 5 * 280
    client.door.close()
    assert process.pool_charged == 0


# --- giving up -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alertable", [0, FLAG_ALERTABLE])
@pytest.mark.parametrize("kind", [KIND_WAIT, KIND_DELAY, KIND_DEQUEUE])
def test_every_wait_can_be_given_up(client: Any, kind: int, alertable: int):
    event = client.call(KIND_CREATE_EVENT)[0].file_handle
    handle = make_port(client) if kind == KIND_DEQUEUE else event
    given_up = client.post(
        kind, file_handle=handle, flags=alertable, output_length=ROOM, information=WAIT_FOREVER
    )
    client.settle()
    client.post(KIND_CANCEL_SYNCHRONOUS, request_id=given_up)
    header, _ = client.answer()
    assert (header.request_id, header.status) == (given_up, STATUS_ALERTED)
    # Nothing of it is left for the next wait.
    header, _ = client.call(KIND_WAIT, file_handle=event, flags=FLAG_ALERTABLE, information=1000)
    assert header.status == STATUS_TIMEOUT


def test_a_wait_for_all_can_be_given_up(client: Any):
    events = [client.call(KIND_CREATE_EVENT)[0].file_handle for _ in range(3)]
    client.call(KIND_EVENT, file_handle=events[0], control_code=1)
    payload = struct.pack("<3I", *events)
    flags = FLAG_INPUT_INLINE | 0x100
    given_up = client.post(KIND_WAIT, payload, flags=flags, information=WAIT_FOREVER)
    client.settle()
    client.post(KIND_CANCEL_SYNCHRONOUS, request_id=given_up)
    assert client.answer()[0].status == STATUS_ALERTED
    assert client.call(KIND_EVENT, file_handle=events[0], control_code=4)[0].information == 1


def test_a_request_that_stands_at_the_lock_is_given_up(client: Any, holder: Any):
    file = client.open("holder", synchronous=True)
    first = client.post_control(file, HOLD)
    client.settle()
    second = client.post_control(file, HOLD, thread=2)
    client.settle()
    client.post(KIND_CANCEL_SYNCHRONOUS, thread=2, request_id=second)
    header, _ = client.answer(2)
    assert (header.request_id, header.status, header.flags) == (second, STATUS_ALERTED, 0)
    assert len(holder.held) == 1
    client.release(holder)
    assert client.answer()[0].request_id == first
    third = client.post_control(file, HOLD, thread=2)  # the lock is free again
    client.settle()
    client.post(KIND_CANCEL_SYNCHRONOUS, thread=2, request_id=third)
    assert client.answer(2)[0].status == STATUS_CANCELLED


def test_waits_are_admitted_over_the_limit(client: Any, holder: Any):
    file = client.open("holder")
    for _ in range(8):
        client.control(file, HOLD)
    port, event = 0x7777, 0x7777
    for kind, handle in ((KIND_DEQUEUE, port), (KIND_EVENT, event), (KIND_DELAY, 0)):
        header, _ = client.call(kind, file_handle=handle, control_code=1, output_length=ROOM)
        assert header.status != STATUS_INSUFFICIENT_RESOURCES
    header, _ = client.call(KIND_CREATE_PORT)
    assert header.status == STATUS_INSUFFICIENT_RESOURCES


# --- user APCs -----------------------------------------------------------------------------------


def control_with_apc(client: Any, file: int, code: int, thread: int = 1) -> Any:
    flags = FLAG_INPUT_INLINE | FLAG_OUTPUT_INLINE | FLAG_USER_APC
    return client.call(
        KIND_DEVICE_CONTROL,
        b"abc",
        thread,
        file_handle=file,
        control_code=code,
        output_length=3,
        flags=flags,
    )


def test_an_apc_ends_an_alertable_wait_and_no_other(client: Any, holder: Any):
    file = client.open("holder")
    header, _ = control_with_apc(client, file, HOLD)
    request = header.request_id
    event = client.call(KIND_CREATE_EVENT)[0].file_handle
    client.post(KIND_WAIT, file_handle=event, information=WAIT_FOREVER)
    client.settle()
    client.release(holder)
    completed, _ = parsed(client.door.take_completion())
    assert completed.flags == FLAG_IOSB_WRITTEN | FLAG_USER_APC
    client.call(KIND_EVENT, thread=2, file_handle=event, control_code=1)
    assert client.answer()[0].status == STATUS_SUCCESS
    header, payload = client.call(KIND_DELAY, flags=FLAG_ALERTABLE, information=WAIT_FOREVER)
    assert (header.status, header.flags) == (STATUS_USER_APC, FLAG_USER_APC)
    assert ids(payload) == (request,)
    assert header.sequence == 1
    assert client.call(KIND_DELAY, flags=FLAG_ALERTABLE)[0].status == STATUS_SUCCESS


def test_an_apc_that_comes_during_the_wait_ends_it(client: Any, holder: Any):
    file = client.open("holder")
    request = control_with_apc(client, file, HOLD)[0].request_id
    client.post(KIND_DELAY, flags=FLAG_ALERTABLE, information=WAIT_FOREVER)
    client.settle()
    client.release(holder)
    header, payload = client.answer()
    assert (header.status, ids(payload), header.sequence) == (STATUS_USER_APC, (request,), 1)


def test_the_apc_is_the_issuing_threads_and_ends_with_it(client: Any):
    file = client.open("noop")
    header, payload = control_with_apc(client, file, INLINE, thread=2)
    assert header.flags == FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE | FLAG_USER_APC
    assert payload == b"abc"
    assert client.call(KIND_DELAY, flags=FLAG_ALERTABLE)[0].status == STATUS_SUCCESS
    assert client.door.session.process.pool_charged == 280
    client.door.exchange(client.frames(KIND_THREAD_EXIT, thread=2))
    assert client.door.session.process.pool_charged == 0


def test_a_request_with_an_apc_is_not_used_again_before_it_was_delivered(client: Any):
    file = client.open("noop")
    requests = [control_with_apc(client, file, INLINE)[0].request_id for _ in range(3)]
    client.control(file, INLINE, b"x", 1)
    _, payload = client.call(KIND_DELAY, flags=FLAG_ALERTABLE)
    assert ids(payload) == tuple(requests)


def test_an_apc_of_a_drivers_own_ends_the_wait_and_names_no_request(client: Any):
    file = client.open("noop")
    control_with_apc(client, file, INLINE)
    (caller,) = client.door.session.threads.values()
    UserApc(caller.kthread, context="the driver's").insert()
    header, payload = client.call(KIND_DELAY, flags=FLAG_ALERTABLE)
    assert (header.status, len(payload)) == (STATUS_USER_APC, 8)
    UserApc(caller.kthread).insert()
    header, payload = client.call(KIND_DELAY, flags=FLAG_ALERTABLE)
    assert (header.status, header.flags, payload) == (STATUS_USER_APC, FLAG_USER_APC, b"")
