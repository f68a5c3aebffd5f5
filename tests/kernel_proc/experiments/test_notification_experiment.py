"""Six ways to learn of events: how each behaves, and that the verdict follows."""

from functools import partial

import pytest

from kernel_proc.experiments.experiment import DONE, Row
from kernel_proc.experiments.notification_clients import KINDS, OBJECTS
from kernel_proc.experiments.notification_ways import WAYS, NotificationWays
from kernel_proc.experiments.user_clients import BlockingClient, MiddlemanClient
from tests.experiment_pages import unexplained


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return NotificationWays().run(True, silent)


def of(rows: list[Row], way: str, key: str) -> list[object]:
    return [row[key] for row in rows if row["way"] == way]


def test_every_way_takes_both_kinds_of_event(rows: list[Row]):
    assert [(row["events"], row["way"]) for row in rows] == [
        (kind, way) for kind in KINDS for way in WAYS
    ]
    assert {row["outcome"] for row in rows} == {DONE}


def test_irps_threads_and_levels_are_those_of_each_way(rows: list[Row]):
    assert [of(rows, way, "irps")[0] for way in WAYS] == [1, 1, 1, 1, 0, 1]
    assert [of(rows, way, "threads")[0] for way in WAYS] == [1, 1, OBJECTS, OBJECTS, 0, 1]
    assert of(rows, "callback", "handled_at") == ["DISPATCH_LEVEL", "PASSIVE_LEVEL"]
    for way in ("pended IRPs", "kernel client's IRPs"):
        assert set(of(rows, way, "handled_at")) == {"PASSIVE_LEVEL"}


def test_no_way_loses_an_event_to_a_cancellation(rows: list[Row]):
    assert set(of(rows, "pended IRPs", "cancel")) == {"CancelIo: event kept"}
    assert set(of(rows, "middleman", "cancel")) == {"CancelIo: event kept"}
    assert set(of(rows, "blocking call", "cancel")) == {"CancelSynchronousIo: event kept"}
    assert set(of(rows, "kernel client's IRPs", "cancel")) == {"IoCancelIrp: event kept"}
    assert set(of(rows, "callback", "cancel")) == {"nothing to cancel: called all the same"}


def test_what_waits_in_kernel_mode_is_not_cancelled(rows: list[Row]):
    cancel = set(of(rows, "blocking in kernel mode", "cancel"))
    assert cancel == {"CancelSynchronousIo does not end it: called all the same"}


def test_only_the_middleman_runs_out_of_records(rows: list[Row]):
    overflow = {way: set(of(rows, way, "overflow")) for way in WAYS}
    assert overflow == {
        "pended IRPs": {"200 of 200 in 1"},
        "middleman": {"64 of 200 in 64"},
        "blocking call": {"200 of 200 in 1"},
        "blocking in kernel mode": {"200 of 200 in 200"},
        "callback": {"200 of 200 in 200"},
        "kernel client's IRPs": {"200 of 200 in 1"},
    }


def test_an_object_can_be_destroyed_but_not_everywhere(rows: list[Row]):
    assert {row["destroy"] for row in rows} == {"returns"}
    handler = {way: of(rows, way, "destroy_in_handler") for way in WAYS}
    assert handler == {
        "pended IRPs": ["returns", "returns"],
        "middleman": ["never returns", "never returns"],
        "blocking call": ["returns", "returns"],
        "blocking in kernel mode": ["returns", "returns"],
        "callback": ["refused", "returns"],
        "kernel client's IRPs": ["returns", "returns"],
    }


def test_only_what_waits_in_kernel_mode_outlives_its_process(rows: list[Row]):
    deaths = {way: set(of(rows, way, "death")) for way in WAYS}
    # Two of its objects were destroyed, and the threads that waited for them have gone on.
    assert deaths.pop("blocking in kernel mode") == {f"never ends: {OBJECTS - 2} threads wait on"}
    assert all(ends == {"ends"} for ends in deaths.values())


def test_the_verdict_names_who_fails_at_what(rows: list[Row]):
    verdict = NotificationWays().verdict(rows)
    assert "lose events when nobody asks: middleman;" in verdict
    assert "while its event is handled: middleman and callback;" in verdict
    assert verdict.endswith("outlive their process: blocking in kernel mode.")


def test_the_verdict_changes_with_the_mechanism():
    ways = {
        "middleman": partial(MiddlemanClient, most_records=400),
        "blocking in kernel mode": BlockingClient,
    }
    experiment = NotificationWays(ways, KINDS[:1])
    found = experiment.run(True, silent)
    assert of(found, "middleman", "overflow") == ["200 of 200 in 200"]
    verdict = experiment.verdict(found)
    assert "lose events when nobody asks: none;" in verdict
    assert verdict.endswith("outlive their process: none.")


def test_its_page_explains_every_column(rows: list[Row]):
    assert unexplained("notification", rows) == set()
