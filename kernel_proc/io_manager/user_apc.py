"""User APCs that a finished request queues to the thread that issued it.

In NT the IRP itself is the APC and stays allocated until it is delivered. Here its quota stays
charged as long, so that a thread that never waits alertably is bounded by its process's quota.

Rules: queue at APC_LEVEL in the thread itself; take at PASSIVE_LEVEL in the thread.
Spec: WDK, Types of APCs; Waits and APCs. NT: IopCompleteRequest, KiDeliverApc.
"""

from typing import TYPE_CHECKING, Any

from kernel_proc.io_manager.completion_port import PoolCharge
from kernel_proc.scheduling.apc import UserApc

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.io_manager.request import DeviceControlRequest
    from kernel_proc.scheduling.apc import Apc
    from kernel_proc.scheduling.kthread import KThread


class RequestApc(UserApc):
    """The APC of one request; its context is the request."""

    __slots__ = ("charge",)

    def __init__(
        self, thread: "KThread", request: "DeviceControlRequest", charge: PoolCharge
    ) -> None:
        super().__init__(thread, _free, request, rundown_routine=_free)
        self.charge = charge


def _free(apc: "Apc") -> None:
    assert isinstance(apc, RequestApc)
    apc.charge.give_back()


def queue_user_apc(irp: "Irp", request: "DeviceControlRequest") -> None:
    """Queue the APC of a request whose result has been delivered."""
    thread = irp.thread
    assert thread is not None
    RequestApc(thread, request, keep_charge(irp)).insert()


def keep_charge(irp: "Irp") -> PoolCharge:
    """Take the IRP's own part of its quota over for what is queued in its place."""
    length = min(irp.size, irp.quota_charged)
    irp.quota_charged -= length
    return PoolCharge(irp.quota_process, length)


def take_user_apcs(thread: "KThread", limit: int) -> list[Any]:
    """Deliver the thread's user APCs, `limit` at most; return their contexts in order."""
    contexts: list[Any] = []
    queue = thread.user_apcs
    while queue and len(contexts) < limit:
        apc = queue.popleft()
        apc.inserted = False
        apc.kernel_routine(apc)
        contexts.append(apc.context)
    return contexts
