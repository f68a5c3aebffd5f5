"""Which rows the benchmark takes: one base row, and factors varied from it.

The base row is a user's buffered IRP of 64 bytes in an arena, completed by the device. Method,
completion and payload are crossed for the two methods that are subtracted from each other; every
other factor is varied alone or with the payload. Fast I/O fixes method and completion by itself.

Rules: at most eighty rows, each once, in the order of the table.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from user_proc.bench.row_plan import (
    COMPLETIONS,
    DEPTH,
    FloorName,
    FloorSpec,
    Memory,
    Method,
    Path,
    RowSpec,
)

KIB: Final = 1024
PAYLOADS: Final = (0, 64, 4 * KIB, 64 * KIB)
LARGEST: Final = 1024 * KIB
PROCESSES: Final = (2, 4, 8)
BASE: Final = RowSpec("user", "irp", "buffered", "arena", "device", 64)

# Hand-built requests carry references; only IoBuildDeviceIoControlRequest makes a system buffer.
_KERNEL_METHODS: Final[dict[Path, Method]] = {
    "irp": "neither",
    "irp_built": "buffered",
    "irp_reused": "neither",
    "direct": "none",
}


def kernel_row(path: Path) -> RowSpec:
    """Return a kernel client's row of 64 bytes completed by a DPC."""
    return RowSpec("kernel", path, _KERNEL_METHODS[path], "none", "dpc", 64)


def _with_payloads(row: RowSpec, payloads: Iterable[int]) -> Iterator[RowSpec]:
    for payload in payloads:
        yield replace(row, payload=payload)


def _crossed(method: Method) -> Iterator[RowSpec]:
    """Yield the rows that are subtracted from those of the other method."""
    row = replace(BASE, method=method)
    for completion in COMPLETIONS:
        yield from _with_payloads(replace(row, completion=completion), PAYLOADS)
    yield replace(row, payload=LARGEST)


def user_rows() -> Iterator[RowSpec]:
    """Yield the rows of user programs."""
    neither = replace(BASE, method="neither")
    yield from _crossed("buffered")
    yield replace(BASE, depth=DEPTH)
    yield replace(BASE, depth=DEPTH, payload=64 * KIB)
    for processes in PROCESSES:
        yield replace(BASE, processes=processes)
    yield replace(BASE, verifier=True)
    yield from _crossed("neither")
    yield replace(neither, depth=DEPTH)
    direct: tuple[Method, ...] = ("in_direct", "out_direct")
    for method in direct:
        yield from _with_payloads(replace(BASE, method=method), (*PAYLOADS[1:], LARGEST))
    fast = replace(neither, path="fast_io", completion="inline")
    yield from _with_payloads(fast, PAYLOADS)
    yield replace(BASE, path="blocking")
    yield replace(neither, path="blocking")
    private: Memory = "private"
    yield replace(BASE, memory=private)
    for method in direct:
        yield replace(BASE, method=method, memory=private, payload=64 * KIB)
    yield from _with_payloads(replace(neither, memory=private, completion="inline"), PAYLOADS[1:])


def kernel_rows() -> Iterator[RowSpec]:
    """Yield the rows of kernel clients: IRP by hand, built, reused, and the direct call."""
    for path in _KERNEL_METHODS:
        row = kernel_row(path)
        compared = path in ("irp", "direct")
        yield replace(row, completion="inline")
        if path == "irp_reused":
            yield row
        else:
            yield from _with_payloads(row, PAYLOADS if compared else PAYLOADS[1:])
        if compared:
            yield replace(row, depth=DEPTH)
            yield replace(row, verifier=True)
        yield replace(row, completion="device")
        if compared:
            yield replace(row, completion="device", depth=DEPTH)


def plan_rows() -> tuple[RowSpec, ...]:
    """Return every row of the benchmark, in the order of the table."""
    return (*user_rows(), *kernel_rows())


def families(rows: Iterable[RowSpec]) -> list[tuple[RowSpec, ...]]:
    """Return rows in families: those that are subtracted from each other.

    The rows of a family differ in path, method and memory. Their blocks are taken in turn, so
    that a machine that changes slowly does the same to all of them.
    """
    found: dict[tuple[object, ...], list[RowSpec]] = {}
    for row in rows:
        found.setdefault(family_of(row), []).append(row)
    return [tuple(found[key]) for key in sorted(found, key=repr)]


def family_of(row: RowSpec) -> tuple[object, ...]:
    """Return what the rows of a family have in common."""
    return (row.client, row.verifier, row.processes, row.depth, row.completion, row.payload)


def open_loop_rows() -> tuple[RowSpec, ...]:
    """Return the rows an open loop asks for: one user process, one request after another."""
    return tuple(
        row
        for row in user_rows()
        if row.depth == row.processes == 1
        and not row.verifier
        and row.memory == "arena"
        and (row.payload == BASE.payload or row.completion == BASE.completion)
        and row.payload != LARGEST
    )


def stage_rows() -> tuple[RowSpec, ...]:
    """Return the rows whose requests are traced for their stages."""
    neither = replace(BASE, method="neither")
    return (
        replace(BASE, completion="inline"),
        replace(BASE, completion="dpc"),
        BASE,
        replace(BASE, payload=64 * KIB),
        neither,
        replace(neither, path="fast_io", completion="inline"),
    )


def extra_floors() -> tuple[FloorSpec, ...]:
    """Return the floors that stand beside the table without being any row's own."""
    sized: tuple[FloorName, ...] = ("memory_copy", "private_copy")
    return (
        FloorSpec("clock", 0),
        FloorSpec("user_clock", 0),
        FloorSpec("sample_store", 0),
        *(FloorSpec(name, payload) for name in sized for payload in PAYLOADS[1:]),
    )
