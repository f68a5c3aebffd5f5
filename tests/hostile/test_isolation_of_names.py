"""Handles and names in the requests of another session: an attack for every kind.

The kinds are read from the product: a new kind of handle or field without an attack fails here.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared import envelope
from shared import verb_codes as codes
from shared.envelope import (
    EVENT_SET,
    FLAG_ANY_THREAD,
    FLAG_SYNCHRONOUS,
    KIND_ASSOCIATE,
    KIND_CANCEL,
    KIND_CANCEL_SYNCHRONOUS,
    KIND_CLOSE,
    KIND_DEQUEUE,
    KIND_DEVICE_CONTROL,
    KIND_DUPLICATE,
    KIND_ECHO,
    KIND_EVENT,
    KIND_POST,
    KIND_WAIT,
    PACKET,
    Header,
    make_header,
    parse_header,
)
from shared.ioctl_codes import noop_code
from shared.nt_status import (
    STATUS_INVALID_CONNECTION,
    STATUS_INVALID_HANDLE,
    STATUS_NOT_FOUND,
    STATUS_OBJECT_TYPE_MISMATCH,
)
from shared.verb_messages import Object
from tests.hostile.attack_scene import Scene, open_scene, victims
from tests.hostile.machines import User

REFUSED = (STATUS_INVALID_HANDLE, STATUS_OBJECT_TYPE_MISMATCH)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    yield from open_scene()


# --- handles of the I/O manager ------------------------------------------------------------------


def _through_handle(scene: Scene, handle: int) -> None:
    """Everything that takes a handle, with one the attacker does not have."""
    code = noop_code(0, 0)
    event = scene.attacker.process.create_event()
    port = scene.attacker.process.create_completion_port()
    packet = PACKET.pack(1, 2, 3, 0)
    asked: list[tuple[int, bytes, dict[str, Any]]] = [
        (KIND_CLOSE, b"", {}),
        (KIND_DUPLICATE, b"", {}),
        (KIND_DEVICE_CONTROL, b"x", {"control_code": code}),
        (KIND_CANCEL, b"", {}),
        (KIND_CANCEL, b"", {"flags": FLAG_ANY_THREAD}),
        (KIND_WAIT, b"", {}),
        (KIND_EVENT, b"", {"control_code": EVENT_SET}),
        (KIND_ASSOCIATE, b"", {"event_handle": port.handle}),
        (KIND_POST, packet, {}),
        (KIND_DEQUEUE, b"", {"output_length": 4096}),
    ]
    for kind, payload, fields in asked:
        assert scene.call(kind, payload, file_handle=handle, **fields).status in REFUSED, kind
    several = b"".join(one.to_bytes(4, "little") for one in (event.handle, handle))
    assert scene.call(KIND_WAIT, several).status in REFUSED
    with scene.attacker.process.open_device("noop", overlapped=True) as noop:
        for kind, fields in ((KIND_ASSOCIATE, {}), (KIND_DEVICE_CONTROL, {"control_code": code})):
            answer = scene.call(kind, file_handle=noop.handle, event_handle=handle, **fields)
            assert answer.status in REFUSED, kind
    event.close()
    port.close()


NT_HANDLES: dict[str, Callable[[User], Any]] = {
    "KIND_CREATE": lambda user: user.process.open_device("noop", overlapped=True),
    "KIND_CREATE_EVENT": lambda user: user.process.create_event(),
    "KIND_CREATE_PORT": lambda user: user.process.create_completion_port(),
}


def test_every_kind_of_handle_is_attacked():
    made = {name for name in vars(envelope) if name.startswith("KIND_CREATE")}
    assert set(NT_HANDLES) == made


@pytest.mark.parametrize("kind", NT_HANDLES)
def test_no_handle_of_another_is_one(scene: Scene, kind: str):
    # Handles are counted in each process: those the attacker has himself are skipped.
    table = scene.attacker.door.session.process.handle_table.entries
    theirs = [NT_HANDLES[kind](scene.victim) for _ in range(40)]
    foreign = [one for one in theirs if one.handle not in table and one.handle > max(table) + 40]
    assert foreign
    before = victims(scene)
    _through_handle(scene, foreign[-1].handle)
    assert victims(scene) == before
    for one in theirs:
        one.close()


# --- names in a request's header -----------------------------------------------------------------


def _as_session(scene: Scene) -> None:
    """The victim's number with any epoch but its own, and the attacker's with the victim's."""
    own, their = scene.attacker.process.channel, scene.victim.process.channel
    epochs = (0, 1, own.epoch, their.epoch ^ 1, their.epoch ^ 1 << 63, (1 << 64) - 1)
    for epoch in epochs:
        answer = _stranger(scene, session=scene.victim.process.session, epoch=epoch)
        assert answer.status == STATUS_INVALID_CONNECTION
    for session in (0, scene.victim.process.session, 2**32 - 1):
        assert _stranger(scene, session=session).status == STATUS_INVALID_CONNECTION


