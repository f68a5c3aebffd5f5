"""How the driver gets memory: each strategy works, keeps its level, and gives everything back."""

import errno
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.clients.transfer_client import MESSAGE_RATE, Pair
from kernel_proc.driver.allocation_strategies import LARGEST_DIRECT, strategies
from kernel_proc.driver.buffer_allocator import BufferAllocator, QueueBuffer
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.memory.bus import SEGMENT_SHIFT, Bus
from kernel_proc.memory.dma_adapter import DmaAdapter
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.scheduling.bugcheck import BugCheck
from kernel_proc.scheduling.irql import APC_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.settings import ALLOCATIONS
from shared import verb_codes as codes
from shared.message_codec import Message
from shared.messages import TransferRun
from shared.verb_messages import CreateCq
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.kernel_client_user import Client

PAGE = 4096
SEGMENT = 64 * PAGE


class Room:
    """An allocator and the memory under it."""

    def __init__(
        self,
        strategy: str,
        largest_run: int | None = None,
        limit: int = SEGMENT,
        verifier: bool = False,
    ) -> None:
        self.processor = Processor(VirtualClock(), verifier=verifier)
        self.bus = bus = Bus(PageFrameAllocator(1 << 20, largest_run))
        self.memory = KernelMemory(bus, None, limit, SEGMENT)
        self.adapter = DmaAdapter(self.processor, bus, self.memory)
        self.buffers = BufferAllocator(self.processor, self.memory, self.adapter, strategy)

    def in_thread(self, routine: Any, *args: Any, irql: int = PASSIVE_LEVEL) -> Any:
        def body() -> Any:
            old = self.processor.raise_irql(irql)
            try:
                return routine(*args)
            finally:
                self.processor.lower_irql(old)

        return self.processor.run_thread(body)

    def allocate(self, length: int) -> QueueBuffer:
        buffer: QueueBuffer = self.in_thread(self.buffers.allocate, length)
        return buffer

    def try_allocate(self, length: int) -> QueueBuffer | None:
        try:
            return self.allocate(length)
        except VerbRefused as error:
            refusal = error
        assert refusal.errno == errno.ENOMEM
        return None

    def held(self) -> tuple[int, int, int]:
        state = self.adapter.inspect()
        return self.memory.used, state["common_buffers"], state["scatter_gather_lists"]


def test_the_settings_name_every_strategy():
    room = Room("direct")
    assert set(strategies(room.processor, room.memory, room.adapter)) == set(ALLOCATIONS)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ALLOCATIONS),
    st.sampled_from([None, 1, 2, 3]),
    st.lists(st.integers(1, 12 * PAGE), min_size=1, max_size=6),
)
def test_memory_is_zeroed_apart_and_comes_back(
    strategy: str, largest_run: int | None, lengths: list[int]
):
    room, buffers = Room(strategy, largest_run, 4 * SEGMENT), list[QueueBuffer]()
    for length in lengths:
        buffer = room.try_allocate(length)
        if buffer is not None:
            buffers.append(buffer)
        else:
            assert strategy in ("common-buffer", "direct")
            assert largest_run is not None
            assert length > largest_run * PAGE
    for number, buffer in enumerate(buffers, 1):
        assert sum(map(len, buffer.views())) == buffer.length == sum(n for _, n in buffer.runs)
        assert all(not any(view) for view in buffer.views())
        for view in buffer.views():
            view[:] = bytes([number]) * len(view)
    runs = sorted(run for buffer in buffers for run in buffer.runs)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(runs))
    for number, buffer in enumerate(buffers, 1):
        assert all(set(view) == {number} for view in buffer.views())
        room.in_thread(room.buffers.free, buffer)
    assert room.held() == (0, 0, 0)


@pytest.mark.parametrize(
    ("strategy", "pieces", "depth", "views"),
    [
        ("direct", 8, 0, 8),
        ("pages", 8, 0, 8),
        ("smaller", 4, 2, 8),
        ("pool", 1, 0, 1),
    ],
)
def test_how_eight_pages_lie_where_only_two_are_in_a_row(
    strategy: str, pieces: int, depth: int, views: int
):
    room = Room(strategy, largest_run=2)
    buffer = room.allocate(8 * PAGE - 100)
    assert (len(buffer.pieces), buffer.depth, len(buffer.views())) == (pieces, depth, views)
    assert room.buffers.inspect() == {
        "strategy": strategy,
        "buffers": 1,
        "bytes": 8 * PAGE,
        "lost_to_rounding": 100,
        "pieces": pieces,
        "fallback_depth": depth,
    }
    past = {"refused": 0, "fallbacks": int(depth > 0), "deepest_fallback": depth}
    assert room.buffers.inspect_past() == past


