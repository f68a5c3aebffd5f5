"""User addresses as the kernel reaches them: arenas, private memory, both in one range."""

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.address_space import USER_ADDRESS_END
from kernel_proc.scheduling.bugcheck import (
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
    BugCheck,
)
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import (
    STATUS_ACCESS_VIOLATION,
    STATUS_CONFLICTING_ADDRESSES,
    STATUS_DATATYPE_MISALIGNMENT,
    STATUS_INVALID_PARAMETER,
    STATUS_SUCCESS,
)

PAGE = mmap.PAGESIZE
BASE = 0x7000_0000_0000


def arena(kernel: Any, arena_id: int, base: int, pages: int = 1, fill: bytes = b"a") -> memoryview:
    view = memoryview(bytearray(fill * (pages * PAGE)))
    assert kernel.space.add_arena(arena_id, base, len(view), view) == STATUS_SUCCESS
    return view


def test_an_arena_is_read_and_written_without_a_copy_elsewhere(kernel: Any):
    view = arena(kernel, 1, BASE)
    kernel.run(kernel.space.write, BASE + 3, b"xyz")
    assert bytes(view[2:7]) == b"axyza"
    assert kernel.run(kernel.space.read, BASE + 2, 5) == b"axyza"
    lent = kernel.run(kernel.space.arena_view, BASE + 3, 3)
    lent[:] = b"LMN"
    assert bytes(view[3:6]) == b"LMN"


@pytest.mark.parametrize(
    ("address", "length"),
    [(BASE - 1, 2), (BASE + PAGE - 1, 2), (BASE + PAGE, 0), (BASE, PAGE + 1), (BASE, -1), (0, 1)],
)
def test_only_what_lies_in_one_arena_has_a_view(kernel: Any, address: int, length: int):
    arena(kernel, 1, BASE)
    assert kernel.run(kernel.space.arena_view, address, length) is None


def test_private_memory_is_reached_at_any_other_address(kernel: Any, raw: Any):
    start = raw.map(1)
    kernel.run(kernel.space.write, start + 7, bytearray(b"private"))
    assert raw.peek(start + 7, 7) == b"private"
    assert kernel.run(kernel.space.read, start + 7, 7) == b"private"


