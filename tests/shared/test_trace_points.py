"""The trace ring: off by default, bounded, in order, whole entries from several threads."""

import threading

import pytest

from shared.trace_points import TraceRing, trace


def test_off_by_default():
    assert trace.enabled is False
    ring = TraceRing(4)
    ring.record("entry", 1)
    assert ring.last() == []


def test_keeps_the_latest_in_order():
    ring = TraceRing(4)
    ring.enabled = True
    for number in range(10):
        ring.record("step", number)
    assert [point.id for point in ring.last()] == [6, 7, 8, 9]
    assert [point.id for point in ring.last(2)] == [8, 9]
    assert ring.last(0) == []
    times = [point.ns for point in ring.last()]
    assert times == sorted(times)
    ring.clear()
    assert ring.last() == []


def test_two_threads_lose_nothing_that_fits():
    ring = TraceRing(2000)
    ring.enabled = True

    def run(name: str) -> None:
        for number in range(1000):
            ring.record(name, number)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "ab":
        numbers = [point.id for point in ring.last() if point.point == name]
        assert numbers == list(range(1000))


def test_a_ring_has_room():
    with pytest.raises(ValueError):
        TraceRing(0)
