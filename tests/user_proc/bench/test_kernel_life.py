"""What a kernel costs without requests, measured on real ones."""

from dataclasses import replace

import pytest

from shared.connection_file import list_instances
from user_proc.bench.bench_settings import tiny_run
from user_proc.bench.kernel_life import IDLE_SESSIONS, measure_kernel_life

pytestmark = pytest.mark.processes


def test_starts_opens_and_idling_are_measured_and_nothing_is_left():
    before = [record.name for record in list_instances()]
    life = measure_kernel_life(replace(tiny_run(), kernel_starts=2, idle_ns=200_000_000))
    assert life["starts"] == 2
    assert 0 < life["start_ms"] <= life["start_max_ms"] < 10_000
    assert 0 < life["connect_and_open_ms"] <= life["connect_and_open_max_ms"] < 1_000
    opens = life["connect_and_open_context_ms"], life["connect_and_open_context_max_ms"]
    assert 0 < opens[0] <= opens[1] < 1_000
    assert (life["idle_sessions"], life["idle_s"]) == (IDLE_SESSIONS, 0.2)
    assert 0 <= life["idle_cpu_percent"] < 25  # a kernel that polls would take a whole core
    assert [record.name for record in list_instances()] == before