def test_a_range_may_cross_from_private_memory_through_arenas_and_back(kernel: Any, raw: Any):
    start = raw.map(5)
    first = arena(kernel, 1, start + PAGE, fill=b"1")
    second = arena(kernel, 2, start + 2 * PAGE, fill=b"2")
    data = bytes(range(1, 251)) * ((5 * PAGE) // 250)
    kernel.run(kernel.space.write, start + 10, data)
    assert raw.peek(start + 10, PAGE - 10) == data[: PAGE - 10]
    assert bytes(first) == data[PAGE - 10 : 2 * PAGE - 10]
    assert bytes(second) == data[2 * PAGE - 10 : 3 * PAGE - 10]
    assert kernel.run(kernel.space.read, start + 10, len(data)) == data
    assert raw.peek(start + PAGE, 4) == bytes(4)  # what lies under an arena is not touched


def test_the_pieces_before_a_fault_are_stored(kernel: Any, raw: Any):
    start = raw.map(2)
    view = arena(kernel, 1, start)
    raw.protect(start + PAGE, 1, mmap.PROT_READ)
    with pytest.raises(AccessViolation) as caught:
        kernel.run(kernel.space.write, start + PAGE - 4, b"12345678")
    assert caught.value.address == start + PAGE
    assert bytes(view[-4:]) == b"1234"


@pytest.mark.parametrize(
    ("address", "length"),
    [
        (0, 1),
        (PAGE - 1, 1),
        (USER_ADDRESS_END, 1),
        (USER_ADDRESS_END - 1, 2),
        (0xFFFF_9000_0000_0000, 8),
        (2**64 - 1, 1),
        (2**64 - 4096, 8192),
        (2**70, 1),
        (-4096, 16),
        (BASE, 2**64 - BASE + 1),
        (BASE, -1),
    ],
)
def test_addresses_outside_user_space_fault_without_being_asked_about(
    new_kernel: Callable[..., Any], address: int, length: int
):
    class Forbidden:
        def run(self, *_: object) -> None:
            raise AssertionError("the user's memory was asked for")

        def close(self) -> None: ...

    kernel = new_kernel(verifier=False, private=None, lane=Forbidden())
    for access in (kernel.space.read, kernel.space.probe_for_read, kernel.space.probe_for_write):
        with pytest.raises(AccessViolation) as caught:
            kernel.run(access, address, length)
        assert caught.value.status == STATUS_ACCESS_VIOLATION
    if 0 < length < 100:
        with pytest.raises(AccessViolation):
            kernel.run(kernel.space.write, address, bytes(length))


def test_zero_bytes_are_anywhere(kernel: Any):
    for address in (0, BASE, USER_ADDRESS_END, 2**64):
        assert kernel.run(kernel.space.read, address, 0) == b""
        kernel.run(kernel.space.write, address, b"")
        kernel.run(kernel.space.probe_for_read, address, 0)
        kernel.run(kernel.space.probe_for_write, address, 0)


def test_probe_for_read_touches_nothing_and_probe_for_write_every_page(kernel: Any, raw: Any):
    start = raw.map(3)
    kernel.run(kernel.space.probe_for_write, start, 3 * PAGE)
    raw.protect(start + 2 * PAGE, 1, mmap.PROT_READ)
    kernel.run(kernel.space.probe_for_read, start, 3 * PAGE)
    with pytest.raises(AccessViolation) as caught:
        kernel.run(kernel.space.probe_for_write, start, 2 * PAGE + 1)
    assert caught.value.address == start + 2 * PAGE
    raw.unmap(start, 1)
    kernel.run(kernel.space.probe_for_read, start, 3 * PAGE)


def test_a_probe_may_ask_for_alignment(kernel: Any):
    arena(kernel, 1, BASE)
    kernel.run(kernel.space.probe_for_write, BASE + 8, 8, 8)
    with pytest.raises(RaisedStatus) as caught:
        kernel.run(kernel.space.probe_for_read, BASE + 4, 8, 8)
    assert caught.value.status == STATUS_DATATYPE_MISALIGNMENT


def test_without_private_memory_only_arenas_are_there(new_kernel: Callable[..., Any], raw: Any):
    kernel = new_kernel(verifier=False, private=None)
    start = raw.map(2)
    arena(kernel, 1, start)
    assert kernel.run(kernel.space.read, start, 4) == b"aaaa"
    with pytest.raises(AccessViolation, match="no private memory"):
        kernel.run(kernel.space.read, start + PAGE, 1)


@pytest.mark.parametrize(
    ("base", "length", "status"),
    [
        (BASE + 1, PAGE, STATUS_INVALID_PARAMETER),
        (BASE, 0, STATUS_INVALID_PARAMETER),
        (BASE, 2 * PAGE, STATUS_INVALID_PARAMETER),  # the view is one page
        (0, PAGE, STATUS_INVALID_PARAMETER),
        (USER_ADDRESS_END, PAGE, STATUS_INVALID_PARAMETER),
        (0xFFFF_8000_0000_0000, PAGE, STATUS_INVALID_PARAMETER),
        (0x0001_0000_0000_0000, PAGE, STATUS_INVALID_PARAMETER),
        (-PAGE, PAGE, STATUS_INVALID_PARAMETER),
        (2**64 - PAGE, PAGE, STATUS_INVALID_PARAMETER),
        (USER_ADDRESS_END - PAGE, PAGE, STATUS_SUCCESS),
        (PAGE, PAGE, STATUS_SUCCESS),
    ],
)
def test_a_place_that_cannot_be_is_refused(kernel: Any, base: int, length: int, status: int):
    view = memoryview(bytearray(PAGE))
    assert kernel.space.add_arena(1, base, length, view) == status


def test_arenas_may_touch_but_not_overlap(kernel: Any):
    arena(kernel, 1, BASE + 2 * PAGE, pages=2)
    for first, pages in ((0, 3), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (1, 4)):
        view = memoryview(bytearray(pages * PAGE))
        status = kernel.space.add_arena(2, BASE + first * PAGE, len(view), view)
        assert status == STATUS_CONFLICTING_ADDRESSES
    arena(kernel, 2, BASE, pages=2)
    arena(kernel, 3, BASE + 4 * PAGE)
    assert [entry["id"] for entry in kernel.space.inspect()["arenas"]] == [2, 1, 3]


def test_a_removed_arena_faults_and_its_place_can_be_taken_again(
    new_kernel: Callable[..., Any],
):
    kernel = new_kernel(verifier=False, private=None)
    arena(kernel, 1, BASE)
    gone: list[int] = []
    assert kernel.space.remove_arena(1, lambda: gone.append(1)) is not None
    assert gone == [1]
    assert kernel.space.remove_arena(1) is None
    with pytest.raises(AccessViolation):
        kernel.run(kernel.space.read, BASE, 1)
    arena(kernel, 2, BASE)


@pytest.mark.parametrize("method", ["read", "probe_for_read", "probe_for_write", "arena_view"])
def test_user_addresses_are_touched_at_apc_level_at_most(kernel: Any, method: str):
    arena(kernel, 1, BASE)
    routine = getattr(kernel.space, method)
    kernel.run_at(APC_LEVEL, routine, BASE, 4)
    with pytest.raises(BugCheck) as caught:
        kernel.run_at(DISPATCH_LEVEL, routine, BASE, 4)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL
    is_write = int(method == "probe_for_write")
    assert caught.value.parameters == (BASE, DISPATCH_LEVEL, is_write, 0)


def test_a_write_at_dispatch_level_stops_the_machine(kernel: Any):
    arena(kernel, 1, BASE)
    with pytest.raises(BugCheck) as caught:
        kernel.run_at(DISPATCH_LEVEL, kernel.space.write, BASE, b"x")
    assert caught.value.parameters == (BASE, DISPATCH_LEVEL, 1, 0)


def test_verifier_wants_the_context_of_the_process(verified: Any):
    arena(verified, 1, BASE)
    assert verified.run(verified.space.read, BASE, 1) == b"a"
    verified.process = KProcess(verified.processor, "another")
    with pytest.raises(BugCheck) as caught:
        verified.run(verified.space.write, BASE, b"x")
    assert caught.value.code == KMODE_EXCEPTION_NOT_HANDLED
    assert caught.value.parameters == (STATUS_ACCESS_VIOLATION, 0, 1, BASE)


def test_private_memory_is_copied_by_the_lane(new_kernel: Callable[..., Any], own_memory: Any):
    class Counting:
        def __init__(self) -> None:
            self.runs = 0

        def run(self, routine: Callable[..., Any], *args: Any) -> Any:
            self.runs += 1
            return routine(*args)

        def close(self) -> None: ...

    lane = Counting()
    kernel = new_kernel(verifier=False, private=own_memory, lane=lane)
    buffer = ctypes.create_string_buffer(b"hello", 16)
    assert kernel.run(kernel.space.read, ctypes.addressof(buffer), 5) == b"hello"
    kernel.run(kernel.space.write, ctypes.addressof(buffer), b"HE")
    kernel.run(kernel.space.probe_for_write, ctypes.addressof(buffer), 16)
    assert buffer.value == b"HEllo"
    assert lane.runs == 3


def test_after_close_private_addresses_fault(kernel: Any, raw: Any):
    start = raw.map(1)
    kernel.space.close()
    kernel.space.close()
    with pytest.raises(AccessViolation):
        kernel.run(kernel.space.read, start, 1)
    assert kernel.space.inspect()["private_memory"] is False
