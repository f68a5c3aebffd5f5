"""Ends of transfers at a real kernel: every row's messages, floors, what is broken, their ends."""

import contextlib
import ctypes
import os
import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shared.segment import PAGE_SIZE
from user_proc.bench.speed import speed_floors
from user_proc.bench.speed.shared_places import (
    WORD_CREDIT,
    WORD_STOP,
    MappedPlace,
    PlaceUnknown,
    make_words,
    map_words,
    place_of,
)
from user_proc.bench.speed.speed_blocks import PayloadWrong, Transfer
from user_proc.bench.speed.speed_kernels import WORKER, OwnRound
from user_proc.bench.speed.speed_rows import ATOMIC_BYTES, EVENT, SpeedSpec
from user_proc.bench.speed.speed_settings import tiny_run
from user_proc.bench.worker_link import WorkerCrowd, WorkerFailed, WorkerRefused
from user_proc.transport.kernel_starter import start_kernel

COUNT = 32
END_SECONDS = 20.0
ROWS = [
    SpeedSpec("post_to_poll", processes=1),
    SpeedSpec("send_lat", bytes=2),
    SpeedSpec("send_lat", "UD"),
    SpeedSpec("send_lat", mode=EVENT),
    SpeedSpec("send_lat", bytes=1 << 20),
    SpeedSpec("write_lat", bytes=5000),
    SpeedSpec("read_lat"),
    SpeedSpec("read_lat", mode=EVENT),
    SpeedSpec("atomic_lat", bytes=ATOMIC_BYTES),
    SpeedSpec("send_bw", bytes=65536, depth=4),
    SpeedSpec("write_bw", bytes=65536, depth=4, qps=2, processes=4),
    SpeedSpec("read_bw", bytes=65536, depth=4),
    SpeedSpec("msg_rate", depth=64, qps=2),
]


@pytest.fixture(scope="module")
def crowd(private_run: object) -> Iterator[WorkerCrowd]:
    """Four ends and a relay at one kernel."""
    with start_kernel("speed-ends"):
        started = WorkerCrowd("speed-ends", 5, WORKER)
        try:
            started.wait_until_ready()
            path = started.members[0].ask("make_words")["path"]
            for member in started.members:
                member.ask("map_words", path=path)
            yield started
        finally:
            started.close()


@pytest.mark.processes
@pytest.mark.parametrize("spec", ROWS, ids=lambda spec: f"{spec.label()} {spec.qps}")
def test_messages_arrive_and_floors_are_taken(crowd: WorkerCrowd, spec: SpeedSpec):
    transfer = Transfer(spec, crowd.members)
    transfer.prepare()
    for _ in range(2):
        taken = transfer.block(COUNT)
        assert taken.messages == COUNT * spec.pairs
        assert len(taken.samples) == (COUNT * spec.pairs if spec.is_latency else 0)
        assert taken.elapsed_ns >= sum(taken.samples) // spec.pairs
        floor = transfer.floor_block(5)
        assert len(floor.samples) == 5 * spec.pairs
        assert min(floor.samples) > 0
    transfer.release()


@pytest.mark.processes
def test_no_datagram_is_lost_of_more_than_the_receiver_has_room_for(crowd: WorkerCrowd):
    transfer = Transfer(SpeedSpec("msg_rate", "UD", depth=64), crowd.members)
    transfer.prepare()
    count = 64 * 4 * 4
    assert transfer.block(count).messages == count
    transfer.release()


@pytest.mark.processes
@pytest.mark.parametrize("op", ["write_bw", "read_bw", "atomic_lat"])
def test_bytes_that_are_not_those_sent_are_noticed(
    crowd: WorkerCrowd, op: str, monkeypatch: pytest.MonkeyPatch
):
    transfer = Transfer(SpeedSpec(op, bytes=ATOMIC_BYTES, depth=4), crowd.members)
    transfer.prepare()
    check = transfer._check

    def overwritten(words: Any, messages: int) -> None:
        for member in crowd.members[: 1 + (op == "atomic_lat")]:
            member.ask("fill", seed=99)
        check(words, messages)

    monkeypatch.setattr(transfer, "_check", overwritten)
    with pytest.raises(PayloadWrong):
        transfer.block(8)
    transfer.release()


