"""The status page: users can read it, and by no way write it."""

import mmap
import os

import pytest

from kernel_proc.driver.status_page import StatusPage
from shared.doorbell_layout import STATUS_FATAL_WORD, STATUS_PAGE_LENGTH
from shared.live_words import words64
from shared.segment import map_segment


def test_users_read_what_the_device_writes_and_can_write_nothing():
    page = StatusPage()
    device = words64(memoryview(map_segment(page.descriptor, STATUS_PAGE_LENGTH)))
    descriptor = page.descriptor_for_users()
    user = words64(memoryview(mmap.mmap(descriptor, STATUS_PAGE_LENGTH, prot=mmap.PROT_READ)))
    device[3] = 77
    assert user[3] == 77
    assert user.readonly
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, STATUS_PAGE_LENGTH)
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)  # a way round the open mode
    with pytest.raises(PermissionError):
        mmap.mmap(again, STATUS_PAGE_LENGTH)
    with pytest.raises(PermissionError):
        os.pwrite(again, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(again, 0)
    second = page.descriptor_for_users()
    device[3] = 78  # whoever had it mapped before still writes
    assert user[3] == 78
    page.set_fatal(1)
    assert user[STATUS_FATAL_WORD] == 1
    for one in (descriptor, again, second):
        os.close(one)
    page.close()
    page.close()
