"""One IPoIB interface: sends packets to next hops it resolves by ARP, and gives up what comes.

Packets for a next hop that is not known wait while it is asked for, three times a second apart.
An answer is learned at DISPATCH_LEVEL; the address handle is made by a work item, as that verb
waits; then the packets go out. What comes is told to `on_packet`.

An interface that is down, because the HCA died or its queue pair failed, is brought up anew by
`bring_up`; its address stays.

Rules: `bring_up`, `take_down` at PASSIVE_LEVEL; `send`, `set_address` at <= DISPATCH_LEVEL.
`on_packet` is called at DISPATCH_LEVEL from the DPC, without the lock.
Spec: RFC 4391; docs/ipoib.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.clients.ipoib import frames
from kernel_proc.clients.ipoib.datagram_port import (
    BROADCAST_QPN,
    DatagramPort,
    Received,
)
from kernel_proc.clients.ipoib.frames import ENCAPSULATION, Arp
from kernel_proc.clients.ipoib.neighbours import (
    MOST_TRIES,
    MOST_WAITING,
    Neighbour,
    NeighbourTable,
    Packet,
    Path,
    State,
)
from kernel_proc.clients.ipoib.send_queue import SendQueue
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.work_item import WorkItem
from shared.ipoib_layout import (
    ETHERTYPE_ARP,
    IPOIB_COUNTERS,
    IPOIB_MTU,
    LIMITED_BROADCAST,
)
from shared.nt_status import (
    STATUS_DEVICE_BUSY,
    STATUS_DEVICE_NOT_READY,
    STATUS_INVALID_BUFFER_SIZE,
    STATUS_SUCCESS,
)
from shared.verb_messages import Event
from shared.verbs_enums import ibv_event_type

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager

ASK_EVERY_NS: Final = 1_000_000_000
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
        self.ip = ip
        self.counters = dict.fromkeys(IPOIB_COUNTERS, 0)
        self._io = io
        self._on_packet = on_packet
        self._link: DatagramPort | None = None
        self._failed = False
        self._lock = SpinLock(processor, f"ipoib port {port}")
        self._changing = Mutex(processor)
        self._neighbours = NeighbourTable()
        self._out = SendQueue(self.counters)
        self._item = WorkItem(processor, self._make_handles)
        self._timer = Timer(processor)
        self._retry = Dpc(processor, self._ask_again)

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
        self._timer.cancel()
        self._retry.remove()
        self._item.flush()
        if link is not None:
            link.close()
        old = self._lock.acquire()
        self._neighbours = NeighbourTable()
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
        self.ip = ip
        self.announce()

    def announce(self) -> None:
        """Tell everybody where this address is: an ARP request for itself."""
        old = self._lock.acquire()
        if self.is_up:
            self._broadcast_arp(self.ip)
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
            neighbour = self._neighbours.find(next_hop)
            if neighbour is None:
                neighbour = self._ask(next_hop)
            return self._send_to(neighbour, packet)
        finally:
            self._lock.release(old)

    def _send_to(self, neighbour: Neighbour, packet: Packet) -> int:
        if neighbour.state is State.REACHABLE:
            return self._out.add(packet, neighbour.handle, neighbour.path.qpn)
        if len(neighbour.waiting) >= MOST_WAITING:
            self.counters["tx_dropped"] += 1
            return STATUS_DEVICE_BUSY
        neighbour.waiting.append(packet)
        return STATUS_SUCCESS

    # Asking

    def _ask(self, ip: bytes) -> Neighbour:
        neighbour, lost = self._neighbours.add(ip)
        self.counters["tx_dropped"] += lost
        neighbour.tries = 1
        self._broadcast_arp(ip)
        if not self._timer.is_set:
            self._timer.set(ASK_EVERY_NS, dpc=self._retry)
        if self._neighbours.retired:
            self._item.try_insert()
        return neighbour

    def _broadcast_arp(self, ip: bytes) -> None:
        link = self._link
        assert link is not None
        mine = link.address.packed()
        arp = Arp(frames.REQUEST, mine, self.ip, frames.UNKNOWN_HARDWARE, ip)
        self.counters["arp_requests_sent"] += 1
        self._out.add(Packet(ETHERTYPE_ARP, arp.packed()), link.broadcast, BROADCAST_QPN)

    def _ask_again(self, *_: Any) -> None:
        """Ask anew who has not answered, or give up: the timer's DPC."""
        old = self._lock.acquire()
        for neighbour in self._neighbours.asked() if self.is_up else ():
            if neighbour.tries >= MOST_TRIES:
                self.counters["tx_dropped"] += self._neighbours.remove(neighbour.ip)
                self.counters["unresolved"] += 1
                continue
            neighbour.tries += 1
            self._broadcast_arp(neighbour.ip)
        if self._neighbours.asked() and self.is_up:
            self._timer.set(ASK_EVERY_NS, dpc=self._retry)
        self._lock.release(old)

    def _make_handles(self, item: WorkItem, context: Any) -> None:
        """Make the address handles that are due, end those not needed: PASSIVE_LEVEL."""
        link = self._link
        while link is not None and link is self._link:
            old = self._lock.acquire()
            retired, self._neighbours.retired = self._neighbours.retired, []
            due = next(iter(self._neighbours.due()), None)
            path = due.path if due is not None else Path(0, 0)
            self._lock.release(old)
            for handle in retired:
                link.end_handle(handle)
            if due is None:
                return
            try:
                made = link.make_handle(path.lid)
            except RaisedStatus:
                made = 0
            self._reach(due, path, made)

    def _reach(self, neighbour: Neighbour, path: Path, handle: int) -> None:
        """Send what has waited for a neighbour, which has an address handle or cannot have one."""
        old = self._lock.acquire()
        if self._neighbours.find(neighbour.ip) is not neighbour or neighbour.path != path:
            if handle:
                self._neighbours.retired.append(handle)
        elif not handle or self._link is None:
            self.counters["tx_dropped"] += self._neighbours.remove(neighbour.ip)
        else:
            neighbour.handle, neighbour.state = handle, State.REACHABLE
            while neighbour.waiting:
                self._out.add(neighbour.waiting.popleft(), handle, path.qpn)
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
            self._arp_came(link, packet)
        else:
            came.append((ethertype, packet))

    def _arp_came(self, link: DatagramPort, received: Received) -> None:
        arp = frames.parse_arp(received.frame)
        if arp is None or arp.sender_qpn != received.qpn or arp.sender_ip == LIMITED_BROADCAST:
            self.counters["rx_malformed"] += 1
            return
        requests = arp.operation == frames.REQUEST
        self.counters["arp_requests_received" if requests else "arp_replies_received"] += 1
        neighbour = self._neighbours.find(arp.sender_ip)
        for_us = requests and arp.target_ip == self.ip and arp.sender_ip != self.ip
        if neighbour is None and for_us:
            neighbour, lost = self._neighbours.add(arp.sender_ip)
            self.counters["tx_dropped"] += lost
        if neighbour is None:
            return
        if self._neighbours.learn(neighbour, Path(received.qpn, received.lid)):
            self._item.try_insert()
        if for_us:
            reply = Arp(frames.REPLY, link.address.packed(), self.ip, arp.sender, arp.sender_ip)
            self.counters["arp_replies_sent"] += 1
            self._send_to(neighbour, Packet(ETHERTYPE_ARP, reply.packed()))