@pytest.mark.processes
def test_a_refused_verb_is_told_and_the_process_goes_on(crowd: WorkerCrowd):
    member = crowd.members[0]
    with pytest.raises(WorkerRefused, match="MR"):
        member.ask("prepare", row=SpeedSpec("write_bw", bytes=1 << 40).as_dict())
    transfer = Transfer(SpeedSpec("send_lat"), crowd.members)
    transfer.prepare()
    assert transfer.block(5).messages == 5
    transfer.release()


@pytest.mark.processes
def test_a_relay_ends_with_the_benchmark(private_run: object):
    with start_kernel("speed-relay"):
        crowd = WorkerCrowd("speed-relay", 2, WORKER)
        try:
            crowd.wait_until_ready()
            user, relay = crowd.members
            path = user.ask("make_words")["path"]
            relay.ask("map_words", path=path)
            relay.send("relay", there_and_back=True, first=1)
            watched = os.pidfd_open(relay.pid)
        finally:
            crowd.close()
    # Whoever forked it has been waited for, and it was killed with that one.
    assert select.select([watched], [], [], END_SECONDS)[0]
    os.close(watched)


@pytest.mark.processes
def test_a_crowd_without_a_kernel_says_so(private_run: object):
    crowd = WorkerCrowd("speed-nobody", 1, WORKER)
    with pytest.raises(WorkerFailed, match="speed-nobody"):
        crowd.wait_until_ready()
    crowd.close()


@pytest.mark.processes
def test_a_load_runs_until_it_is_stopped(private_run: object):
    with contextlib.ExitStack() as stack:
        round_ = OwnRound(tiny_run(), stack)
        for _ in range(2):
            round_.load()  # and at once stopped: nothing may be lost on the way
            assert round_.unload() >= 0
        user = round_.workers[0]
        user.ask("map_words", path=user.ask("make_words")["path"])
        transfer = Transfer(SpeedSpec("post_to_poll", processes=1), round_.workers)
        round_.load()
        transfer.prepare()
        transfer.block(2000)
        transfer.release()
        assert round_.unload() > 0


# Places and floors in one process


def test_memory_is_found_by_its_place_and_shared():
    descriptor, path = make_words()
    words, again = map_words(path), map_words(path)
    words[WORD_CREDIT] = 7
    assert again[WORD_CREDIT] == 7
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(words.cast("B"), 8 * WORD_CREDIT))
    found, offset = place_of(address)
    assert offset == 8 * WORD_CREDIT
    place = MappedPlace(found, offset, 8)
    assert ctypes.string_at(place.address, 1) == b"\7"
    place.close()
    os.close(descriptor)


def test_memory_that_is_nobody_elses_has_no_place():
    private = (ctypes.c_ubyte * PAGE_SIZE)()
    with pytest.raises(PlaceUnknown):
        place_of(ctypes.addressof(private))


@pytest.mark.parametrize("there_and_back", [True, False])
def test_words_go_through_the_relay(there_and_back: bool):
    descriptor, path = make_words()
    words = map_words(path)
    os.close(descriptor)
    first, count = 41, 20
    relay = threading.Thread(
        target=speed_floors.relay,
        args=(words, first, 0, lambda: False),
        kwargs={"there_and_back": there_and_back},
    )
    other = threading.Thread(target=speed_floors.answer_relay, args=(words, first, count, 0))
    relay.start()
    if not there_and_back:
        other.start()
    samples = speed_floors.ask_relay(words, first, count, 0, ways=1)
    words[WORD_STOP] = 1
    relay.join()
    if not there_and_back:
        other.join()
    assert len(samples) == count


def test_a_copy_copies():
    source, target = (ctypes.create_string_buffer(b"abcdefgh"), ctypes.create_string_buffer(9))
    samples = speed_floors.copies(ctypes.addressof(source), ctypes.addressof(target), 8, 3)
    assert target.raw == b"abcdefgh\0"
    assert len(samples) == 3
