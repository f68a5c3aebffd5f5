"""Doorbells: what is stored, in which places, and when the device is woken."""

import os
import threading

import pytest

from shared import doorbell_layout
from tests.user_proc.provider.device_side import DeviceSide
from user_proc.provider import doorbell_writer


@pytest.fixture
def device():
    return DeviceSide()


def test_ringing_stores_the_index_the_entry_and_the_count(device: DeviceSide):
    writer = device.writer()
    writer.ring(doorbell_layout.RING_SEND, 5, 77)
    writer.ring(doorbell_layout.RING_CQ_ARM, 6, (1 << 64) - 1)
    assert device.rung() == [(doorbell_layout.RING_SEND, 5), (doorbell_layout.RING_CQ_ARM, 6)]
    assert (device.index(5), device.index(6)) == (77, (1 << 64) - 1)
    assert writer.word(5) == 77


def test_storing_rings_nothing(device: DeviceSide):
    device.writer().store(9, 3)
    assert device.index(9) == 3
    assert device.rung() == []


def test_the_ring_wraps_and_the_count_goes_on(device: DeviceSide):
    writer = device.writer()
    for number in range(doorbell_layout.RING_ENTRIES + 3):
        writer.ring(doorbell_layout.RING_RECEIVE, number, number)
    device.seen = doorbell_layout.RING_ENTRIES
    assert [slot for _, slot in device.rung()] == [
        doorbell_layout.RING_ENTRIES + number for number in range(3)
    ]


def test_a_later_writer_goes_on_from_the_earlier_one(device: DeviceSide):
    device.writer().ring(doorbell_layout.RING_SRQ, 1, 1)
    device.writer().ring(doorbell_layout.RING_SRQ, 2, 1)
    assert device.rung() == [(doorbell_layout.RING_SRQ, 1), (doorbell_layout.RING_SRQ, 2)]


def test_only_a_device_that_sleeps_is_woken(device: DeviceSide):
    poke = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        writer = device.writer(poke)
        writer.ring(doorbell_layout.RING_SEND, 1, 1)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(poke)
        device.state[doorbell_layout.STATUS_SLEEPS_WORD] = 1
        writer.ring(doorbell_layout.RING_SEND, 1, 2)
        writer.ring(doorbell_layout.RING_SEND, 1, 3)
        assert os.eventfd_read(poke) == 2
    finally:
        os.close(poke)


def test_many_threads_ring_and_nothing_is_lost(device: DeviceSide):
    writer = device.writer()

    def ring(slot: int) -> None:
        for number in range(1, 301):
            writer.ring(doorbell_layout.RING_SEND, slot, number)

    threads = [threading.Thread(target=ring, args=(slot,)) for slot in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    rung = device.rung()
    assert [rung.count((doorbell_layout.RING_SEND, slot)) for slot in range(4)] == [300] * 4
    assert [device.index(slot) for slot in range(4)] == [300] * 4


def test_the_status_page_tells_hint_and_death(device: DeviceSide):
    writer = device.writer()
    assert (writer.spin_hint, writer.device_is_dead) == (0, False)
    device.state[doorbell_layout.STATUS_SPIN_HINT_WORD] = 40
    device.state[doorbell_layout.STATUS_FATAL_WORD] = 1
    assert (writer.spin_hint, writer.device_is_dead) == (40, True)


def test_an_empty_look_yields_as_the_hint_says_and_tells_a_dead_device(
    device: DeviceSide, monkeypatch: pytest.MonkeyPatch
):
    yields: list[int] = []
    monkeypatch.setattr(doorbell_writer.os, "sched_yield", lambda: yields.append(1))
    device.state[doorbell_layout.STATUS_SPIN_HINT_WORD] = 2
    writer = device.writer()
    assert [writer.rest(looks) for looks in (1, 2, 3, 4)] == [True] * 4
    assert len(yields) == 2
    device.state[doorbell_layout.STATUS_FATAL_WORD] = 1
    assert not writer.rest(5)
    assert len(yields) == 2


@pytest.mark.parametrize("late", [False, True])
def test_after_a_yield_that_came_back_late_it_is_crowded_for_a_while(
    device: DeviceSide, monkeypatch: pytest.MonkeyPatch, late: bool
):
    now, taken = 1_000_000_000, doorbell_writer.LATE_NS + late

    def yield_core() -> None:
        nonlocal now
        now += taken

    monkeypatch.setattr(doorbell_writer.os, "sched_yield", yield_core)
    monkeypatch.setattr(doorbell_writer, "now_ns", lambda: now)
    writer = device.writer()
    assert not writer.is_crowded
    assert writer.rest(1)
    assert writer.is_crowded == late
    taken, now = 0, now + doorbell_writer.CROWDED_NS
    assert writer.rest(2)
    assert not writer.is_crowded


def test_now_and_then_a_poller_leaves_the_processor_of_an_hca_that_is_awake(
    device: DeviceSide, monkeypatch: pytest.MonkeyPatch
):
    left: list[int] = []
    monkeypatch.setattr(doorbell_writer, "leave_processor", left.append)
    device.state[doorbell_layout.STATUS_SPIN_HINT_WORD] = 1 << 20
    device.state[doorbell_layout.STATUS_PROCESSOR_WORD] = 1 + 6
    writer = device.writer()
    for looks in range(64):
        writer.rest(looks)
    assert left == [6] * 4
    device.state[doorbell_layout.STATUS_SLEEPS_WORD] = 1
    for looks in range(64):
        writer.rest(looks)
    assert left == [6] * 4
