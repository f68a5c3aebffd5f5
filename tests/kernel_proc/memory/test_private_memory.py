"""Private memory of this very process: rights, holes, protections, lengths, closing."""

import errno
import mmap
import os
import socket
import threading
from typing import Any

import pytest

from kernel_proc.memory import private_memory as private_memory_module
from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.private_memory import PrivateMemory
from shared.nt_status import STATUS_ACCESS_VIOLATION
from user_proc.memory.private_memory import open_own_memory

PAGE = mmap.PAGESIZE


@pytest.fixture(params=["query", "text"])
def private(request: pytest.FixtureRequest, own_memory: PrivateMemory) -> PrivateMemory:
    own_memory.maps.query_supported = request.param == "query"
    return own_memory


def test_bytes_are_read_and_written_where_they_are(private: PrivateMemory, raw: Any):
    start = raw.map(2)
    raw.poke(start + PAGE - 3, b"abcdef")
    assert private.read(start + PAGE - 3, 6) == b"abcdef"
    private.write(start + PAGE - 1, bytearray(b"XY"))
    assert raw.peek(start + PAGE - 3, 6) == b"abXYef"
    private.write(start, memoryview(b"0123456789")[2:5])
    assert raw.peek(start, 4) == b"234\0"


def test_nothing_is_moved_for_zero_bytes_even_where_nothing_is(private: PrivateMemory):
    assert private.read(0x5000, 0) == b""
    private.write(0x5000, b"")
    private.require(0x5000, 0, True)


def test_a_page_its_owner_cannot_write_is_not_written(private: PrivateMemory, raw: Any):
    start = raw.map(2)
    raw.poke(start + PAGE, b"kept")
    raw.protect(start + PAGE, 1, mmap.PROT_READ)
    with pytest.raises(AccessViolation) as caught:
        private.write(start + PAGE - 4, b"12345678")
    assert (caught.value.address, caught.value.is_write) == (start + PAGE, True)
    assert caught.value.status == STATUS_ACCESS_VIOLATION
    assert raw.peek(start + PAGE, 4) == b"kept"
    assert raw.peek(start + PAGE - 4, 4) == bytes(4)
    assert private.read(start + PAGE, 4) == b"kept"


def test_a_page_without_access_is_neither_read_nor_written(private: PrivateMemory, raw: Any):
    start = raw.map(1)
    raw.poke(start, b"kept")
    raw.protect(start, 1, 0)
    with pytest.raises(AccessViolation):
        private.read(start, 4)
    with pytest.raises(AccessViolation):
        private.write(start, b"new!")
    raw.protect(start, 1, mmap.PROT_READ)
    assert raw.peek(start, 4) == b"kept"


def test_a_hole_faults_at_its_first_address(private: PrivateMemory, raw: Any):
    start = raw.map(3)
    raw.unmap(start + PAGE, 1)
    with pytest.raises(AccessViolation) as caught:
        private.read(start, 3 * PAGE)
    assert caught.value.address == start + PAGE
    assert len(private.read(start, PAGE)) == PAGE


def test_a_huge_length_faults_before_anything_is_reserved_for_it(private: PrivateMemory, raw: Any):
    start = raw.map(1)
    with pytest.raises(AccessViolation):
        private.read(start, 1 << 46)


def test_what_is_unmapped_between_check_and_copy_faults(
    own_memory: PrivateMemory, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    start = raw.map(2)
    check = own_memory.maps.first_refusal

    def check_then_unmap(address: int, length: int, is_write: bool) -> int | None:
        refused = check(address, length, is_write)
        raw.unmap(start + PAGE, 1)
        return refused

    monkeypatch.setattr(own_memory.maps, "first_refusal", check_then_unmap)
    with pytest.raises(AccessViolation) as caught:
        own_memory.read(start, 2 * PAGE)
    assert caught.value.address == start + PAGE
    with pytest.raises(AccessViolation) as caught:
        own_memory.write(start + PAGE, b"lost")
    assert caught.value.is_write


def test_long_ranges_go_in_several_transfers(
    own_memory: PrivateMemory, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(private_memory_module, "_LARGEST_TRANSFER", 1000)
    start = raw.map(1)
    data = bytes(range(251)) * 13
    own_memory.write(start, data)
    assert raw.peek(start, len(data)) == data
    assert own_memory.read(start, len(data)) == data


def test_short_counts_are_continued(
    own_memory: PrivateMemory, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, n, at: pread(fd, min(n, 7), at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    start = raw.map(1)
    own_memory.write(start, b"a longer text than seven")
    assert own_memory.read(start, 24) == b"a longer text than seven"


def test_other_descriptors_than_those_of_proc_are_refused_and_closed():
    ours, theirs = socket.socketpair()
    memory = open_own_memory()
    with theirs, pytest.raises(OSError, match="not a file of /proc"):
        PrivateMemory(memory.memory, ours.detach())
    with pytest.raises(OSError, match=r"Bad file descriptor") as caught:
        os.fstat(memory.memory)
    assert caught.value.errno == errno.EBADF
    os.close(memory.maps)


def test_after_close_every_access_faults(raw: Any):
    private = PrivateMemory(*open_own_memory())
    start = raw.map(1)
    private.close()
    private.close()
    for access in (
        lambda: private.read(start, 1),
        lambda: private.write(start, b"x"),
        lambda: private.require(start, 1, False),
    ):
        with pytest.raises(AccessViolation, match="session has ended"):
            access()


def test_close_leaves_the_descriptors_to_a_transfer_under_way(
    raw: Any, monkeypatch: pytest.MonkeyPatch
):
    memory = open_own_memory()
    private = PrivateMemory(*memory)
    start = raw.map(1)
    raw.poke(start, b"late")
    inside, go_on = threading.Event(), threading.Event()
    pread = os.pread

    def stuck(descriptor: int, length: int, address: int) -> bytes:
        inside.set()
        assert go_on.wait(20)
        return pread(descriptor, length, address)

    private.maps.find(start)
    monkeypatch.setattr(os, "pread", stuck)
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(private.read(start, 4)))
    thread.start()
    assert inside.wait(20)
    private.close()
    os.fstat(memory.memory)
    go_on.set()
    thread.join(20)
    assert results == [b"late"]
    for descriptor in memory:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
