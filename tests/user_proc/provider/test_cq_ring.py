"""The completion ring against a device that writes it: order, laps, sweeps, resize, arming."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import doorbell_layout
from shared.cqe_layout import CQE_SIZE, Cqe
from tests.user_proc.provider.device_side import CompletionWriter, DeviceSide
from user_proc.provider.cq_ring import CqRing
from user_proc.provider.queue_table import QueueTable
from user_proc.provider.receive_ring import ReceiveRing, SharedReceiveRing
from user_proc.provider.send_ring import SendRing

QPN, OTHER, SRQN = 0x10040, 0x10041, 7
STRIDE = 64
CONSUMER, ARM = 10, 11


class Setting:
    """A queue pair, a shared queue, a completion queue and its writer."""

    def __init__(self, entries: int = 8, work: int = 64, poke: int = -1) -> None:
        self.device = DeviceSide()
        self.writer = self.device.writer(poke)
        self.table = QueueTable()
        view = memoryview(bytearray(work * STRIDE))
        send = SendRing(self.writer, doorbell_layout.RING_SEND, 0, view, STRIDE, work)
        receive = ReceiveRing(self.writer, 1, view, STRIDE, work)
        self.shared = SharedReceiveRing(self.writer, 2, view, STRIDE, work)
        self.send, self.receive = send, receive
        self.table.send[QPN], self.table.receive[QPN] = send, receive
        self.table.shared[SRQN] = self.shared
        memory = bytearray(entries * CQE_SIZE)
        self.hardware = CompletionWriter(memory)
        self.ring = CqRing(self.writer, self.table, memoryview(memory), CONSUMER, ARM)

    def work(self, wr_id: int, **fields: int) -> None:
        """Post a send and complete it."""
        position = self.send.head
        self.send.put(wr_id, b"")
        self.hardware.post(QPN, position, is_send=1, **fields)

    def polled(self, limit: int = 100) -> list[int]:
        return [wr_id for wr_id, _ in self.ring.poll(limit)]


def test_completions_come_in_order_and_the_index_word_follows():
    setting = Setting()
    assert setting.polled() == []
    for number in range(3):
        setting.work(number, byte_len=number * 10)
    found = setting.ring.poll(2)
    assert [wr_id for wr_id, _ in found] == [0, 1]
    assert [Cqe(*entry).byte_len for _, entry in found] == [0, 10]
    assert setting.device.index(CONSUMER) == 2
    assert setting.polled() == [2]
    assert setting.device.index(CONSUMER) == 3
    assert setting.device.rung() == []


def test_a_body_without_its_valid_word_is_not_taken():
    setting = Setting()
    setting.work(5)
    words = setting.hardware.memory
    valid, words[56:64] = words[56:64], bytes(8)
    assert setting.polled() == []
    words[56:64] = valid
    assert setting.polled() == [5]


@given(st.sampled_from([1, 2, 8]), st.lists(st.integers(0, 5), max_size=40))
def test_any_number_of_laps(entries: int, steps: list[int]):
    setting = Setting(entries)
    written = taken = 0
    for step in steps:
        while written - taken < entries and written < taken + step:
            setting.work(written)
            written += 1
        found = setting.polled(step)
        assert found == list(range(taken, taken + len(found)))
        assert len(found) == min(step, written - taken)
        taken += len(found)


def test_send_receive_and_shared_queues_are_told_apart():
    setting = Setting()
    setting.send.put(1, b"")
    setting.receive.put(2, b"")
    setting.shared.put(3, b"")
    setting.hardware.post(QPN, 0, is_send=1)
    setting.hardware.post(QPN, 0)
    setting.hardware.post(OTHER, 0, srqn=SRQN)  # by another process's XRC queue pair
    assert setting.polled() == [1, 2, 3]
    assert setting.shared.outstanding == 0


def test_what_names_nothing_of_ours_is_passed_over():
    setting = Setting()
    setting.hardware.post(OTHER, 0, is_send=1)
    setting.hardware.post(QPN, 55, is_send=1)
    setting.hardware.post(QPN, 0, srqn=SRQN + 1)
    setting.work(8)
    assert setting.polled() == [8]
    assert setting.device.index(CONSUMER) == 4


def test_a_sweep_drops_one_queue_pair_and_gives_shared_entries_back():
    setting = Setting()
    setting.table.send[OTHER] = setting.send
    setting.shared.put(1, b"")
    setting.shared.put(2, b"")
    setting.hardware.post(QPN, 0, srqn=SRQN)
    setting.work(20)
    setting.hardware.post(OTHER, 1, srqn=SRQN)
    setting.ring.sweep(QPN)
    assert setting.shared.outstanding == 1
    assert setting.polled() == [2]
    setting.work(21)
    assert setting.polled() == [21]


def test_entries_the_device_removed_are_passed_over_but_given_back():
    setting = Setting()
    setting.shared.put(1, b"")
    setting.hardware.post(0, 0, srqn=SRQN)
    setting.work(4)
    assert setting.polled() == [4]
    assert setting.shared.outstanding == 0


def test_a_released_ring_is_not_touched():
    setting = Setting()
    setting.work(1)
    setting.ring.release()
    setting.ring.sweep(QPN)
    assert setting.polled() == []
    assert not setting.ring.look_on(3)


@pytest.mark.parametrize("laps", [0, 1, 9])
def test_looking_on_ends_with_the_next_entry_and_takes_nothing(laps: int):
    setting = Setting(8)
    for number in range(laps):
        setting.work(number)
        assert setting.polled() == [number]
    assert not setting.ring.look_on(3)
    setting.work(100)
    assert setting.ring.look_on(1)
    assert setting.polled() == [100]
    assert not setting.ring.look_on(1)


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("between", [0, 1, 3])
@pytest.mark.parametrize("size", [4, 16])
def test_resize_keeps_every_completion_in_order(before: int, between: int, size: int):
    setting = Setting(8)
    for number in range(before):
        setting.work(number)
    memory = bytearray(size * CQE_SIZE)
    setting.ring.expect(memoryview(memory))
    consumer = setting.device.index(CONSUMER)
    found = setting.polled(1)
    setting.hardware.move(memory, consumer)
    for number in range(before, before + between):
        if setting.hardware.producer - setting.device.index(CONSUMER) < size:
            setting.work(number)
    found += setting.polled(1)
    setting.ring.settle(resized=True)
    assert setting.ring.settled
    found += setting.polled()
    assert found == list(range(setting.hardware.producer))


def test_a_refused_resize_leaves_the_old_buffer():
    setting = Setting(8)
    setting.ring.expect(memoryview(bytearray(4 * CQE_SIZE)))
    assert not setting.ring.settled
    setting.work(1)
    setting.ring.settle(resized=False)
    assert setting.polled() == [1]


def test_arming_stores_index_kind_and_another_number_each_time():
    setting = Setting()
    setting.work(0)
    setting.polled()
    setting.ring.arm(False)
    first = setting.device.index(ARM)
    setting.ring.arm(True)
    second = setting.device.index(ARM)
    assert setting.device.rung() == [(doorbell_layout.RING_CQ_ARM, ARM)] * 2
    assert first & doorbell_layout.INDEX_MASK == second & doorbell_layout.INDEX_MASK == 1
    assert (first & doorbell_layout.ARM_SOLICITED, second >> 63) == (0, 1)
    sequences = [
        word >> doorbell_layout.ARM_SEQUENCE_SHIFT & doorbell_layout.ARM_SEQUENCE_MASK
        for word in (first, second)
    ]
    assert sequences == [1, 2]


def test_an_arm_wakes_a_sleeping_device_only_if_an_entry_waits():
    poke = os.eventfd(0, os.EFD_NONBLOCK)
    setting = Setting(poke=poke)
    setting.device.state[doorbell_layout.STATUS_SLEEPS_WORD] = 1

    def wakes() -> bool:
        before = setting.device.index(ARM)
        setting.ring.arm(False)
        assert setting.device.index(ARM) != before
        try:
            return os.eventfd_read(poke) == 1
        except BlockingIOError:
            return False

    assert not wakes()
    setting.work(0)
    assert wakes()
    setting.polled()
    assert not wakes()
    setting.work(1)
    setting.device.state[doorbell_layout.STATUS_SLEEPS_WORD] = 0
    assert not wakes()
    setting.device.state[doorbell_layout.STATUS_SLEEPS_WORD] = 1
    setting.ring.release()
    assert not wakes()
    assert setting.device.rung()[-5:] == [(doorbell_layout.RING_CQ_ARM, ARM)] * 5
    os.close(poke)


def test_the_first_arm_of_a_reused_slot_is_another_word_and_the_number_wraps():
    setting = Setting()
    last = doorbell_layout.ARM_SEQUENCE_MASK << doorbell_layout.ARM_SEQUENCE_SHIFT
    setting.writer.store(ARM, last | 5)
    memory = memoryview(bytearray(8 * CQE_SIZE))
    ring = CqRing(setting.writer, setting.table, memory, CONSUMER, ARM)
    assert setting.device.index(ARM) == last | 5
    ring.arm(False)
    assert setting.device.index(ARM) == 1 << doorbell_layout.ARM_SEQUENCE_SHIFT


def test_a_solicited_arm_tells_how_long_ago_any_entry_was_armed_for():
    setting = Setting()
    ages = []
    for solicited in [True, True, False, *[True] * 9, False, True]:
        setting.ring.arm(solicited)
        word = setting.device.index(ARM)
        age = word >> doorbell_layout.ARM_ANY_AGE_SHIFT & doorbell_layout.ARM_ANY_AGE_MASK
        assert word & doorbell_layout.INDEX_MASK == 0
        ages.append(age if solicited else None)
    assert ages == [0, 0, None, 1, 2, 3, 4, 5, 6, 7, 7, 7, None, 1]
