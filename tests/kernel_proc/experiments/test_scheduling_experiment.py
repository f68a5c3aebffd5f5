"""What completes a request: the verdict follows from what ran."""

import pytest

from kernel_proc.experiments.experiment import DONE, Row
from kernel_proc.experiments.scheduling_ways import (
    WAYS,
    Scheduling,
    by_dpc,
    by_threaded_dpc,
    by_work_item,
)
from tests.experiment_pages import unexplained


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total
    assert text


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return Scheduling().run(True, silent)


def cell(rows: list[Row], way: str, load: str) -> Row:
    return next(row for row in rows if (row["completed_by"], row["load"]) == (way, load))


def test_every_way_is_measured_alone_under_a_burst_and_waiting(rows: list[Row]):
    assert len(rows) == 3 * len(WAYS)
    for row in rows:
        if row["load"] != "it waits":
            assert row["outcome"] == DONE
            assert 0 < row["completed_us"] < row["resumed_us"]


def test_each_way_completes_where_its_kind_runs(rows: list[Row]):
    alone = [cell(rows, way, "none") for way in WAYS]
    assert [row["irql"] for row in alone] == ["DISPATCH_LEVEL", "PASSIVE_LEVEL", "PASSIVE_LEVEL"]
    assert [row["switches"] for row in alone] == [0, 1, 1]


def test_a_burst_stands_before_the_work_item_alone(rows: list[Row]):
    assert [cell(rows, way, "burst")["pieces_before"] for way in WAYS] == [0, 0, 20]


def test_only_a_work_item_may_wait(rows: list[Row]):
    outcomes = [cell(rows, way, "it waits")["outcome"] for way in WAYS]
    assert outcomes[:2] == ["bug check 0xb8 ATTEMPTED_SWITCH_FROM_DPC"] * 2
    assert outcomes[2] == DONE


def test_the_verdict_says_so(rows: list[Row]):
    verdict = Scheduling().verdict(rows)
    assert "of higher priority delays the work item;" in verdict
    assert verdict.endswith(" the work item may wait in its routine.")
    assert "threaded DPC" in verdict


def test_without_its_thread_a_threaded_dpc_is_a_dpc():
    experiment = Scheduling({"threaded DPC": by_threaded_dpc}, threaded_dpcs=False)
    found = experiment.run(True, silent)
    alone = cell(found, "threaded DPC", "none")
    assert (alone["irql"], alone["switches"]) == ("DISPATCH_LEVEL", 0)
    assert "at DISPATCH_LEVEL" in experiment.verdict(found)


def test_the_verdict_changes_with_the_mechanism():
    experiment = Scheduling({"DPC": by_work_item, "work item": by_dpc})
    verdict = experiment.verdict(experiment.run(True, silent))
    assert "of higher priority delays the DPC;" in verdict
    assert verdict.endswith(" the DPC may wait in its routine.")
    assert verdict.startswith("A work item has completed")


def test_its_page_explains_every_column(rows: list[Row]):
    assert unexplained("scheduling", rows) == set()
