"""How buffers travel: inline or by address, by method and by length, and what keeps them alive."""

import ctypes
import mmap
from array import array
from typing import Any

import pytest

from shared.envelope import FLAG_INPUT_INLINE, FLAG_OUTPUT_INLINE
from shared.ioctl_codes import (
    METHOD_BUFFERED,
    METHOD_IN_DIRECT,
    METHOD_NEITHER,
    METHOD_OUT_DIRECT,
)
from user_proc.io.buffer_transfer import bytes_of, plan_transfer
from user_proc.memory.private_memory import PinnedBuffer

LIMIT = 1024
BOTH = FLAG_INPUT_INLINE | FLAG_OUTPUT_INLINE


class Arena:
    """What an arena buffer looks like from here."""

    def __init__(self, length: int) -> None:
        self.view = memoryview(bytearray(length))
        self.address = 0x10000
        self.length = length


def plan(method: int, source: Any, target: Any) -> Any:
    return plan_transfer(method, source, target, LIMIT, PinnedBuffer)


def bytes_at(address: int, length: int) -> bytes:
    return ctypes.string_at(address, length)


def test_buffered_is_inline():
    target = bytearray(8)
    flags, *addresses, payload, view, keep = plan(METHOD_BUFFERED, b"abc", target)
    assert flags == BOTH
    assert addresses == [0, 3, 0, 8]
    assert payload == b"abc"
    assert keep is None
    view[:2] = b"hi"
    assert target == b"hi\0\0\0\0\0\0"


@pytest.mark.parametrize("method", range(4))
def test_no_buffers(method: int):
    flags, *rest = plan(method, None, None)
    assert flags & FLAG_OUTPUT_INLINE == (FLAG_OUTPUT_INLINE if method == METHOD_BUFFERED else 0)
    assert rest[:6] == [0, 0, 0, 0, None, None]


@pytest.mark.parametrize("method", [METHOD_IN_DIRECT, METHOD_OUT_DIRECT])
def test_direct_sends_input_inline_and_output_by_address(method: int):
    target = bytearray(b"target")
    flags, in_at, in_length, out_at, out_length, payload, view, keep = plan(method, b"abc", target)
    assert (flags, in_at, in_length, payload, view) == (FLAG_INPUT_INLINE, 0, 3, b"abc", None)
    assert bytes_at(out_at, out_length) == b"target"
    with pytest.raises(BufferError):
        target.append(0)  # held where it is
    del keep
    target.append(0)


def test_neither_tells_both_addresses():
    source, target = b"source", bytearray(b"target")
    flags, in_at, in_length, out_at, out_length, payload, view, _keep = plan(
        METHOD_NEITHER, source, target
    )
    assert (flags, payload, view) == (0, None, None)
    assert bytes_at(in_at, in_length) == b"source"
    assert bytes_at(out_at, out_length) == b"target"
    target[0:1] = b"T"
    assert bytes_at(out_at, out_length) == b"Target"


def test_a_read_only_view_is_not_copied():
    source = bytes(range(64))
    view = memoryview(source)[3:7]
    _, address, length, *_ = plan(METHOD_NEITHER, view, None)
    _, whole, *_ = plan(METHOD_NEITHER, source, None)
    assert (address - whole, length) == (3, 4)


def test_arena_buffers_are_known_by_address():
    source, target = Arena(16), Arena(32)
    _, in_at, in_length, out_at, out_length, _, _, keep = plan(METHOD_NEITHER, source, target)
    assert (in_at, in_length, out_at, out_length) == (0x10000, 16, 0x10000, 32)
    assert keep == [source, target]
    flags, *_, payload, view, _ = plan(METHOD_BUFFERED, source, target)
    assert flags == BOTH
    assert (len(payload), len(view)) == (16, 32)


def test_a_released_arena_buffer_is_refused():
    class Released(Arena):
        @property
        def view(self) -> memoryview:  # type: ignore[override]  # as the real one does
            raise ValueError("released")

        @view.setter
        def view(self, value: memoryview) -> None:
            pass

    for method in range(4):
        with pytest.raises(ValueError, match="released"):
            plan(method, None, Released(4))


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_OUT_DIRECT, METHOD_IN_DIRECT])
def test_long_input_goes_by_address(method: int):
    source = bytes(LIMIT + 1)
    flags, in_at, in_length, _, _, payload, _, keep = plan(method, source, bytearray(4))
    assert not flags & FLAG_INPUT_INLINE
    assert payload is None
    assert in_length == LIMIT + 1
    assert bytes_at(in_at, in_length) == source
    assert len(keep) == 2


def test_long_output_goes_by_address():
    target = bytearray(LIMIT + 1)
    flags, in_at, in_length, out_at, out_length, payload, view, _ = plan(
        METHOD_BUFFERED, b"abc", target
    )
    assert (flags, in_at, in_length, payload) == (FLAG_INPUT_INLINE, 0, 3, b"abc")
    assert out_at
    assert (out_length, view) == (LIMIT + 1, None)


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_OUT_DIRECT, METHOD_NEITHER])
def test_output_must_be_writable(method: int):
    with pytest.raises((TypeError, BufferError)):
        plan(method, None, b"constant")


def test_second_input_of_in_direct_may_be_read_only():
    _, _, _, out_at, out_length, *_ = plan(METHOD_IN_DIRECT, b"small", b"large")
    assert bytes_at(out_at, out_length) == b"large"


@pytest.mark.parametrize(
    "buffer",
    [
        array("I", [1, 2, 3]),
        memoryview(array("d", [1.0])),
        memoryview(bytearray(12)).cast("B", (3, 4)),
        (ctypes.c_uint32 * 3)(1, 2, 3),
    ],
    ids=["array", "doubles", "matrix", "ctypes"],
)
def test_any_contiguous_buffer_is_bytes(buffer: Any):
    assert bytes(bytes_of(buffer)) == bytes(buffer)
    _, _, _, _, length, *_ = plan(METHOD_NEITHER, None, buffer)
    assert length == len(bytes(buffer))


def test_maps_are_buffers():
    with mmap.mmap(-1, 4096) as mapping:
        mapping[:3] = b"map"
        _, address, length, *_, keep = plan(METHOD_NEITHER, mapping, None)
        assert bytes_at(address, 3) == b"map"
        assert length == 4096
        del keep


@pytest.mark.parametrize("method", [METHOD_BUFFERED, METHOD_NEITHER])
def test_what_is_no_contiguous_buffer_is_refused(method: int):
    for wrong in ("text", 5, memoryview(bytes(8))[::2]):
        with pytest.raises((TypeError, BufferError)):
            plan(method, wrong, None)
