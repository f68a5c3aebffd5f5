"""Experiments over the benchmark's rows: with one mechanism changed, the verdict is another.

The mechanism is changed inside the kernel, by a driver that is loaded into it.
"""

from pathlib import Path

import pytest

from tests.experiment_pages import unexplained
from user_proc.experiments.buffering import Buffering
from user_proc.experiments.irp_or_direct import COMPARED, DIRECT, IRP, PLAN, IrpOrDirect

DIRECT_CALL_BY_AN_IRP = """
from kernel_proc.clients import timed_operations
from kernel_proc.clients.irp_client import BuiltIrp

def entry(driver):
    timed_operations._CLIENTS["direct"] = BuiltIrp
    return 0
"""

ARENAS_BY_THE_PRIVATE_ROAD = """
from kernel_proc.memory.address_space import AddressSpace

def entry(driver):
    AddressSpace.arena_at = lambda space, address, length: None
    AddressSpace._touches_arena = lambda space, address, length: False
    return 0
"""


pytestmark = pytest.mark.usefixtures("one_short_round")


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total


def driver(folder: Path, text: str) -> dict[str, object]:
    file = folder / "changed.py"
    file.write_text(text, encoding="utf-8")
    return {"driver": (f"{file}:entry",)}


@pytest.mark.processes
@pytest.mark.parametrize(("changed", "words"), [("", "more"), (DIRECT_CALL_BY_AN_IRP, "less")])
def test_an_irp_costs_more_than_a_direct_call_unless_that_is_one(
    tmp_path: Path, changed: str, words: str
):
    options = driver(tmp_path, changed) if changed else {}
    experiment = IrpOrDirect((IRP, DIRECT), options)
    rows = experiment.run(True, silent)
    assert [row["path"] for row in rows] == ["irp", "direct"]
    assert unexplained("irp-or-direct", rows) == set()
    verdict = experiment.verdict(rows)
    assert verdict.startswith("A kernel client's IRP against a direct call: ")
    assert f" us {words} (95 % interval" in verdict


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changed", "size", "winner", "copies"),
    [  # of a size at which nothing else decides
        ("", 64, "neither", [2, 0]),
        (ARENAS_BY_THE_PRIVATE_ROAD, 4, "buffered", [2, 2]),
    ],
)
def test_mapping_wins_where_the_kernel_has_mapped(
    tmp_path: Path, changed: str, size: int, winner: str, copies: list[int]
):
    options = driver(tmp_path, changed) if changed else {}
    experiment = Buffering((size << 10,), ("arena",), options)
    rows = experiment.run(True, silent)
    assert unexplained("buffering", rows) == set()
    assert [row["copies"] for row in rows] == copies
    assert [row["wins"] for row in rows if row["method"] == winner] == ["yes"]
    assert experiment.verdict(rows).startswith(f"Arena: {winner} at {size} KiB;")


def test_what_is_compared_is_measured_and_each_row_is_compared_or_beside_one():
    assert len(PLAN) == len(set(PLAN))
    for words, one, other in COMPARED:
        assert words
        assert {one, other} <= set(PLAN)
