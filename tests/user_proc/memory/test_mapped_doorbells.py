"""The mapped doorbells: the right bytes, none in a forked child, and nothing left of bad ones."""

import mmap
import os

import pytest

from shared.doorbell_layout import SEGMENT_LENGTH, STATUS_PAGE_LENGTH
from shared.segment import create_segment, map_segment
from user_proc.memory.mapped_doorbells import MappedDoorbells


def granted() -> tuple[int, int, int]:
    return (
        create_segment("doorbells", SEGMENT_LENGTH),
        create_segment("status", STATUS_PAGE_LENGTH),
        os.eventfd(0, os.EFD_NONBLOCK),
    )


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_written_is_in_the_segment_and_the_status_page_is_read():
    segment, status, poke = granted()
    other_side = map_segment(segment, SEGMENT_LENGTH), map_segment(status, STATUS_PAGE_LENGTH)
    before = open_descriptors()
    doorbells = MappedDoorbells.map(3, segment, status, poke, SEGMENT_LENGTH, STATUS_PAGE_LENGTH)
    doorbells.segment[8] = 9
    other_side[1][16] = 7
    assert (other_side[0][8], doorbells.status_page[16], doorbells.number) == (9, 7, 3)
    assert doorbells.status_page.readonly
    os.eventfd_write(doorbells.poke_fd, 1)
    assert os.eventfd_read(poke) == 1
    kept = doorbells.segment[8:16]
    doorbells.close()
    doorbells.close()
    assert kept[0] == 9
    kept.release()
    assert open_descriptors() <= before


def test_neither_is_there_in_a_forked_child():
    segment, status, poke = granted()
    doorbells = MappedDoorbells.map(1, segment, status, poke, SEGMENT_LENGTH, STATUS_PAGE_LENGTH)
    with open("/proc/self/smaps", encoding="ascii") as file:
        text = file.read()
    for name in ("memfd:doorbells", "memfd:status"):
        flags = text.partition(name)[2].partition("VmFlags:")[2].partition("\n")[0]
        assert "dc" in flags.split(), name  # do not copy the area on fork
    doorbells.close()


@pytest.mark.parametrize(
    ("length", "status_length"),
    [
        (0, STATUS_PAGE_LENGTH),
        (SEGMENT_LENGTH + 1, STATUS_PAGE_LENGTH),
        (SEGMENT_LENGTH, 0),
        (SEGMENT_LENGTH, 2 * mmap.PAGESIZE),
    ],
)
def test_lengths_that_are_not_there_leave_nothing(length: int, status_length: int):
    before = open_descriptors()
    with pytest.raises(OSError, match="cannot map"):
        MappedDoorbells.map(1, *granted(), length, status_length)
    assert open_descriptors() == before
