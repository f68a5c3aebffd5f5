"""I/O completion ports: a queue that finished requests of its files report to.

A packet is nonpaged pool, charged to its process until it is taken: in NT the finished IRP itself
is the packet, so a process that never looks at its port runs into its quota, not into the kernel.

Rules: post at <= DISPATCH_LEVEL; removal waits, so PASSIVE_LEVEL.
Spec: WDK, NtCreateIoCompletion, NtSetInformationFile (FileCompletionInformation),
NtRemoveIoCompletion, NtRemoveIoCompletionEx.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from kernel_proc.scheduling.semaphore import Semaphore
from kernel_proc.scheduling.wait import USER_MODE
from shared.nt_status import STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.scheduling.process import KProcess
    from kernel_proc.scheduling.processor import Processor

#: What a packet that is no IRP takes of the pool.
SIZE_OF_PACKET: Final = 0x40


class PoolCharge(NamedTuple):
    """Pool that stays charged to a process until something queued has been taken."""

    process: "KProcess"
    length: int

    def give_back(self) -> None:
        """Return it."""
        self.process.return_pool(self.length)


class CompletionPacket(NamedTuple):
    """What one finished request reports."""

    key: int
    apc_context: int
    status: int
    information: int


class CompletionPort:
    """Packets in order of arrival, and a count of them that can be waited for: `available`."""

    __slots__ = ("_charges", "_packets", "available")

    def __init__(self, processor: "Processor") -> None:
        self._packets: deque[CompletionPacket] = deque()
        self._charges: deque[PoolCharge | None] = deque()
        self.available: Final = Semaphore(processor, 0, 0x7FFF_FFFF)

    def post(
        self,
        key: int,
        apc_context: int,
        status: int,
        information: int,
        charge: PoolCharge | None = None,
    ) -> None:
        """Queue a packet and wake one who waits."""
        self._packets.append(CompletionPacket(key, apc_context, status, information))
        self._charges.append(charge)
        self.available.release(1)

    def remove(
        self, timeout_ns: int | None, *, alertable: bool = False
    ) -> tuple[int, CompletionPacket | None]:
        """Wait for a packet; return the wait's status and the packet if there is one."""
        status = self.available.wait(timeout_ns, alertable=alertable, mode=USER_MODE)
        return status, self._take() if status == STATUS_SUCCESS else None

    def remove_several(
        self, limit: int, timeout_ns: int | None, *, alertable: bool = False
    ) -> tuple[int, list[CompletionPacket]]:
        """Wait for a packet and take those behind it too, `limit` at most."""
        status, packet = self.remove(timeout_ns, alertable=alertable)
        if packet is None:
            return status, []
        packets = [packet]
        while len(packets) < limit and self.available.wait(0) == STATUS_SUCCESS:
            packets.append(self._take())
        return status, packets

    def _take(self) -> CompletionPacket:
        charge = self._charges.popleft()
        if charge is not None:
            charge.give_back()
        return self._packets.popleft()

    def __len__(self) -> int:
        return len(self._packets)

    def __str__(self) -> str:
        return f"completion port with {len(self)} packets"

    def __del__(self) -> None:
        # Its last handle and its files are gone: nobody can take what is left.
        for charge in self._charges:
            if charge is not None:
                charge.give_back()
