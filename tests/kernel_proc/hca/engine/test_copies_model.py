"""Copies that end at any moment: between a timer and its turn, a reset, a drain, an owner's end.

Random work from and to the private memory of two processes, over RC, UC and XRC. The copies are
made when the test says so, one by one; meanwhile timers run out, queue pairs drain, go into the
error state, are reset and connected again, and processes end. Whatever happens, each entry
completes once and in order, what a reliable sender was told has come to pass, and nothing is held.
"""

import ctypes
import itertools
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine import private_copier, requester
from kernel_proc.hca.engine.private_copier import CopyJob
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi import registers as reg
from shared import doorbell_layout as bells
from tests.kernel_proc.hca.engine.engine_bench import (
    ALL_RIGHTS,
    Region,
    SharedQueue,
    engine_bench,
    pair,
    wr,
    xrc_pair,
    xrc_queue,
)
from tests.kernel_proc.hca.hca_bench import PAGE, Bench

SEGMENTS = (9, 10)  # the private memory of the sender's process, and of the receiver's
PLACES = 48  # messages of one example, each with memory of its own
PLACE = 12_288
RUN = 4096  # bytes a run, so that most messages take several
RELIABLE = ("RC", "XRC")
NAMES = {
    "RC": ("SEND", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ", "ATOMIC_FETCH_AND_ADD"),
    "UC": ("SEND", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM"),
    "XRC": ("SEND", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ", "ATOMIC_FETCH_AND_ADD"),
}
TAKES_ENTRY = ("SEND", "RDMA_WRITE_WITH_IMM")
LENGTHS = (8, 0, 1025, RUN, RUN + 1, 1, 2 * RUN, PLACE)


class Hand:
    """A lane without a thread: jobs are done by the test's hand."""

    def __init__(self, number: int, finished: Callable[[CopyJob], None]) -> None:
        self.jobs: Hand | None = self  # what the copier puts jobs into
        self.waiting: deque[CopyJob] = deque()
        self.under_way: deque[CopyJob] = deque()
        self._finished = finished

    def put(self, job: CopyJob | None) -> None:
        if job is not None:
            self.waiting.append(job)
            HANDS.append((self, job))

    def copy(self) -> None:
        job = self.waiting.popleft()
        if not job.over:
            job.run()
        self._finished(job)


HANDS: list[tuple[Hand, CopyJob]] = []


class Private:
    """Memory of this process, in a segment of its own."""

    def __init__(self, bench: Bench, segment: int) -> None:
        length = PLACES * PLACE
        self.map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        pages = range(self.start, self.start + length, PAGE)
        bus = [segment << reg.SEGMENT_SHIFT | page for page in pages]
        self.key = bench.mpt(bus, length, start=self.start, flags=ALL_RIGHTS)

    @property
    def view(self) -> memoryview:
        return memoryview(self.map)


@dataclass
class Message:
    """What was posted, and what has become of it."""

    name: str
    length: int
    place: int
    near: "Private | Region"
    far: "Private | Region"
    life: int
    statuses: list[int] = field(default_factory=list)


class Scene:
    """One sender, one receiver, two private memories."""

    def __init__(self, kind: str, ack_timeout: int) -> None:
        HANDS.clear()
        self.kind = kind
        bench = self.bench = engine_bench()
        for segment in SEGMENTS:
            bench.device.add_segment(segment, None, os.open("/proc/self/mem", os.O_RDWR))
        bench.tables.engine.copier.use_threads(lambda: None)
        self.queue: SharedQueue | None = None
        options = {"ack_timeout": ack_timeout, "rnr_retry": 7, "entries": 64}
        if kind == "XRC":
            self.queue = xrc_queue(bench, entries=64)
            self.ends = xrc_pair(bench, **options)
        else:
            transport = abi.QPC_TRANSPORT_UC if kind == "UC" else abi.QPC_TRANSPORT_RC
            self.ends = pair(bench, transport=transport, **options)
        self.private = [Private(bench, segment) for segment in SEGMENTS]
        self.shared = [Region(bench, PLACES * PLACE) for _ in SEGMENTS]
        self.messages: list[Message] = []
        self.receives: list[tuple[int, int]] = []  # life and length of what was posted for
        self.arrived: list[tuple[int, int]] = []  # status and length, of this life
        self.entries: list[int] = []  # that completed: of the receiver, in this life
        self.life = 0
        self.broken = False  # this life has had an end that was not asked for
        self.psn = itertools.count(10_000, 1_000)
        self.steps: deque[Callable[[], object]] = deque()  # commands that are still to be posted
        self.gone: set[int] = set()
        self.is_draining = False

    # What users do

    @property
    def can_command(self) -> bool:
        return not self.steps and not self.bench.control & reg.HCR_GO_BIT

    def send(self, number: int) -> None:
        if len(self.messages) < PLACES:
            names = NAMES[self.kind]
            name, length = names[number % len(names)], LENGTHS[number // 4 % len(LENGTHS)]
            self.send_one(name, length, not number & 1, not number & 2)

    def send_one(self, name: str, length: int, near: bool, far: bool) -> None:
        length = 8 if name.startswith("ATOMIC") else length
        place = len(self.messages)
        sides = (
            (self.private if near else self.shared)[0],
            (self.private if far else self.shared)[1],
        )
        message = Message(name, length, place, *sides, self.life)
        start = place * PLACE
        for side, byte in zip(sides, (place + 1, 255 - place), strict=True):
            side.view[start : start + PLACE] = bytes([byte]) * PLACE
        if name in TAKES_ENTRY:
            element = (message.far.start + start, PLACE, message.far.key)
            if self.queue is not None:
                self.queue.post([element])
            else:
                self.ends[1].receive([element])
            self.receives.append((self.life, length))
        self.messages.append(message)
        elements = [(message.near.start + start, length, message.near.key)] if length else []
        self.ends[0].send(
            wr(name),
            elements,
            remote=(message.far.start + start, message.far.key),
            compare=1,
            srqn=self.queue.srqn if self.queue is not None else 0,
        )

    def drain(self, number: int) -> None:
        """Stop starting what was posted; or, if it has stopped, go on."""
        if self.is_draining:
            self.go_on()
        elif self.can_command and self.ends[0].state == table.RTS:
            self.command(0, op.RTS2SQD_QPEE)
            self.is_draining = True

    def go_on(self) -> None:
        self.settle()
        if (
            self.can_command
            and self.ends[0].state == table.SQD
            and not self.ends[0].device_object.draining
        ):
            assert not self.ends[0].device_object.outgoing.busy
            self.command(0, op.SQD2RTS_QPEE)
            self.is_draining = False

    def disturb(self, number: int) -> None:
        """Whatever ends work that is under way; a reset waits for copies, and all goes on."""
        side, how = number & 1, number // 2 % 4
        due = self.bench.tables.engine.copier.next_deadline_ns()
        if how == 0 and side not in self.gone:
            self.gone.add(side)
            self.bench.device.remove_segment(SEGMENTS[side])
        elif how == 1 and due is not None:  # a page that sticks
            self.bench.now = max(self.bench.now, due + 1)
        elif self.can_command and how == 2:
            self.command(side, op.TOERR_QPEE)
        elif self.can_command:
            self.steps.extend([lambda: self.reset(0), lambda: self.reset(1), self.connect])
        self.broken = True

    # What the machine does

    def step(self, number: int) -> None:
        for _ in range(1 + number % 4):
            self.bench.device.run_once()

    def let_time_pass(self, number: int) -> None:
        """A timer runs out, and whoever waits for it gets its turn later, or never."""
        due = self.bench.tables.engine.deadlines.next_ns()
        if due is not None:
            self.bench.now = max(self.bench.now, due)
        if number & 1:
            self.bench.tables.engine.run_due()

    def copy(self, number: int) -> None:
        if HANDS:
            self.copy_in(number // 2)
        if number & 1:
            self.bench.tables.engine.run_due()

    def copy_in(self, number: int) -> None:
        lanes = list({id(lane): lane for lane, _ in HANDS}.values())
        lane = lanes[number % len(lanes)]
        HANDS.remove((lane, lane.waiting[0]))
        lane.copy()

    # Commands

    def command(self, side: int, opcode: int) -> None:
        self.steps.append(lambda: self.post(side, opcode))

    def post(self, side: int, opcode: int, opmod: int = 0) -> None:
        user = self.ends[side]
        inbox = None if opcode in (op.ERR2RST_QPEE, op.TOERR_QPEE) else user._mailbox()
        self.bench.post(opcode, modifier=user.qpn, inbox=inbox, opmod=opmod)

    def reset(self, side: int) -> None:
        self.post(side, op.ERR2RST_QPEE, op.ERR2RST_NO_OUTBOX)

    def connect(self) -> None:
        """A new life: what was posted in the last one and has not completed is swept."""
        self.take_completions()
        self.life += 1
        self.broken = bool(self.gone)
        self.is_draining = False
        self.arrived.clear()
        if self.queue is None:  # a shared one goes on
            self.entries.clear()
        for user in self.ends:
            user.context = user.context._replace(next_send_psn=next(self.psn))
            user.sent = user.received = 0
            for slot in (user.send_slot, user.receive_slot):
                self.bench.slots[bells.FIRST_SLOT_WORD + slot] = 0
            self.bench.ok(op.RST2INIT_QPEE, modifier=user.qpn, inbox=user._mailbox())
        one, other = self.ends
        one.connect(other)
        other.connect(one)

    # What must be true

    def take_completions(self) -> None:
        mine = [one for one in self.messages if one.life == self.life]
        for cqe in self.ends[0].send_cq.poll():
            mine[cqe.wqe_index].statuses.append(cqe.status)
        cq = self.queue.cq if self.queue is not None else self.ends[1].receive_cq
        assert cq is not None
        found = cq.poll()
        self.arrived += [(cqe.status, cqe.byte_len) for cqe in found]
        self.entries += [cqe.wqe_index for cqe in found]

    def all_is_well(self) -> None:
        assert not self.bench.device.dead, self.bench.device.failure
        if self.steps and not self.bench.control & reg.HCR_GO_BIT:
            self.steps.popleft()()
        self.take_completions()
        assert self.entries == list(range(len(self.entries)))  # each once, and in order
        mine = [one for one in self.messages if one.life == self.life]
        done = [one for one in mine if one.statuses]
        assert done == mine[: len(done)]  # in order
        assert all(len(one.statuses) == 1 for one in done)  # once
        found = [one.statuses[0] for one in done]
        good = list(itertools.takewhile(lambda status: not status, found))
        assert all(status == ops.WR_FLUSH_ERR for status in found[len(good) + 1 :])
        if self.kind in RELIABLE:
            self.check_reliable(done[: len(good)])

    def check_reliable(self, good: list[Message]) -> None:
        """What a reliable sender was told has come to pass."""
        self.check_memory(good)
        entries = [one.length for one in good if one.name in TAKES_ENTRY]
        taken = [length for status, length in self.arrived if not status]
        assert taken[: len(entries)] == entries
        assert len(taken) <= len(entries) + 1

    def check_memory(self, messages: list[Message]) -> None:
        """Each message is where it belongs."""
        for message in messages:
            start, length = message.place * PLACE, message.length
            near = message.near.view[start : start + length]
            far = message.far.view[start : start + length]
            if message.name.startswith("ATOMIC"):
                was = bytes([255 - message.place]) * 8
                assert near == was
                assert int.from_bytes(far, "little") == (int.from_bytes(was, "little") + 1) % 2**64
            elif self.queue is None or not self.life or message.name != "SEND":
                from_far = message.name == "RDMA_READ"
                byte = 255 - message.place if from_far else message.place + 1
                assert near == far == bytes([byte]) * length

    def settle(self) -> None:
        """Let everything come to rest."""
        bench = self.bench
        for _ in range(3_000):
            busy = bench.device.run_once()
            if HANDS:
                self.copy_in(0)
                continue
            if self.steps and not bench.control & reg.HCR_GO_BIT:
                self.steps.popleft()()
                continue
            if busy or bench.control & reg.HCR_GO_BIT:
                continue
            due = bench.tables.engine.deadlines.next_ns()
            if due is None:
                return
            bench.now = max(bench.now, due)
        raise AssertionError("it does not come to rest")

    def end(self) -> None:
        """Let all come to rest; then nothing is held."""
        self.settle()
        self.all_is_well()
        mine = [one for one in self.messages if one.life == self.life]
        state = self.ends[0].state
        if not self.broken and not self.is_draining:
            assert [one.statuses for one in mine] == [[0]] * len(mine)
            due = [length for life, length in self.receives if life == self.life]
            assert self.arrived == [(0, length) for length in due]
            self.check_memory(mine)
        elif state in (table.ERR, table.SQE):
            assert all(one.statuses for one in mine)
        copier = self.bench.tables.engine.copier
        assert copier.outstanding == 0
        assert all(user.device_object.copies == 0 for user in self.ends)
        for key in (*self.private, *self.shared):
            index = self.bench.tables.translation.index_of(key.key)
            self.bench.ok(op.HW2SW_MPT, modifier=index, opmod=1)
        self.bench.device.close()


ACTIONS: Final = {
    "send": Scene.send,
    "step": Scene.step,
    "time": Scene.let_time_pass,
    "copy": Scene.copy,
    "drain": Scene.drain,
    "disturb": Scene.disturb,
}
QUIET = ("send", "send", "step", "step", "time", "time", "copy", "copy", "drain")
NUMBERS = st.integers(0, 39)


def actions(names: tuple[str, ...]) -> "st.SearchStrategy[list[tuple[str, int]]]":
    return st.lists(st.tuples(st.sampled_from(names), NUMBERS), min_size=5, max_size=40)


@pytest.fixture(autouse=True, scope="module")
def by_hand() -> Iterator[None]:
    with (
        mock.patch.object(private_copier, "_Lane", Hand),
        mock.patch.object(requester, "BYTES_A_RUN", RUN),
    ):
        yield


@pytest.mark.parametrize("kind", sorted(NAMES))
@given(
    st.sampled_from([0, 1, 14]),
    st.one_of(actions(QUIET), actions((*QUIET, "disturb", "disturb"))),
)
@settings(max_examples=60, deadline=None)
def test_copies_end_at_any_moment(kind: str, ack_timeout: int, todo: list[tuple[str, int]]):
    scene = Scene(kind, ack_timeout)
    for number in (0, 5):
        scene.send(number)
    for name, number in todo:
        ACTIONS[name](scene, number)
        scene.all_is_well()
    scene.end()
