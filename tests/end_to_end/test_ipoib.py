"""A kernel with the IPoIB driver and user programs that send packets through it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.end_to_end.conftest import Kernel, User

pytestmark = pytest.mark.processes

ENTRY = "kernel_proc.clients.ipoib.ipoib_driver:driver_entry"

PEER = """
from shared.ipoib_layout import *
from user_proc.io.ipoib_door import IpoibDoor
with UserProcess.connect(name) as process, process.open_device("ipoib1", overlapped=True) as device:
    door = IpoibDoor(device)
    at("ready")
    for _ in range(20):
        door.send(bytes((10, 0, 0, 1)), door.receive().data[::-1])
    waiting = [device.start(IOCTL_IPOIB_RECEIVE, output=bytearray(64)) for _ in range(3)]
    at("waiting")
    stay()
"""

USER = """
from user_proc.io.ipoib_door import IpoibDoor
with UserProcess.connect(name) as process, process.open_device("ipoib0") as device:
    door = IpoibDoor(device)
    for number in range(20):
        packet = bytes([number]) + os.urandom(100 * number)
        door.send(bytes((10, 0, 0, 2)), packet)
        came = door.receive()
        assert (came.data, came.lid, came.by_multicast) == (packet[::-1], 2, False)
    state = door.state()
    counters = state.counters
    assert counters["tx_errors"] == counters["rx_errors"] == counters["tx_dropped"] == 0
    door.set_address(bytes((10, 0, 0, 8)))
    assert (door.state().address, state.port, state.is_up) == (bytes((10, 0, 0, 8)), 1, True)
    at(f"{counters['rx_packets'] >= 20}")
"""

GARBAGE = """
import random
from shared.ipoib_layout import *
source = random.Random(7)
codes = [IOCTL_IPOIB_QUERY, IOCTL_IPOIB_SET_ADDRESS, IOCTL_IPOIB_SEND]
codes += [ctl_code(IPOIB_DEVICE_TYPE, source.randrange(0x1000), method, 0) for method in range(4)]
refused = 0
with UserProcess.connect(name) as process, process.open_device("ipoib0") as door:
    for _ in range(300):
        data = source.randbytes(source.choice((0, 1, 3, 7, 8, 9, 64, 2052, 2053, 70_000)))
        room = bytearray(source.choice((0, 1, 12, 200, 4096)))
        try:
            door.device_io_control(source.choice(codes), data or None, room or None)
        except NtStatusError:
            refused += 1
at(f"{refused > 50}")
"""


@pytest.fixture
def user_of() -> Iterator[Callable[[Kernel, str], User]]:
    """Run user programs against any kernel."""
    users: list[User] = []

    def run_one(kernel: Kernel, code: str) -> User:
        users.append(User(kernel, code))
        return users[-1]

    yield run_one
    for user in users:
        user.process.kill()
        with suppress(ValueError):  # its streams are closed
            user.process.communicate()


def test_packets_go_there_and_back_between_processes_and_garbage_harms_nobody(
    start: Callable[..., Any], user_of: Callable[[Kernel, str], User]
):
    kernel = start("--driver", ENTRY, "--verifier")
    assert kernel.first_words == "ready\n"
    peer = user_of(kernel, PEER)
    assert peer.said() == "ready"
    user = user_of(kernel, USER)
    assert user.said() == "True"
    assert peer.said() == "waiting"
    assert user_of(kernel, GARBAGE).said() == "True"
    peer.kill()  # with requests pended
    kernel.wait_for_sessions(0)
    (shown,) = kernel.state()["drivers"]
    assert shown["devices"] == ["ipoib0", "ipoib1"]
    assert kernel.stop() == 0
    assert "driver 'ipoib_driver' unloaded" in kernel.log
