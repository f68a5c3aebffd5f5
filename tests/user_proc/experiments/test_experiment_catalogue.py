"""Experiments in a child and here: how they are found, run, told of and ended."""

import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests.experiment_pages import DOCS, page_of
from user_proc.experiments import catalogue, kernel_child
from user_proc.experiments.experiment import ExperimentFailed, Progress, Row


class Fake:
    question = "Is it?"

    def __init__(self, name: str, steps: int) -> None:
        self.name = name
        self._steps = steps

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        for done in range(self._steps):
            progress(done, self._steps, "step")
        return [{"quick": quick, "steps": self._steps}]

    def verdict(self, rows: Sequence[Row]) -> str:
        return f"{rows[0]['steps']} steps."


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_OWN", (Fake("one", 2), Fake("two", 5)))


@pytest.mark.usefixtures("fakes")
def test_an_experiment_is_run_and_told_of_by_its_name():
    told: list[float] = []
    texts: list[str] = []

    def progress(done: int, total: int, text: str) -> None:
        told.append(done / total)
        texts.append(text)

    result = catalogue.run_experiment("two", True, progress)
    assert (result["name"], result["verdict"]) == ("two", "5 steps.")
    assert result["rows"] == [{"quick": True, "steps": 5}]
    assert told == sorted(told)
    assert told[0] == 0
    assert told[-1] < 1
    assert texts[0] == "two: starting"


@pytest.mark.usefixtures("fakes")
def test_ours_stand_before_those_of_the_child(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "listed", lambda: {"one": "Theirs?", "three": "Which?"})
    assert catalogue.questions() == {"one": "Is it?", "two": "Is it?", "three": "Which?"}


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[str]"]:
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(kernel_child.subprocess, "Popen", start)
    return started


@pytest.mark.processes
def test_a_child_that_fails_says_why(children: list["subprocess.Popen[str]"]):
    with pytest.raises(ExperimentFailed, match=r"none-such ended with 2: .*invalid choice"):
        kernel_child.run_in_child("none-such", True, lambda *_: None)
    assert [child.returncode for child in children] == [2]


@pytest.mark.processes
def test_a_child_is_ended_by_whatever_ends_its_run(children: list["subprocess.Popen[str]"]):
    def progress(done: int, total: int, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kernel_child.run_in_child("one-path", False, progress)
    assert [child.returncode for child in children] == [-9]


@pytest.mark.processes
def test_each_experiment_has_a_page_and_a_question_that_fits_its_list():
    questions = catalogue.questions()
    assert [name for name in questions if not page_of(name).is_file()] == []
    answers = (DOCS / "answers.md").read_text(encoding="utf-8")
    assert [name for name in questions if answers.count(f"[{name}]") < 2] == []
    assert max(len(name) + 2 + len(text) for name, text in questions.items()) <= 100
