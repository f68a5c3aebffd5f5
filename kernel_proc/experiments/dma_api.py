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
    MAP_TRANSFER,
    METHODS,
    SCATTER_GATHER,
    USER,
    MappedRuns,
    Method,
    keep_all_map_registers,
)
from kernel_proc.experiments.dma_stage import BUFFER_LENGTH, Stage
from kernel_proc.experiments.experiment import DONE, Progress, Row, run_cell
from kernel_proc.experiments.sample_figures import listed
from kernel_proc.machine import Machine
from kernel_proc.scheduling.irql import (
    APC_LEVEL,
    DISPATCH_LEVEL,
    PASSIVE_LEVEL,
    irql_name,
)
from kernel_proc.settings import KernelSettings

WORKS: Final = "works"
STALE: Final = "stale data"
ASTRAY: Final = "reaches other memory"
STOPPED: Final = "bug check"

SHORT: Final = "short"
LONG: Final = "long"

PLENTY: Final = "free"
NO_REGISTERS: Final = "no map registers"
NO_LOW_MEMORY: Final = "no map registers, no memory below 4 GiB"

_LEVELS: Final = (PASSIVE_LEVEL, APC_LEVEL, DISPATCH_LEVEL)
_FIRST: Final = bytes(range(1, 256)) * 33
_SECOND: Final = _FIRST[::-1]

Labels = dict[str, Any]


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
    taken = method.take(stage, owner)
    taken.view[:] = first
    mapped = method.map(stage, taken, True)
    to_device = _read(stage, mapped) == first
    mapped.unmap()
    mapped = method.map(stage, taken, False)
    _write(stage, mapped, second)
    mapped.unmap()
    return {"to_device": to_device, "from_device": bytes(taken.view) == second}


def long_term(stage: Stage, method: Method, owner: str) -> Labels:
    """Share a buffer: both write after it was mapped and look before it is unmapped."""
    first, second = _FIRST[:BUFFER_LENGTH], _SECOND[:BUFFER_LENGTH]
    taken = method.take(stage, owner)
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
    return {"to_device": to_device, "from_device": from_device, "kept_at_the_end": kept}


_EXCHANGES: Final[Mapping[str, Callable[[Stage, Method, str], Labels]]] = {
    SHORT: short,
    LONG: long_term,
}


def _judge(stage: Stage, seen: Labels) -> Labels:
    """Say what came of an exchange."""
    if "result" in seen:
        return seen
    astray = stage.overwritten or stage.device.aborts
    works = all(seen.values())
    result = ASTRAY if astray else WORKS if works else STALE
    return {**seen, "others_overwritten": stage.overwritten, "result": result}


def cells() -> Iterator[Labels]:
    """Give the labels of every cell."""
    factors = product(METHODS, (KERNEL, USER), _LEVELS, (False, True), (64, 32), (SHORT, LONG))
    for method, owner, irql, verifier, bits, mapping in factors:
        yield _labels(method, owner, irql, verifier, bits, mapping, PLENTY)
    for method, bits in product((COMMON_BUFFER, MAP_TRANSFER, SCATTER_GATHER), (64, 32)):
        yield _labels(method, KERNEL, PASSIVE_LEVEL, False, bits, SHORT, NO_REGISTERS)
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
    question = (
        "Which way to memory works for a device: common buffer, MapTransfer, scatter/gather list, "
        "or physical addresses?"
    )

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
            stage = Stage(machine, labels["bits"], self._double_buffering)
            method = self._methods[labels["method"]]()

            def driver() -> Labels:
                if labels["resources"] != PLENTY:
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
        row = run_cell(labels, body, settings)
        return row if row["outcome"] == DONE else {**row, "result": STOPPED}

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say what shares memory under the verifier and without, at which level, and for whom."""
        return " ".join(
            (
                _sharing(rows),
                _narrow(rows),
                _levels(rows),
                _exhausted(rows),
            )
        )


def _pick(rows: Sequence[Row], **labels: Any) -> list[Row]:
    wanted = {"resources": PLENTY, **labels}
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _shared(rows: Sequence[Row], result: str, **labels: Any) -> str:
    """Return the ways whose long mapping has a result at PASSIVE_LEVEL."""
    found = _pick(rows, mapping=LONG, irql="PASSIVE_LEVEL", **labels)
    return listed([row["method"] for row in found if row["result"] == result])


def _sharing(rows: Sequence[Row]) -> str:
    free = _shared(rows, WORKS, buffer=USER, bits=64, verifier=False)
    user = _shared(rows, WORKS, buffer=USER, bits=64, verifier=True)
    kernel = _shared(rows, WORKS, buffer=KERNEL, bits=64, verifier=True)
    stale = _shared(rows, STALE, buffer=KERNEL, bits=64, verifier=True)
    return (
        f"A 64-bit device and a user share memory for long by {free}; under DMA verification by "
        f"{user}. The kernel's is shared there by {kernel}, and stale, without a word, "
        f"with {stale}."
    )


def _narrow(rows: Sequence[Row]) -> str:
    labels: Labels = {"buffer": KERNEL, "bits": 32, "verifier": False}
    return (
        "A 32-bit device and the kernel, whose memory lies above 4 GiB, share it by "
        f"{_shared(rows, WORKS, **labels)}; stale: {_shared(rows, STALE, **labels)}; "
        f"other memory is overwritten: {_shared(rows, ASTRAY, **labels)}."
    )


def _levels(rows: Sequence[Row]) -> str:
    sentences = []
    for owner in (KERNEL, USER):
        by_levels: dict[str, list[str]] = {}
        for method in METHODS:
            found = _pick(rows, method=method, buffer=owner, bits=64, mapping=SHORT, verifier=False)
            levels = [row["irql"] for row in found if row["result"] == STOPPED]
            by_levels.setdefault(listed(levels), []).append(method)
        parts = [f"{listed(methods)} at {levels}" for levels, methods in by_levels.items()]
        sentences.append(f"Bug checks with {owner} memory: {'; '.join(parts)}.")
    return " ".join(sentences)


def _exhausted(rows: Sequence[Row]) -> str:
    def result(method: str, bits: int, resources: str = NO_REGISTERS) -> str:
        found = _pick(rows, method=method, bits=bits, resources=resources)
        return listed([row["result"] for row in found])

    parts = [
        f"{method} {result(method, 64)} for 64 bits and {result(method, 32)} for 32"
        for method in (COMMON_BUFFER, MAP_TRANSFER, SCATTER_GATHER)
    ]
    return (
        f"With all map registers taken: {', '.join(parts)}; a common buffer for 32 bits is "
        f"{result(COMMON_BUFFER, 32, NO_LOW_MEMORY)} once memory below 4 GiB is used up as well."
    )


DMA_API: Final = DmaApi()
