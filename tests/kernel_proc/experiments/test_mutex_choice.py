"""The experiment `mutex`: its cells are what runs, and a changed mechanism changes its verdict."""

import pytest

from kernel_proc.experiments import mutex_choice
from kernel_proc.experiments.catalogue import EXPERIMENTS
from kernel_proc.experiments.experiment import DONE, Row
from kernel_proc.experiments.mutex_cells import CALL_BACK, HANGS
from kernel_proc.experiments.mutex_choice import LOCKS, ONCE_MORE, OWN_REQUEST, MutexExperiment
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.irql import PASSIVE_LEVEL

VERBS = ("alloc_pd", "create_cq", "destroy_cq", CALL_BACK)
FEW = {name: LOCKS[name] for name in ("fast mutex", "guarded mutex of Server 2003", "mutex")}


def nothing(done: int, total: int, text: str) -> None:
    """Take no note of progress."""


def cell(rows: list[Row], lock: str, what: str, verifier: bool = False) -> Row:
    (row,) = [row for row in rows if (row["lock"], row["what"]) == (lock, what)
              and row["verifier"] == verifier]  # fmt: skip
    return row


@pytest.fixture(scope="module")
def few() -> tuple[MutexExperiment, list[Row]]:
    experiment = MutexExperiment(FEW, verbs=VERBS)
    return experiment, experiment.run(True, nothing)


def test_it_is_in_the_catalogue():
    assert EXPERIMENTS["mutex"].question.endswith("?")


def test_the_case_of_the_mail(few: tuple[MutexExperiment, list[Row]]):
    experiment, rows = few
    stopped = cell(rows, "fast mutex", CALL_BACK)
    assert stopped["outcome"] == "bug check 0xa IRQL_NOT_LESS_OR_EQUAL"
    assert stopped["bug_check"]["detail"].startswith("AllocateCommonBuffer called at APC_LEVEL")
    assert cell(rows, "fast mutex", "alloc_pd")["outcome"] == DONE
    assert "KeFlushQueuedDpcs" in cell(rows, "fast mutex", "destroy_cq")["bug_check"]["detail"]
    assert cell(rows, "fast mutex", mutex_choice.FROM_POOL)["outcome"] == DONE
    for lock in ("guarded mutex of Server 2003", "mutex"):
        assert cell(rows, lock, CALL_BACK)["outcome"] == DONE
    verdict = experiment.verdict(rows)
    assert verdict.startswith(f"Under a fast mutex the {CALL_BACK} ends with bug check 0xa")
    assert "of the single verbs so do create_cq and destroy_cq, the rest work" in verdict


def test_who_waits_for_a_request_of_its_own(few: tuple[MutexExperiment, list[Row]]):
    experiment, rows = few
    hung = cell(rows, "fast mutex", OWN_REQUEST)
    assert hung["outcome"] == HANGS
    (report,) = hung["report"]
    assert "it can never wake: at APC_LEVEL, holding fast mutex 'cl_mutex'" in report
    verified = cell(rows, "fast mutex", OWN_REQUEST, verifier=True)
    assert verified["bug_check"]["parameters"][0] == 0x302
    guarded = cell(rows, "guarded mutex of Server 2003", OWN_REQUEST, verifier=True)
    assert "it can never wake: in a guarded region" in guarded["report"][0]
    assert cell(rows, "mutex", OWN_REQUEST, verifier=True)["outcome"] == DONE
    assert cell(rows, "mutex", ONCE_MORE)["outcome"] == DONE
    verdict = experiment.verdict(rows)
    assert "never wakes inside fast mutex and guarded mutex of Server 2003" in verdict
    assert "Every verb and every wait works inside mutex." in verdict


def test_memory_from_pool_changes_the_case_of_the_mail():
    experiment = MutexExperiment({"fast mutex": LOCKS["fast mutex"]}, "pool", (CALL_BACK,))
    rows = experiment.run(True, nothing)
    assert cell(rows, "fast mutex", CALL_BACK)["outcome"] == DONE
    assert experiment.verdict(rows).startswith(f"The {CALL_BACK} works under every lock (pool).")


def test_a_fast_mutex_that_leaves_the_level_alone_changes_every_cell(
    monkeypatch: pytest.MonkeyPatch,
):
    def take(mutex: FastMutex) -> None:
        mutex._take()
        mutex.old_irql = PASSIVE_LEVEL

    monkeypatch.setattr(FastMutex, "acquire", take)
    monkeypatch.setattr(FastMutex, "release", FastMutex._give)
    experiment = MutexExperiment({"fast mutex": LOCKS["fast mutex"]}, verbs=VERBS)
    rows = experiment.run(True, nothing)
    assert cell(rows, "fast mutex", mutex_choice.INSIDE)["irql"] == "PASSIVE_LEVEL"
    assert not cell(rows, "fast mutex", mutex_choice.INSIDE)["as_told"]  # it says APC_LEVEL still
    assert cell(rows, "fast mutex", OWN_REQUEST)["outcome"] == DONE
    assert "Every verb and every wait works inside fast mutex." in experiment.verdict(rows)
