"""One session against the things of another: an attack for every kind there is, and none succeeds.

The kinds are read from the product: a new kind of object, handle, key or name without an attack
fails here. Attacker and victim are two sessions of one kernel in this process; since they share
one memory, what an attack did to it is seen at once.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.driver import dispatch, kernel_doorbells, resources
from shared import doorbell_layout as bells
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
from shared.live_words import words64
from shared.messages import SYSTEM_MESSAGES
from shared.nt_status import (
    STATUS_INVALID_CONNECTION,
    STATUS_INVALID_HANDLE,
    STATUS_NOT_FOUND,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_SUCCESS,
)
from shared.verb_messages import ImportByDescriptor, Object, RegMr
from shared.verb_reasons import VerbReason as Reason
from tests.end_to_end.test_verbs_handles import FIELDS
from tests.hostile.machines import User, holdings, make_machine
from tests.hostile.valid_verbs import OneOfEach

APART = 64  # how far the victim's handles lie from the attacker's
REFUSED = (STATUS_INVALID_HANDLE, STATUS_OBJECT_TYPE_MISMATCH)


class Scene:
    """Attacker and victim, each with one of everything."""

    def __init__(self) -> None:
        self.machine = make_machine()
        self.attacker = User(self.machine, "attacker")
        self.victim = User(self.machine, "victim")
        self.own = OneOfEach(self.attacker)
        self.theirs = self._shifted()
        assert self.call(KIND_CLOSE).status == STATUS_INVALID_HANDLE  # its thread is known now

    def _shifted(self) -> OneOfEach:
        """The victim's things, whose handles the attacker has none of."""
        things = OneOfEach(self.victim)
        context = self.victim.context_of(things.verbs)
        context._next += APART
        for kind in reversed(list(things.handles)):
            _destroy(things, kind)
        things.handles.clear()
        things.restore()
        assert min(things.handles.values()) > max(self.own.handles.values())
        return things

    def call(self, kind: int, payload: bytes = b"", **fields: Any) -> Header:
        """Send a request of the attacker's; the header of the answer."""
        port = self.attacker.process.channel.port()
        values = {
            "session": self.attacker.process.session,
            "epoch": self.attacker.process.channel.epoch,
            "thread": 9,
            "request_id": port.take_request_id(),
            "flags": envelope.FLAG_INPUT_INLINE if payload else 0,
            "input_length": len(payload),
        } | fields
        frames = [make_header(kind, **values), *([payload] if payload else [])]
        return parse_header(self.attacker.door.exchange(frames)[0])


_DESTROY = {
    "PD": codes.IOCTL_DEALLOC_PD, "MR": codes.IOCTL_DEREG_MR, "MW": codes.IOCTL_DEALLOC_MW,
    "AH": codes.IOCTL_DESTROY_AH, "CQ": codes.IOCTL_DESTROY_CQ, "SRQ": codes.IOCTL_DESTROY_SRQ,
    "QP": codes.IOCTL_DESTROY_QP, "UD": codes.IOCTL_DESTROY_QP, "XRCD": codes.IOCTL_CLOSE_XRCD,
    "DM": codes.IOCTL_FREE_DM,
}  # fmt: skip


def _destroy(things: OneOfEach, kind: str) -> None:
    things.verbs.good(_DESTROY[kind], Object(things[kind]))


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    built = Scene()
    yield built
    built.own.close()
    built.theirs.close()
    built.attacker.close()
    built.victim.close()
    assert holdings(built.machine)["sessions"] == []
    built.machine.close()


def victims(scene: Scene) -> dict[str, Any]:
    """What must be as it was: all that is held, and the victim's things as the driver tells."""
    context = scene.victim.context_of(scene.theirs.verbs)
    return {"all": holdings(scene.machine), "things": context.inspect()["objects"]}


# --- objects of the driver -----------------------------------------------------------------------


def _by_handle(kind: str) -> Callable[[Scene], int]:
    def attack(scene: Scene) -> int:
        fields = [field for field in FIELDS if field.kind == kind]
        for field in fields:
            handle = scene.theirs[kind]
            answer = scene.own.verbs.ask(field.code, field.message(handle, scene.own.handles))
            assert answer[:3] == (22, Reason.NO_SUCH_OBJECT, handle), field.name
        return len(fields)

    return attack


def _exported(scene: Scene) -> int:
    """A context that was exported is imported by its inode alone: neither name nor contents do."""
    with tempfile.TemporaryFile() as own, tempfile.TemporaryFile() as theirs:
        export = ImportByDescriptor(theirs.fileno())
        handle = scene.theirs.verbs.good(codes.IOCTL_EXPORT_CONTEXT, export).handle
        theirs.write(b"what names the kernel and the device")
        own.write(b"what names the kernel and the device")
        again = os.open(f"/proc/self/fd/{own.fileno()}", os.O_RDONLY)
        answers = [
            scene.own.verbs.ask(codes.IOCTL_IMPORT_CONTEXT, ImportByDescriptor(fd))
            for fd in (own.fileno(), again, 0, 0xFFFF_FFFF, 1 << 20)
        ]
        os.close(again)
        assert {answer.errno for answer in answers} == {9}  # EBADF
        # Nothing was exported by guessing either: the inode has its context already.
        answer = scene.own.verbs.ask(codes.IOCTL_EXPORT_CONTEXT, export)
        assert answer[:2] == (17, Reason.EXPORTED_ALREADY)
        # The export is the end of its own context only.
        scene.theirs.verbs.device.cancel_ex()
        assert handle in _handles(scene)
        context = scene.victim.context_of(scene.theirs.verbs)
        scene.machine.processor.run_thread(_end_export, context, handle)
    return 6


