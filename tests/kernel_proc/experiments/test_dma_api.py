"""The experiment `dma-api`: its cells, and that its verdict follows what ran."""

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kernel_proc.experiments import dma_methods
from kernel_proc.experiments.dma_api import DMA_API, DmaApi, cells
from kernel_proc.experiments.dma_methods import (
    COMMON_BUFFER,
    KERNEL,
    MAP_TRANSFER,
    METHODS,
    PHYSICAL,
    SCATTER_GATHER,
    USER,
    Method,
)
from kernel_proc.experiments.dma_stage import PART, REFUSED, WAITS
from kernel_proc.experiments.dma_verdict import (
    ASTRAY,
    LONG,
    ONE_REGISTER,
    PLENTY,
    SHORT,
    STALE,
    STOPPED,
    WORKS,
    result_of,
)
from tests.experiment_pages import unexplained

MAPPED = (MAP_TRANSFER, SCATTER_GATHER)

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """Every cell, run once. What the suite holds already is not looked through for each."""
    gc.collect()
    gc.freeze()
    steps: list[tuple[int, int, str]] = []
    found = DMA_API.run(True, lambda *step: steps.append(step))
    assert [done for done, _, _ in steps] == list(range(len(found)))
    yield found
    gc.unfreeze()


def pick(rows: list[Row], **labels: Any) -> list[Row]:
    labels = {"resources": PLENTY, **labels}
    found = [row for row in rows if all(row[name] == value for name, value in labels.items())]
    assert found
    return found


def results(rows: list[Row], **labels: Any) -> set[str]:
    return {result_of(row) for row in pick(rows, **labels)}


def again(rows: list[Row], experiment: DmaApi, **labels: Any) -> list[Row]:
    """The rows with those of these labels run once more, by another experiment."""
    chosen = pick(rows, **labels)
    factors = next(iter(cells())).keys()
    return [
        experiment.cell({name: row[name] for name in factors}) if row in chosen else row
        for row in rows
    ]


def test_every_cell_has_a_row_and_a_result(rows: list[Row]):
    assert len(rows) == len(list(cells())) == 4 * 2 * 3 * 2 * 2 * 2 + 7 + 12
    known = {WORKS, STALE, ASTRAY, STOPPED, WAITS, REFUSED, PART}
    assert {result_of(row) for row in rows} == known
    assert all(row["outcome"].startswith("bug") == ("bug_check" in row) for row in rows)


def test_each_mapping_made_for_one_transfer_works_below_its_level(rows: list[Row]):
    for method in MAPPED:
        assert results(rows, method=method, mapping=SHORT, buffer=KERNEL) == {WORKS}
        assert results(rows, method=method, mapping=SHORT, irql="APC_LEVEL") == {WORKS}
    assert results(rows, method=COMMON_BUFFER, mapping=SHORT, irql="PASSIVE_LEVEL") == {WORKS}


@pytest.mark.parametrize("method", MAPPED)
def test_a_shared_mapping_is_stale_under_the_verifier(rows: list[Row], method: str):
    labels = {"method": method, "mapping": LONG, "bits": 64, "buffer": KERNEL}
    assert results(rows, **labels, verifier=False) == {WORKS}
    assert results(rows, **labels, verifier=True) == {STALE}
    (row,) = pick(rows, **labels, verifier=True, irql="PASSIVE_LEVEL")
    # Neither side sees the other, and the end overwrites what the owner has written meanwhile.
    assert [row["seen"][key] for key in ("to_device", "from_device", "kept_at_the_end")] == [
        False
    ] * 3


def test_a_common_buffer_is_shared_always_and_is_never_the_users(rows: list[Row]):
    labels = {"method": COMMON_BUFFER, "mapping": LONG, "irql": "PASSIVE_LEVEL"}
    assert results(rows, **labels, buffer=KERNEL) == {WORKS}
    assert results(rows, **labels, buffer=USER) == {STALE}


def test_a_narrow_device_shares_nothing_above_4_gib_and_goes_astray_by_itself(rows: list[Row]):
    labels = {"mapping": LONG, "bits": 32, "irql": "PASSIVE_LEVEL"}
    for method in MAPPED:
        assert results(rows, method=method, **labels) == {STALE}
    assert results(rows, method=PHYSICAL, **labels) == {ASTRAY}
    assert all(row["seen"]["others_overwritten"] for row in pick(rows, method=PHYSICAL, **labels))


@pytest.mark.parametrize(
    ("labels", "verified", "code"),
    [
        ({"method": COMMON_BUFFER, "irql": "APC_LEVEL"}, False, 0x0A),
        ({"method": COMMON_BUFFER, "irql": "DISPATCH_LEVEL"}, False, 0x0A),
        ({"method": COMMON_BUFFER, "irql": "APC_LEVEL"}, True, 0xE6),
        ({"method": SCATTER_GATHER, "irql": "DISPATCH_LEVEL", "buffer": USER}, False, 0x0A),
        ({"method": PHYSICAL, "irql": "DISPATCH_LEVEL", "buffer": USER}, True, 0xC4),
    ],
)
def test_a_level_too_high_is_the_cells_bug_check(
    rows: list[Row], labels: Row, verified: bool, code: int
):
    found = pick(rows, verifier=verified, **labels)
    assert {row["bug_check"]["code"] for row in found} == {code}


# --- the verdict follows the mechanism -----------------------------------------------------------


