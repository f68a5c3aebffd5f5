"""The command interface: tokens, time-outs, both modes, and the death of the HCA."""

import errno
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kernel_proc.driver.command_channel import (
    COMMAND_TIMEOUT_NS,
    TEARDOWN,
    CommandChannel,
)
from kernel_proc.driver.command_register import GO_TIMEOUT_NS
from kernel_proc.driver.command_slots import CommandSlots
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import registers as reg
from kernel_proc.memory.bus import Bus
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.scheduling.bugcheck import BugCheck
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.processor import Processor
from shared.live_words import words64
from shared.verb_reasons import VerbReason

CONTROL = reg.HCR_CONTROL_OFFSET
POSTED = reg.COMMANDS_POSTED_OFFSET // 8
TAKEN = reg.COMMANDS_TAKEN_OFFSET // 8


class Firmware:
    """The other side of the register, and of the command doorbell if `rings`, moved by hand."""

    def __init__(self) -> None:
        self.registers = memoryview(bytearray(reg.REGISTER_PAGE_SIZE))
        self.poked = 0
        self.rings = False
        self._live = words64(self.registers)

    def poke(self) -> None:
        self.poked += 1

    @property
    def control(self) -> int:
        return int(reg.HCR_CONTROL.unpack_from(self.registers, CONTROL)[0])

    @property
    def parameters(self) -> tuple[int, ...]:
        if not self.rings:
            return reg.HCR_PARAMETERS.unpack_from(self.registers, reg.HCR_OFFSET)
        place = self._live[TAKEN] % reg.COMMAND_RING_ENTRIES * reg.COMMAND_RING_STRIDE
        entry = reg.COMMAND_RING_ENTRY.unpack_from(self.registers, reg.COMMAND_RING_OFFSET + place)
        assert entry[4] & (reg.HCR_GO_BIT | reg.HCR_E_BIT) == reg.HCR_GO_BIT | reg.HCR_E_BIT
        return entry[:4]

    @property
    def has_command(self) -> bool:
        """Whether there is one to accept."""
        if self.rings:
            return bool(self._live[TAKEN] != self._live[POSTED])
        return bool(self.control & reg.HCR_GO_BIT)

    @property
    def token(self) -> int:
        return self.parameters[3] >> 16

    def set_control(self, value: int) -> None:
        reg.HCR_CONTROL.pack_into(self.registers, CONTROL, value)

    def accept(self) -> int:
        """Take the command; return its token."""
        assert self.has_command
        token = self.token
        if self.rings:
            self._live[TAKEN] += 1
        else:
            self.set_control(self.control & ~reg.HCR_GO_BIT)
        return token

    def finish_polled(self, status: int, out_param: int = 0) -> None:
        reg.HCR_OUT_PARAM.pack_into(self.registers, reg.HCR_OUT_PARAM_OFFSET, out_param)
        self.set_control(self.control & 0xFFFF | status << 24)