def test_a_common_buffer_is_had_whole_or_not_at_all():
    room = Room("common-buffer", largest_run=2)
    with pytest.raises(VerbRefused):
        room.allocate(3 * PAGE)
    assert room.buffers.refused == 1
    assert len(room.allocate(2 * PAGE).runs) == 1


def test_direct_is_in_one_piece_up_to_its_limit():
    room = Room("direct")
    assert len(room.allocate(LARGEST_DIRECT).pieces) == 1
    assert len(room.allocate(LARGEST_DIRECT + 1).pieces) == LARGEST_DIRECT // PAGE + 1


@pytest.mark.parametrize("strategy", ALLOCATIONS)
def test_what_fails_half_way_keeps_nothing(strategy: str):
    room = Room(strategy)
    room.allocate(40 * PAGE)
    held = room.held()
    with pytest.raises(VerbRefused):
        room.allocate(30 * PAGE)
    assert room.held() == held
    room.allocate(20 * PAGE)


@pytest.mark.parametrize("strategy", ALLOCATIONS)
def test_the_level_at_which_memory_can_be_had(strategy: str):
    room = Room(strategy)
    if strategy == "pool":
        buffer = room.in_thread(room.buffers.allocate, PAGE, irql=APC_LEVEL)
        room.in_thread(room.buffers.free, buffer, irql=APC_LEVEL)
        assert room.held() == (0, 0, 0)
        return
    for verifier, code in ((False, 0x0A), (True, 0xE6)):
        room = Room(strategy, verifier=verifier)
        with pytest.raises(BugCheck) as stopped:
            room.in_thread(room.buffers.allocate, PAGE, irql=APC_LEVEL)
        assert stopped.value.code == code
        assert "AllocateCommonBuffer called at APC_LEVEL" in stopped.value.text()


def test_what_driver_and_device_share_breaks_under_dma_verification_from_pool_alone():
    seen = {}
    for strategy in ("direct", "pool"):
        room = Room(strategy, verifier=True)
        buffer = room.allocate(PAGE)
        ((address, _),) = buffer.runs
        segment = room.bus.segments[address >> SEGMENT_SHIFT]
        assert segment.view is not None
        segment.view[address & ((1 << SEGMENT_SHIFT) - 1)] = 7  # the device writes
        seen[strategy] = buffer.views()[0][0]
        room.in_thread(room.buffers.free, buffer)
    assert seen == {"direct": 7, "pool": 0}


def moved_by(client: Client) -> None:
    """Move messages through queues that are longer than a page, and compare what came."""
    plan = TransferRun(MESSAGE_RATE, 5 * PAGE + 100, 320, 0, 128, 4, 0, 1 << 30)

    def run() -> None:
        pair = Pair(client.table, plan, client.box.processor.dispatcher.pause)
        pair.stream(plan.messages)
        pair.check()

    client.box.processor.run_thread(run)


@pytest.mark.parametrize("largest_run", [None, 4])
@pytest.mark.parametrize("strategy", ALLOCATIONS)
def test_messages_arrive_however_the_queues_lie(strategy: str, largest_run: int | None):
    with HcaBox(verifier=False, allocation=strategy, largest_run=largest_run) as box:
        client = Client(box)
        if strategy == "common-buffer" and largest_run is not None:
            with pytest.raises(RaisedStatus, match=f"errno {errno.ENOMEM}"):
                moved_by(client)
        else:
            moved_by(client)
        client.close()
        assert box.adapter.inspect()["scatter_gather_lists"] == 0


def make_cq_at_apc_level(strategy: str) -> None:
    with HcaBox(verifier=False, allocation=strategy) as box:
        client = Client(box)

        def at_apc_level(code: int, request: Message | None = None) -> int:
            old = box.processor.raise_irql(APC_LEVEL)
            answer = client.table.call(code, request)
            box.processor.lower_irql(old)
            return answer.errno

        assert box.processor.run_thread(at_apc_level, codes.IOCTL_ALLOC_PD) == 0
        request = CreateCq(1000, 0, 0, 0, 0, 0)
        assert client.good(codes.IOCTL_CREATE_CQ, request).reply.handle
        assert box.processor.run_thread(at_apc_level, codes.IOCTL_CREATE_CQ, request) == 0
        client.close()


def test_at_apc_level_a_verb_waits_and_allocates_from_pool():
    make_cq_at_apc_level("pool")


def test_at_apc_level_a_verb_that_asks_for_a_common_buffer_stops_the_machine():
    with pytest.raises(BugCheck, match="AllocateCommonBuffer called at APC_LEVEL"):
        make_cq_at_apc_level("pages")
