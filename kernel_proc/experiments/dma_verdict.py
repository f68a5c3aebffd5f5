"""What the rows of the experiment `dma-api` say, in words.

Rules: from the rows alone.
Spec: docs/dma.md.
"""

from collections.abc import Sequence
from typing import Any, Final

from kernel_proc.experiments.dma_methods import (
    COMMON_BUFFER,
    KERNEL,
    MAP_TRANSFER,
    METHODS,
    SCATTER_GATHER,
    USER,
)
from kernel_proc.experiments.experiment import Row
from kernel_proc.experiments.sample_figures import listed

WORKS: Final = "works"
STALE: Final = "stale data"
ASTRAY: Final = "reaches other memory"
STOPPED: Final = "bug check"

SHORT: Final = "short"
LONG: Final = "long"

PLENTY: Final = "free"
NO_REGISTERS: Final = "no map registers"
ONE_REGISTER: Final = "one map register for two pages"
NO_LOW_MEMORY: Final = "no map registers, no memory below 4 GiB"

BY_ADAPTER: Final = (COMMON_BUFFER, MAP_TRANSFER, SCATTER_GATHER)

Labels = dict[str, Any]


def tell(rows: Sequence[Row]) -> str:
    """Tell who shares memory with whom, at which level, what runs out, and what it takes."""
    told = (_sharing, _narrow, _levels, _exhausted, _calls)
    return " ".join(part(rows) for part in told)


def result_of(row: Row) -> str:
    """Return what came of a cell."""
    return STOPPED if "bug_check" in row else str(row["outcome"])


def _pick(rows: Sequence[Row], **labels: Any) -> list[Row]:
    wanted = {"resources": PLENTY, **labels}
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _shared(rows: Sequence[Row], result: str, **labels: Any) -> str:
    """Return the ways whose long mapping has a result at PASSIVE_LEVEL."""
    found = _pick(rows, mapping=LONG, irql="PASSIVE_LEVEL", **labels)
    return listed([row["method"] for row in found if result_of(row) == result])


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
            levels = [row["irql"] for row in found if result_of(row) == STOPPED]
            by_levels.setdefault(listed(levels), []).append(method)
        parts = [f"{listed(methods)} at {levels}" for levels, methods in by_levels.items()]
        sentences.append(f"Bug checks with {owner} memory: {'; '.join(parts)}.")
    return " ".join(sentences)


def _exhausted(rows: Sequence[Row]) -> str:
    def result(method: str, bits: int, resources: str, verifier: bool = False) -> str:
        found = _pick(rows, method=method, bits=bits, resources=resources, verifier=verifier)
        return listed([_told(row) for row in found])

    def results(resources: str) -> str:
        return ", ".join(
            f"{method} {result(method, 64, resources)} (64 bits) and "
            f"{result(method, 32, resources)} (32)"
            for method in BY_ADAPTER
        )

    return (
        f"With all map registers taken: {results(NO_REGISTERS)}; a common buffer for 32 bits "
        f"{result(COMMON_BUFFER, 32, NO_LOW_MEMORY)} once memory below 4 GiB is used up as well. "
        f"With one map register for two pages: {results(ONE_REGISTER)}; under the verifier "
        f"MapTransfer ends with {result(MAP_TRANSFER, 64, ONE_REGISTER, True)}."
    )


def _told(row: Row) -> str:
    """Return a result; a bug check by its code."""
    if result_of(row) != STOPPED:
        return result_of(row)
    return f"bug check {row['bug_check']['code']:#x}/{row['bug_check']['parameters'][0]:#x}"


def _calls(rows: Sequence[Row]) -> str:
    """Say how often a driver calls its adapter for a mapping of kernel memory."""
    labels: Labels = {"buffer": KERNEL, "irql": "PASSIVE_LEVEL", "mapping": SHORT, "bits": 64}
    parts = [
        f"{method} takes {listed([str(row['seen']['adapter_calls']) for row in found])}"
        for method in METHODS
        if (found := _pick(rows, method=method, verifier=False, **labels))
    ]
    return f"Calls of the adapter for one mapping: {', '.join(parts)}."
