"""I/O completion ports: a queue that finished requests of its files report to.

Rules: post at <= DISPATCH_LEVEL; removal waits, so PASSIVE_LEVEL.
Spec: WDK, NtCreateIoCompletion, NtSetInformationFile (FileCompletionInformation),
NtRemoveIoCompletion.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from kernel_proc.scheduling.semaphore import Semaphore
from kernel_proc.scheduling.wait import USER_MODE

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor


class CompletionPacket(NamedTuple):
    """What one finished request reports."""

    key: int
    apc_context: int
    status: int
    information: int


class CompletionPort:
    """Packets in order of arrival, and a count of them that can be waited for."""

    __slots__ = ("_available", "_packets")

    def __init__(self, processor: "Processor") -> None:
        self._packets: deque[CompletionPacket] = deque()
        self._available = Semaphore(processor, 0, 0x7FFF_FFFF)

    def post(self, key: int, apc_context: int, status: int, information: int) -> None:
        """Queue a packet and wake one who waits."""
        self._packets.append(CompletionPacket(key, apc_context, status, information))
        self._available.release(1)

    def remove(
        self, timeout_ns: int | None, *, alertable: bool = False
    ) -> tuple[int, CompletionPacket | None]:
        """Wait for a packet; return the wait's status and the packet if there is one."""
        status = self._available.wait(timeout_ns, alertable=alertable, mode=USER_MODE)
        return status, self._packets.popleft() if status == 0 else None

    def __len__(self) -> int:
        return len(self._packets)
