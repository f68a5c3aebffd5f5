"""Whoever was late with its Hello, among many who connect, tries again; other refusals hold."""

from typing import Any

import pytest

from shared.nt_status import STATUS_IO_TIMEOUT, STATUS_TOO_MANY_SESSIONS
from user_proc import process
from user_proc.errors import KernelRefused


class Door:
    """Refuses some times, then lets in."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.knocks = 0

    def __call__(self, paths: Any, memory: Any) -> str:
        self.knocks += 1
        if self.statuses:
            raise KernelRefused(self.statuses.pop(0), "no")
        return "in"


def introduce(monkeypatch: pytest.MonkeyPatch, door: Door) -> Any:
    monkeypatch.setattr(process, "LifelineChannel", door)
    return process._introduce(None, None)  # type: ignore[arg-type]  # the door looks at neither


def test_who_was_late_tries_again(monkeypatch: pytest.MonkeyPatch):
    door = Door(STATUS_IO_TIMEOUT, STATUS_IO_TIMEOUT)
    assert introduce(monkeypatch, door) == "in"
    assert door.knocks == 3


def test_who_is_always_late_is_told_so(monkeypatch: pytest.MonkeyPatch):
    door = Door(*[STATUS_IO_TIMEOUT] * 20)
    with pytest.raises(KernelRefused) as caught:
        introduce(monkeypatch, door)
    assert caught.value.status == STATUS_IO_TIMEOUT
    assert door.knocks == 5


def test_another_refusal_is_final(monkeypatch: pytest.MonkeyPatch):
    door = Door(STATUS_TOO_MANY_SESSIONS)
    with pytest.raises(KernelRefused):
        introduce(monkeypatch, door)
    assert door.knocks == 1
