"""One IPoIB interface: sends packets to next hops, and gives up what comes.

Who a next hop is says `resolution`. What comes is told to `on_packet`.

An interface that is down, because the HCA died or its queue pair failed, is brought up anew by
`bring_up`; its address stays.

Rules: `bring_up`, `take_down` at PASSIVE_LEVEL; `send`, `set_address` at <= DISPATCH_LEVEL.
`on_packet` is called at DISPATCH_LEVEL from the DPC, without the lock.
Spec: RFC 4391; docs/ipoib.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kernel_proc.clients.ipoib import frames
from kernel_proc.clients.ipoib.datagram_port import BROADCAST_QPN, DatagramPort, Received
from kernel_proc.clients.ipoib.frames import ENCAPSULATION
from kernel_proc.clients.ipoib.neighbours import Packet
from kernel_proc.clients.ipoib.resolution import Resolution
from kernel_proc.clients.ipoib.send_queue import SendQueue
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.spinlock import SpinLock
from shared.ipoib_layout import (
    ETHERTYPE_ARP,
    IPOIB_COUNTERS,
    IPOIB_MTU,
    LIMITED_BROADCAST,
)
from shared.nt_status import (
    STATUS_DEVICE_NOT_READY,
    STATUS_INVALID_BUFFER_SIZE,
)
from shared.verb_messages import Event
from shared.verbs_enums import ibv_event_type

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager

_AT_ONCE: Final = 64
_ROUNDS: Final = 4  # of one DPC: what is left then raises the next event
_ADDRESS_CHANGED: Final = (
    int(ibv_event_type.IBV_EVENT_LID_CHANGE),
    int(ibv_event_type.IBV_EVENT_GID_CHANGE),
    int(ibv_event_type.IBV_EVENT_PORT_ACTIVE),
    int(ibv_event_type.IBV_EVENT_CLIENT_REREGISTER),
)
_ENDS_IT: Final = (
    int(ibv_event_type.IBV_EVENT_DEVICE_FATAL),
    int(ibv_event_type.IBV_EVENT_CQ_ERR),
    int(ibv_event_type.IBV_EVENT_QP_FATAL),
)

PacketRoutine = Callable[[int, Received], object]


class Interface:
    """An interface at a port; `counters` are those of IPOIB_COUNTERS."""

    def __init__(self, io: "IoManager", port: int, ip: bytes, on_packet: PacketRoutine) -> None:
        processor = io.processor
        self.port = port
        self.counters = dict.fromkeys(IPOIB_COUNTERS, 0)
        self._io = io
        self._on_packet = on_packet
        self._link: DatagramPort | None = None
        self._failed = False
        self._lock = SpinLock(processor, f"ipoib port {port}")
        self._changing = Mutex(processor)
        self._out = SendQueue(self.counters)
        self._resolution = Resolution(
            processor, ip, self._lock, self._out, self.counters, lambda: self.is_up
        )

    @property
    def ip(self) -> bytes:
        """Return the IPv4 address."""
        return self._resolution.ip

    @property
    def is_up(self) -> bool:
        """Tell whether packets can be sent and come."""
        return self._link is not None and not self._failed

    @property
    def hardware_address(self) -> bytes:
        """Return the 20 bytes, zero before it was up."""
        link = self._link
        return frames.UNKNOWN_HARDWARE if link is None else link.address.packed()

    # Up and down

    def bring_up(self) -> None:
        """Have a queue pair in the broadcast group; RaisedStatus if that cannot be."""
        self._changing.wait()
        try:
            if self.is_up:
                return
            self._let_go()
            self._failed = False
            link = DatagramPort(self._io, self.port, self._completed, self._event)
            self._link = self._out.link = link
            self._completed()  # what came before there was a link
            self.announce()
        finally:
            self._changing.release()

    def take_down(self) -> None:
        """Give everything back: nothing of the interface runs afterwards."""
        self._changing.wait()
        try:
            self._let_go()
        finally:
            self._changing.release()

    def _let_go(self) -> None:
        link, self._link = self._link, None
        self._out.link = None
        self._resolution.stop()
        if link is not None:
            link.close()
        old = self._lock.acquire()
        self._resolution.clear()
        self._out.clear()
        self._lock.release(old)

    def _event(self, event: Event) -> None:
        """Follow the HCA: PASSIVE_LEVEL, by a worker thread."""
        link = self._link
        if event.event_type in _ENDS_IT:
            self._failed = True
        elif event.event_type in _ADDRESS_CHANGED and event.port == self.port and link is not None:
            try:
                link.refresh()
            except RaisedStatus:
                return
            self.announce()

    # Sending

    def set_address(self, ip: bytes) -> None:
        """Have another IPv4 address, and tell everybody."""
        self._resolution.ip = ip
        self.announce()

    def announce(self) -> None:
        """Tell everybody where this address is: an ARP request for itself."""
        old = self._lock.acquire()
        if self.is_up:
            self._resolution.announce()
        self._lock.release(old)

    def send(self, next_hop: bytes, packet: Packet) -> int:
        """Send a packet to a next hop, or to all; return STATUS_SUCCESS when it was accepted."""
        if not 0 < len(packet.data) <= IPOIB_MTU:
            return STATUS_INVALID_BUFFER_SIZE
        old = self._lock.acquire()
        try:
            link = self._link
            if link is None or self._failed:
                return STATUS_DEVICE_NOT_READY
            if next_hop == LIMITED_BROADCAST:
                return self._out.add(packet, link.broadcast, BROADCAST_QPN)
            return self._resolution.send(next_hop, packet)
        finally:
            self._lock.release(old)

    # What comes

    def _completed(self) -> None:
        """Take what has completed: the CQ's completion routine, or any level below."""
        came: list[tuple[int, Received]] = []
        old = self._lock.acquire()
        link = self._link
        if link is not None:
            for _ in range(_ROUNDS):
                link.arm()
                if not self._take_some(link, came):
                    break
            self._out.send_waiting()
        self._lock.release(old)
        for ethertype, received in came:
            self._on_packet(ethertype, received)

    def _take_some(self, link: DatagramPort, came: list[tuple[int, Received]]) -> int:
        count = 0
        for completion, is_send in link.completions(_AT_ONCE):
            count += 1
            if completion.status:
                self._failed = True  # an error takes the queue pair out of service
                self.counters["tx_errors" if is_send else "rx_errors"] += 1
            elif not is_send:
                self._arrived(link, link.take(completion), came)
        return count

    def _arrived(
        self, link: DatagramPort, received: Received, came: list[tuple[int, Received]]
    ) -> None:
        counters, frame = self.counters, received.frame
        counters["rx_packets"] += 1
        counters["rx_bytes"] += max(0, len(frame) - ENCAPSULATION.size)
        counters["rx_multicast"] += received.by_multicast
        if len(frame) <= ENCAPSULATION.size:
            counters["rx_malformed"] += 1
            return
        ethertype, _ = ENCAPSULATION.unpack_from(frame)
        packet = received._replace(frame=frame[ENCAPSULATION.size :])
        if ethertype == ETHERTYPE_ARP:
            self._resolution.arrived(packet)
        else:
            came.append((ethertype, packet))
