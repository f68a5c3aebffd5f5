"""Provenance: what a run says of itself is there, is JSON, and is not guessed."""

import pytest

from shared.version import softhca_version
from user_proc import run_provenance
from user_proc.run_document import dump_strict
from user_proc.run_provenance import (
    begin_provenance,
    clock,
    end_provenance,
    switches,
)
from user_proc.transport.kernel_starter import start_kernel


def test_every_field_a_reader_needs_is_there():
    whole = end_provenance(begin_provenance(), ["virtual", "unpinned", "virtual"])
    assert set(whole) >= {
        "softhca", "python", "packages", "machine", "clock", "switches", "started", "finished",
        "duration_s", "load_before", "load_after", "marks", "garbage_collector", "command", "hcas",
    }  # fmt: skip
    assert set(whole["softhca"]) == {"version", "commit", "dirty"}
    assert whole["packages"]["libzmq"].count(".") == 2
    assert whole["packages"]["msgpack"]
    assert whole["machine"]["cores"] >= 1
    assert whole["marks"] == ["unpinned", "virtual"]
    assert whole["duration_s"] >= 0
    assert whole["hcas"] == []
    dump_strict(whole)


def test_the_clock_says_what_reading_it_costs():
    described = clock()
    assert described["implementation"] == "clock_gettime(CLOCK_MONOTONIC)"
    assert 1 < described["cost_ns"] < 100_000


def test_only_switches_that_change_something_are_told():
    environment = {"SOFTHCA_X": "1", "PYTHONPATH": "/somewhere", "PYTHONDEVMODE": "1", "HOME": "/"}
    assert switches(environment) == {"PYTHONDEVMODE": "1", "SOFTHCA_X": "1"}


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    source = begin_provenance()["softhca"]
    assert (source["commit"], source["dirty"]) == (None, None)
    assert source["version"] == softhca_version() != "unknown"


def test_a_package_that_is_not_installed_is_told_as_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_provenance, "PACKAGES", ("msgpack", "no-such-package-at-all"))
    versions = begin_provenance()["packages"]
    assert versions["no-such-package-at-all"] is None
    assert versions["msgpack"] is not None


@pytest.mark.processes
def test_the_hcas_of_a_run_are_those_of_its_kernels_each_once():
    modelled = {"latency_model": "plausible", "latency_factor": 0.01}
    with start_kernel("provenance-before", settings=modelled | {"latency_factor": 0.02}):
        begun = begin_provenance()
    for settings in ({}, {"hca": False}, modelled, {}):
        with start_kernel("provenance-test", settings=settings):
            pass
    assert end_provenance(begun, [])["hcas"] == [
        {"latency_model": "none", "latency_factor": 1.0, "hca_profile": None},
        {"latency_model": "plausible", "latency_factor": 0.01, "hca_profile": None},
    ]
