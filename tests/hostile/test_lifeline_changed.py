"""Packets and descriptors on a lifeline that are nearly right, over real sockets.

The kernel and its hostile user are in one process, so that what the kernel keeps of descriptors
can be counted.
"""

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.machine import Machine
from kernel_proc.settings import MIB
from shared.message_codec import MAX_MESSAGE
from shared.messages import (
    SYSTEM_MESSAGES,
    AllocateArena,
    ArenaMapped,
    FreeArena,
    Hello,
    OpenDoorbells,
    Welcome,
)
from tests.hostile.recipes import Recipe, kept, made, recipes
from tests.kernel_proc.server.test_lifeline import (
    HELLO,
    House,
    Visitor,
    close_all,
    own_descriptors,
)

#: A valid message of every kind that a user sends; the arena is at a place that is nobody's.
VALID: dict[str, Any] = {
    "hello": HELLO,
    "allocate": AllocateArena(1, 4096),
    "mapped": ArenaMapped(2, 1, 0x7000_0000_0000),
    "free": FreeArena(3, 1),
    "doorbells": OpenDoorbells(4),
}
#: What a user may hand over, of which the kernel keeps nothing but what a Hello needs.
DESCRIPTORS: dict[str, Callable[[], list[int]]] = {
    "own": own_descriptors,
    "own-read-only": lambda: own_descriptors(access=os.O_RDONLY),
    "null": lambda: [os.open("/dev/null", os.O_RDWR)],
    "folder": lambda: [os.open("/proc/self", os.O_RDONLY)],
    "path": lambda: [os.open("/proc/self/maps", os.O_PATH)],
    "memory": lambda: [os.memfd_create("hostile")],
    "eventfd": lambda: [os.eventfd(0)],
    "pipe": lambda: list(os.pipe()),
    "sockets": lambda: [one.detach() for one in socket.socketpair()],
    "process": lambda: [os.pidfd_open(os.getpid())],
    "many": lambda: [os.open("/dev/null", os.O_RDONLY) for _ in range(9)],
}


class Packet(NamedTuple):
    """One packet: the message, what is done to it, and what comes with it."""

    message: str
    recipe: Recipe
    descriptors: list[str]


_packets = st.builds(
    Packet,
    st.sampled_from(sorted(VALID)),
    recipes,
    st.lists(st.sampled_from(sorted(DESCRIPTORS)), max_size=2) | st.just([]),
)


class Inn(House):
    """A kernel that knows how many descriptors are open while nobody is there."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.empty = descriptors()

    def everybody_leaves(self, visitor: Visitor) -> None:
        """Wait until nothing is left of a visitor; lanes close what he brought."""
        visitor.hang_up()
        self.visitors.remove(visitor)
        machine = self.machine
        self.run_until(lambda: not len(machine.sessions) and not silent(machine))
        with contextlib.suppress(AssertionError):  # which says less
            self.run_until(lambda: descriptors() <= self.empty)
        assert descriptors() <= self.empty
        assert machine.reception.arena_total.used == 0
        assert machine.reception.arena_places.used == 0


def descriptors() -> set[tuple[str, str]]:
    """The descriptors of this process that lead anywhere, and where."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one the folder is listed with
            found.add((one.name, os.readlink(one)))
    # hypothesis looks at how much memory there is, and keeps that open.
    return {one for one in found if not one[1].endswith("/statm")}


def silent(machine: Machine) -> int:
    """Connections that have not introduced themselves."""
    count: int = machine.inspect()["lifelines"]["silent_connections"]
    return count


@pytest.fixture(scope="module")
def house() -> Iterator[Inn]:
    folder = Path(tempfile.mkdtemp(prefix="shl-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        built = Inn(arena_bytes_per_process=MIB)
        yield built
        built.machine.request_stop("the test is over")
        built.machine.run()
        assert built.machine.stopped_clean
        built.machine.close()
        built.lock.release()
    shutil.rmtree(folder)


def send(visitor: Visitor, packet: Packet) -> bool:
    """Send a packet; False when the kernel has hung up."""
    valid = VALID[packet.message]
    sent = made([*SYSTEM_MESSAGES[type(valid)], *valid], 0, packet.recipe, {})
    brought = [one for name in packet.descriptors for one in DESCRIPTORS[name]()]
    try:
        visitor.send(sent.data, brought)
    except (BrokenPipeError, ConnectionResetError):
        return False
    finally:
        close_all(brought)
    return True


def drain(house: Inn, visitor: Visitor) -> None:
    """Take what the kernel has said, and give back what came with it."""
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(visitor.socket, MAX_MESSAGE, 8)
        except (BlockingIOError, ConnectionResetError):
            return
        close_all(list(descriptors))
        if not data:
            return


def run(house: Inn, greets: bool, packets: list[Packet]) -> None:
    visitor = house.connect()
    if greets:
        assert isinstance(visitor.greet(), Welcome)
    for packet in packets:
        if not send(visitor, packet):
            break
        house.machine.processor.run_thread(lambda: None)
        drain(house, visitor)
    house.everybody_leaves(visitor)


def check_witness(house: Inn) -> None:
    """Somebody else is let in."""
    visitor = house.connect()
    hello = Hello(HELLO.min_version, HELLO.max_version, "witness")
    assert isinstance(visitor.greet(hello), Welcome)
    house.everybody_leaves(visitor)


def test_there_is_a_valid_message_of_every_kind_a_user_sends():
    answers = {"Welcome", "Refused", "ArenaGranted", "Done", "DoorbellsGranted"}
    of_devices = {"BenchmarkRun", "Counters", "VerbsRun", "TransferRun"}
    sent = {type(message).__name__ for message in VALID.values()}
    assert sent | answers | of_devices == {cls.__name__ for cls in SYSTEM_MESSAGES}


@settings(max_examples=40)
@given(greets=st.booleans(), packets=st.lists(_packets, min_size=1, max_size=6))
def test_what_is_nearly_a_packet(house: Inn, greets: bool, packets: list[Packet]):
    run(house, greets, packets)
    check_witness(house)


@pytest.mark.stress
@pytest.mark.timeout(900)
@settings(max_examples=3000)
@given(greets=st.booleans(), packets=st.lists(_packets, min_size=1, max_size=8))
def test_what_is_nearly_a_packet_for_long(house: Inn, greets: bool, packets: list[Packet]):
    run(house, greets, packets)
    check_witness(house)


@pytest.mark.parametrize("found", kept("lifeline"), ids=lambda found: found["name"])
def test_what_was_kept(house: Inn, found: dict[str, Any]):
    for greets in (False, True):
        run(house, greets, [Packet(*packet) for packet in found["packets"]])
    check_witness(house)