def test_without_double_buffering_the_verifier_breaks_nobody(rows: list[Row]):
    labels = {"mapping": LONG, "bits": 64, "verifier": True, "irql": "PASSIVE_LEVEL"}
    stale = "stale, without a word, with MapTransfer and scatter/gather"
    assert stale in DMA_API.verdict(rows)
    others = again(rows, DmaApi(double_buffering=False), **labels)
    for method in MAPPED:
        assert results(others, method=method, **labels) == {WORKS}
    assert "stale, without a word, with none" in DMA_API.verdict(others)
    assert "under DMA verification by MapTransfer, scatter/gather and" in DMA_API.verdict(others)


class InReach(dma_methods.ScatterGatherMethod):
    """Scatter/gather of memory that was asked for below 4 GiB."""

    @staticmethod
    def take(stage: Any, owner: str) -> dma_methods.Taken:
        buffer = stage.memory.allocate_contiguous(
            dma_methods.BUFFER_LENGTH, frames=range(1 << 20), may_wait=False
        )
        mdl = dma_methods.allocate_mdl(stage.processor, buffer, len(buffer))
        assert mdl is not None
        dma_methods.build_for_nonpaged_pool(mdl)
        return dma_methods.Taken(buffer.view, mdl)


class LockedBefore(dma_methods.ScatterGatherMethod):
    """Scatter/gather of user memory that was locked at PASSIVE_LEVEL."""

    @staticmethod
    def take(stage: Any, owner: str) -> dma_methods.Taken:
        level = stage.processor.irql
        stage.processor.lower_irql(0)
        taken = dma_methods.take_described(stage, owner)
        stage.processor.raise_irql(level)
        return taken


def replaced(method: Callable[[], Method]) -> Mapping[str, Callable[[], Method]]:
    return {**METHODS, SCATTER_GATHER: method}


def test_memory_below_4_gib_is_shared_with_a_narrow_device(rows: list[Row]):
    labels = {"method": SCATTER_GATHER, "buffer": KERNEL, "mapping": LONG, "bits": 32}
    labels |= {"verifier": False, "irql": "PASSIVE_LEVEL"}
    assert "share it by common buffer;" in DMA_API.verdict(rows)
    others = again(rows, DmaApi(replaced(InReach)), **labels)
    assert results(others, **labels) == {WORKS}
    assert "share it by common buffer and scatter/gather;" in DMA_API.verdict(others)


def test_memory_locked_before_can_be_mapped_at_dispatch_level(rows: list[Row]):
    labels = {"method": SCATTER_GATHER, "buffer": USER, "mapping": SHORT, "bits": 64}
    labels |= {"verifier": False, "irql": "DISPATCH_LEVEL"}
    assert "scatter/gather and physical address at DISPATCH_LEVEL." in DMA_API.verdict(rows)
    others = again(rows, DmaApi(replaced(LockedBefore)), **labels)
    assert results(others, **labels) == {WORKS}
    assert "MapTransfer and physical address at DISPATCH_LEVEL" in DMA_API.verdict(others)


def test_fewer_map_registers_than_pages_shorten_or_refuse(rows: list[Row]):
    few = {"resources": ONE_REGISTER, "verifier": False}
    assert results(rows, **few, method=COMMON_BUFFER) == {WORKS}
    assert results(rows, **few, method=MAP_TRANSFER) == {PART}
    assert results(rows, **few, method=SCATTER_GATHER, bits=64) == {WORKS}
    (row,) = pick(rows, **few, method=SCATTER_GATHER, bits=32)
    assert row["seen"]["why"] == "GetScatterGatherList: STATUS_INSUFFICIENT_RESOURCES"
    (row,) = pick(rows, **few, method=MAP_TRANSFER, bits=64)
    assert row["seen"]["why"] == "MapTransfer maps 4096 of 8192 bytes"
    labels = {"resources": ONE_REGISTER, "verifier": True, "method": MAP_TRANSFER}
    for row in pick(rows, **labels):
        assert row["bug_check"]["code"] == 0xE6
    assert "under the verifier MapTransfer ends with bug check 0xe6/0x0" in DMA_API.verdict(rows)


def test_the_calls_of_a_mapping_are_counted(rows: list[Row]):
    labels = {"buffer": KERNEL, "irql": "PASSIVE_LEVEL", "verifier": False}
    calls = {method: {row["seen"]["adapter_calls"] for row in pick(rows, method=method, **labels)}
             for method in METHODS}  # fmt: skip
    # Channel, MapTransfer, flush and registers; a list and its end; nothing but the allocation.
    assert calls[SCATTER_GATHER] == {2}
    assert calls[COMMON_BUFFER] == calls[PHYSICAL] == {0}
    assert min(calls[MAP_TRANSFER]) == 4


def test_what_runs_out_and_what_does_not(rows: list[Row]):
    verdict = DMA_API.verdict(rows)
    assert "common buffer works (64 bits) and works (32)" in verdict
    assert "MapTransfer waits (64 bits) and waits (32)" in verdict
    assert "scatter/gather works (64 bits) and waits (32)" in verdict
    assert "scatter/gather works (64 bits) and is refused (32); under the verifier" in verdict
    assert "is refused once memory below 4 GiB is used up as well" in verdict


def test_its_page_explains_every_column(rows: list[Row]):
    assert unexplained("dma-api", rows) == set()
