"""Experiments over the benchmark's rows: with one mechanism changed, the verdict is another.

The mechanism is changed inside the kernel, by a driver that is loaded into it.
"""

from pathlib import Path

import pytest

from user_proc.experiments import row_run
from user_proc.experiments.buffering import Buffering
from user_proc.experiments.irp_or_direct import COMPARED, DIRECT, IRP, PLAN, IrpOrDirect

SIZE = 65536

SLOW_DIRECT_CALL = """
from kernel_proc.clients import benchmark_client
from kernel_proc.clients.direct_client import DirectCall

class Slow(DirectCall):
    __slots__ = ()

    def __call__(self):
        for _ in range(20):
            super().__call__()

def entry(driver):
    benchmark_client._CLIENTS["direct"] = Slow
    return 0
"""

COPIES_BEHIND_METHOD_NEITHER = """
from kernel_proc.devices import noop
from shared.ioctl_codes import COMPLETION_INLINE, METHOD_NEITHER, noop_code

def entry(driver):
    code = noop_code(METHOD_NEITHER, COMPLETION_INLINE)
    touch, completion = noop._REQUESTS[code]

    def copy_and_touch(irp, location):
        for _ in range(400):
            bytes(location.input_buffer_length)
        return touch(irp, location)

    noop._REQUESTS[code] = copy_and_touch, completion
    return 0
"""


@pytest.fixture(autouse=True)
def one_short_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(row_run._ROUNDS, True, 1)
    monkeypatch.setitem(row_run._OPERATIONS, True, 20)
    monkeypatch.setitem(row_run._WARM_UP, True, 5)


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total


def driver(folder: Path, text: str) -> dict[str, object]:
    file = folder / "changed.py"
    file.write_text(text, encoding="utf-8")
    return {"driver": (f"{file}:entry",)}


@pytest.mark.processes
@pytest.mark.parametrize(("changed", "words"), [("", "more"), (SLOW_DIRECT_CALL, "less")])
def test_an_irp_costs_more_than_a_direct_call_unless_that_is_slow(
    tmp_path: Path, changed: str, words: str
):
    options = driver(tmp_path, changed) if changed else {}
    experiment = IrpOrDirect((IRP, DIRECT), options)
    rows = experiment.run(True, silent)
    assert [row["path"] for row in rows] == ["irp", "direct"]
    verdict = experiment.verdict(rows)
    assert verdict.startswith("A kernel client's IRP against a direct call: ")
    assert f" us {words} (95 % interval" in verdict


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changed", "winner"), [("", "neither"), (COPIES_BEHIND_METHOD_NEITHER, "buffered")]
)
def test_mapping_wins_unless_it_copies(tmp_path: Path, changed: str, winner: str):
    options = driver(tmp_path, changed) if changed else {}
    experiment = Buffering((SIZE,), ("arena",), options)
    rows = experiment.run(True, silent)
    assert [row["copies"] for row in rows] == [2, 0]
    assert [row["wins"] for row in rows if row["method"] == winner] == ["yes"]
    assert experiment.verdict(rows).startswith(f"Arena: {winner} at 64 KiB;")


def test_what_is_compared_is_measured_and_each_row_is_compared_or_beside_one():
    assert len(PLAN) == len(set(PLAN))
    for words, one, other in COMPARED:
        assert words
        assert {one, other} <= set(PLAN)
