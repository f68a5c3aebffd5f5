"""The clock: integers, monotonic, one for all processes of a host."""

import subprocess
import sys

from shared.clock import clock_info, now_ns


def test_one_clock_for_all_processes():
    before = now_ns()
    program = "from shared.clock import now_ns; print(now_ns())"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert type(before) is int
    assert before < int(output.stdout) < now_ns()


def test_clock_info_can_go_into_a_result():
    info = clock_info()
    assert info["monotonic"] is True
    assert info["adjustable"] is False
    assert info["resolution_ns"] == 1
    assert "CLOCK_MONOTONIC" in str(info["implementation"])
