"""The experiment `mutex`: its cells are what runs, and a changed mechanism changes its verdict."""

from collections.abc import Iterator

import pytest

from kernel_proc.channel_interface.verbs_table import VerbsTable
from kernel_proc.clients.verbs_connection import open_verbs
from kernel_proc.experiments import control_verbs, mutex_choice
from kernel_proc.experiments.catalogue import EXPERIMENTS
from kernel_proc.experiments.control_verbs import CALL_BACK
from kernel_proc.experiments.experiment import DONE, Row
from kernel_proc.experiments.mutex_cells import HANGS
from kernel_proc.experiments.mutex_choice import LOCKS, ONCE_MORE, OWN_REQUEST, MutexExperiment
from kernel_proc.machine import Machine
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from kernel_proc.settings import KernelSettings
from tests.experiment_pages import unexplained

VERBS = ("alloc_pd", "create_cq", "destroy_cq", "dereg_mr", CALL_BACK)
FEW = {name: LOCKS[name] for name in ("fast mutex", "guarded mutex of Server 2003", "KMUTEX")}


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


@pytest.fixture(scope="module")
def every() -> Iterator[tuple[Machine, VerbsTable]]:
    """A machine on which one verb after another is carried out."""
    machine = Machine(KernelSettings(seed=1), in_process=True)
    machine.start_hca()
    _, table = machine.processor.run_thread(open_verbs, machine.io)
    yield machine, table
    machine.close()


def test_it_is_in_the_catalogue():
    assert EXPERIMENTS["mutex"].question.endswith("?")


def test_the_case_of_the_mail(few: tuple[MutexExperiment, list[Row]]):
    experiment, rows = few
    stopped = cell(rows, "fast mutex", CALL_BACK)
    assert stopped["outcome"] == "bug check 0xa IRQL_NOT_LESS_OR_EQUAL"
    assert stopped["bug_check"]["detail"].startswith("AllocateCommonBuffer called at APC_LEVEL")
    assert cell(rows, "fast mutex", "alloc_pd")["outcome"] == DONE
    assert "KeFlushQueuedDpcs" in cell(rows, "fast mutex", "destroy_cq")["bug_check"]["detail"]
    assert "FreeCommonBuffer" in cell(rows, "fast mutex", "dereg_mr")["bug_check"]["detail"]
    assert cell(rows, "fast mutex", mutex_choice.FROM_POOL)["outcome"] == DONE
    for lock in ("guarded mutex of Server 2003", "KMUTEX"):
        assert cell(rows, lock, CALL_BACK)["outcome"] == DONE
    verdict = experiment.verdict(rows)
    assert verdict.startswith(f"Under a fast mutex the {CALL_BACK} ends with bug check 0xa")
    assert "of the single verbs so do create_cq, destroy_cq and dereg_mr, the rest work" in verdict


@pytest.mark.parametrize("verb", control_verbs.VERBS)
def test_each_verb_is_made_ready_and_works_at_passive_level(
    every: tuple[Machine, VerbsTable], verb: str
):
    machine, table = every
    machine.processor.run_thread(lambda: control_verbs.Verbs(machine, table).ready(verb)())


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
    assert cell(rows, "KMUTEX", OWN_REQUEST, verifier=True)["outcome"] == DONE
    assert cell(rows, "KMUTEX", ONCE_MORE)["outcome"] == DONE
    verdict = experiment.verdict(rows)
    assert "never wakes inside fast mutex and guarded mutex of Server 2003" in verdict
    assert "Every verb and every wait works inside KMUTEX." in verdict


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


def test_its_page_explains_every_column(few: tuple[MutexExperiment, list[Row]]):
    assert unexplained("mutex", few[1]) == set()
