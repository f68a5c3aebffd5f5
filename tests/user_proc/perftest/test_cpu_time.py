"""How busy the machine was, from two looks at /proc/stat."""

from pathlib import Path

import pytest

from user_proc.perftest import cpu_time


def test_what_was_not_idle_counts_and_guests_count_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    stat = tmp_path / "stat"
    monkeypatch.setattr(cpu_time, "_STAT", stat)
    stat.write_text("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 2 3\n")
    since = cpu_time.CpuTime()
    assert since.utilization() == 0.0  # no time has passed
    stat.write_text("cpu  40 0 40 90 30 0 0 0 35 0\ncpu0 1 2 3\n")
    assert since.utilization() == pytest.approx(60.0)


def test_of_this_machine_it_is_a_share():
    since = cpu_time.CpuTime()
    assert 0.0 <= since.utilization() <= 100.0
