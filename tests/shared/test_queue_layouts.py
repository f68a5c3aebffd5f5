"""Layouts in shared memory: sizes, offsets, strides, and words that are whole."""

import threading

import pytest

from shared import cqe_layout, doorbell_layout, live_words, wqe_layout


def test_a_completion_has_64_bytes_and_its_valid_word_is_the_last():
    entry = cqe_layout.Cqe(*range(1, 18))
    packed = cqe_layout.CQE.pack(*entry)
    assert cqe_layout.CQE_SIZE == 64
    assert len(packed) == cqe_layout.CQE_VALID_OFFSET == cqe_layout.CQE_SIZE - 8
    assert cqe_layout.CQE_VALID_WORD == 7
    assert cqe_layout.CQE.unpack(packed) == entry


@pytest.mark.parametrize(
    ("field", "offset", "size"),
    [
        ("qpn", 0, 4),
        ("wqe_index", 4, 4),
        ("byte_len", 8, 4),
        ("imm_data", 12, 4),
        ("src_qp", 16, 4),
        ("opcode", 20, 1),
        ("status", 21, 1),
        ("vendor_err", 22, 1),
        ("is_send", 23, 1),
        ("wc_flags", 24, 2),
        ("slid", 26, 2),
        ("pkey_index", 28, 2),
        ("sl", 30, 1),
        ("dlid_path_bits", 31, 1),
        ("srqn", 32, 4),
        ("solicited", 36, 4),
        ("timestamp_ns", 40, 8),
    ],
)
def test_the_fields_of_a_completion_lie_where_a_c_program_expects_them(
    field: str, offset: int, size: int
):
    value = int.from_bytes(bytes(range(0xA1, 0xA1 + size)), "little")
    entry = cqe_layout.Cqe(*[0] * 17)._replace(**{field: value})
    packed = cqe_layout.CQE.pack(*entry)
    assert packed[offset : offset + size] == value.to_bytes(size, "little")
    assert sum(packed) == sum(value.to_bytes(size, "little"))


SEND_FIELDS = [
    ("opcode", 0, 4),
    ("flags", 4, 4),
    ("elements", 8, 4),
    ("imm_data", 12, 4),
    ("remote_address", 16, 8),
    ("rkey", 24, 4),
    ("srqn", 28, 4),
    ("compare_add", 32, 8),
    ("swap", 40, 8),
    ("remote_qpn", 96, 4),
    ("remote_qkey", 100, 4),
    ("inline_length", 104, 4),
]
NO_SEND = wqe_layout.SendHead(*[0] * 9, bytes(48), 0, 0, 0)


@pytest.mark.parametrize(("field", "offset", "size"), SEND_FIELDS)
def test_the_fields_of_a_send_entry(field: str, offset: int, size: int):
    value = int.from_bytes(bytes(range(0xA1, 0xA1 + size)), "little")
    packed = wqe_layout.SEND_HEAD.pack(*NO_SEND._replace(**{field: value}))
    assert len(packed) == wqe_layout.SEND_HEAD_SIZE == wqe_layout.SEND_SGE_OFFSET == 128
    assert packed[offset : offset + size] == value.to_bytes(size, "little")
    assert sum(packed) == sum(value.to_bytes(size, "little"))


def test_the_address_vector_of_a_send_entry():
    gid = bytes(range(16))
    vector = wqe_layout.AddressVector(1, 2, 3, 4, 0x506, 1, 7, 0x8090A, 11, 12, gid, 13)
    packed = wqe_layout.ADDRESS_VECTOR.pack(*vector)
    assert packed == (
        bytes.fromhex("01020304 0605 01 07 0a090800 0b0c 0000") + gid + b"\x0d" + bytes(15)
    )
    head = wqe_layout.SEND_HEAD.pack(*NO_SEND._replace(address_vector=packed))
    assert head[48:96] == packed
    assert wqe_layout.ADDRESS_VECTOR.unpack(packed) == vector


@pytest.mark.parametrize(
    ("elements", "stride"), [(0, 64), (1, 64), (3, 64), (4, 128), (7, 128), (27, 512)]
)
def test_receive_strides(elements: int, stride: int):
    assert wqe_layout.receive_stride(elements) == stride
    assert wqe_layout.RECEIVE_SGE_OFFSET + wqe_layout.SGE.size * elements <= stride


@pytest.mark.parametrize(
    ("elements", "inline", "stride"),
    [(0, 0, 128), (1, 0, 256), (8, 0, 256), (9, 0, 512), (0, 400, 1024), (27, 400, 1024)],
)
def test_send_strides(elements: int, inline: int, stride: int):
    assert wqe_layout.send_stride(elements, inline) == stride


@pytest.mark.parametrize(("asked", "entries"), [(0, 0), (1, 1), (2, 2), (3, 4), (16384, 16384)])
def test_ring_entries(asked: int, entries: int):
    assert wqe_layout.ring_entries(asked) == entries


def test_the_parts_of_a_doorbell_segment_do_not_overlap():
    layout = doorbell_layout
    assert (layout.RUNG_WORD + 8) * layout.WORD <= layout.RING_WORD * layout.WORD
    assert layout.RING_WORD + layout.RING_ENTRIES <= layout.FIRST_SLOT_WORD
    assert (layout.FIRST_SLOT_WORD + layout.SLOTS) * layout.WORD == layout.SEGMENT_LENGTH
    assert layout.SLOTS <= layout.SLOT_MASK


def test_the_parts_of_an_arm_word_do_not_overlap():
    layout = doorbell_layout
    sequence = layout.ARM_SEQUENCE_MASK << layout.ARM_SEQUENCE_SHIFT
    age = layout.ARM_ANY_AGE_MASK << layout.ARM_ANY_AGE_SHIFT
    assert layout.ARM_SOLICITED + sequence + age + layout.INDEX_MASK == (1 << 64) - 1


def test_the_words_of_the_status_page_lie_on_lines_of_their_own():
    words = (
        doorbell_layout.STATUS_SLEEPS_WORD,
        doorbell_layout.STATUS_SPIN_HINT_WORD,
        doorbell_layout.STATUS_FATAL_WORD,
        doorbell_layout.STATUS_PROCESSOR_WORD,
    )
    lines = {word * 8 // 64 for word in words}
    assert len(lines) == len(words)
    assert max(words) * 8 < doorbell_layout.STATUS_PAGE_LENGTH


def test_words_are_views_of_the_same_memory():
    memory = bytearray(64)
    wide = live_words.words64(memoryview(memory))
    narrow = live_words.words32(memoryview(memory))
    wide[1] = 0x1122334455667788
    assert (narrow[2], narrow[3]) == (0x55667788, 0x11223344)
    assert memory[8:16] == bytes.fromhex("8877665544332211")
    with pytest.raises(ValueError, match="format 'Q'"):
        wide[0] = 1 << 64


def test_a_full_fence_can_be_taken_by_many_threads():
    threads = [
        threading.Thread(target=lambda: [live_words.full_fence() for _ in range(1000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    live_words.publish_fence()
