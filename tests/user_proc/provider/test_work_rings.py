"""Send, receive and shared receive rings against a model: N requests fit, no slot is lost."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import doorbell_layout
from tests.user_proc.provider.device_side import DeviceSide
from user_proc.provider.receive_ring import ReceiveRing, SharedReceiveRing
from user_proc.provider.send_ring import SendRing

STRIDE = 64
ENTRY = bytes(range(16))


def make_send(device: DeviceSide, memory: bytearray, limit: int, start: int = 0) -> SendRing:
    device.words[doorbell_layout.FIRST_SLOT_WORD + 3] = start
    kind = doorbell_layout.RING_SEND
    return SendRing(device.writer(), kind, 3, memoryview(memory), STRIDE, limit)


def test_entries_lie_at_their_stride_and_are_told_once():
    device, memory = DeviceSide(), bytearray(4 * STRIDE)
    ring = make_send(device, memory, 4)
    for number in range(3):
        ring.put(100 + number, bytes([number]) * 16)
    assert device.rung() == []
    ring.publish()
    assert device.rung() == [(doorbell_layout.RING_SEND, 3)]
    assert device.index(3) == 3
    assert [memory[place * STRIDE] for place in range(3)] == [0, 1, 2]


def test_the_word_is_counted_on_from_where_the_slot_was_left():
    device, memory = DeviceSide(), bytearray(4 * STRIDE)
    ring = make_send(device, memory, 4, start=(1 << 32) + 6)
    assert not ring.is_full
    ring.put(7, b"here")
    ring.publish()
    assert device.index(3) == (1 << 32) + 7
    assert memory[2 * STRIDE : 2 * STRIDE + 4] == b"here"
    assert ring.complete(6) == 7
    assert ring.outstanding == 0


def test_a_later_completion_frees_the_unsignaled_before_it():
    ring = make_send(DeviceSide(), bytearray(8 * STRIDE), 8)
    for number in range(8):
        ring.put(number, ENTRY)
    assert ring.is_full
    assert ring.complete(4) == 4
    assert ring.outstanding == 3
    assert ring.complete(4) is None  # it is free already
    assert ring.complete(7) == 7
    assert ring.complete(8) is None  # it was never posted


def test_a_reset_ring_is_empty_and_goes_on_at_the_same_word():
    device = DeviceSide()
    ring = make_send(device, bytearray(4 * STRIDE), 4)
    for number in range(4):
        ring.put(number, ENTRY)
    ring.publish()
    ring.reset()
    assert ring.outstanding == 0
    assert device.index(3) == 4
    ring.put(9, ENTRY)
    assert ring.complete(3) is None
    assert ring.complete(4) == 9


@given(
    st.integers(1, 8),
    st.integers(0, (1 << 64) - 1000),
    st.lists(st.one_of(st.just("post"), st.integers(0, 7)), max_size=60),
)
def test_in_order_ring_against_a_model(limit: int, start: int, steps: list[str | int]):
    size = 1 << (limit - 1).bit_length()
    ring = make_send(DeviceSide(), bytearray(size * STRIDE), limit, start)
    model: deque[tuple[int, int]] = deque()
    position = start
    for step in steps:
        if step == "post":
            assert ring.is_full == (len(model) == limit)
            if len(model) < limit:
                ring.put(position * 3 & 0xFFFF, ENTRY)
                model.append((position, position * 3 & 0xFFFF))
                position += 1
        elif model and isinstance(step, int):
            skip = min(step, len(model) - 1)
            for _ in range(skip):
                model.popleft()  # unsignaled
            at, wr_id = model.popleft()
            assert ring.complete(at & 0xFFFFFFFF) == wr_id
        assert ring.outstanding == len(model)


def test_a_receive_ring_rings_as_one():
    device = DeviceSide()
    ring = ReceiveRing(device.writer(), 2, memoryview(bytearray(2 * STRIDE)), STRIDE, 2)
    ring.put(1, ENTRY)
    ring.publish()
    assert device.rung() == [(doorbell_layout.RING_RECEIVE, 2)]


def make_shared(device: DeviceSide, limit: int, start: int = 0) -> SharedReceiveRing:
    size = 1 << (limit - 1).bit_length()
    device.words[doorbell_layout.FIRST_SLOT_WORD + 4] = start
    view = memoryview(bytearray(size * STRIDE))
    return SharedReceiveRing(device.writer(), 4, view, STRIDE, limit)


@given(
    st.integers(1, 8),
    st.integers(0, (1 << 64) - 1000),
    st.lists(st.one_of(st.just("post"), st.integers(0, 7)), max_size=60),
)
def test_shared_ring_against_a_model(limit: int, start: int, steps: list[str | int]):
    """Taken in order, completed in any: what is in memory but not taken is never overwritten."""
    ring = make_shared(DeviceSide(), limit, start)
    outstanding: dict[int, int] = {}
    untaken: deque[int] = deque()
    position = start
    for step in steps:
        if step == "post":
            assert ring.is_full == (len(outstanding) == limit)
            if not ring.is_full:
                assert len(untaken) < limit
                ring.put(position & 0xFFF, ENTRY)
                outstanding[position] = position & 0xFFF
                untaken.append(position)
                position += 1
        elif outstanding and isinstance(step, int):
            at = sorted(outstanding)[step % len(outstanding)]
            while untaken and untaken[0] <= at:
                untaken.popleft()
            assert ring.complete(at & 0xFFFFFFFF) == outstanding.pop(at)
        assert ring.outstanding == len(outstanding)


def test_a_shared_ring_completes_nothing_twice():
    device = DeviceSide()
    ring = make_shared(device, 2)
    ring.put(5, ENTRY)
    ring.publish()
    assert device.rung() == [(doorbell_layout.RING_SRQ, 4)]
    assert ring.complete(0) == 5
    assert ring.complete(0) is None
    assert ring.complete(1) is None


def test_released_rings_are_touched_no_more():
    for ring in (make_send(DeviceSide(), bytearray(STRIDE), 1), make_shared(DeviceSide(), 1)):
        ring.release()
        with pytest.raises(ValueError, match="released"):
            ring.put(1, ENTRY)


def test_posting_one_is_putting_and_telling_while_there_is_room():
    device, memory = DeviceSide(), bytearray(4 * STRIDE)
    ring = make_send(device, memory, 4, start=(1 << 32) + 2)
    assert [ring.post(70 + number, bytes([number]) * 16) for number in range(5)] == [True] * 4 + [
        False
    ]
    assert device.rung() == [(doorbell_layout.RING_SEND, 3)] * 4
    assert device.index(3) == (1 << 32) + 6
    assert [memory[place * STRIDE] for place in range(4)] == [2, 3, 0, 1]
    assert [ring.complete(2 + number) for number in range(4)] == [70, 71, 72, 73]
    with ring.lock:
        ring.release()
    assert not ring.post(1, ENTRY)
