"""The kernel's end of the HCA's control socket: packets in order, without blocking the dispatcher.

What does not fit into the socket is queued and goes when there is room. A kernel thread that may
wait does so until all has gone; so what it hands over is the HCA's before it posts a command.
Packets are counted where the HCA sees it, once they are in the socket.

Rules: dispatcher's OS thread; `send` waits <= APC_LEVEL in a kernel thread, else never.
Spec: kernel_proc/hca_abi/device_packets.py; unix(7).
"""

import array
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

from kernel_proc.hca_abi.device_packets import DevicePacket
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.processor import Processor
from shared.nt_status import STATUS_SUCCESS

#: An HCA that takes none of its mail for so long is taken for stuck.
PATIENCE_NS: Final = 10_000_000_000

_NO_ROOM: Final = frozenset(
    {errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS, errno.EINTR}
)


class PacketSender:
    """Sends over `control`; `sent` is the live word that counts packets."""

    def __init__(self, processor: Processor, control: socket.socket, sent: memoryview) -> None:
        self._processor = processor
        self._control = control
        self._sent = sent
        self._count = 0
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._drained = Event(processor, notification=True, signaled=True)
        self._room = select.epoll()
        self._room.register(control.fileno(), select.EPOLLOUT)

    def send(self, packet: DevicePacket, descriptors: Sequence[int] = ()) -> bool:
        """Send a packet with descriptors, which stay the caller's.

        False: the HCA does not read its mail; the packet is queued still.
        """
        data = packet.encode()
        if not self._queue and self._try(data, descriptors):
            return True
        if not self._queue:
            self._drained.clear()
            self._processor.add_source(self._room, self._flush)
        self._queue.append((data, [os.dup(descriptor) for descriptor in descriptors]))
        return self._wait()

    def send_now(self, packet: DevicePacket, descriptors: Sequence[int]) -> int:
        """Send a packet if there is room, without waiting; return its number, 0 if there is none.

        Nothing is queued, so an HCA that does not read its mail gets no more of it.
        """
        if self._queue or not self._try(packet.encode(), descriptors):
            return 0
        return self._count

    def close(self) -> None:
        """Send nothing any more; whoever waits goes on."""
        if self._room.closed:
            return
        while self._queue:
            self._drop_first()
        self._processor.remove_source(self._room)
        self._room.close()
        self._control.close()
        self._drained.set()

    def _wait(self) -> bool:
        processor = self._processor
        may_wait = processor.current_thread is not None and not processor.in_dpc()
        if not may_wait or processor.irql > APC_LEVEL:
            return True
        return self._drained.wait(PATIENCE_NS) == STATUS_SUCCESS

    def _flush(self) -> None:
        while self._queue:
            if not self._try(*self._queue[0]):
                return
            self._drop_first()
        self._processor.remove_source(self._room)
        self._drained.set()

    def _drop_first(self) -> None:
        for descriptor in self._queue.popleft()[1]:
            os.close(descriptor)

    def _try(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Send now; False if there is no room. To an HCA that has gone everything has been sent."""
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        try:
            # Not `socket.send_fds`, which drops the flags it is given.
            self._control.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            return error.errno not in _NO_ROOM
        self._count += 1
        self._sent[0] = self._count
        return True
