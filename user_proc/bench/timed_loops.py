"""Timing loops of a user process: one operation after another, or at the times of a schedule.

Rules: one thread; nothing is allocated for keeping while something is timed.
"""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shared.clock import now_ns

Operation = Callable[[], object]

_LEAST: Final = 5
#: How long before a moment its wait stops sleeping and looks at the clock.
SENDER_SPIN_NS: Final = 150_000


@dataclass(frozen=True, slots=True)
class Window:
    """What a block is asked for.

    `count` operations after `warmup` unmeasured ones, or fewer, but at least five, when
    `limit_ns` have passed. `begin_ns` is when the first one starts, 0 for at once; `interval_ns`
    is the distance of the intended starts of an open loop, 0 in a closed one.
    """

    count: int
    warmup: int = 0
    limit_ns: int = 60_000_000_000
    begin_ns: int = 0
    interval_ns: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """What a block gave: a time for each operation, and the time of all together.

    In an open loop `late_ns` is by how much the most belated operation was started after its
    intended start, and `last_late_ns` the same of the last one.
    """

    samples: "array[int]"
    elapsed_ns: int
    late_ns: int = 0
    last_late_ns: int = 0


Take = Callable[[Window], Taken]


def empty_samples(count: int) -> "array[int]":
    """Return room for so many samples."""
    return array("Q", bytes(8 * count))


def wait_until(moment_ns: int) -> None:
    """Wait for a moment: asleep as long as a sleep ends in time, then by looking at the clock."""
    while (left := moment_ns - now_ns()) > 0:
        if left > 2 * SENDER_SPIN_NS:
            time.sleep((left - SENDER_SPIN_NS) / 1e9)


def take(operation: Operation, window: Window) -> Taken:
    """Perform a block of single operations in the loop the window asks for."""
    for _ in range(window.warmup):
        operation()
    if window.interval_ns:
        return _paced(operation, window)
    if window.begin_ns:
        wait_until(window.begin_ns)
    return _timed(operation, window)


def take_moments(operation: Operation, count: int) -> "list[tuple[int, int]]":
    """Perform operations one by one; return when each began and ended."""
    moments = [(0, 0)] * count
    now = now_ns
    for index in range(count):
        begin = now()
        operation()
        moments[index] = (begin, now())
    return moments


def _timed(operation: Operation, window: Window) -> Taken:
    """Time operations one by one, each when the last has ended.

    The time of all together is the sum, unless several processes began together: then it
    includes what lies between the operations, as it does for everyone else.
    """
    count = window.count
    samples = empty_samples(count)
    now = now_ns
    first = end = now()
    deadline = first + window.limit_ns
    for index in range(count):
        begin = now()
        operation()
        end = now()
        samples[index] = end - begin
        if end > deadline and index >= _LEAST - 1:
            del samples[index + 1 :]
            break
    return Taken(samples, end - first if window.begin_ns else sum(samples))


def _paced(operation: Operation, window: Window) -> Taken:
    """Start operations at the times of a schedule; each is timed from its intended start.

    One that is due while the last one lasts starts late, and that is part of its time.
    """
    count, interval = window.count, window.interval_ns
    samples = empty_samples(count)
    now = now_ns
    late = most = 0
    first = end = window.begin_ns or now() + interval
    deadline = first + window.limit_ns
    for index in range(count):
        intended = first + index * interval
        wait_until(intended)
        late = now() - intended
        most = max(most, late)
        operation()
        end = now()
        samples[index] = end - intended
        if end > deadline and index >= _LEAST - 1:
            del samples[index + 1 :]
            break
    return Taken(samples, end - first, most, late)


def sample_store(window: Window) -> Taken:
    """Return what storing one sample takes, each figure the mean of a hundred."""
    samples = empty_samples(window.count)
    scratch = empty_samples(100)
    hundred = range(100)
    now = now_ns
    for index in range(window.count):
        begin = now()
        for position in hundred:
            scratch[position] = begin
        samples[index] = (now() - begin) // 100
    return Taken(samples, sum(samples))
