"""The one clock of all processes: nanoseconds, integers, the same on both sides of the boundary.

Rules: stamps compare only on one host within one boot.
Spec: time.perf_counter_ns is CLOCK_MONOTONIC on Linux.
"""

import time
from typing import Final

now_ns: Final = time.perf_counter_ns


def clock_info() -> dict[str, object]:
    """Describe the clock, for result files."""
    info = time.get_clock_info("perf_counter")
    return {
        "name": "perf_counter_ns",
        "implementation": info.implementation,
        "resolution_ns": max(1, round(info.resolution * 1e9)),
        "monotonic": info.monotonic,
        "adjustable": info.adjustable,
    }
