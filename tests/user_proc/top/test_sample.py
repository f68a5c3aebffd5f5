"""What is told of two looks at a kernel: rates, load, percentiles; what cannot be known is None."""

import copy
import os
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from user_proc.top.look import look_at
from user_proc.top.percentiles import request_percentiles
from user_proc.top.processes import ProcessTable
from user_proc.top.sample import Sample, _sample

State = dict[str, Any]
USAGE = {"cpu_percent": 1.5, "rss_bytes": 4096}
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def state() -> State:
    """A state as a kernel writes it, of one that does nothing."""
    machine = Machine(KernelSettings(), in_process=True)
    try:
        machine.start_hca()
        session = machine.connect_in_process("somebody")
        told: State = machine.processor.run_thread(machine.inspect_all)
        session.close()
        return told
    finally:
        machine.hca and machine.hca.close()
        machine.close()


def compare(before: State, after: State) -> Sample:
    look = look_at(after)
    pids = {one["pid"] for one in look.sessions.values()} | {look.pid}
    return _sample("k", look_at(before), look, {pid: USAGE for pid in pids}, 2_500_000)


def after_two_seconds(state: State) -> State:
    later = copy.deepcopy(state)
    later["clock_ns"] += 2 * SECOND
    return later


def test_of_a_kernel_that_does_nothing_every_rate_is_zero(state: State):
    sample = compare(state, after_two_seconds(state))
    assert sample["seconds"] == 2.0
    assert sample["asked_ms"] == 2.5
    assert set(sample["rates"].values()) == {0.0}
    assert sample["request_us"]["timed"] == 0
    assert [port["port"] for port in sample["ports"]] == [1, 2]
    assert sample["qps"] == []
    (session,) = sample["sessions"]
    assert (session["process"], session["requests_per_s"]) == ("somebody", 0.0)


def test_rates_are_of_a_second_and_of_sessions_that_are_still_there(state: State):
    later = after_two_seconds(state)
    first = later["server"]["sessions"][0]
    first["requests"] += 10
    later["server"]["sessions"].append({**first, "session": 99, "requests": 6})
    later["hca"]["driver"]["hca"]["verbs"] += 4
    later["dispatcher"]["dpcs"] += 1
    later["hca"]["driver"]["hca"]["commands"]["executed"]["NEW"] = 8
    sample = compare(state, later)
    assert sample["rates"]["requests"] == 8.0
    assert (sample["rates"]["verbs"], sample["rates"]["dpcs"]) == (2.0, 0.5)
    assert sample["rates"]["commands"] == 4.0
    gone = after_two_seconds(later)
    del gone["server"]["sessions"][0]
    assert compare(later, gone)["rates"]["requests"] == 0.0


def test_a_counter_that_fell_has_begun_anew(state: State):
    before = copy.deepcopy(state)
    before["hca"]["device"]["events"]["written"] = 1000
    later = after_two_seconds(state)
    later["hca"]["device"]["events"]["written"] = 6
    assert compare(before, later)["rates"]["events"] == 3.0


def test_ports_and_queue_pairs_tell_messages_and_bytes(state: State):
    later = after_two_seconds(state)
    counters = later["hca"]["device"]["ports"]["1"]["counters"]
    counters["sent_messages"], counters["sent_bytes"] = 20, 4096
    still = copy.deepcopy(later["hca"]["device"]["ports"]["2"]["counters"])
    later["hca"]["device"]["qps"] = {
        "1030": {"state": "RTS", "counters": {**still, "sent_messages": 2, "sent_bytes": 8}},
        "1031": {"state": "RTS", "counters": {**counters, "received_messages": 4}},
        "1032": {"state": "RTS", "counters": still},
    }
    sample = compare(state, later)
    port, quiet = sample["ports"]
    assert (port["sent_messages_per_s"], port["sent_bytes_per_s"]) == (10.0, 2048.0)
    assert quiet["sent_messages_per_s"] == 0.0
    assert [row["number"] for row in sample["qps"]] == [1031, 1030]  # the busiest first
    assert sample["qps"][0]["received_messages_per_s"] == 2.0
    assert sample["qps"][0]["session"] is None  # the kernel's own


def test_the_load_of_the_hca_is_shared_out(state: State):
    later = after_two_seconds(state)
    times = later["hca"]["device"]["times"]
    times["now_ns"] += 1000
    times["looked_ns"] += 200
    times["slept_ns"] += 300
    hca = compare(state, later)["hca"]
    assert [hca[f"{name}_percent"] for name in ("busy", "looking", "asleep")] == [50.0, 20.0, 30.0]
    times["slept_ns"] += 10_000  # a sleep that began before
    hca = compare(state, later)["hca"]
    assert (hca["busy_percent"], hca["asleep_percent"]) == (0.0, 100.0)


@pytest.mark.parametrize("what", ["silent", "dead", "none"])
def test_of_an_hca_that_tells_nothing_nothing_is_made_up(state: State, what: str):
    later = after_two_seconds(state)
    if what == "silent":
        later["hca"]["device"] = {"error": "the HCA does not answer"}
    elif what == "dead":
        later["hca"]["device"] = {"error": "it is dead"}
        later["hca"]["driver"].update(up=False, failure="it was killed", hca={})
    else:
        later["hca"] = {}
    sample = compare(state, later)
    assert sample["hca"]["state"].startswith(what)
    assert sample["hca"]["busy_percent"] is None
    assert sample["rates"]["events"] is None
    assert sample["rates"]["requests"] == 0.0
    assert (sample["ports"], sample["qps"]) == ([], [])


def test_percentiles_are_of_the_interval_alone():
    before = {1000: 5, 8000: 1}
    after = {1000: 55, 2000: 40, 8000: 10, 99000: 1}
    times = request_percentiles(before, after)
    assert times == {"timed": 100, "p50": 1.0, "p90": 2.0, "p99": 8.0, "longest": 99.0}
    nothing = request_percentiles(after, after)
    assert nothing == {"timed": 0, "p50": None, "p90": None, "p99": None, "longest": None}


def test_processes_have_memory_at_once_and_time_from_the_second_look():
    table = ProcessTable()
    own = os.getpid()
    first = table.look({own, 1 << 30})
    assert first[own]["cpu_percent"] is None
    assert first[own]["rss_bytes"] > 1 << 20
    assert first[1 << 30] == {"cpu_percent": None, "rss_bytes": None}
    assert table.look({own})[own]["cpu_percent"] is not None
    table.look(set())
    assert table.look({own})[own]["cpu_percent"] is None  # it was forgotten meanwhile
