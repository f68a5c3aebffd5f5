"""The trace ring: off by default, bounded, in order, whole entries from several threads."""

import threading

import pytest

from shared.trace_points import (
    POINT_SIZE,
    POINTS,
    USER_SENT,
    TracePoint,
    TraceRing,
    by_request,
    pack_points,
    trace,
    unpack_points,
)


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


def test_points_travel():
    points = [
        TracePoint(number, name, number << 40 | 1) for number, name in enumerate(POINTS[1:], 5)
    ]
    packed = pack_points(points)
    assert len(packed) == POINT_SIZE * len(points)
    assert unpack_points(packed) == points
    assert unpack_points(memoryview(packed)[:0]) == []
    assert pack_points([TracePoint(0x0102, USER_SENT, 0x0304)]) == bytes.fromhex(
        "0201000000000000 0403000000000000 03000000 00000000"
    )


def test_a_point_of_ones_own_has_no_name_elsewhere():
    (point,) = unpack_points(pack_points([TracePoint(1, "mine alone", -1)]))
    assert point == (1, "other", (1 << 64) - 1)


@pytest.mark.parametrize("data", [b"x", bytes(POINT_SIZE - 1), b"\xff" * POINT_SIZE])
def test_what_are_no_points(data: bytes):
    with pytest.raises(ValueError, match="trace point"):
        unpack_points(data)


def test_requests_are_told_apart():
    points = [TracePoint(3, "c", 1), TracePoint(1, "a", 1), TracePoint(2, "b", 2)]
    assert by_request(points) == {1: [points[1], points[0]], 2: [points[2]]}