def _stranger(scene: Scene, **fields: Any) -> Header:
    """Ask by a socket that nobody has bound."""
    identity = b"stranger"
    inbox = scene.machine._outboxes.open(identity)
    values = {"epoch": scene.attacker.process.channel.epoch, "thread": 1, "request_id": 1} | fields
    scene.machine.server.receive(identity, [make_header(KIND_CLOSE, **values)])
    scene.machine.processor.run_until(lambda: bool(inbox))
    return parse_header(inbox.popleft()[0])


def _bound_socket(scene: Scene) -> None:
    """A bound socket with the victim's true credentials: it is the attacker's, and stays so."""
    own, their = scene.attacker.process, scene.victim.process
    assert scene.call(KIND_CLOSE, file_handle=0).status == STATUS_INVALID_HANDLE
    identity = b"%d/9" % own.session
    inbox = scene.machine._outboxes.open(identity)
    header = make_header(
        KIND_CLOSE, session=their.session, epoch=their.channel.epoch, thread=1, request_id=1
    )
    scene.machine.server.receive(identity, [header])
    scene.machine.processor.run_until(lambda: bool(inbox))
    assert parse_header(inbox.popleft()[0]).status == STATUS_INVALID_CONNECTION


def _pended(scene: Scene) -> Any:
    """A request of the victim's that waits for an event of its CQ."""
    pended = scene.theirs.verbs.pend(codes.IOCTL_GET_CQ_COMP_EVENT, Object(scene.theirs["CQ"]))
    assert not pended.overlapped.done
    return pended


def _request(scene: Scene) -> None:
    """CANCEL of the victim's request ids, by the attacker's file, and by its thread's number."""
    pended = _pended(scene)
    ids = (pended.overlapped.request_id, 0, 2**64 - 1)
    for number in ids:
        answer = scene.call(
            KIND_CANCEL,
            flags=FLAG_ANY_THREAD,
            file_handle=scene.own.verbs.device.handle,
            information=number,
        )
        assert answer.status == STATUS_NOT_FOUND
    scene.attacker.door.post(
        [
            make_header(
                KIND_CANCEL_SYNCHRONOUS,
                session=scene.attacker.process.session,
                epoch=scene.attacker.process.channel.epoch,
                thread=9,
                request_id=pended.overlapped.request_id,
            )
        ]
    )
    assert scene.attacker.process.echo(b"x") == b"x"
    assert not pended.overlapped.done
    assert scene.theirs.verbs.device.cancel_ex(pended.overlapped)


def _thread(scene: Scene) -> None:
    """Numbers of threads are each session's own: a number of the victim's names none of them."""
    with scene.victim.process.channel.another_thread(), \
         scene.victim.process.open_device("noop") as noop:  # fmt: skip
        assert noop.device_io_control(noop_code(0, 0), b"x", bytearray(1)) == 1
    pended = _pended(scene)
    for number in scene.victim.door.session.threads:
        answer = scene.call(KIND_CANCEL, flags=FLAG_SYNCHRONOUS, information=number)
        assert answer.status == STATUS_NOT_FOUND
    assert not pended.overlapped.done
    assert scene.theirs.verbs.device.cancel_ex(pended.overlapped)


def _sequence(scene: Scene) -> None:
    """Credit is for one's own completions."""
    before = scene.victim.door.session.completions_taken
    assert scene.call(KIND_CLOSE, sequence=12345).status == STATUS_INVALID_HANDLE
    assert scene.victim.door.session.completions_taken == before


NAMES: dict[str, Callable[[Scene], object]] = {
    "session": _as_session,
    "epoch": _as_session,
    "thread": _thread,
    "file_handle": lambda scene: _through_handle(scene, 40_000),
    "event_handle": lambda scene: _through_handle(scene, 40_000),
    "request_id": _request,
    "information": _thread,
    "sequence": _sequence,
}
#: What names nothing of anybody, or only one's own memory.
PLAIN = {
    "magic", "version", "kind", "flags", "control_code", "input_address", "output_address",
    "input_length", "output_length", "apc_context", "status", "iosb_status",
}  # fmt: skip


def test_every_name_in_a_header_is_attacked():
    assert set(NAMES) | PLAIN == set(Header._fields)
    assert not set(NAMES) & PLAIN


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_to_another(scene: Scene, name: str):
    before = victims(scene)
    NAMES[name](scene)
    after = victims(scene)
    assert after["things"] == before["things"]
    assert after["all"]["irps"] == before["all"]["irps"]


def test_a_bound_socket_is_nobody_elses(scene: Scene):
    before = victims(scene)
    _bound_socket(scene)
    assert victims(scene) == before
    assert scene.call(KIND_ECHO).kind == KIND_ECHO
