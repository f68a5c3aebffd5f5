"""Shared-memory segments: reserved, sealed, never longer or shorter than made."""

import errno
import fcntl
import mmap
import os

import pytest

from shared.segment import PAGE_SIZE, create_segment, map_segment, round_to_pages


@pytest.fixture
def segment():
    descriptor = create_segment("softhca-test", 3 * PAGE_SIZE)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("length", "rounded"),
    [(0, 0), (1, PAGE_SIZE), (PAGE_SIZE, PAGE_SIZE), (PAGE_SIZE + 1, 2 * PAGE_SIZE)],
)
def test_lengths_are_rounded_up_to_pages(length: int, rounded: int):
    assert round_to_pages(length) == rounded


def test_a_segment_is_reserved_and_zero(segment: int):
    status = os.fstat(segment)
    assert status.st_size == status.st_blocks * 512 == 3 * PAGE_SIZE
    with map_segment(segment, 3 * PAGE_SIZE) as mapping:
        assert mapping[:] == bytes(3 * PAGE_SIZE)


def test_its_size_is_sealed_for_every_holder(segment: int):
    for length in (0, PAGE_SIZE, 4 * PAGE_SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(segment, length)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_every_mapping_shows_the_same_bytes(segment: int):
    with map_segment(segment, 3 * PAGE_SIZE) as one, map_segment(segment, PAGE_SIZE) as other:
        one[5:8] = b"abc"
        assert other[5:8] == b"abc"


def test_it_is_closed_on_exec_and_named_in_the_maps(segment: int):
    assert not os.get_inheritable(segment)
    assert os.readlink(f"/proc/self/fd/{segment}").startswith("/memfd:softhca-test")


@pytest.mark.parametrize("length", [0, -1, 3 * PAGE_SIZE + 1, 1 << 50])
def test_no_page_beyond_the_end_is_mapped(segment: int, length: int):
    with pytest.raises(OSError, match="cannot map") as caught:
        map_segment(segment, length)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("length", [0, -5])
def test_a_segment_has_at_least_one_byte(length: int):
    with pytest.raises(OSError, match="at least one byte"):
        create_segment("softhca-test", length)


def test_memory_that_cannot_be_had_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "posix_fallocate", refused)
    with pytest.raises(OSError, match="No space left"):
        create_segment("softhca-test", PAGE_SIZE)
    assert os.listdir("/proc/self/fd") == before


def test_the_descriptor_may_be_closed_once_mapped():
    descriptor = create_segment("softhca-test", PAGE_SIZE)
    mapping = map_segment(descriptor, PAGE_SIZE)
    os.close(descriptor)
    mapping[-1] = 7
    assert mapping[-1] == 7
    assert isinstance(mapping, mmap.mmap)
    mapping.close()
