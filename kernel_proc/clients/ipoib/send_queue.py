"""Packets on their way into an interface's queue pair: posted, or waiting for a place there.

Rules: DISPATCH_LEVEL under the interface's lock.
Spec: docs/ipoib.md.
"""

from collections import deque
from typing import Final

from kernel_proc.clients.ipoib.datagram_port import DatagramPort
from kernel_proc.clients.ipoib.neighbours import Packet
from shared.nt_status import STATUS_DEVICE_BUSY, STATUS_DEVICE_NOT_READY, STATUS_SUCCESS

MOST_QUEUED: Final = 256  # packets that wait for a place in the send queue


class SendQueue:
    """What an interface sends, in order; `link` is where to, None while it is down."""

    __slots__ = ("_counters", "_waiting", "link")

    def __init__(self, counters: dict[str, int]) -> None:
        self.link: DatagramPort | None = None
        self._counters = counters
        self._waiting: deque[tuple[Packet, int, int]] = deque()

    def add(self, packet: Packet, handle: int, qpn: int) -> int:
        """Send a packet by an address handle; return STATUS_SUCCESS when it was accepted."""
        link = self.link
        if link is None:
            return STATUS_DEVICE_NOT_READY
        if link.has_room and not self._waiting:
            self._post(link, packet, handle, qpn)
        elif len(self._waiting) >= MOST_QUEUED:
            self._counters["tx_dropped"] += 1
            return STATUS_DEVICE_BUSY
        else:
            self._waiting.append((packet, handle, qpn))
        return STATUS_SUCCESS

    def send_waiting(self) -> None:
        """Post what has waited, as far as there are places."""
        link = self.link
        while link is not None and self._waiting and link.has_room:
            self._post(link, *self._waiting.popleft())

    def clear(self) -> None:
        """Forget what waits: the queue pair is gone."""
        self._waiting.clear()

    def _post(self, link: DatagramPort, packet: Packet, handle: int, qpn: int) -> None:
        if link.send(packet, handle, qpn):
            self._counters["tx_packets"] += 1
            self._counters["tx_bytes"] += len(packet.data)
        else:
            self._counters["tx_errors"] += 1
