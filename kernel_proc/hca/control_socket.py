"""The HCA's end of the control socket: memory comes and goes, and the end of it is the end.

Rules: what the kernel sends is taken at its word; a packet that cannot be is the end of the
process, which the kernel sees.
Spec: kernel_proc/hca_abi/device_packets.py; unix(7), SCM_RIGHTS.
"""

import mmap
import os
import select
import socket
import struct
from typing import Final, NamedTuple

from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.hca.inspection import Inspection
from kernel_proc.hca_abi import device_packets as packets
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.device_packets import DevicePacket, DevicePacketError, decode_packet
from shared.clock import now_ns
from shared.live_words import words64
from shared.segment import map_segment

_DESCRIPTOR: Final = struct.Struct("i")
_ROOM_FOR_DESCRIPTORS: Final = socket.CMSG_SPACE(packets.MOST_DESCRIPTORS * _DESCRIPTOR.size)
_SENT: Final = reg.SENT_OFFSET // 8
_SERVED: Final = reg.SERVED_OFFSET // 8
_PIECE_NS: Final = 1_000_000  # how long traffic waits for a piece of an inspection


class Start(NamedTuple):
    """What the first packet brings."""

    settings: bytes
    registers: int
    status_page: int
    poke: int
    line: int


class ControlEnded(Exception):
    """The kernel is gone, or said STOP."""


class _Mapping:
    """Shared memory of one packet."""

    __slots__ = ("memory", "poke", "view")

    def __init__(self, descriptor: int, length: int, poke: int = -1) -> None:
        try:
            self.memory: mmap.mmap = map_segment(descriptor, length)
        finally:
            os.close(descriptor)
        self.view = memoryview(self.memory)
        self.poke = poke

    def close(self) -> None:
        self.view.release()
        self.memory.close()


class ControlSocket:
    """Receives packets and does what they say to the device."""

    def __init__(self, control: socket.socket) -> None:
        self._socket: Final = control
        self._segments: Final[dict[int, _Mapping | None]] = {}
        self._doorbells: Final[dict[int, _Mapping]] = {}
        self._words = memoryview(bytearray(reg.REGISTER_PAGE_SIZE)).cast("Q")
        self._device: HcaDevice | None = None
        self._watch: select.epoll | None = None
        self.served = 0
        self.inspection: Inspection | None = None

    def fileno(self) -> int:
        """Return the socket's descriptor, to be watched."""
        return self._socket.fileno()

    def receive_start(self) -> Start:
        """Wait for the first packet."""
        packet, descriptors = self._receive(0)
        if packet.kind != packets.START:
            raise DevicePacketError(f"a first packet of kind {packet.kind}")
        return Start(packet.body, *descriptors)

    def attach(self, device: HcaDevice, registers: memoryview, watch: select.epoll) -> None:
        """Serve this device from now on; START counts as served."""
        self._device = device
        self._watch = watch
        self._words = words64(registers)
        self._count()

    @property
    def behind(self) -> bool:
        """Whether the kernel has sent what is not served yet."""
        return self._words[_SENT] != self.served

    def serve(self) -> bool:
        """Do what every packet in the socket says; ControlEnded is the end."""
        busy = False
        while True:
            try:
                packet, descriptors = self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return busy
            self._do(packet, descriptors)
            self._count()
            busy = True

    def catch_up(self) -> None:
        """Serve what was sent before the command in hand was posted."""
        if self.behind:
            self.serve()

    def inspect(self) -> None:
        """Tell a piece of the state that the kernel has asked for; to be called between rounds."""
        if self.inspection is not None and self.inspection.step(now_ns, _PIECE_NS):
            self.inspection = None

    def _count(self) -> None:
        self.served += 1
        self._words[_SERVED] = self.served

    def _receive(self, flags: int) -> tuple[DevicePacket, list[int]]:
        # Not socket.recv_fds: it takes flags and leaves them out.
        data, ancillary, received, _ = self._socket.recvmsg(
            packets.MOST_PACKET, _ROOM_FOR_DESCRIPTORS, flags | socket.MSG_CMSG_CLOEXEC
        )
        descriptors: list[int] = []
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fitting = len(body) - len(body) % _DESCRIPTOR.size
                descriptors += (fd for (fd,) in _DESCRIPTOR.iter_unpack(body[:fitting]))
        if not data:
            raise ControlEnded("the kernel is gone")
        try:
            if received & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise DevicePacketError("a packet that was cut")
            return decode_packet(data, len(descriptors)), descriptors
        except DevicePacketError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def _do(self, packet: DevicePacket, descriptors: list[int]) -> None:
        device = self._device
        if device is None or packet.kind == packets.START:
            raise DevicePacketError("a packet out of order")
        if packet.kind == packets.STOP:
            raise ControlEnded("the kernel said stop")
        if packet.kind == packets.ADD_SEGMENT:
            self._add_segment(device, packet, descriptors[0])
        elif packet.kind == packets.REMOVE_SEGMENT:
            device.remove_segment(packet.number)
            mapping = self._segments.pop(packet.number, None)
            if mapping is not None:
                mapping.close()
        elif packet.kind == packets.ADD_DOORBELLS:
            self._add_doorbells(device, packet, *descriptors)
        elif packet.kind == packets.REMOVE_DOORBELLS:
            self._remove_doorbells(device, packet.number)
        elif packet.kind == packets.INSPECT:
            self._begin_inspection(device, packet, *descriptors)
        elif packet.kind == packets.SET_FAULT:
            device.set_fault(packet.number, packet.body)
        elif packet.kind == packets.CLEAR_FAULT:
            device.clear_fault(packet.number)

    def _add_segment(self, device: HcaDevice, packet: DevicePacket, descriptor: int) -> None:
        if packet.memory == packets.PRIVATE:
            device.add_segment(packet.number, None, descriptor)
            self._segments[packet.number] = None
            return
        mapping = _Mapping(descriptor, packet.length)
        device.add_segment(packet.number, mapping.view)
        self._segments[packet.number] = mapping

    def _add_doorbells(
        self, device: HcaDevice, packet: DevicePacket, descriptor: int, poke: int
    ) -> None:
        mapping = _Mapping(descriptor, packet.length, poke)
        device.add_doorbells(packet.number, mapping.view)
        self._doorbells[packet.number] = mapping
        if self._watch is not None:
            self._watch.register(poke, select.EPOLLIN | select.EPOLLET)

    def _begin_inspection(
        self, device: HcaDevice, packet: DevicePacket, descriptor: int, answer: int
    ) -> None:
        if self.inspection is not None:  # nobody waits for it any more
            self.inspection.close()
        number = packet.number
        parts = device.queue_pair_parts(number) if number else device.parts()
        self.inspection = Inspection(parts, descriptor, answer, packet.length)

    def _remove_doorbells(self, device: HcaDevice, number: int) -> None:
        device.remove_doorbells(number)
        mapping = self._doorbells.pop(number, None)
        if mapping is not None:
            if self._watch is not None:
                self._watch.unregister(mapping.poke)
            os.close(mapping.poke)
            mapping.close()
