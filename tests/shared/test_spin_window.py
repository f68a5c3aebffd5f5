"""The time to look before sleeping, and when not to look at all."""

import pytest

from shared import spin_window
from shared.spin_window import LATE_NS, REST_NS, SpinWindow

LENGTH = 1_000_000


class Core:
    """A core whose clock the test moves; a yield takes as long as the test says."""

    def __init__(self) -> None:
        self.now = 10 * REST_NS
        self.yields = 0
        self.yield_ns = 0

    def sched_yield(self) -> None:
        self.yields += 1
        self.now += self.yield_ns


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    core = Core()
    monkeypatch.setattr(spin_window.os, "sched_yield", core.sched_yield)
    monkeypatch.setattr(spin_window, "now_ns", lambda: core.now)
    return core


def test_looking_lasts_as_long_as_the_window(core: Core):
    window = SpinWindow(LENGTH)
    assert window.end(core.now) == core.now + LENGTH
    assert window.is_open(core.now, core.now + LENGTH - 1)
    assert not window.is_open(core.now, core.now + LENGTH)
    assert not SpinWindow(0).is_open(core.now, core.now)


@pytest.mark.parametrize("taken", [0, 1, LATE_NS])
def test_a_yield_that_comes_back_soon_changes_nothing(core: Core, taken: int):
    window, core.yield_ns, began = SpinWindow(LENGTH), taken, core.now
    assert window.yield_core(core.now)
    assert core.yields == 1
    assert window.is_open(began, core.now)
    assert window.late == 0


def test_after_a_late_yield_nobody_looks_for_a_while(core: Core):
    window, core.yield_ns, began = SpinWindow(LENGTH), LATE_NS + 1, core.now
    assert not window.yield_core(core.now)
    assert window.late == 1
    assert not window.is_open(began, core.now)
    assert window.end(core.now) == core.now
    core.now += REST_NS - 1
    assert not window.is_open(core.now, core.now)
    core.now += 1
    assert window.is_open(core.now, core.now)
    assert window.end(core.now) == core.now + LENGTH


def test_what_is_late_can_be_told(core: Core):
    window, core.yield_ns = SpinWindow(LENGTH, late_ns=10 * LATE_NS), 10 * LATE_NS
    assert window.yield_core(core.now)
    core.yield_ns += 1
    assert not window.yield_core(core.now)
