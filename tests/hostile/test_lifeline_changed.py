"""Packets and descriptors on a lifeline that are nearly right, over real sockets.

The kernel and its hostile user are in one process, so that what the kernel keeps of descriptors
can be counted.
"""

import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.message_codec import MAX_MESSAGE
from shared.messages import (
    SYSTEM_MESSAGES,
    AllocateArena,
    ArenaMapped,
    FreeArena,
    OpenDoorbells,
    Welcome,
)
from tests.hostile.inn import Inn, check_witness, house
from tests.hostile.recipes import Recipe, kept, made, recipes
from tests.kernel_proc.server.test_lifeline import (
    HELLO,
    Visitor,
    close_all,
    own_descriptors,
)

__all__ = ["house"]

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


#: What else is done to a connection: directions that are shut, packets of so many bytes.
SHUT = {"shut-read": socket.SHUT_RD, "shut-write": socket.SHUT_WR, "shut-both": socket.SHUT_RDWR}
LONG = {"longest": MAX_MESSAGE, "too-long": MAX_MESSAGE + 1, "twice-too-long": 2 * MAX_MESSAGE}
RAW = "raw"


class Packet(NamedTuple):
    """One packet: the message, what is done to it, and what comes with it.

    The message is one of VALID, of LONG, RAW (what the recipe says, and nothing else), or one of
    SHUT, which is no packet.
    """

    message: str
    recipe: Recipe
    descriptors: list[str]


_packets = st.builds(
    Packet,
    st.one_of(
        st.sampled_from(sorted(VALID)),
        st.sampled_from(sorted(VALID)),
        st.sampled_from([RAW, *LONG, *SHUT]),
    ),
    recipes,
    st.lists(st.sampled_from(sorted(DESCRIPTORS)), max_size=2) | st.just([]),
)


def send(visitor: Visitor, packet: Packet) -> bool:
    """Send a packet; False when the kernel has hung up, or nothing can be sent any more."""
    if packet.message in SHUT:
        visitor.socket.shutdown(SHUT[packet.message])
        return True
    brought = [one for name in packet.descriptors for one in DESCRIPTORS[name]()]
    try:
        visitor.send(bytes_of(packet), brought)
    except BlockingIOError:
        return True  # nobody reads it any more: it is about to be hung up, or given up in time
    except (BrokenPipeError, ConnectionResetError):
        return False
    finally:
        close_all(brought)
    return True


def bytes_of(packet: Packet) -> bytes:
    """What is sent."""
    if packet.message in LONG:
        return b"\x95" * LONG[packet.message]
    if packet.message == RAW:
        return made(None, 0, packet.recipe, {}).data
    valid = VALID[packet.message]
    return made([*SYSTEM_MESSAGES[type(valid)], *valid], 0, packet.recipe, {}).data


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
