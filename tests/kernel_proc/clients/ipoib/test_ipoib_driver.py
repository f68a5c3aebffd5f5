"""The devices "ipoib0" and "ipoib1" as a user program has them, on a machine in this process."""

import struct
from collections.abc import Iterator

import pytest

from kernel_proc.clients.ipoib.ipoib_driver import MOST_KEPT
from kernel_proc.machine import Machine
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.settings import KernelSettings
from shared.ioctl_codes import METHOD_BUFFERED, ctl_code
from shared.ipoib_layout import (
    IOCTL_IPOIB_QUERY,
    IOCTL_IPOIB_RECEIVE,
    IOCTL_IPOIB_SEND,
    IOCTL_IPOIB_SET_ADDRESS,
    IPOIB_COUNTERS,
    IPOIB_DEVICE_TYPE,
    IPOIB_IDENTITY,
    IPOIB_MTU,
    IPOIB_RECEIVED,
    IPOIB_SEND_HEAD,
    IPOIB_STATISTICS,
)
from shared.nt_status import (
    STATUS_BUFFER_OVERFLOW,
    STATUS_BUFFER_TOO_SMALL,
    STATUS_CANCELLED,
    STATUS_INVALID_BUFFER_SIZE,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_PARAMETER,
)
from user_proc.errors import NtStatusError
from user_proc.io.device_handle import DeviceHandle
from user_proc.process import UserProcess

ENTRY = "kernel_proc.clients.ipoib.ipoib_driver:driver_entry"
TWO = bytes((10, 0, 0, 2))


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    settings = KernelSettings(verifier=True, seed=3, driver=(ENTRY,))
    built = Machine(settings, in_process=True)
    built.start_hca()
    yield built
    # The verifier looks for what the driver leaves behind.
    assert built.processor.run_thread(built.drivers.unload_all, 5_000_000_000)
    assert set(built.io.devices) & {"ipoib0", "ipoib1"} == set()
    built.close()


@pytest.fixture
def process(machine: Machine) -> Iterator[UserProcess]:
    with UserProcess.in_process(machine.connect_in_process("ipoib user")) as connected:
        yield connected


@pytest.fixture
def doors(process: UserProcess) -> Iterator[list[DeviceHandle]]:
    handles = [process.open_device(f"ipoib{n}", overlapped=True) for n in range(2)]
    yield handles
    for handle in handles:
        handle.close()


def packet(next_hop: bytes, data: bytes, ethertype: int = 0x0800) -> bytes:
    return IPOIB_SEND_HEAD.pack(next_hop, ethertype) + data


def counters(door: DeviceHandle) -> dict[str, int]:
    answer = bytearray(IPOIB_IDENTITY.size + IPOIB_STATISTICS.size)
    assert door.device_io_control(IOCTL_IPOIB_QUERY, None, answer) == len(answer)
    values = IPOIB_STATISTICS.unpack_from(answer, IPOIB_IDENTITY.size)
    return dict(zip(IPOIB_COUNTERS, values, strict=True))


def take(door: DeviceHandle, room: int = 4096) -> tuple[tuple[int, ...], bytes]:
    answer = bytearray(room)
    length = door.device_io_control(IOCTL_IPOIB_RECEIVE, None, answer)
    head = IPOIB_RECEIVED.unpack_from(answer)
    return head, bytes(answer[IPOIB_RECEIVED.size : length])


def test_packets_there_and_back_and_who_an_interface_is(doors: list[DeviceHandle]):
    here, there = doors
    answer = bytearray(4096)
    waiting = there.start(IOCTL_IPOIB_RECEIVE, output=answer)
    # A buffer for an answer is left alone.
    assert here.device_io_control(IOCTL_IPOIB_SEND, packet(TWO, b"hello"), bytearray(2)) == 0
    assert waiting.wait() == IPOIB_RECEIVED.size + 5
    qpn, lid, ethertype, by_multicast = IPOIB_RECEIVED.unpack_from(answer)
    assert (lid, ethertype, by_multicast) == (1, 0x0800, 0)
    there.device_io_control(IOCTL_IPOIB_SEND, packet(bytes((10, 0, 0, 1)), b"back", 0x86DD))
    assert take(here)[1] == b"back"
    here.device_io_control(IOCTL_IPOIB_SEND, packet(b"\xff" * 4, b"all"))
    head, data = take(there)
    assert (head[3], data) == (1, b"all")
    identity = bytearray(4096)
    here.device_io_control(IOCTL_IPOIB_QUERY, None, identity)
    hardware, ip, port, mtu, is_up = IPOIB_IDENTITY.unpack_from(identity)
    assert (ip, port, mtu, is_up) == (bytes((10, 0, 0, 1)), 1, IPOIB_MTU, 1)
    assert int.from_bytes(hardware[:4], "big") == qpn
    assert hardware[4:6] == b"\xfe\x80"
    assert counters(here)["tx_packets"] >= 2
    assert counters(there)["rx_multicast"] >= 1


def test_packets_are_kept_so_many_and_taken_in_order(doors: list[DeviceHandle]):
    here, there = doors
    before = counters(there)["rx_dropped"]
    for number in range(MOST_KEPT + 3):
        here.device_io_control(IOCTL_IPOIB_SEND, packet(TWO, struct.pack("<I", number)))
        counters(there)  # a turn for everything in between
    assert counters(there)["rx_dropped"] - before == 3
    kept = [struct.unpack("<I", take(there)[1])[0] for _ in range(MOST_KEPT)]
    assert kept == list(range(MOST_KEPT))


