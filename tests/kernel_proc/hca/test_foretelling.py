"""When a bell that wakes the HCA has it wake the kernel, too: if the last ones ended in events."""

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.foretelling import Foretelling
from kernel_proc.hca.process_loop import ProcessLoop

EVENT, VAIN = "event", "vain"


def told(*bells: str) -> list[bool]:
    """What is foretold at each bell, and what comes of it."""
    events = SimpleNamespace(written=7)
    foretelling = Foretelling(cast("EventTable", events))
    answers = []
    for outcome in bells:
        answers.append(foretelling.rung())
        events.written += outcome == EVENT
    answers.append(foretelling.rung())
    assert foretelling.told == sum(answers)
    return answers


def test_nothing_is_foretold_before_there_was_an_event():
    assert told(VAIN, VAIN) == [False] * 3
    assert told(EVENT) == [False, True]


def test_what_ends_in_events_is_foretold():
    assert told(*[EVENT] * 20) == [False] + [True] * 20


def test_a_program_that_only_polls_is_not_foretold_for_long():
    answers = told(*[EVENT] * 20, *[VAIN] * 20)
    assert answers[20:].count(True) == 8
    assert not any(answers[28:])


@pytest.mark.parametrize("pair", [(EVENT, VAIN), (VAIN, EVENT)])
def test_a_bell_in_vain_for_each_event_does_not_end_it(pair: tuple[str, str]):
    assert all(told(*pair * 20)[3:])


class Bells:
    """A watch in which bells and pokes ring as told."""

    def __init__(self) -> None:
        self.rung: list[tuple[int, int]] = []

    def poll(self, longest_s: float) -> list[tuple[int, int]]:
        rung, self.rung = self.rung, []
        return rung


def test_only_the_bell_of_a_session_that_ends_a_sleep_wakes_the_kernel():
    poke, session, woken = os.eventfd(0, os.EFD_NONBLOCK), 1_000_001, []
    moved: list[bool] = []
    events = SimpleNamespace(written=0)
    device = SimpleNamespace(
        settings=SimpleNamespace(idle_spin_us=0),
        times=None,
        tables=SimpleNamespace(events=events),
        kernel_sleeps=True,
        set_kernel_moved=moved.append,
        wake_kernel=lambda: woken.append(events.written),
    )
    control = SimpleNamespace(fileno=lambda: -1, serve=lambda: None)
    watch = Bells()
    loop = ProcessLoop(
        cast("Any", device), cast("Any", control), cast("Any", watch), poke, os.getpid()
    )

    def ring(*descriptors: int, slept: bool) -> None:
        watch.rung = [(descriptor, 1) for descriptor in descriptors]
        loop._serve_events(slept=slept)

    ring(session, slept=True)
    events.written = 1
    ring(session, slept=False)  # copying, not asleep
    os.eventfd_write(poke, 1)
    ring(poke, -1, slept=True)  # the kernel's own, and its mail
    assert woken == []
    ring(session, slept=True)
    assert woken == [1]
    assert moved == [True, False]
    device.kernel_sleeps = False
    ring(session, slept=True)
    assert (woken, len(moved)) == ([1], 2)
    os.close(poke)