class Bench:
    """A channel, its firmware, and threads that ask for commands."""

    def __init__(self) -> None:
        self.processor = Processor(VirtualClock(), verifier=True)
        self.firmware = Firmware()
        self.memory = KernelMemory(Bus(PageFrameAllocator()))
        link: Any = self.firmware
        self.channel = CommandChannel(self.processor, link, self.memory)

    def ask(self, opcode: int = op.NOP, **more: Any) -> list[Any]:
        """Begin a command; its result or refusal is put into the list."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(self.channel.execute(opcode, **more))
            except VerbRefused as refusal:
                outcome.append(refusal)

        create_system_thread(self.processor, run)
        return outcome

    def settle(self, limit_ns: int = 200_000) -> None:
        """Let threads run for a moment."""
        until = self.processor.clock.now_ns() + limit_ns
        alarm: list[int] = []
        self.processor.dispatcher.timers.add(until, _Alarm(alarm))
        self.processor.run_until(lambda: bool(alarm))

    def complete(self, token: int, status: int = 0, out_param: int = 0) -> bool:
        return self.channel.complete(token, status, out_param)


class _Alarm:
    def __init__(self, alarm: list[int]) -> None:
        self._alarm = alarm

    def expire(self) -> None:
        self._alarm.append(1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(params=[0, reg.COMMAND_RING_ENTRIES], ids=["register", "doorbell"])
def events(request: pytest.FixtureRequest) -> Bench:
    bench = Bench()
    bench.processor.run_thread(bench.channel.use_events, 2, request.param)
    bench.firmware.rings = request.param != 0
    return bench


def test_a_polled_command(bench: Bench):
    outcome = bench.ask(op.SET_ICM_SIZE, in_param=77, modifier=5, opmod=3)
    bench.settle()
    assert bench.firmware.control == reg.HCR_GO_BIT | 3 << 12 | op.SET_ICM_SIZE
    assert bench.firmware.parameters == (77, 5, 0, reg.POLLING_TOKEN << 16)
    assert bench.firmware.poked == 1
    bench.firmware.finish_polled(0, 1234)
    bench.settle(100_000)
    assert outcome == [(0, 1234, b"")]


def test_polling_has_one_command_at_a_time(bench: Bench):
    first, second = bench.ask(op.NOP), bench.ask(op.QUERY_FW)
    bench.settle()
    assert bench.firmware.control & 0xFFF == op.NOP
    bench.firmware.finish_polled(op.CMD_STAT_BAD_PARAM)
    bench.settle(200_000)
    assert first[0].status == op.CMD_STAT_BAD_PARAM
    assert not second
    assert bench.firmware.control & 0xFFF == op.QUERY_FW
    bench.firmware.finish_polled(0)
    bench.settle(200_000)
    assert second[0].status == 0


def test_mailboxes_carry_input_and_output(events: Bench):
    outcome = events.ask(op.MAD_IFC, inbox=b"question", outbox_length=6)
    events.settle()
    in_param, _, out_param, _ = events.firmware.parameters
    assert in_param % 4096 == out_param % 4096 == 0
    boxes = {box.bus_address: box for box in events.channel.mailboxes._made}
    assert bytes(boxes[in_param].view) == b"question".ljust(4096, b"\0")
    assert bytes(boxes[out_param].view) == bytes(4096)
    boxes[out_param].view[:6] = b"answer"
    assert events.complete(events.firmware.accept())
    events.settle()
    assert outcome == [(0, out_param, b"answer")]
    again = events.ask(op.MAD_IFC, inbox=b"q", outbox_length=6)
    events.settle()
    assert bytes(boxes[events.firmware.parameters[2]].view) == bytes(4096)
    events.complete(events.firmware.accept())
    events.settle()
    assert again[0].outbox == bytes(6)
    assert events.channel.mailboxes.allocated == 2


def test_event_mode_has_as_many_commands_as_slots(events: Bench):
    outcomes, tokens = [events.ask() for _ in range(6)], []
    for _ in range(4):
        events.settle()
        tokens.append(events.firmware.accept())
    events.settle()
    assert not events.firmware.has_command
    assert len({token & 3 for token in tokens}) == 4
    assert events.complete(tokens[2], 0, 42)
    events.settle()
    assert [len(outcome) for outcome in outcomes].count(1) == 1
    fresh = events.firmware.accept()  # the fifth has the slot now, with another generation
    assert fresh & 3 == tokens[2] & 3
    assert fresh != tokens[2]
    assert not events.complete(tokens[2])


def test_a_late_completion_completes_nobody_else(events: Bench):
    outcome = events.ask(op.MAD_IFC, inbox=b"x", outbox_length=8)
    events.settle()
    old = events.firmware.accept()
    events.settle(COMMAND_TIMEOUT_NS)
    assert (outcome[0].errno, outcome[0].reason) == (errno.EBUSY, VerbReason.COMMAND_TIMEOUT)
    others = [events.ask(op.MAD_IFC, inbox=b"y", outbox_length=8) for _ in range(4)]
    tokens = []
    for _ in range(4):
        events.settle()
        tokens.append(events.firmware.accept())
    assert old not in tokens
    assert events.channel.mailboxes.allocated == 10  # the HCA may still write to the first two
    assert not events.complete(old)
    events.settle()
    assert not any(others)
    for token in tokens:
        assert events.complete(token)
    events.settle()
    assert all(other[0].status == 0 for other in others)
    assert events.channel.inspect()["late_completions"] == 1
    assert events.channel.inspect()["given_up"] == 0


@pytest.mark.parametrize("ring_entries", [0, reg.COMMAND_RING_ENTRIES])
def test_commands_the_hca_does_not_take_are_eagain(bench: Bench, ring_entries: int):
    bench.processor.run_thread(bench.channel.use_events, 6, ring_entries)
    bench.firmware.rings = ring_entries != 0
    waiting = [bench.ask() for _ in range(ring_entries or 1)]
    late = [bench.ask() for _ in range(3 if ring_entries else 1)]
    bench.settle(GO_TIMEOUT_NS + 20_000_000)
    assert not any(waiting)
    for outcome in late:
        assert (outcome[0].errno, outcome[0].reason) == (errno.EAGAIN, VerbReason.COMMAND_TIMEOUT)
    for outcome in waiting:
        bench.complete(bench.firmware.accept())
        bench.settle()
        assert outcome[0].status == 0
    assert not bench.firmware.has_command


def test_a_place_in_the_ring_is_used_again_and_again(bench: Bench):
    bench.processor.run_thread(bench.channel.use_events, 6, reg.COMMAND_RING_ENTRIES)
    bench.firmware.rings = True
    for number in range(3 * reg.COMMAND_RING_ENTRIES):
        outcome = bench.ask(op.SET_ICM_SIZE, in_param=number, modifier=5)
        bench.settle()
        assert bench.firmware.parameters[:3] == (number, 5, 0)
        bench.complete(bench.firmware.accept(), 0, number)
        bench.settle()
        assert outcome[0].out_param == number


def test_a_polled_command_that_is_never_done(bench: Bench):
    outcome = bench.ask(op.QUERY_FW, outbox_length=16)
    bench.settle(COMMAND_TIMEOUT_NS + 20_000_000)
    assert (outcome[0].errno, outcome[0].detail) == (errno.EBUSY, op.QUERY_FW)
    assert not bench.channel.mailboxes._free  # the HCA may still write to it
    bench.channel.mailboxes.release()
    assert bench.memory.used == 0


@pytest.mark.parametrize("mode", ["polling", "event"])
def test_death_ends_every_command(mode: str):
    bench = Bench()
    if mode == "event":
        bench.processor.run_thread(bench.channel.use_events, 2)
    outcomes = [bench.ask(op.MAD_IFC, inbox=b"x", outbox_length=8) for _ in range(8)]
    bench.settle()
    if mode == "event":
        bench.firmware.accept()
        bench.settle()
    bench.channel.fail()
    bench.settle(200_000)
    assert [outcome[0].reason for outcome in outcomes] == [VerbReason.DEVICE_FATAL] * 8
    assert bench.firmware.poked == (2 if mode == "event" else 1)
    bench.channel.mailboxes.release()
    assert bench.memory.used == 0


def test_on_a_dead_hca_only_taking_back_succeeds(bench: Bench):
    bench.channel.fail()
    for opcode in op.COMMANDS:
        outcome = bench.ask(opcode)
        bench.settle()
        if opcode in TEARDOWN:
            assert outcome == [(0, 0, b"")]
        else:
            assert (outcome[0].errno, outcome[0].reason) == (errno.EIO, VerbReason.DEVICE_FATAL)
    assert not bench.firmware.poked


def test_run_turns_a_status_into_a_refusal(bench: Bench):
    outcome: list[VerbRefused] = []

    def run() -> None:
        try:
            bench.channel.run(op.HW2SW_MPT)
        except VerbRefused as refusal:
            outcome.append(refusal)

    create_system_thread(bench.processor, run)
    bench.settle()
    bench.firmware.finish_polled(op.CMD_STAT_REG_BOUND)
    bench.settle(200_000)
    assert (outcome[0].errno, outcome[0].reason) == (errno.EBUSY, VerbReason.COMMAND_FAILED)
    assert outcome[0].detail == op.HW2SW_MPT << 8 | op.CMD_STAT_REG_BOUND
    assert bench.channel.inspect()["failed"] == {"HW2SW_MPT": 1}


def test_a_command_needs_passive_level(bench: Bench):
    bench.processor.raise_irql(DISPATCH_LEVEL)
    with pytest.raises(BugCheck, match="HCA command"):
        bench.channel.execute(op.NOP)


class SlotMachine(RuleBasedStateMachine):
    """Commands begun, done, given up; completions that come, come late, or come twice."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = CommandSlots(Processor(VirtualClock()), 1)
        self.under_way: dict[int, Any] = {}
        self.told: list[int] = []
        self.given_up: list[int] = []

    @precondition(lambda self: len(self.under_way) < 2)
    @rule()
    def begin(self) -> None:
        slot = self.slots.acquire()
        self.slots.begin(slot)
        assert slot.token not in self.under_way
        assert slot.token not in self.given_up  # while its completion may still come
        self.under_way[slot.token] = slot

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), status=st.integers(0, 255))
    def complete(self, data: st.DataObject, status: int) -> None:
        token = data.draw(st.sampled_from(sorted(self.under_way)))
        slot = self.under_way.pop(token)
        assert self.slots.complete(token, status, token * 3)
        assert (slot.status, slot.out_param, slot.pending) == (status, token * 3, False)
        assert not self.slots.complete(token, 1, 1)
        assert slot.status == status
        self.slots.release(slot)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.under_way)))
        slot = self.under_way.pop(token)
        slot.pending = False
        self.slots.abandoned[token] = []
        self.given_up.append(token)
        self.slots.release(slot)

    @precondition(lambda self: self.given_up)
    @rule(data=st.data())
    def come_late(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.given_up))
        self.given_up.remove(token)
        assert not self.slots.complete(token, 9, 9)
        self.slots.abandoned.pop(token)
        assert all(slot.pending for slot in self.under_way.values())

    @rule(token=st.integers(0, 0xFFFF))
    def invent(self, token: int) -> None:
        if token not in self.under_way:
            assert not self.slots.complete(token, 9, 9)
            assert all(slot.pending for slot in self.under_way.values())


TestSlots = SlotMachine.TestCase
TestSlots.settings = settings(max_examples=25, stateful_step_count=30)
