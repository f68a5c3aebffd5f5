"""Objects, arenas, doorbells of another session: an attack for every kind, and none succeeds.

The kinds are read from the product: a new kind of object or ring without an attack fails here.
Since attacker and victim share one memory, what an attack did to it is seen at once.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.driver import dispatch, kernel_doorbells, resources
from shared import doorbell_layout as bells
from shared import verb_codes as codes
from shared.live_words import words64
from shared.messages import SYSTEM_MESSAGES
from shared.nt_status import (
    STATUS_SUCCESS,
)
from shared.verb_messages import ImportByDescriptor, ImportMr, Object, RegMr, ResizeCq
from shared.verb_reasons import VerbReason as Reason
from tests.end_to_end.test_verbs_handles import FIELDS
from tests.hostile.attack_scene import Scene, open_scene, victims


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    yield from open_scene()


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
    """Without the right to import, no number of a domain, region or memory is one."""
    handles = [*scene.theirs.handles.values(), *range(2000, 2100), 0xFFFF_FFFF]
    for handle in handles:
        for code, message in (
            (codes.IOCTL_IMPORT_PD, Object(handle)),
            (codes.IOCTL_IMPORT_MR, ImportMr(scene.own["PD"], handle)),
            (codes.IOCTL_IMPORT_DM, Object(handle)),
        ):
            answer = scene.own.verbs.ask(code, message)
            assert answer[:2] == (22, Reason.NO_SUCH_OBJECT)
    return 3 * len(handles)


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
    place = scene.theirs.arena.address
    message = ResizeCq(scene.own["CQ"], 31, place, 4096)
    answer = scene.own.verbs.ask(codes.IOCTL_RESIZE_CQ, message)
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
