"""What a benchmark run times: kernel clients and floors, by the names of BENCHMARK_PATHS.

Imported at the first run: most kernels are never asked for one.

Rules: called at PASSIVE_LEVEL by the thread that will perform the operation.
Spec: shared/messages.py (BenchmarkRun); docs/benchmark.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from kernel_proc.clients.batch_client import DirectBatch, IrpBatch
from kernel_proc.clients.direct_client import DirectCall
from kernel_proc.clients.irp_client import BuiltIrp, HandBuiltIrp, ReusedIrp
from kernel_proc.clients.kernel_floors import ClockReading, MemoryCopy, ThreadSwitch
from kernel_proc.clients.timed_loop import Batch
from kernel_proc.io_manager.driver_object import DeviceObject
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.ioctl_codes import COMPLETION_INLINE, NOOP_DEVICE
from shared.messages import BenchmarkRun
from shared.nt_status import STATUS_NO_SUCH_DEVICE

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager

MAX_DEPTH: Final = 1_000


class ClosableBatch(Batch, Protocol):
    """A batch that holds something between its calls."""

    def close(self) -> None:
        """Give back what it holds."""


class Operation(Protocol):
    """Something that can be timed again and again."""

    def __call__(self) -> None:
        """Perform it once."""

    def close(self) -> None:
        """Give back what it holds."""


_CLIENTS: Final[dict[str, Callable[[DeviceObject, int, int], Operation]]] = {
    "irp": HandBuiltIrp,
    "irp_built": BuiltIrp,
    "irp_reused": ReusedIrp,
    "direct": DirectCall,
}
_BATCHES: Final[dict[str, Callable[[DeviceObject, int, int, int], ClosableBatch]]] = {
    "irp": IrpBatch,
    "direct": DirectBatch,
}
_FLOORS: Final = ("floor_thread_switch", "floor_clock", "floor_memory_copy", "floor_private_copy")


def is_possible(run: BenchmarkRun) -> bool:
    """Tell whether there is such an operation, and so many can be in flight.

    They cannot where each ends before the next.
    """
    if run.path not in _CLIENTS and run.path not in _FLOORS:
        return False
    if run.depth == 1:
        return True
    return (
        1 < run.depth <= MAX_DEPTH and run.path in _BATCHES and run.completion != COMPLETION_INLINE
    )


def operation_of(io: "IoManager", run: BenchmarkRun) -> Operation:
    """Return what a run times."""
    client = _CLIENTS.get(run.path)
    if client is not None:
        return client(_noop(io), run.completion, run.payload)
    if run.path == "floor_thread_switch":
        return ThreadSwitch(io.processor)
    if run.path == "floor_memory_copy":
        return MemoryCopy(run.payload)
    return ClockReading()


def batch_of(io: "IoManager", run: BenchmarkRun) -> ClosableBatch:
    """Return what a run of many requests at a time does again and again."""
    return _BATCHES[run.path](_noop(io), run.completion, run.payload, run.depth)


def _noop(io: "IoManager") -> DeviceObject:
    noop = io.devices.get(NOOP_DEVICE)
    if noop is None:
        raise RaisedStatus(STATUS_NO_SUCH_DEVICE, "the no-op device is not loaded")
    return noop
