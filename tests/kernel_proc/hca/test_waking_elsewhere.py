"""A thread that is woken elsewhere: where it may run meanwhile and afterwards, whatever fails."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kernel_proc.hca.waking_elsewhere import wake_elsewhere
from shared.processor_number import current_processor


@pytest.fixture
def sleeper() -> Iterator[int]:
    program = subprocess.Popen(
        [sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    yield program.pid
    program.communicate(b"\n")


def test_who_is_woken_may_run_everywhere_else_meanwhile_and_as_before_then(sleeper: int):
    allowed = os.sched_getaffinity(sleeper)
    at_wake: list[set[int]] = []
    here: list[int] = []

    def wake() -> None:
        at_wake.append(os.sched_getaffinity(sleeper))
        here.append(current_processor())

    before = current_processor()
    wake_elsewhere(sleeper, wake)
    (meanwhile,) = at_wake
    if len(allowed) > 1:
        assert meanwhile in (allowed - {before}, allowed - {here[0]})
    else:
        assert meanwhile == allowed
    assert os.sched_getaffinity(sleeper) == allowed


def test_who_may_run_on_one_processor_alone_stays_there(sleeper: int):
    for number in os.sched_getaffinity(0):
        os.sched_setaffinity(sleeper, {number})
        at_wake: list[set[int]] = []
        wake_elsewhere(sleeper, lambda seen=at_wake: seen.append(os.sched_getaffinity(sleeper)))
        assert at_wake == [{number}]
        assert os.sched_getaffinity(sleeper) == {number}


@pytest.mark.parametrize("fails", ["sched_getaffinity", "sched_setaffinity"])
def test_it_is_woken_though_a_sandbox_forbids_it(
    sleeper: int, fails: str, monkeypatch: pytest.MonkeyPatch
):
    def forbidden(*_: object) -> None:
        raise PermissionError(fails)

    allowed = os.sched_getaffinity(sleeper)
    woken: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, fails, forbidden)
        wake_elsewhere(sleeper, lambda: woken.append(1))
    assert woken == [1]
    assert os.sched_getaffinity(sleeper) == allowed


def test_who_has_gone_meanwhile_is_no_error():
    gone = subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE)
    wake_elsewhere(gone.pid, lambda: gone.communicate(b"\n"))
    wake_elsewhere(gone.pid, lambda: None)
    assert gone.returncode == 0
