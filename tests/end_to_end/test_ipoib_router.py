"""Clients of two kernels' IPoIB interfaces reach each other by a router with a foot in each."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import END_SECONDS, Kernel, User
from tests.end_to_end.test_ipoib import ENTRY, user_of

__all__ = ["user_of"]

pytestmark = pytest.mark.processes

ROUTER = Path(__file__).resolve().parents[2] / "scripts" / "ipoib_router.py"

#: A program at "ipoib0" of its kernel; `packet` makes what a router reads.
CLIENT = """
import struct
from user_proc.io.ipoib_door import IpoibDoor
def checksum(header):
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF ^ (total + (total >> 16)) & 0xFFFF
def packet(source, destination, data, live=64, spoil=0):
    ends = source, destination
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(data), 7, 0, live, 17, 0, *ends)
    head = head[:10] + struct.pack("!H", checksum(head) ^ spoil) + head[12:]
    return head + data
one, other = bytes((10, 0, 0, 1)), bytes((10, 0, 1, 1))
process = UserProcess.connect(name)
door = IpoibDoor(process.open_device("ipoib0"))
"""
FAR = (
    CLIENT
    + """
door.set_address(other)
at("there")
for _ in range(10):
    came = door.receive().data
    assert (came[8], came[12:16], checksum(came[:20])) == (63, one, 0), came
    door.send(bytes((10, 0, 1, 2)), packet(other, one, came[20:][::-1]))
at(str(door.state().counters["rx_packets"]))
stay()
"""
)
NEAR = (
    CLIENT
    + """
router = bytes((10, 0, 0, 2))
bad = [
    b"x", packet(one, other, b"last hop", live=1), packet(one, other, b"garbled", spoil=1),
    packet(one, bytes((10, 0, 7, 7)), b"nowhere"), packet(one, one, b"not routed"),
]
for number in range(10):
    for one_bad in bad:
        door.send(router, one_bad)
    data = bytes([number]) + os.urandom(200 * number)
    door.send(router, packet(one, other, data))
    came = door.receive()
    assert came.data[20:] == data[::-1]
    assert (came.data[8], came.data[12:16], came.lid) == (63, other, 2)
at("done")
"""
)


Routed = tuple[Kernel, Kernel, "subprocess.Popen[str]"]


@pytest.fixture
def routed(start: Callable[..., Any]) -> Iterator[Routed]:
    """Two kernels, and the router between them."""
    near, far = (start("--driver", ENTRY, "--verifier") for _ in range(2))
    assert (near.first_words, far.first_words) == ("ready\n", "ready\n")
    router = subprocess.Popen(
        [sys.executable, "-P", ROUTER, f"{near.name}=10.0.0.2", f"{far.name}=10.0.1.2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert router.stdout is not None
    assert router.stdout.readline() == "routing 10.0.0.0/24 10.0.1.0/24\n"
    yield near, far, router
    router.kill()
    router.communicate()


def test_packets_go_between_clients_of_two_kernels(
    routed: Routed, user_of: Callable[[Kernel, str], User]
):
    near, far, router = routed
    there = user_of(far, FAR)
    assert there.said() == "there"
    here = user_of(near, NEAR)
    assert here.said() == "done"
    assert int(there.said()) >= 10
    here.finish()
    there.finish()
    for kernel in (near, far):
        kernel.wait_for_sessions(1)  # the router's
    assert far.stop() == 0
    said, complaint = router.communicate(timeout=END_SECONDS)  # it ends with any of its kernels
    assert (said, router.returncode) == ("", 1)
    assert complaint.startswith("ended: ")
    near.wait_for_sessions(0)


def test_a_signal_ends_the_router_in_order(routed: Routed):
    near, _, router = routed
    router.terminate()
    assert router.communicate(timeout=END_SECONDS) == ("", "")
    assert router.returncode == 0
    near.wait_for_sessions(0)


def test_wrong_sides_are_refused_in_a_sentence(runtime_folder: Path):
    for side, sentence in (("none=10.0.0.2", "none"), ("none=here", "here")):
        done = subprocess.run(
            [sys.executable, "-P", ROUTER, side], capture_output=True, text=True, check=False,
            timeout=END_SECONDS,
        )  # fmt: skip
        assert done.returncode == 2
        assert sentence in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
