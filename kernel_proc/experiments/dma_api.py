"""Experiment `dma-api`: which of four ways to memory works for which buffer, level and device.

A short mapping is made anew for each transfer: filled, mapped, moved, unmapped, looked at. A long
one is made once and shared, as the rings and regions of an HCA are: the owner writes after it was
mapped and the device must see that, and what the device writes the owner must see before the end.

Rules: a cell's result is seen in the bytes that a device moved, or is the bug check it ended in.
Spec: "Using of fast mutexes in WinIb" (openib-windows, November 2005); docs/dma.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from kernel_proc.experiments.dma_methods import (
    COMMON_BUFFER,
    KERNEL,
    METHODS,
    USER,
    MappedRuns,
    Method,
    Taken,
    keep_all_map_registers,
)
from kernel_proc.experiments.dma_stage import BUFFER_LENGTH, MAP_REGISTERS, Stage
from kernel_proc.experiments.dma_verdict import (
    ASTRAY,
    BY_ADAPTER,
    LONG,
    NO_LOW_MEMORY,
    NO_REGISTERS,
    ONE_REGISTER,
    PLENTY,
    SHORT,
    STALE,
    WORKS,
    tell,
)
from kernel_proc.experiments.experiment import Progress, Row, run_cell
from kernel_proc.machine import Machine
from kernel_proc.scheduling.irql import (
    APC_LEVEL,
    DISPATCH_LEVEL,
    PASSIVE_LEVEL,
    irql_name,
)
from kernel_proc.settings import KernelSettings

_LEVELS: Final = (PASSIVE_LEVEL, APC_LEVEL, DISPATCH_LEVEL)
_FIRST: Final = bytes(range(1, 256)) * 33
_SECOND: Final = _FIRST[::-1]

Labels = dict[str, Any]
_SEEN: Final = ("to_device", "from_device", "kept_at_the_end")


def _read(stage: Stage, mapped: MappedRuns) -> bytes:
    return b"".join(stage.device.read(address, length) for address, length in mapped.runs)


def _write(stage: Stage, mapped: MappedRuns, data: bytes) -> None:
    done = 0
    for address, length in mapped.runs:
        stage.device.write(address, data[done : done + length])
        done += length


def short(stage: Stage, method: Method, owner: str) -> Labels:
    """Move a buffer to the device and another one from it, each through a mapping of its own."""
    first, second = _FIRST[:BUFFER_LENGTH], _SECOND[:BUFFER_LENGTH]
    taken = _take(stage, method, owner)
    taken.view[:] = first
    mapped = method.map(stage, taken, True)
    to_device = _read(stage, mapped) == first
    mapped.unmap()
    mapped = method.map(stage, taken, False)
    _write(stage, mapped, second)
    mapped.unmap()
    from_device = bytes(taken.view) == second
    return {**_asked(stage, mapped), "to_device": to_device, "from_device": from_device}


def long_term(stage: Stage, method: Method, owner: str) -> Labels:
    """Share a buffer: both write after it was mapped and look before it is unmapped."""
    first, second = _FIRST[:BUFFER_LENGTH], _SECOND[:BUFFER_LENGTH]
    taken = _take(stage, method, owner)
    taken.view[:] = bytes(BUFFER_LENGTH)
    mapped = method.map(stage, taken, True)
    taken.view[:] = first
    to_device = _read(stage, mapped) == first
    mapped.unmap()
    mapped = method.map(stage, taken, False)
    _write(stage, mapped, second)
    from_device = bytes(taken.view) == second
    taken.view[:] = first
    mapped.unmap()
    kept = bytes(taken.view) == first
    return {
        **_asked(stage, mapped),
        "to_device": to_device,
        "from_device": from_device,
        "kept_at_the_end": kept,
    }


def _take(stage: Stage, method: Method, owner: str) -> Taken:
    taken = method.take(stage, owner)
    stage.adapter_calls = 0
    return taken


def _asked(stage: Stage, mapped: MappedRuns) -> Labels:
    """Tell what one of the two mappings took: calls of the adapter, and runs for the device."""
    return {"adapter_calls": stage.adapter_calls // 2, "runs": len(mapped.runs)}


_EXCHANGES: Final[Mapping[str, Callable[[Stage, Method, str], Labels]]] = {
    SHORT: short,
    LONG: long_term,
}


def _judge(stage: Stage, seen: Labels) -> Labels:
    """Say what came of an exchange; what was seen of it is in the document only."""
    astray = stage.overwritten or stage.device.aborts
    works = all(seen[key] for key in _SEEN if key in seen)
    outcome = ASTRAY if astray else WORKS if works else STALE
    return {"outcome": outcome, "seen": {**seen, "others_overwritten": stage.overwritten}}


def cells() -> Iterator[Labels]:
    """Give the labels of every cell."""
    factors = product(METHODS, (KERNEL, USER), _LEVELS, (False, True), (64, 32), (SHORT, LONG))
    for method, owner, irql, verifier, bits, mapping in factors:
        yield _labels(method, owner, irql, verifier, bits, mapping, PLENTY)
    for method, bits in product(BY_ADAPTER, (64, 32)):
        yield _labels(method, KERNEL, PASSIVE_LEVEL, False, bits, SHORT, NO_REGISTERS)
    for method, bits, verifier in product(BY_ADAPTER, (64, 32), (False, True)):
        yield _labels(method, KERNEL, PASSIVE_LEVEL, verifier, bits, SHORT, ONE_REGISTER)
    yield _labels(COMMON_BUFFER, KERNEL, PASSIVE_LEVEL, False, 32, SHORT, NO_LOW_MEMORY)


def _labels(
    method: str, owner: str, irql: int, verifier: bool, bits: int, mapping: str, resources: str
) -> Labels:
    return {
        "method": method,
        "buffer": owner,
        "irql": irql_name(irql),
        "verifier": verifier,
        "bits": bits,
        "mapping": mapping,
        "resources": resources,
    }


class DmaApi:
    """The experiment; `methods` and `double_buffering` are what it varies, or holds fixed."""

    name = "dma-api"
    question = "Which way to memory works for a device: for whom, at which IRQL, when verified?"

    def __init__(
        self,
        methods: Mapping[str, Callable[[], Method]] = METHODS,
        double_buffering: bool = True,
    ) -> None:
        self._methods = methods
        self._double_buffering = double_buffering

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Run every cell once, quick or not: what is seen does not depend on how often."""
        every, rows = list(cells()), list[Row]()
        for done, labels in enumerate(every):
            progress(done, len(every), f"{labels['method']}, {labels['buffer']} buffer")
            rows.append(self.cell(labels))
        return rows

    def cell(self, labels: Labels) -> Row:
        """Run one cell on a machine of its own."""
        irql = next(level for level in _LEVELS if irql_name(level) == labels["irql"])

        def body(machine: Machine) -> Mapping[str, Any]:
            registers = 1 if labels["resources"] == ONE_REGISTER else MAP_REGISTERS
            stage = Stage(machine, labels["bits"], self._double_buffering, registers)
            method = self._methods[labels["method"]]()

            def driver() -> Labels:
                if labels["resources"] in (NO_REGISTERS, NO_LOW_MEMORY):
                    keep_all_map_registers(stage)
                if labels["resources"] == NO_LOW_MEMORY:
                    stage.use_up_low_memory()
                seen = _EXCHANGES[labels["mapping"]](stage, method, labels["buffer"])
                return _judge(stage, seen)

            try:
                return stage.run(irql, driver)
            finally:
                stage.close()

        settings = KernelSettings(hca=False, seed=1, verifier=labels["verifier"])
        return run_cell(labels, body, settings)

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say what shares memory under the verifier and without, at which level, and for whom."""
        return tell(rows)


DMA_API: Final = DmaApi()