def _handles(scene: Scene) -> list[int]:
    return [one.handle for one in scene.victim.context_of(scene.theirs.verbs).objects()]


def _end_export(context: Any, handle: int) -> None:
    context.destroy(resources.Resource, handle)


def _imported(scene: Scene) -> int:
    """Without the right to import, no number of a domain is one."""
    handles = [*scene.theirs.handles.values(), *range(2000, 2100), 0xFFFF_FFFF]
    for handle in handles:
        answer = scene.own.verbs.ask(codes.IOCTL_IMPORT_PD, Object(handle))
        assert answer[:2] == (22, Reason.NO_SUCH_OBJECT)
    return len(handles)


OBJECTS: dict[str, Callable[[Scene], int]] = {
    kind: _by_handle(kind) for kind in ("PD", "MR", "MW", "AH", "CQ", "SRQ", "QP", "DM")
} | {"XRC domain": _by_handle("XRCD"), "export": _exported, "import": _imported}


def kinds_of_objects() -> set[str]:
    """Every kind of object a context can have; the kernel's own use of doorbells is no user's."""
    assert dispatch.VERBS  # every kind has been imported

    def below(cls: type[resources.Resource]) -> Iterator[type[resources.Resource]]:
        for one in cls.__subclasses__():
            yield one
            yield from below(one)

    kinds = {cls.kind for cls in below(resources.Resource) if cls.__module__.startswith("kernel_")}
    return kinds - {resources.Resource.kind, kernel_doorbells.DoorbellUse.kind}


def test_every_kind_of_object_is_attacked():
    assert set(OBJECTS) == kinds_of_objects()


@pytest.mark.parametrize("kind", OBJECTS)
def test_no_object_of_another_is_reached(scene: Scene, kind: str):
    before = victims(scene)
    assert OBJECTS[kind](scene) > 0
    assert victims(scene) == before


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


# --- arenas, doorbells ---------------------------------------------------------------------------


def test_what_the_lifeline_names_is_ones_own(scene: Scene):
    """Arenas are counted in each session: no number of the attacker's reaches the victim's."""
    named = {
        (cls.__name__, field)
        for cls in SYSTEM_MESSAGES
        for field in cls._fields
        if field not in ("request", "length", "base") and "Arena" in cls.__name__
    }
    assert named == {("ArenaGranted", "arena"), ("ArenaMapped", "arena"), ("FreeArena", "arena")}
    theirs = scene.victim.door.session.arenas.inspect()
    mine = scene.attacker.door.session.arenas.inspect()
    for number in (0, *range(100, 140), 0xFFFF_FFFF):
        assert scene.attacker.door.free_arena(number) != STATUS_SUCCESS
        assert scene.attacker.door.arena_mapped(number, 0x7000_0000_0000) != STATUS_SUCCESS
    assert scene.victim.door.session.arenas.inspect() == theirs
    assert scene.attacker.door.session.arenas.inspect() == mine


def test_memory_of_another_is_no_memory_for_queues(scene: Scene):
    """The victim's arena is an address like any other here: not an arena of the attacker's."""
    field = next(one for one in FIELDS if one.name == "resize_cq")
    message = field.message(scene.own["CQ"], scene.own.handles)
    place = scene.theirs.arena.address
    answer = scene.own.verbs.ask(
        codes.IOCTL_RESIZE_CQ, message._replace(cqe=31, buffer=place, buffer_length=4096)
    )
    assert answer.errno == 22
    assert answer.reason != Reason.NONE


RINGS = {name: value for name, value in vars(bells).items() if name in (
    "RING_SEND", "RING_RECEIVE", "RING_SRQ", "RING_CQ_ARM")}  # fmt: skip


def test_every_kind_of_ring_is_attacked():
    words = {"RING_WORD", "RING_ENTRIES"}
    assert set(RINGS) | words == {name for name in vars(bells) if name.startswith("RING_")}


@pytest.mark.parametrize("ring", RINGS)
def test_a_ring_in_ones_own_page_is_for_ones_own_queues(scene: Scene, ring: str):
    """Every slot of the page, rung with the numbers of the victim's queues as well."""
    hca = scene.machine.hca
    assert hca is not None
    words = words64(scene.attacker.doorbells.segment)
    theirs = victims(scene)
    context = scene.victim.context_of(scene.theirs.verbs)
    numbers = [one.number for one in context.objects() if one.kind in ("QP", "CQ", "SRQ")]
    assert len(numbers) >= 4
    used = {_slot for one in scene.attacker.context_of(scene.own.verbs).objects()
            for _slot in getattr(one, "slots", ())}  # fmt: skip
    for slot in (*numbers, *range(40, 60), bells.SLOTS, bells.SLOT_MASK):
        if slot in used:
            continue
        rung = words[bells.RUNG_WORD]
        if slot < bells.SLOTS:
            words[bells.FIRST_SLOT_WORD + slot] = 1
        words[bells.RING_WORD + rung % bells.RING_ENTRIES] = RINGS[ring] << bells.KIND_SHIFT | slot
        words[bells.RUNG_WORD] = rung + 1
    os.eventfd_write(scene.attacker.doorbells.poke_fd, 1)
    scene.attacker.door.run(lambda: False, 1_000_000)
    assert victims(scene) == theirs
    memory = bytes(scene.theirs.arena.view)
    assert not any(memory)


def test_registering_is_of_ones_own_pages(scene: Scene):
    """An address where this process has nothing is nobody's to lock, whoever has it."""
    answer = scene.own.verbs.ask(
        codes.IOCTL_REG_MR, RegMr(scene.own["PD"], 0x10000, 4096, 0x10000, 1)
    )
    assert answer[:2] == (14, Reason.NOT_MAPPED)
