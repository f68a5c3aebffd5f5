"""An IPoIB interface of the kernel's, as a program has it: send, receive, look.

Rules: any thread; `receive` waits until a packet comes, as a request to the device does.
Errors: NtStatusError with the driver's status.
Spec: shared/ipoib_layout.py; docs/ipoib.md.
"""

from typing import Final, NamedTuple

from shared.ipoib_layout import (
    ETHERTYPE_IPV4,
    IOCTL_IPOIB_QUERY,
    IOCTL_IPOIB_RECEIVE,
    IOCTL_IPOIB_SEND,
    IOCTL_IPOIB_SET_ADDRESS,
    IPOIB_COUNTERS,
    IPOIB_IDENTITY,
    IPOIB_MTU,
    IPOIB_RECEIVED,
    IPOIB_SEND_HEAD,
    IPOIB_STATISTICS,
)
from user_proc.io.device_handle import DeviceHandle

_ROOM: Final = IPOIB_RECEIVED.size + IPOIB_MTU


class IpoibPacket(NamedTuple):
    """A packet that came, and from which queue pair and LID."""

    data: bytes
    ethertype: int
    qpn: int
    lid: int
    by_multicast: bool


class IpoibState(NamedTuple):
    """Who an interface is, and what it has counted."""

    hardware_address: bytes
    address: bytes
    port: int
    mtu: int
    is_up: bool
    counters: dict[str, int]


class IpoibDoor:
    """One interface, by an open handle of "ipoib0" or "ipoib1", which stays its giver's."""

    def __init__(self, device: DeviceHandle) -> None:
        self._device: Final = device

    def send(self, next_hop: bytes, data: bytes, ethertype: int = ETHERTYPE_IPV4) -> None:
        """Send a packet to an IPv4 address of this subnet, or to all."""
        head = IPOIB_SEND_HEAD.pack(next_hop, ethertype)
        self._device.device_io_control(IOCTL_IPOIB_SEND, head + data)

    def receive(self) -> IpoibPacket:
        """Wait for a packet."""
        answer = bytearray(_ROOM)
        length = self._device.device_io_control(IOCTL_IPOIB_RECEIVE, None, answer)
        qpn, lid, ethertype, by_multicast = IPOIB_RECEIVED.unpack_from(answer)
        data = bytes(answer[IPOIB_RECEIVED.size : length])
        return IpoibPacket(data, ethertype, qpn, lid, bool(by_multicast))

    def set_address(self, address: bytes) -> None:
        """Give the interface another IPv4 address."""
        self._device.device_io_control(IOCTL_IPOIB_SET_ADDRESS, address)

    def state(self) -> IpoibState:
        """Ask who it is and what it has counted."""
        answer = bytearray(IPOIB_IDENTITY.size + IPOIB_STATISTICS.size)
        self._device.device_io_control(IOCTL_IPOIB_QUERY, None, answer)
        hardware, address, port, mtu, is_up = IPOIB_IDENTITY.unpack_from(answer)
        values = IPOIB_STATISTICS.unpack_from(answer, IPOIB_IDENTITY.size)
        counters = dict(zip(IPOIB_COUNTERS, values, strict=True))
        return IpoibState(hardware, address, port, mtu, bool(is_up), counters)
