"""Experiment `scheduling`: a request completed by a DPC, a threaded DPC, or a work item.

The device pends a request and raises its line; its service routine queues what the cell varies,
and that completes the request. Under the load `burst` a thread above every worker becomes ready
with each request and does twenty pieces of work, between which it lets others run.

Rules: the routine that completes runs where its kind runs, and says so itself.
Spec: WDK, Introduction to DPCs; Introduction to Threaded DPCs; System Worker Threads.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from kernel_proc.experiments.experiment import DONE, Progress, Row, run_cell
from kernel_proc.experiments.sample_figures import listed, spread
from kernel_proc.io_manager import wdm
from kernel_proc.machine import Machine
from kernel_proc.scheduling.irql import irql_name
from kernel_proc.scheduling.threaded_dpc import ThreadedDpc
from kernel_proc.settings import KernelSettings
from shared.clock import now_ns
from shared.nt_status import STATUS_PENDING, STATUS_SUCCESS

DEVICE: Final = "scheduling experiment"
_TYPE: Final = 0x8100
_WARM_UP: Final = 20
_PIECES: Final = 20
_BURST_PRIORITY: Final = 14  # above the workers, below the thread of threaded DPCs
_MS: Final = 1_000_000

Finish = Callable[[], None]
Way = Callable[["Device"], Finish]


def by_dpc(device: "Device") -> Finish:
    """Have the service routine queue a DPC that completes."""
    dpc = wdm.Dpc(device.processor, lambda *_: device.complete())
    return lambda: _dropped(dpc.insert())


def by_threaded_dpc(device: "Device") -> Finish:
    """Have it queue a threaded DPC."""
    dpc = ThreadedDpc(device.processor, lambda *_: device.complete())
    return lambda: _dropped(dpc.insert())


def by_work_item(device: "Device") -> Finish:
    """Have it queue a DPC that queues a work item: none can be queued above DISPATCH_LEVEL."""
    item = wdm.WorkItem(device.processor, lambda *_: device.complete())
    dpc = wdm.Dpc(device.processor, lambda *_: item.insert())
    return lambda: _dropped(dpc.insert())


def _dropped(_: bool) -> None:
    """Take no note of whether it was queued already: there is one request at a time."""


WAYS: Final[dict[str, Way]] = {
    "DPC": by_dpc,
    "threaded DPC": by_threaded_dpc,
    "work item": by_work_item,
}


class Device:
    """A driver, its device and its hardware, for one request at a time."""

    def __init__(self, machine: Machine, way: Way, waits: bool = False) -> None:
        self.processor = machine.processor
        self._waits = waits
        self._irp: wdm.Irp | None = None
        self._finish = way(self)
        self._interrupt = wdm.Interrupt(self.processor, self._service)
        self._interrupt.connect()
        self._switches = 0
        self.interrupted_ns = 0
        self.completed_ns = 0
        self.switches = 0
        self.irql = 0
        self.pieces = 0  # of a burst, done so far
        self.pieces_before = 0
        driver = wdm.DriverObject(self.processor, DEVICE)
        driver.major_function[wdm.IRP_MJ_INTERNAL_DEVICE_CONTROL] = self._control
        self.device = wdm.create_device(driver, DEVICE, _TYPE)

    def _control(self, device: wdm.DeviceObject, irp: wdm.Irp) -> int:
        wdm.mark_irp_pending(irp)
        self._irp = irp
        self.processor.schedule_hardware(self._interrupt.request)
        return STATUS_PENDING

    def _service(self, interrupt: wdm.Interrupt, context: Any) -> bool:
        self._switches = self.processor.thread_switches
        self.pieces_before = self.pieces
        self.interrupted_ns = now_ns()
        self._finish()
        return True

    def complete(self) -> None:
        """Complete the request, wherever this is called."""
        self.completed_ns = now_ns()
        self.irql = self.processor.irql
        self.switches = self.processor.thread_switches - self._switches
        self.pieces_before = self.pieces - self.pieces_before
        if self._waits:
            wdm.delay_execution(self.processor, _MS)
        irp, self._irp = self._irp, None
        assert irp is not None
        wdm.finish_request(irp, STATUS_SUCCESS)


class _Requester:
    """Sends requests one after another and notes when each was completed and when it knew."""

    def __init__(self, device: Device, burst: bool) -> None:
        self._device = device
        self._burst = burst
        self._done = wdm.Event(device.processor, notification=False)
        self.completed: list[int] = []
        self.resumed: list[int] = []
        self.switches: list[int] = []
        self.pieces: list[int] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            self._once()

    def _once(self) -> None:
        device, processor = self._device, self._device.processor
        device.pieces = 0
        if self._burst:
            # Raised, so that the burst begins when this thread waits, not now.
            old = processor.raise_irql(wdm.DISPATCH_LEVEL)
        irp = wdm.allocate_irp(processor, device.device.stack_size)
        location = wdm.get_next_irp_stack_location(irp)
        location.major_function = wdm.IRP_MJ_INTERNAL_DEVICE_CONTROL
        wdm.set_completion_routine(irp, self._completed)
        wdm.call_driver(device.device, irp)
        if self._burst:
            processor.lower_irql(old)
            wdm.create_system_thread(
                processor, _work, device, name="burst", priority=_BURST_PRIORITY
            )
        self._done.wait()
        resumed = now_ns()
        self.completed.append(device.completed_ns - device.interrupted_ns)
        self.resumed.append(resumed - device.interrupted_ns)
        self.switches.append(device.switches)
        self.pieces.append(device.pieces_before)

    def _completed(self, device: wdm.DeviceObject | None, irp: wdm.Irp, context: Any) -> int:
        self._done.set()
        wdm.free_irp(irp)
        return wdm.STATUS_MORE_PROCESSING_REQUIRED


def _work(device: Device) -> None:
    for _ in range(_PIECES):
        sum(range(200))
        device.pieces += 1
        device.processor.dispatcher.yield_execution()


def _measure(machine: Machine, way: Way, burst: bool, count: int) -> Mapping[str, Any]:
    device = Device(machine, way)
    machine.processor.run_thread(_Requester(device, burst).run, _WARM_UP)
    requester = _Requester(device, burst)
    machine.processor.run_thread(requester.run, count)
    return {
        "irql": irql_name(device.irql),
        "switches": median(requester.switches),
        "pieces_before": median(requester.pieces),
        **spread("completed", requester.completed),
        **spread("resumed", requester.resumed),
        "requests": count,
    }


def _wait_in_it(machine: Machine, way: Way) -> Mapping[str, Any]:
    requester = _Requester(Device(machine, way, waits=True), burst=False)
    machine.processor.run_thread(requester.run, 1)
    return {"requests": 1}


class Scheduling:
    """The experiment; `ways` and `threaded_dpcs` are what it varies, or holds fixed."""

    name = "scheduling"
    question = "What does it cost to complete a request in a DPC, a threaded DPC, or a work item?"

    def __init__(self, ways: Mapping[str, Way] = WAYS, threaded_dpcs: bool = True) -> None:
        self._ways = ways
        self._threaded_dpcs = threaded_dpcs

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Measure each way alone and under a burst, then let its routine wait."""
        count = 300 if quick else 3_000
        cells = [(way, load) for load in ("none", "burst", "it waits") for way in self._ways]
        rows = []
        for done, (way, load) in enumerate(cells):
            progress(done, len(cells), f"{way}, load {load}")
            rows.append(self._cell(way, load, count))
        return rows

    def _cell(self, way: str, load: str, count: int) -> Row:
        make = self._ways[way]
        waits = load == "it waits"
        settings = KernelSettings(
            hca=False, seed=1, threaded_dpcs=self._threaded_dpcs, verifier=waits
        )

        def body(machine: Machine) -> Mapping[str, Any]:
            if waits:
                return _wait_in_it(machine, make)
            return _measure(machine, make, load == "burst", count)

        return run_cell({"completed_by": way, "load": load}, body, settings)

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say what each way costs, what delays it, and where a routine may wait."""
        alone = {row["completed_by"]: row for row in rows if row["load"] == "none"}
        best = min(alone, key=lambda way: alone[way]["completed_us"])
        costs = [
            f"a {way} {row['completed_us'] - alone[best]['completed_us']:.1f} us later "
            f"({row['switches']:.0f} thread switch{'' if row['switches'] == 1 else 'es'})"
            for way, row in alone.items()
            if way != best
        ]
        delayed = [
            f"the {row['completed_by']}"
            for row in rows
            if row["load"] == "burst" and row["pieces_before"] > 0
        ]
        allowed = [
            f"the {row['completed_by']}"
            for row in rows
            if row["load"] == "it waits" and row["outcome"] == DONE
        ]
        return (
            f"A {best} has completed the request {alone[best]['completed_us']:.1f} us after the "
            f"interrupt, at {alone[best]['irql']}; {listed(costs)}. A burst of threads of higher "
            f"priority delays {listed(delayed)}; {listed(allowed)} may wait in its routine."
        )


SCHEDULING: Final = Scheduling()
