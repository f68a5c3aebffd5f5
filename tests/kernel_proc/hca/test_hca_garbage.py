"""Whatever is written into registers, mailboxes and doorbells, the device lives and stays sane."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.command_opcodes import COMMANDS
from shared import doorbell_layout as bells
from tests.kernel_proc.hca.hca_bench import KERNEL_SEGMENT, PAGE, UAR, Bench

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 300)
EDGES32 = st.sampled_from([0, 1, 2**31, 2**32 - 1, 200, 2000, 70, 5, 1 << 24])
WORDS = st.lists(st.one_of(SMALL, EDGES32, U32), max_size=64)


class Victims:
    """A device with one of everything, beside which garbage is posted."""

    def __init__(self) -> None:
        self.bench = bench = Bench().bring_up()
        self.qp = bench.make_qp()
        key, _ = bench.region(16 * 64)
        context = abi.SrqContext(70, 9, UAR, key, 16, 64, bench.slot(), 0)
        bench.ok(op.SW2HW_SRQ, modifier=70, inbox=abi.SRQ_CONTEXT.pack(*context))
        self.guard = bench.pages(4)
        bench.at(self.guard, 4 * PAGE)[:] = b"\xa5" * 4 * PAGE

    def check(self) -> None:
        assert self.bench.device.failure == ""
        assert self.bench.words[reg.CATASTROPHIC_OFFSET // 8] == 0
        assert bytes(self.bench.at(self.guard, 4 * PAGE)) == b"\xa5" * 4 * PAGE


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(COMMANDS)),
            st.one_of(SMALL, EDGES32, U32),
            st.integers(0, 15),
            WORDS,
            st.one_of(st.none(), U64),
            st.booleans(),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_garbage_in_commands_is_a_status(
    commands: list[tuple[int, int, int, list[int], int | None, bool]],
):
    victims = Victims()
    bench = victims.bench
    for opcode, modifier, opmod, words, out_param, event in commands:
        body = struct.pack(f">{len(words)}I", *words)
        # An output mailbox may be anywhere but over the guard, which the kernel may well name.
        out = out_param
        if out is not None and out >> reg.SEGMENT_SHIFT == KERNEL_SEGMENT:
            out = None
        bench.post(
            opcode, modifier=modifier, opmod=opmod, inbox=body, out_param=out, event=event, token=1
        )
        bench.settle()
        assert not bench.control & reg.HCR_GO_BIT
        for number in bench.eqs:
            bench.events(number)
    victims.check()
    bench.device.inspect()


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32 - 1), U64, U32, U64, U32)
def test_garbage_in_the_hcr_is_a_status(
    control: int, in_param: int, modifier: int, out_param: int, token: int
):
    victims = Victims()
    if out_param >> reg.SEGMENT_SHIFT == KERNEL_SEGMENT:
        out_param = 0
    registers = victims.bench.registers
    reg.HCR_PARAMETERS.pack_into(registers, reg.HCR_OFFSET, in_param, modifier, out_param, token)
    reg.HCR_CONTROL.pack_into(registers, reg.HCR_CONTROL_OFFSET, control | reg.HCR_GO_BIT)
    victims.bench.settle()
    victims.check()
    assert not victims.bench.control & reg.HCR_GO_BIT


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([bells.RUNG_WORD, bells.RING_WORD, bells.FIRST_SLOT_WORD]),
            st.integers(0, 12),
            st.one_of(SMALL, st.sampled_from([2**64 - 1, 2**63, 1 << 48, 1 << 32]), U64),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_garbage_in_doorbells_hurts_its_session_alone(
    stores: list[tuple[int, int, int]], in_error: bool
):
    victims = Victims()
    bench = victims.bench
    other_bells = memoryview(bytearray(bells.SEGMENT_LENGTH))
    bench.device.add_doorbells(UAR + 1, other_bells)
    if in_error:
        victims.qp.bring(6)
    for kind in (bells.RING_SEND, bells.RING_RECEIVE, bells.RING_SRQ, bells.RING_CQ_ARM):
        for slot in range(12):
            place = bells.RING_WORD + kind * 12 + slot
            bench.slots[place] = kind << bells.KIND_SHIFT | slot
    for base, offset, value in stores:
        bench.slots[base + (offset if base != bells.RUNG_WORD else 0)] = value
        bench.settle()
        for number in bench.eqs:
            bench.events(number)
    victims.check()
    assert bench.run(op.NOP) == op.CMD_STAT_OK
    assert not any(bytes(other_bells[:4096]))
    assert bench.device.inspect()["doorbells"][str(UAR + 1)]["rings"] == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(U64, min_size=8, max_size=8), st.integers(1, 8 * PAGE), U64)
def test_queues_lie_in_granted_memory_alone(entries: list[int], length: int, address: int):
    bench = Bench().bring_up()
    body = abi.WRITE_MTT_HEADER.pack(0, 0) + struct.pack(">8Q", *entries)
    bench.ok(op.WRITE_MTT, modifier=8, inbox=body)
    key = 40 << 8
    flags = abi.MPT_FLAG_REGION | abi.MPT_FLAG_LOCAL_READ | abi.MPT_FLAG_LOCAL_WRITE
    entry = abi.MptEntry(flags, 0, key, 9, 0, length)
    bench.ok(op.SW2HW_MPT, modifier=40, inbox=abi.MPT_ENTRY.pack(*entry))
    context = abi.EqContext(0, address % (2 * length), 3 << 24, 0, 0, 9, key)
    status = bench.run(op.SW2HW_EQ, modifier=7, inbox=abi.EQ_CONTEXT.pack(*context))
    assert status in (op.CMD_STAT_OK, op.CMD_STAT_BAD_PARAM)
    if status == op.CMD_STAT_OK:
        assert context.start + 8 * 32 <= length
        assert entries[context.start // PAGE] & abi.MTT_PRESENT
    assert bench.device.failure == ""
