"""How a command's processes end: whom it started, whether they end with it, what is left."""

import contextlib
import os
import select
import time
from pathlib import Path

from shared.connection_file import runtime_root
from tests.ready_python import Program


def leftovers() -> list[Path]:
    """Find what benchmarks have left in the runtime folder."""
    return sorted(runtime_root().glob("bench-*"))


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return found


def wait_for_children(pid: int, count: int) -> list[int]:
    """Return the children of the benchmark once there are `count`."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = children_of(pid)
        if len(found) >= count:
            return found
        select.select([], [], [], 0.002)  # nobody is told of another's children
    raise AssertionError(f"no {count} children")


def end_of(descriptor: int, seconds: float) -> bool:
    """Tell whether the process behind a descriptor ends in time."""
    return bool(select.select([descriptor], [], [], seconds)[0])


def ends_with_all_it_started(process: Program, number: int, code: int, seconds: float) -> None:
    """Send a signal to a benchmark and its group: all of them end in time, and leave nothing."""
    descriptors = [os.pidfd_open(pid) for pid in wait_for_children(process.pid, 2)]
    try:
        begun = time.monotonic()
        os.killpg(process.pid, number)
        assert process.wait(5) == code
        assert all(end_of(descriptor, seconds) for descriptor in descriptors)
        assert time.monotonic() - begun < seconds
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert leftovers() == []
