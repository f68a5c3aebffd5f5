"""A thread leaves one processor, and may run on all it might run on before."""

import os
import threading

import pytest

from shared.processor_number import current_processor
from user_proc.provider import processor_choice
from user_proc.provider.processor_choice import leave_processor


def test_a_thread_knows_its_processor():
    assert current_processor() in os.sched_getaffinity(0)


def test_a_thread_leaves_a_processor_and_keeps_its_affinity(monkeypatch: pytest.MonkeyPatch):
    asked: list[set[int]] = []
    monkeypatch.setattr(processor_choice, "current_processor", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, allowed: asked.append(allowed))
    assert not leave_processor(1)  # it is elsewhere
    assert not leave_processor(-1)  # nobody knows where the HCA is
    assert asked == []
    assert leave_processor(2)
    assert asked == [{1, 5}, {1, 2, 5}]


def test_where_there_is_no_other_it_stays():
    found: list[tuple[bool, set[int]]] = []

    def alone() -> None:
        here = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {here})  # of this thread
        found.append((leave_processor(here), os.sched_getaffinity(0) - {here}))

    thread = threading.Thread(target=alone)
    thread.start()
    thread.join(20)
    assert found == [(False, set())]


def test_a_sandbox_that_forbids_it_is_no_error(monkeypatch: pytest.MonkeyPatch):
    def forbidden(_: int, allowed: set[int]) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(processor_choice, "current_processor", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2})
    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    assert not leave_processor(2)