def test_requests_end_by_cancel_and_by_close(process: UserProcess, doors: list[DeviceHandle]):
    for end in ("cancel", "close"):
        door = process.open_device("ipoib0", overlapped=True)
        waiting = [door.start(IOCTL_IPOIB_RECEIVE, output=bytearray(64)) for _ in range(3)]
        getattr(door, end)()
        for one in waiting:
            with pytest.raises(NtStatusError) as caught:
                one.wait()
            assert caught.value.status == STATUS_CANCELLED
        if end == "cancel":
            door.close()


def test_an_address_is_changed_and_found(doors: list[DeviceHandle]):
    here, there = doors
    there.device_io_control(IOCTL_IPOIB_SET_ADDRESS, bytes((10, 0, 0, 9)))
    here.device_io_control(IOCTL_IPOIB_SEND, packet(bytes((10, 0, 0, 9)), b"moved"))
    assert take(there)[1] == b"moved"
    there.device_io_control(IOCTL_IPOIB_SET_ADDRESS, TWO)


@pytest.mark.parametrize(
    ("code", "data", "room", "status"),
    [
        (IOCTL_IPOIB_SEND, b"", 0, STATUS_INVALID_PARAMETER),
        (IOCTL_IPOIB_SEND, bytes(7), 0, STATUS_INVALID_PARAMETER),
        (IOCTL_IPOIB_SEND, packet(TWO, b""), 0, STATUS_INVALID_BUFFER_SIZE),
        (IOCTL_IPOIB_SEND, packet(TWO, bytes(IPOIB_MTU + 1)), 0, STATUS_INVALID_BUFFER_SIZE),
        (IOCTL_IPOIB_SEND, bytes(60_000), 0, STATUS_INVALID_BUFFER_SIZE),
        (IOCTL_IPOIB_SET_ADDRESS, b"", 0, STATUS_INVALID_PARAMETER),
        (IOCTL_IPOIB_SET_ADDRESS, bytes(4), 0, STATUS_INVALID_PARAMETER),
        (IOCTL_IPOIB_SET_ADDRESS, b"\xff" * 4, 0, STATUS_INVALID_PARAMETER),
        (IOCTL_IPOIB_SET_ADDRESS, bytes(5), 0, STATUS_INVALID_PARAMETER),
        (IOCTL_IPOIB_QUERY, b"", 100, STATUS_BUFFER_TOO_SMALL),
        (IOCTL_IPOIB_RECEIVE, b"x", IPOIB_RECEIVED.size - 1, STATUS_BUFFER_TOO_SMALL),
        (IOCTL_IPOIB_RECEIVE, b"", 0, STATUS_BUFFER_TOO_SMALL),
        (ctl_code(IPOIB_DEVICE_TYPE, 0xFFF, METHOD_BUFFERED, 0), b"x", 9,
         STATUS_INVALID_DEVICE_REQUEST),
    ],
)  # fmt: skip
def test_what_the_door_refuses(
    doors: list[DeviceHandle], code: int, data: bytes, room: int, status: int
):
    with pytest.raises(NtStatusError) as caught:
        doors[0].device_io_control(code, data or None, bytearray(room) if room else None)
    assert caught.value.status == status


def test_a_packet_is_cut_to_a_short_buffer_with_a_warning(doors: list[DeviceHandle]):
    here, there = doors
    here.device_io_control(IOCTL_IPOIB_SEND, packet(TWO, b"too long"))
    answer = bytearray(IPOIB_RECEIVED.size + 3)
    with pytest.raises(NtStatusError) as caught:
        there.device_io_control(IOCTL_IPOIB_RECEIVE, None, answer)
    assert caught.value.status == STATUS_BUFFER_OVERFLOW
    assert answer[IPOIB_RECEIVED.size :] == b"too"


def test_a_driver_that_unloads_while_it_asks_leaves_nothing():
    machine = Machine(KernelSettings(verifier=True, driver=(ENTRY,)), in_process=True)
    machine.start_hca()
    assert machine.hca is not None
    before = machine.hca.memory.used
    with (
        UserProcess.in_process(machine.connect_in_process("user")) as process,
        process.open_device("ipoib0") as door,
    ):
        door.device_io_control(IOCTL_IPOIB_SEND, packet(bytes((10, 0, 0, 50)), b"to nobody"))
        assert counters(door)["arp_requests_sent"] == 2
        assert machine.hca.memory.used > before
    # The timer that asks again is set: the verifier would stop the machine for it.
    assert machine.processor.run_thread(machine.drivers.unload_all, 5_000_000_000)
    assert machine.hca.memory.used == before
    machine.close()


def test_without_an_hca_an_interface_cannot_be_opened():
    machine = Machine(KernelSettings(hca=False, driver=(ENTRY,)), in_process=True)
    with UserProcess.in_process(machine.connect_in_process("user")) as process:
        with pytest.raises(NtStatusError):
            process.open_device("ipoib0")
        assert "ipoib1" in machine.io.devices
    thread = create_system_thread(machine.processor, machine.drivers.unload_all, 1_000_000_000)
    machine.processor.run_until(lambda: thread.ended)
    machine.close()
