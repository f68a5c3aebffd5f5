"""Command times by verb: exact on the virtual clock, and cut where their classes end."""

import pytest

from kernel_proc.experiments import verb_command_times
from kernel_proc.experiments.experiment import DONE, Row
from kernel_proc.experiments.verb_command_times import CONNECTION, CommandTimes, time_key
from kernel_proc.hca import latency_model
from tests.experiment_pages import unexplained

SHORT, LONG = 320, 1_000_000


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    found = CommandTimes((SHORT, LONG)).run(True, silent)
    return {row["verb"]: row for row in found}


def test_each_verb_has_its_commands(rows: dict[str, Row]):
    assert {row["outcome"] for row in rows.values()} == {DONE}
    assert rows[CONNECTION]["classes"] == "CCC"
    assert rows["create_cq"]["classes"] == "BBA"
    assert rows["query_qp"]["classes"] == "A"
    assert rows["alloc_pd"]["commands"] == 0


def test_a_mean_within_the_classes_is_reached(rows: dict[str, Row]):
    for row in rows.values():
        assert row[time_key(SHORT)] == pytest.approx(SHORT * row["commands"], rel=1e-3)


def test_a_longer_mean_is_cut_at_the_classes(rows: dict[str, Row]):
    assert rows["query_qp"][time_key(LONG)] == pytest.approx(1_000, rel=1e-3)
    assert rows["dereg_mr"][time_key(LONG)] == pytest.approx(10_000, rel=1e-3)
    assert rows[CONNECTION][time_key(LONG)] == pytest.approx(300_000, rel=1e-3)


def test_the_verdict_says_what_was_cut_and_what_is_below_the_emulator(rows: dict[str, Row]):
    verdict = CommandTimes((SHORT, LONG)).verdict(list(rows.values()))
    assert "a verb takes its commands times the mean" in verdict
    assert "those of class A, B and C cut" in verdict
    assert "alloc_pd, create_ah, destroy_ah and dealloc_pd take no command" in verdict
    assert (
        "Of the 42 that the verbs sent, 12 are of class A, 20 are of class B and 10 are" in verdict
    )


def test_another_model_changes_the_verdict(monkeypatch: pytest.MonkeyPatch):
    as_asked = verb_command_times._model
    monkeypatch.setattr(verb_command_times, "_model", lambda mean_us: as_asked(2 * mean_us))
    experiment = CommandTimes((SHORT,))
    verdict = experiment.verdict(experiment.run(True, silent))
    assert "a verb does not take its commands times the mean" in verdict
    assert "those of class none cut" in verdict


def test_another_bound_changes_what_is_cut(monkeypatch: pytest.MonkeyPatch):
    experiment = CommandTimes((5_000,))
    assert "those of class A cut" in experiment.verdict(experiment.run(True, silent))
    monkeypatch.setitem(latency_model.CLASS_BOUND_NS, "A", latency_model.CLASS_BOUND_NS["B"])
    assert "those of class none cut" in experiment.verdict(experiment.run(True, silent))


def test_its_page_explains_every_column(rows: dict[str, Row]):
    assert unexplained("command-times", rows.values()) == set()
