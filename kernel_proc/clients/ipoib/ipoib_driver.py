"""The driver of the devices "ipoib0" and "ipoib1": IPoIB interfaces, and a door for user programs.

    softhca kernel start --driver kernel_proc.clients.ipoib.ipoib_driver:driver_entry

An interface is brought up when the driver is loaded, if the HCA is there, else when its device is
opened. Packets that came and nobody waited for are kept, so many; requests to receive are pended
in a cancel-safe queue.

Rules: dispatch routines at PASSIVE_LEVEL; packets come at DISPATCH_LEVEL.
Spec: shared/ipoib_layout.py; docs/ipoib.md; WDK, Cancel-Safe IRP Queues.
"""

from collections import deque
from typing import Final

from kernel_proc.clients.ipoib.datagram_port import Received
from kernel_proc.clients.ipoib.interface import Interface
from kernel_proc.clients.ipoib.neighbours import Packet
from kernel_proc.io_manager import wdm
from shared.ipoib_layout import (
    ADDRESS_LENGTH,
    IOCTL_IPOIB_QUERY,
    IOCTL_IPOIB_RECEIVE,
    IOCTL_IPOIB_SEND,
    IOCTL_IPOIB_SET_ADDRESS,
    IPOIB_DEVICE_TYPE,
    IPOIB_DEVICES,
    IPOIB_IDENTITY,
    IPOIB_MTU,
    IPOIB_RECEIVED,
    IPOIB_SEND_HEAD,
    IPOIB_STATISTICS,
    LIMITED_BROADCAST,
)
from shared.nt_status import STATUS_BUFFER_OVERFLOW

MOST_KEPT: Final = 128


class IpoibDevice:
    """What the driver keeps for a device: its interface, requests to receive, kept packets."""

    def __init__(self, driver: wdm.DriverObject, port: int) -> None:
        self._processor = driver.processor
        self.interface = Interface(driver.io, port, bytes((10, 0, 0, port)), self._came)
        self._requests = wdm.CancelSafeQueue(driver.processor, f"ipoib port {port}")
        self._lock = wdm.SpinLock(driver.processor, f"ipoib door {port}")
        self._kept: deque[bytes] = deque()

    # Packets

    def _came(self, ethertype: int, received: Received) -> None:
        """Keep a packet for who receives; DISPATCH_LEVEL."""
        head = IPOIB_RECEIVED.pack(
            received.qpn, received.lid, ethertype, int(received.by_multicast)
        )
        old = self._lock.acquire()
        if len(self._kept) < MOST_KEPT:
            self._kept.append(head + received.frame)
        else:
            self.interface.counters["rx_dropped"] += 1
        self._lock.release(old)
        self._deliver()

    def _deliver(self) -> None:
        """Give kept packets to requests while there are both, in their order."""
        old = self._processor.raise_irql(wdm.DISPATCH_LEVEL)
        while (pair := self._take_pair()) is not None:
            irp, packet = pair
            room = wdm.get_current_irp_stack_location(irp).output_buffer_length
            given = packet[:room]
            irp.system_buffer[: len(given)] = given
            status = wdm.STATUS_SUCCESS if len(packet) <= room else STATUS_BUFFER_OVERFLOW
            wdm.finish_request(irp, status, len(given))
        self._processor.lower_irql(old)

    def _take_pair(self) -> tuple[wdm.Irp, bytes] | None:
        self._lock.acquire_at_dpc_level()
        irp = self._requests.remove_next() if self._kept else None
        pair = (irp, self._kept.popleft()) if irp is not None else None
        self._lock.release_from_dpc_level()
        return pair

    # Requests

    def receive(self, irp: wdm.Irp) -> int:
        """Pend a request to receive."""
        room = wdm.get_current_irp_stack_location(irp).output_buffer_length
        if room < IPOIB_RECEIVED.size:
            return wdm.finish_request(irp, wdm.STATUS_BUFFER_TOO_SMALL)
        self._requests.insert(irp)
        self._deliver()
        return wdm.STATUS_PENDING

    def send(self, irp: wdm.Irp, data: bytes) -> int:
        """Send a packet to a next hop."""
        if len(data) < IPOIB_SEND_HEAD.size:
            return wdm.finish_request(irp, wdm.STATUS_INVALID_PARAMETER)
        next_hop, ethertype = IPOIB_SEND_HEAD.unpack_from(data)
        packet = Packet(ethertype, data[IPOIB_SEND_HEAD.size :])
        # Information counts what lies in the output buffer, whatever room the caller gave.
        return wdm.finish_request(irp, self.interface.send(next_hop, packet))

    def set_address(self, irp: wdm.Irp, data: bytes) -> int:
        """Give the interface another address: not that of all, nor none."""
        if len(data) != ADDRESS_LENGTH or data in (bytes(ADDRESS_LENGTH), LIMITED_BROADCAST):
            return wdm.finish_request(irp, wdm.STATUS_INVALID_PARAMETER)
        self.interface.set_address(data)
        return wdm.finish_request(irp, wdm.STATUS_SUCCESS)

    def query(self, irp: wdm.Irp) -> int:
        """Tell who the interface is and what it has counted."""
        interface = self.interface
        told = IPOIB_IDENTITY.pack(
            interface.hardware_address,
            interface.ip,
            interface.port,
            IPOIB_MTU,
            int(interface.is_up),
        ) + IPOIB_STATISTICS.pack(*interface.counters.values())
        if wdm.get_current_irp_stack_location(irp).output_buffer_length < len(told):
            return wdm.finish_request(irp, wdm.STATUS_BUFFER_TOO_SMALL)
        irp.system_buffer[: len(told)] = told
        return wdm.finish_request(irp, wdm.STATUS_SUCCESS, len(told))

    def end_requests(self, file: wdm.FileObject | None) -> None:
        """End what a file's last handle leaves waiting; of all files if it is None."""
        while (irp := self._requests.remove_next(file)) is not None:
            wdm.finish_request(irp, wdm.STATUS_CANCELLED)


