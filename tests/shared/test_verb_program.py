"""Programs of verbs and the journal: bytes, object, bytes; any other bytes are a ProgramError."""

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.journal_layout import JOURNAL_HEAD, JOURNAL_RECORD, JournalRecord, unpack_journal
from shared.message_codec import encode
from shared.verb_codes import IOCTL_ALLOC_PD, IOCTL_DEALLOC_PD, IOCTL_REG_MR
from shared.verb_messages import Object, Registered, RegMr
from shared.verb_program import (
    MOST_REGISTERS,
    MOST_STEPS,
    ProgramError,
    VerbStep,
    pack_program,
    unpack_program,
)

STEPS = [
    VerbStep(IOCTL_ALLOC_PD, None, (), ((0, 5),)),
    VerbStep(IOCTL_REG_MR, RegMr(0, 0, 4096, 0, 7), ((0, 5), (1, 9), (3, 9)), ((0, 6), (2, 7))),
    VerbStep(IOCTL_DEALLOC_PD, Object(0), ((0, 5),)),
]
OBJECT = encode(Object(0))


def test_golden_bytes():
    assert pack_program([STEPS[2]]).hex(" ") == (
        "91 94 ce 80 03 e0 1c c4 04 93 2f 01 00 91 92 00 05 90".replace(
            "80 03 e0 1c", IOCTL_DEALLOC_PD.to_bytes(4, "big").hex(" ")
        )
    )


def test_what_comes_out_does_what_went_in():
    steps = unpack_program(pack_program(STEPS))
    registers = [0] * MOST_REGISTERS
    assert [step.name for step in steps] == ["alloc_pd", "reg_mr", "dealloc_pd"]
    assert steps[0].request(registers) is None
    steps[0].keep(Object(3), registers)
    registers[9] = 0x7000
    assert steps[1].request(registers) == RegMr(3, 0x7000, 4096, 0x7000, 7)
    steps[1].keep(Registered(8, 80, 81), registers)
    assert registers[5:8] == [3, 8, 81]
    assert steps[2].request(registers) == Object(3)
    assert pack_program(steps) == pack_program(STEPS)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (b"\xc1", "not msgpack"),
        (msgpack.packb({}), "an array of at most"),
        (msgpack.packb([[]] * (MOST_STEPS + 1)), "an array of at most"),
        (msgpack.packb([[IOCTL_ALLOC_PD, b"", []]]), "four parts"),
        (msgpack.packb([[1, b"", [], []]]), "begins with a verb's code"),
        (msgpack.packb([[True, b"", [], []]]), "begins with a verb's code"),
        (msgpack.packb([[IOCTL_ALLOC_PD, "", [], []]]), "begins with a verb's code"),
        (msgpack.packb([[IOCTL_DEALLOC_PD, b"\x90", [], []]]), "dealloc_pd: "),
        (msgpack.packb([[IOCTL_DEALLOC_PD, OBJECT, [[1, 0]], []]]), "does not exist"),
        (msgpack.packb([[IOCTL_DEALLOC_PD, OBJECT, [[0, MOST_REGISTERS]], []]]), "does not exist"),
        (msgpack.packb([[IOCTL_DEALLOC_PD, OBJECT, [[0, -1]], []]]), "does not exist"),
        (msgpack.packb([[IOCTL_DEALLOC_PD, OBJECT, [], [[0, 0, 0]]]]), "does not exist"),
        (msgpack.packb([[IOCTL_DEALLOC_PD, OBJECT, [], {}]]), "short array"),
    ],
)
def test_what_is_no_program_is_refused_with_a_reason(program: bytes, words: str):
    with pytest.raises(ProgramError, match=words):
        unpack_program(program)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_program_or_a_program_error(data: bytes):
    with contextlib.suppress(ProgramError):
        assert isinstance(unpack_program(data), list)


@given(st.data())
def test_a_damaged_program_is_one_or_a_program_error(data: Any):
    packed = bytearray(pack_program(STEPS))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ProgramError):
        for step in unpack_program(bytes(packed)):
            step.request([0] * MOST_REGISTERS)


def test_the_journal_is_read_as_it_was_written():
    packed = JOURNAL_HEAD.pack(9) + JOURNAL_RECORD.pack(8, b"2ERR_QPEE", 3, 1, 2)
    assert unpack_journal(packed) == (9, [JournalRecord(8, "2ERR_QPEE", 3, 1, 2)])
    assert unpack_journal(JOURNAL_HEAD.pack(0)) == (0, [])
