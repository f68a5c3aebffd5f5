"""Random reads, writes, protections and arenas against a plain model of the same memory."""

import ctypes
import mmap
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.private_memory import PrivateMemory
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.os_lane import InlineLane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from shared.nt_status import STATUS_CONFLICTING_ADDRESSES, STATUS_SUCCESS
from user_proc.memory.private_memory import open_own_memory

PAGE = mmap.PAGESIZE
PAGES = 12
NONE, READ, READ_WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE

offsets = st.builds(
    lambda page, shift: max(0, page * PAGE + shift),
    st.integers(0, PAGES - 1),
    st.one_of(st.sampled_from([-1, 0, 1]), st.integers(0, PAGE - 1)),
)
ranges = st.one_of(
    st.tuples(offsets, st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair))),
)

_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def bounded(span: tuple[int, int]) -> tuple[int, int]:
    """Return offset and length, within the memory."""
    return span[0], min(span[1], PAGES * PAGE) - span[0]


class AddressSpaceModel(RuleBasedStateMachine):
    """`model` is what the process sees; `owners` tells the arena of each page, 0 for private."""

    @initialize()
    def begin(self) -> None:
        self.memory = mmap.mmap(-1, PAGES * PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.private = PrivateMemory(*open_own_memory())
        self.private.maps.query_supported = self.by_query
        processor = Processor(VirtualClock())
        self.processor = processor
        process = KProcess(processor, "user")
        self.space = AddressSpace(process, InlineLane(processor), private=self.private)
        self.model = bytearray(PAGES * PAGE)
        self.hidden = bytearray(PAGES * PAGE)  # private bytes under an arena
        self.rights = [READ_WRITE] * PAGES
        self.owners = [0] * PAGES
        self.next_id = 1

    by_query = True

    @rule(page=st.integers(0, PAGES - 1), pages=st.integers(1, 4), fill=st.integers(0, 255))
    def add_arena(self, page: int, pages: int, fill: int) -> None:
        pages = min(pages, PAGES - page)
        view = memoryview(bytearray(bytes([fill]) * (pages * PAGE)))
        status = self.space.add_arena(self.next_id, self.base + page * PAGE, len(view), view)
        if any(self.owners[page : page + pages]):
            assert status == STATUS_CONFLICTING_ADDRESSES
            return
        assert status == STATUS_SUCCESS
        span = slice(page * PAGE, (page + pages) * PAGE)
        self.hidden[span] = self.model[span]
        self.model[span] = view
        self.owners[page : page + pages] = [self.next_id] * pages
        self.next_id += 1

    @precondition(lambda self: any(self.owners))
    @rule(data=st.data())
    def remove_arena(self, data: st.DataObject) -> None:
        arena_id = data.draw(st.sampled_from(sorted(set(self.owners) - {0})))
        assert self.space.remove_arena(arena_id) is not None
        for page, owner in enumerate(self.owners):
            if owner == arena_id:
                span = slice(page * PAGE, (page + 1) * PAGE)
                self.model[span] = self.hidden[span]
                self.owners[page] = 0

    @rule(page=st.integers(0, PAGES - 1), right=st.sampled_from([NONE, READ, READ_WRITE]))
    def protect(self, page: int, right: int) -> None:
        assert _libc.mprotect(self.base + page * PAGE, PAGE, right) == 0
        self.rights[page] = right

    @rule(span=ranges)
    def read(self, span: tuple[int, int]) -> None:
        offset, length = bounded(span)
        fault = self.first_fault(offset, length, READ)
        if fault is None:
            found = self.processor.run_thread(self.space.read, self.base + offset, length)
            assert found == self.model[offset : offset + length]
        else:
            with pytest.raises(AccessViolation) as caught:
                self.processor.run_thread(self.space.read, self.base + offset, length)
            assert caught.value.address == self.base + fault

    @rule(span=ranges, seed=st.integers(1, 250))
    def write(self, span: tuple[int, int], seed: int) -> None:
        offset, length = bounded(span)
        data = (bytes(range(seed, 251)) * (length // (251 - seed) + 1))[:length]
        fault = self.first_fault(offset, length, mmap.PROT_WRITE)
        if fault is None:
            self.processor.run_thread(self.space.write, self.base + offset, data)
            stored = length
        else:
            with pytest.raises(AccessViolation) as caught:
                self.processor.run_thread(self.space.write, self.base + offset, data)
            assert caught.value.address == self.base + fault
            stored = self.start_of_piece(fault, offset) - offset
        self.model[offset : offset + stored] = data[:stored]

    @rule(span=ranges)
    def probe(self, span: tuple[int, int]) -> None:
        offset, length = bounded(span)
        call: tuple[Any, ...] = (self.space.probe_for_write, self.base + offset, length)
        fault = self.first_fault(offset, length, mmap.PROT_WRITE)
        if fault is None:
            self.processor.run_thread(*call)
        else:
            with pytest.raises(AccessViolation) as caught:
                self.processor.run_thread(*call)
            assert caught.value.address == self.base + fault

    @rule(span=ranges)
    def view(self, span: tuple[int, int]) -> None:
        offset, length = bounded(span)
        last = max(offset, offset + length - 1) // PAGE
        owners = set(self.owners[offset // PAGE : last + 1]) if last < PAGES else {0}
        view = self.processor.run_thread(self.space.arena_view, self.base + offset, length)
        if len(owners) == 1 and owners != {0}:
            assert view == self.model[offset : offset + length]
        else:
            assert view is None

    def first_fault(self, offset: int, length: int, right: int) -> int | None:
        end = offset + length
        for page in range(offset // PAGE, -(-end // PAGE) if length else 0):
            if not self.owners[page] and not self.rights[page] & right:
                return max(offset, page * PAGE)
        return None

    def start_of_piece(self, fault: int, offset: int) -> int:
        page = fault // PAGE
        while page and not self.owners[page - 1]:
            page -= 1
        return max(offset, page * PAGE)

    def teardown(self) -> None:
        if hasattr(self, "private"):
            self.private.close()
            _libc.mprotect(self.base, PAGES * PAGE, READ_WRITE)
            self.memory.close()


class TextAddressSpaceModel(AddressSpaceModel):
    """The same where the system has no PROCMAP_QUERY."""

    by_query = False


TestAddressSpaceModel = AddressSpaceModel.TestCase
TestAddressSpaceModel.settings = settings(max_examples=50, stateful_step_count=50)
TestTextAddressSpaceModel = TextAddressSpaceModel.TestCase
TestTextAddressSpaceModel.settings = settings(max_examples=15, stateful_step_count=50)


@pytest.mark.stress
@pytest.mark.parametrize("model", [AddressSpaceModel, TextAddressSpaceModel])
def test_many_programs_see_what_the_model_says(model: type[AddressSpaceModel]):
    run_state_machine_as_test(model, settings=settings(max_examples=1000, stateful_step_count=50))
