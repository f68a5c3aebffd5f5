"""The division of descriptors: whatever the limit, the sum of the bounds stays below it."""

import re
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.server.connection_gate import AHEAD
from kernel_proc.server.descriptor_plan import (
    _OWN,
    _PER_ARENA,
    _PER_SESSION,
    _PER_SILENT,
    TooFewDescriptors,
    plan_descriptors,
    raise_descriptor_limit,
)
from kernel_proc.settings import KernelSettings


def test_descriptors_are_raised_as_far_as_allowed(monkeypatch: pytest.MonkeyPatch):
    limits = {"now": (256, 5000)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    assert raise_descriptor_limit() == 5000
    assert limits["now"] == (5000, 5000)
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert raise_descriptor_limit() == 1 << 20
    limits["now"] = (100, resource.RLIM_INFINITY)
    assert raise_descriptor_limit() == 1 << 20


@given(
    limit=st.integers(1, 1 << 20),
    threads=st.integers(1, 200),
    sessions=st.integers(1, 10_000),
    silent=st.integers(1, 1000),
)
def test_the_bounds_leave_a_reserve(limit: int, threads: int, sessions: int, silent: int):
    settings = KernelSettings(
        max_sessions=sessions, max_threads_per_session=threads, max_silent_connections=silent
    )
    try:
        plan = plan_descriptors(settings, limit)
    except TooFewDescriptors as refused:
        found = re.search(r"needs (\d+) descriptors", str(refused))
        assert found is not None
        assert int(found[1]) > limit
        plan_descriptors(settings, int(found[1]))
        with pytest.raises(TooFewDescriptors):
            plan_descriptors(settings, int(found[1]) - 1)
        return
    assert 1 <= plan.sessions <= sessions
    assert 1 <= plan.silent <= silent
    assert plan.connections >= threads + 1
    assert plan.arenas >= plan.sessions
    taken = (
        _OWN
        + plan.silent * _PER_SILENT
        + plan.strangers
        + plan.sessions * (_PER_SESSION + plan.connections)
        + plan.arenas * _PER_ARENA
    )
    assert taken <= limit - AHEAD  # libzmq takes as many before any can be judged


def test_a_usual_limit_carries_the_default_settings():
    plan = plan_descriptors(KernelSettings(), 1 << 19)
    assert (plan.sessions, plan.silent) == (256, 32)
    assert plan.arenas > 256 * 256 / 2
    assert plan_descriptors(KernelSettings(), 4096).sessions >= 30
    assert plan_descriptors(KernelSettings(), 1200).sessions == 1
