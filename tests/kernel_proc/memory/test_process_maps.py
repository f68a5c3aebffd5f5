"""The maps of an address space, by the query and by the text."""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_proc.memory.process_maps import ProcessMaps, Region, parse_maps_line

PAGE = mmap.PAGESIZE


@pytest.fixture
def descriptor() -> Iterator[int]:
    opened = os.open("/proc/self/maps", os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture(params=["query", "text"])
def maps(request: pytest.FixtureRequest, descriptor: int) -> ProcessMaps:
    maps = ProcessMaps(descriptor, query_supported=request.param == "query")
    if request.param == "query":
        maps.find(id(maps))
        if not maps.query_supported:
            pytest.skip("this system has no PROCMAP_QUERY (Linux 6.11)")
    return maps


def test_a_mapping_is_found_from_any_of_its_addresses(maps: ProcessMaps, raw: Any):
    start = raw.map(3)
    raw.protect(start + PAGE, 1, mmap.PROT_READ)
    expected = Region(start + PAGE, start + 2 * PAGE, readable=True, writable=False)
    assert maps.find(start + PAGE) == expected
    assert maps.find(start + 2 * PAGE - 1) == expected


def test_nothing_is_found_in_a_hole_at_zero_or_beyond_the_end(maps: ProcessMaps, raw: Any):
    start = raw.map(3)
    raw.unmap(start + PAGE, 1)
    assert maps.find(start + PAGE) is None
    assert maps.find(start + 2 * PAGE - 1) is None
    assert maps.find(0) is None
    assert maps.find(0x7FFF_FFFF_FFFF_FFFF) is None


@pytest.mark.parametrize(
    ("protection", "read_refused", "write_refused"),
    [
        (mmap.PROT_READ | mmap.PROT_WRITE, False, False),
        (mmap.PROT_READ, False, True),
        (mmap.PROT_WRITE, True, False),
        (0, True, True),
    ],
)
def test_the_first_refusal_is_the_first_page_without_the_right(
    maps: ProcessMaps, raw: Any, protection: int, read_refused: bool, write_refused: bool
):
    start = raw.map(3)
    middle = start + PAGE
    raw.protect(middle, 1, protection)
    everything = (start, 3 * PAGE)
    assert maps.first_refusal(*everything, False) == (middle if read_refused else None)
    assert maps.first_refusal(*everything, True) == (middle if write_refused else None)
    assert maps.first_refusal(start, PAGE, True) is None


def test_a_range_ending_in_a_hole_is_refused_at_the_hole(maps: ProcessMaps, raw: Any):
    start = raw.map(2)
    raw.unmap(start + PAGE, 1)
    assert maps.first_refusal(start + 10, PAGE, False) == start + PAGE
    assert maps.first_refusal(start + 10, PAGE - 10, False) is None


def test_the_text_takes_over_where_the_system_has_no_query(
    descriptor: int, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    calls = []

    def no_such_ioctl(*arguments: object) -> int:
        calls.append(arguments)
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr(fcntl, "ioctl", no_such_ioctl)
    maps = ProcessMaps(descriptor)
    start = raw.map(1)
    assert maps.first_refusal(start, PAGE, True) is None
    assert maps.first_refusal(start, PAGE, True) is None
    assert not maps.query_supported
    assert len(calls) == 1


def test_the_text_may_be_longer_than_one_read(
    descriptor: int, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kernel_proc.memory.process_maps._TEXT_CHUNK", 150)
    start = raw.map(1)
    region = ProcessMaps(descriptor, query_supported=False).find(start)
    assert region is not None
    assert region.start <= start < region.end


def test_the_text_is_read_once_however_many_mappings_a_range_has(
    descriptor: int, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    start = raw.map(2000)
    for page in range(0, 2000, 2):
        raw.protect(start + page * PAGE, 1, mmap.PROT_READ)
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        data = pread(descriptor, length, offset)
        reads.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    maps = ProcessMaps(descriptor, query_supported=False)
    assert maps.first_refusal(start, 2000 * PAGE, False) is None
    with open("/proc/self/maps", "rb") as file:
        assert sum(reads) <= 1.1 * len(file.read())
    assert maps.first_refusal(start, 2000 * PAGE, True) == start


@pytest.mark.parametrize(
    "text", [b"", b"gar", b"garbage\n", b"1000-2000\n", b"x-y rw-p 0\n", b"\n", b"\xff" * 9000]
)
def test_a_text_its_owner_has_disturbed_grants_nothing(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, text: bytes
):
    whole = b"00001000-00002000 rw-p 00000000 00:00 0\n" + text
    monkeypatch.setattr(os, "pread", lambda _, length, offset: whole[offset : offset + length])
    maps = ProcessMaps(descriptor, query_supported=False)
    assert maps.first_refusal(0x1000, 0x1000, True) is None
    assert maps.first_refusal(0x1000, 0x1001, True) == 0x2000
    assert maps.find(0x2000) is None


def test_an_error_of_the_query_means_no_mapping(descriptor: int, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> int:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(fcntl, "ioctl", refused)
    assert ProcessMaps(descriptor).find(id(descriptor)) is None


@pytest.mark.parametrize(
    ("line", "region"),
    [
        (
            b"00400000-00452000 r-xp 00000000 08:02 173521   /usr/bin/dbus",
            (0x400000, 0x452000, 1, 0),
        ),
        (b"7ffc0000-7ffd0000 rw-p 00000000 00:00 0 [stack]", (0x7FFC0000, 0x7FFD0000, 1, 1)),
        (b"1000-2000 ---s 00000000 00:01 5 /memfd:a b (deleted)", (0x1000, 0x2000, 0, 0)),
    ],
)
def test_a_line_of_the_text(line: bytes, region: tuple[int, int, int, int]):
    assert parse_maps_line(line) == region
