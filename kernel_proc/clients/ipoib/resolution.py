"""Who has an IPv4 address: an interface's neighbours, asked for by ARP.

Packets for a next hop that is not known wait while it is asked for, three times a second apart.
An answer is learned at DISPATCH_LEVEL; the address handle is made by a work item, as that verb
waits; then the packets go out.

Rules: DISPATCH_LEVEL under the interface's lock, but for `stop` (PASSIVE_LEVEL without it), the
timer's DPC and the work item.
Spec: RFC 4391, section 9; RFC 826; docs/ipoib.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.clients.ipoib import frames
from kernel_proc.clients.ipoib.datagram_port import BROADCAST_QPN, Received
from kernel_proc.clients.ipoib.frames import Arp
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
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.work_item import WorkItem
from shared.ipoib_layout import ETHERTYPE_ARP, LIMITED_BROADCAST
from shared.nt_status import STATUS_DEVICE_BUSY, STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor
    from kernel_proc.scheduling.spinlock import SpinLock

ASK_EVERY_NS: Final = 1_000_000_000


class Resolution:
    """The neighbours of an interface; `ip` is its own address, `out` sends while it is up."""

    def __init__(
        self,
        processor: "Processor",
        ip: bytes,
        lock: "SpinLock",
        out: SendQueue,
        counters: dict[str, int],
        is_up: Callable[[], bool],
    ) -> None:
        self.ip = ip
        self.counters = counters
        self._lock = lock
        self._out = out
        self._is_up = is_up
        self._neighbours = NeighbourTable()
        self._item = WorkItem(processor, self._make_handles)
        self._timer = Timer(processor)
        self._retry = Dpc(processor, self._ask_again)

    def stop(self) -> None:
        """Ask nobody any more; nothing of it runs afterwards."""
        self._timer.cancel()
        self._retry.remove()
        self._item.flush()

    def clear(self) -> None:
        """Know nobody: the queue pair is gone, and with it all address handles."""
        self._neighbours = NeighbourTable()

    def announce(self) -> None:
        """Tell everybody where this address is: an ARP request for itself."""
        self._broadcast_arp(self.ip)

    def send(self, next_hop: bytes, packet: Packet) -> int:
        """Send a packet to a next hop, now or when it has answered."""
        neighbour = self._neighbours.find(next_hop)
        if neighbour is None:
            neighbour = self._ask(next_hop)
        return self._send_to(neighbour, packet)

    def _send_to(self, neighbour: Neighbour, packet: Packet) -> int:
        if neighbour.state is State.REACHABLE:
            return self._out.add(packet, neighbour.handle, neighbour.path.qpn)
        if len(neighbour.waiting) >= MOST_WAITING:
            self.counters["tx_dropped"] += 1
            return STATUS_DEVICE_BUSY
        neighbour.waiting.append(packet)
        return STATUS_SUCCESS

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
        link = self._out.link
        assert link is not None
        mine = link.address.packed()
        arp = Arp(frames.REQUEST, mine, self.ip, frames.UNKNOWN_HARDWARE, ip)
        self.counters["arp_requests_sent"] += 1
        self._out.add(Packet(ETHERTYPE_ARP, arp.packed()), link.broadcast, BROADCAST_QPN)

    def _ask_again(self, *_: Any) -> None:
        """Ask anew who has not answered, or give up: the timer's DPC."""
        old = self._lock.acquire()
        for neighbour in self._neighbours.asked() if self._is_up() else ():
            if neighbour.tries >= MOST_TRIES:
                self.counters["tx_dropped"] += self._neighbours.remove(neighbour.ip)
                self.counters["unresolved"] += 1
                continue
            neighbour.tries += 1
            self._broadcast_arp(neighbour.ip)
        if self._neighbours.asked() and self._is_up():
            self._timer.set(ASK_EVERY_NS, dpc=self._retry)
        self._lock.release(old)

    def _make_handles(self, item: WorkItem, context: Any) -> None:
        """Make the address handles that are due, end those not needed: PASSIVE_LEVEL."""
        link = self._out.link
        while link is not None and link is self._out.link:
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
        elif not handle or self._out.link is None:
            self.counters["tx_dropped"] += self._neighbours.remove(neighbour.ip)
        else:
            neighbour.handle, neighbour.state = handle, State.REACHABLE
            while neighbour.waiting:
                self._out.add(neighbour.waiting.popleft(), handle, path.qpn)
        self._lock.release(old)

    # What comes

    def arrived(self, received: Received) -> None:
        """Take an ARP packet that came."""
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
            link = self._out.link
            assert link is not None  # what came, came by it
            reply = Arp(frames.REPLY, link.address.packed(), self.ip, arp.sender, arp.sender_ip)
            self.counters["arp_replies_sent"] += 1
            self._send_to(neighbour, Packet(ETHERTYPE_ARP, reply.packed()))
