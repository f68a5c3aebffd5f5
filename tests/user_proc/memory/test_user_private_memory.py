"""Addresses of Python buffers, and the two descriptors."""

import array
import ctypes
import gc
import mmap
import os
import weakref
from typing import Any

import pytest

from user_proc.memory.private_memory import PinnedBuffer, open_own_memory


@pytest.mark.parametrize(
    "buffer",
    [
        bytearray(b"hello"),
        b"hello",
        memoryview(b"hello"),
        memoryview(b"..hello")[2:],
        array.array("b", b"hello"),
        array.array("I", [1, 2, 3]),
        (ctypes.c_uint16 * 3)(1, 2, 3),
        ctypes.create_string_buffer(b"hello"),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_any_buffer_has_address_and_length(buffer: Any):
    expected = bytes(memoryview(buffer).cast("B"))
    with PinnedBuffer(buffer) as pinned:
        assert pinned.length == len(expected)
        assert ctypes.string_at(pinned.address, pinned.length) == expected


def test_the_address_is_that_of_the_buffer_itself():
    buffer = bytearray(8)
    with PinnedBuffer(buffer, writable=True) as pinned:
        ctypes.memmove(pinned.address, b"inside", 6)
    assert buffer == b"inside\0\0"
    mapping = mmap.mmap(-1, 4096)
    with PinnedBuffer(mapping, writable=True) as pinned:
        assert pinned.address == ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    mapping.close()


@pytest.mark.parametrize(
    "buffer", [b"bytes", memoryview(b"view"), memoryview(bytearray(3)).toreadonly()]
)
def test_a_read_only_buffer_is_not_given_out_for_writing(buffer: Any):
    with pytest.raises(BufferError):
        PinnedBuffer(buffer, writable=True)


def test_what_is_not_contiguous_has_no_address():
    with pytest.raises(BufferError):
        PinnedBuffer(memoryview(bytearray(10))[::2])


@pytest.mark.parametrize("thing", [None, 5, "text", [1]])
def test_what_is_no_buffer_is_a_type_error(thing: object):
    with pytest.raises(TypeError):
        PinnedBuffer(thing)


def test_an_empty_buffer_has_no_bytes():
    with PinnedBuffer(b"") as pinned:
        assert pinned.length == 0


def test_a_pinned_buffer_stays_where_it_is_until_released():
    buffer = bytearray(16)
    pinned = PinnedBuffer(buffer)
    with pytest.raises(BufferError):
        buffer.extend(bytes(1000))
    pinned.release()
    pinned.release()
    buffer.extend(bytes(1000))


def test_a_pinned_buffer_lives_and_a_forgotten_pin_lets_go():
    buffer = array.array("b", b"hello")
    gone = weakref.ref(buffer)
    pinned = PinnedBuffer(buffer)
    del buffer
    gc.collect()
    assert gone() is not None
    assert ctypes.string_at(pinned.address, 5) == b"hello"
    del pinned
    gc.collect()
    assert gone() is None


def test_the_descriptors_reach_this_process_and_are_closed_on_exec():
    buffer = bytearray(b"own bytes")
    memory = open_own_memory()
    try:
        with PinnedBuffer(buffer) as pinned:
            assert os.pread(memory.memory, 9, pinned.address) == b"own bytes"
            os.pwrite(memory.memory, b"OWN", pinned.address)
        assert buffer == b"OWN bytes"
        assert b"-" in os.pread(memory.maps, 100, 0)
        assert not any(os.get_inheritable(descriptor) for descriptor in memory)
    finally:
        memory.close()
    for descriptor in memory:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_nothing_stays_open_when_one_of_them_cannot_be_opened(monkeypatch: pytest.MonkeyPatch):
    before = os.listdir("/proc/self/fd")
    open_file = os.open

    def refuse_maps(path: str, *more: Any) -> int:
        if path.endswith("maps"):
            raise PermissionError(path)
        return open_file(path, *more)

    monkeypatch.setattr(os, "open", refuse_maps)
    with pytest.raises(PermissionError):
        open_own_memory()
    monkeypatch.undo()
    assert os.listdir("/proc/self/fd") == before