def _create(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
    """Open the device: an interface that is down is brought up."""
    extension: IpoibDevice = device.device_extension
    try:
        extension.interface.bring_up()
    except wdm.RaisedStatus as failure:
        return wdm.finish_request(irp, failure.status)
    return wdm.finish_request(irp, wdm.STATUS_SUCCESS)


def _cleanup(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
    extension: IpoibDevice = device.device_extension
    extension.end_requests(wdm.get_current_irp_stack_location(irp).file_object)
    return wdm.finish_request(irp, wdm.STATUS_SUCCESS)


def _close(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
    return wdm.finish_request(irp, wdm.STATUS_SUCCESS)


def _control(device: wdm.DeviceObject, irp: wdm.Irp) -> int:
    location = wdm.get_current_irp_stack_location(irp)
    extension: IpoibDevice = device.device_extension
    code = location.io_control_code
    if code == IOCTL_IPOIB_RECEIVE:
        return extension.receive(irp)
    if code == IOCTL_IPOIB_QUERY:
        return extension.query(irp)
    data = bytes((irp.system_buffer or b"")[: location.input_buffer_length])
    if code == IOCTL_IPOIB_SEND:
        return extension.send(irp, data)
    if code == IOCTL_IPOIB_SET_ADDRESS:
        return extension.set_address(irp, data)
    return wdm.finish_request(irp, wdm.STATUS_INVALID_DEVICE_REQUEST)


def _unload(driver: wdm.DriverObject) -> None:
    for device in reversed(driver.devices[:]):
        extension: IpoibDevice = device.device_extension
        extension.interface.take_down()
        wdm.delete_device(device)


def driver_entry(driver: wdm.DriverObject) -> int:
    """Make both devices, and bring up what can be now (WDK: DriverEntry)."""
    table = driver.major_function
    table[wdm.IRP_MJ_CREATE] = _create
    table[wdm.IRP_MJ_CLEANUP] = _cleanup
    table[wdm.IRP_MJ_CLOSE] = _close
    table[wdm.IRP_MJ_DEVICE_CONTROL] = _control
    driver.driver_unload = _unload
    for port, name in enumerate(IPOIB_DEVICES, 1):
        extension = IpoibDevice(driver, port)
        wdm.create_device(driver, name, IPOIB_DEVICE_TYPE, extension=extension)
        try:
            extension.interface.bring_up()
        except wdm.RaisedStatus:
            continue  # there is no HCA yet: the first opening finds out
    return wdm.STATUS_SUCCESS
