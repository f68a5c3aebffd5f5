"""reg_mr, rereg_mr, dereg_mr: what they take, refuse, send and leave."""

import ctypes
import errno

import pytest

from kernel_proc.hca_abi import command_opcodes as op
from shared.verb_codes import (
    IOCTL_ALLOC_PD,
    IOCTL_DEALLOC_PD,
    IOCTL_DEREG_MR,
    IOCTL_REG_MR,
    IOCTL_REREG_MR,
)
from shared.verb_messages import Object, RegMr, ReregMr
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, good, verb

PAGE = 4096
WRITE = 1
ALL = 1 | 2 | 4 | 8
TRANSLATION, PD, ACCESS = 1, 2, 4


@pytest.fixture
def pd(session: HcaSession) -> int:
    return int(good(session, IOCTL_ALLOC_PD).handle)


def hca_runs(
    box: HcaBox, key: int, rights: int, address: int, length: int
) -> list[tuple[int, int]]:
    """Where the HCA finds an address of a key."""
    translation = box.hca.tables.translation
    entry = translation.entry(translation.index_of(key))
    assert entry is not None
    found = translation.find(key, entry.pd, rights, address, length)
    return translation.runs(found, address, length)


def read_through_hca(box: HcaBox, key: int, address: int, length: int) -> bytes:
    memory = box.hca.tables.memory
    return b"".join(bytes(memory.read(*run)) for run in hca_runs(box, key, 0, address, length))


@pytest.mark.parametrize("kind", ["arena", "private"])
@pytest.mark.parametrize("offset", [0, 17])
@pytest.mark.parametrize("largest_run", [None, 1, 3])
def test_the_hca_reads_what_the_user_wrote(kind: str, offset: int, largest_run: int | None):
    with HcaBox(largest_run=largest_run) as box:
        session = box.session()
        pd = good(session, IOCTL_ALLOC_PD).handle
        base = session.arena(16 * PAGE) if kind == "arena" else session.private_buffer(16 * PAGE)
        data = bytes(range(256)) * 256
        ctypes.memmove(base, data, len(data))
        length = len(data) - offset - 5
        address = base + offset
        for iova in (address, (1 << 40) + offset, 0):
            made = good(session, IOCTL_REG_MR, RegMr(pd, address, length, iova, ALL))
            assert made.lkey == made.rkey
            assert read_through_hca(box, made.lkey, iova, length) == data[offset:-5]
            assert read_through_hca(box, made.lkey, iova + 5000, 9) == data[offset + 5000 :][:9]
            good(session, IOCTL_DEREG_MR, Object(made.handle))


def test_registration_sends_write_mtt_for_each_510_pages():
    with HcaBox(largest_run=1) as box:
        session = box.session()
        pd = good(session, IOCTL_ALLOC_PD).handle
        base = session.arena(1100 * PAGE)
        for pages, writes in ((1, 1), (510, 1), (511, 2), (1021, 3)):
            request = RegMr(pd, base, pages * PAGE, base, WRITE)
            names, made = box.commands_of(session, IOCTL_REG_MR, request)
            assert names == ["WRITE_MTT"] * writes + ["SW2HW_MPT"]
            names, _ = box.commands_of(session, IOCTL_DEREG_MR, Object(made.handle))
            assert names == ["HW2SW_MPT"]


def test_unfragmented_memory_has_large_pages(box: HcaBox, session: HcaSession, pd: int):
    address = session.private_buffer(1 << 20)
    good(session, IOCTL_REG_MR, RegMr(pd, address, 1 << 20, address, WRITE))
    assert session.context.objects()[-1].region.page_shift == 31


def test_a_new_chunk_of_keys_is_mapped_and_unmapped(box: HcaBox, session: HcaSession, pd: int):
    box.life.numbers.mpt._next = 4096
    address = session.private_buffer(PAGE)
    request = RegMr(pd, address, PAGE, address, 0)
    names, made = box.commands_of(session, IOCTL_REG_MR, request)
    assert names == ["WRITE_MTT", "MAP_ICM", "SW2HW_MPT"]
    names, _ = box.commands_of(session, IOCTL_DEREG_MR, Object(made.handle))
    assert names == ["HW2SW_MPT", "UNMAP_ICM"]


def test_a_key_is_never_the_same_again(box: HcaBox, session: HcaSession, pd: int):
    address = session.private_buffer(PAGE)
    keys = set()
    box.life.numbers.mpt._next = 1 << 17  # none is fresh: freed ones come back at once
    box.life.numbers.mpt._free.append(500)
    for _ in range(300):
        made = good(session, IOCTL_REG_MR, RegMr(pd, address, PAGE, address, 0))
        keys.add(made.lkey)
        good(session, IOCTL_DEREG_MR, Object(made.handle))
    assert len(keys) == 300


REFUSED = {
    "no bytes": (dict(length=0), errno.EINVAL, VerbReason.LENGTH_ZERO),
    "wraps": (
        dict(address=(1 << 64) - PAGE, length=2 * PAGE),
        errno.EINVAL,
        VerbReason.RANGE_WRAPS,
    ),
    "iova wraps": (dict(iova=(1 << 64) - PAGE), errno.EINVAL, VerbReason.RANGE_WRAPS),
    "iova within the page": (dict(iova=PAGE + 8), errno.EINVAL, VerbReason.IOVA_MISALIGNED),
    "not mapped": (dict(address=0x10000, iova=0x10000), errno.EFAULT, VerbReason.NOT_MAPPED),
    "far beyond": (
        dict(address=0x10000, iova=0x10000, length=1 << 40),
        errno.EFAULT,
        VerbReason.NOT_MAPPED,
    ),
    "remote write alone": (dict(access=2), errno.EINVAL, VerbReason.ACCESS_NEEDS_LOCAL_WRITE),
    "atomic alone": (dict(access=8), errno.EINVAL, VerbReason.ACCESS_NEEDS_LOCAL_WRITE),
    "unknown bit": (dict(access=1 << 10), errno.EINVAL, VerbReason.UNKNOWN_ACCESS_BITS),
    "on demand": (dict(access=64), errno.EOPNOTSUPP, VerbReason.ACCESS_NOT_SUPPORTED),
    "flush": (dict(access=256), errno.EOPNOTSUPP, VerbReason.ACCESS_NOT_SUPPORTED),
    "no such pd": (dict(pd=99), errno.EINVAL, VerbReason.NO_SUCH_OBJECT),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_registration_changes_nothing(
    case: str, box: HcaBox, session: HcaSession, pd: int
):
    changes, number, reason = REFUSED[case]
    address = session.private_buffer(4 * PAGE)
    values = dict(pd=pd, address=address, length=4 * PAGE, iova=address, access=WRITE)
    before = box.tables()
    names = box.names_of_commands(
        lambda: check(session, IOCTL_REG_MR, RegMr(**{**values, **changes}), number, reason)
    )
    assert names == []
    assert box.tables() == before


def check(session: HcaSession, ioctl: int, message: object, number: int, reason: VerbReason):
    answer = verb(session, ioctl, message)  # type: ignore[arg-type] # any message
    assert (answer.errno, answer.reason) == (number, reason), answer
    return answer


def test_an_mr_is_no_pd(session: HcaSession, pd: int):
    address = session.private_buffer(PAGE)
    made = good(session, IOCTL_REG_MR, RegMr(pd, address, PAGE, address, 0))
    check(session, IOCTL_DEALLOC_PD, Object(made.handle), errno.EINVAL, VerbReason.WRONG_KIND)
    answer = check(session, IOCTL_DEALLOC_PD, Object(pd), errno.EBUSY, VerbReason.IN_USE)
    assert (answer.object, answer.detail) == (pd, 1)
    good(session, IOCTL_DEREG_MR, Object(made.handle))
    good(session, IOCTL_DEALLOC_PD, Object(pd))
    for ioctl, handle in ((IOCTL_DEREG_MR, made.handle), (IOCTL_DEALLOC_PD, pd)):
        check(session, ioctl, Object(handle), errno.EINVAL, VerbReason.NO_SUCH_OBJECT)


def test_memory_that_cannot_be_written_is_registered_to_be_read_only(
    box: HcaBox, session: HcaSession, pd: int
):
    address = session.private_buffer(PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), PAGE, 1) == 0
    try:
        before = box.tables()
        answer = check(
            session,
            IOCTL_REG_MR,
            RegMr(pd, address, PAGE, address, WRITE),
            errno.EFAULT,
            VerbReason.NOT_MAPPED,
        )
        assert answer.detail == 1
        assert box.tables() == before
        made = good(session, IOCTL_REG_MR, RegMr(pd, address, PAGE, address, 4))
        before = box.tables()
        rereg = ReregMr(made.handle, ACCESS, 0, 0, 0, WRITE)
        answer = check(session, IOCTL_REREG_MR, rereg, errno.EFAULT, VerbReason.NOT_MAPPED)
        assert answer.detail == 1
        assert box.tables() == before
    finally:
        libc.mprotect(ctypes.c_void_p(address), PAGE, 3)
    assert good(session, IOCTL_REREG_MR, rereg).lkey == made.lkey


def test_too_many_locked_pages(box: HcaBox, session: HcaSession, pd: int):
    address = session.private_buffer(16 << 20)
    session.process.most_locked_pages = (16 << 20) // PAGE - 1
    before = box.tables()
    request = RegMr(pd, address, 16 << 20, address, 0)
    check(session, IOCTL_REG_MR, request, errno.ENOMEM, VerbReason.TOO_MANY_LOCKED_PAGES)
    assert box.tables() == before
    session.process.most_locked_pages += 1
    good(session, IOCTL_REG_MR, request)


# rereg_mr


@pytest.fixture
def mr(session: HcaSession, pd: int) -> int:
    address = session.private_buffer(2 * PAGE)
    return int(good(session, IOCTL_REG_MR, RegMr(pd, address, 2 * PAGE, address, WRITE)).handle)


def test_rereg_changes_the_range(box: HcaBox, session: HcaSession, mr: int):
    other = session.arena(8 * PAGE)
    ctypes.memmove(other + 100, b"hello", 5)
    request = ReregMr(mr, TRANSLATION, 0, other, 8 * PAGE, 0)
    names, changed = box.commands_of(session, IOCTL_REREG_MR, request)
    assert names == ["WRITE_MTT", "HW2SW_MPT", "SW2HW_MPT"]
    assert read_through_hca(box, changed.lkey, other + 100, 5) == b"hello"
    assert session.process.locked_pages == 8


def test_rereg_changes_domain_and_rights(box: HcaBox, session: HcaSession, pd: int, mr: int):
    other = good(session, IOCTL_ALLOC_PD).handle
    request = ReregMr(mr, PD | ACCESS, other, 0, 0, 0)
    names, _ = box.commands_of(session, IOCTL_REREG_MR, request)
    assert names == ["HW2SW_MPT", "SW2HW_MPT"]
    good(session, IOCTL_DEALLOC_PD, Object(pd))
    check(session, IOCTL_DEALLOC_PD, Object(other), errno.EBUSY, VerbReason.IN_USE)
    region = session.context.objects()[0].region
    assert (region.access, region.in_hardware) == (0, True)


REREG_REFUSED = {
    "no flag": (ReregMr(0, 0, 0, 0, 0, 0), VerbReason.UNKNOWN_REREG_FLAGS),
    "unknown flag": (ReregMr(0, 8, 0, 0, 0, 0), VerbReason.UNKNOWN_REREG_FLAGS),
    "no address": (ReregMr(0, TRANSLATION, 0, 0, PAGE, 0), VerbReason.REREG_NO_RANGE),
    "no length": (ReregMr(0, TRANSLATION, 0, PAGE, 0, 0), VerbReason.REREG_NO_RANGE),
    "stray access": (ReregMr(0, PD, 1, 0, 0, 1), VerbReason.REREG_ACCESS_WITHOUT_FLAG),
    "bad access": (ReregMr(0, ACCESS, 0, 0, 0, 2), VerbReason.ACCESS_NEEDS_LOCAL_WRITE),
    "no such pd": (ReregMr(0, PD, 99, 0, 0, 0), VerbReason.NO_SUCH_OBJECT),
    "not mapped": (ReregMr(0, TRANSLATION, 0, 0x10000, PAGE, 0), VerbReason.NOT_MAPPED),
}


@pytest.mark.parametrize("case", REREG_REFUSED)
def test_a_refused_rereg_leaves_the_region_as_it_was(
    case: str, box: HcaBox, session: HcaSession, mr: int
):
    request, reason = REREG_REFUSED[case]
    before = box.tables()
    number = errno.EFAULT if reason == VerbReason.NOT_MAPPED else errno.EINVAL
    answer = check(session, IOCTL_REREG_MR, request._replace(handle=mr), number, reason)
    assert answer.detail == 1  # IBV_REREG_MR_ERR_INPUT
    assert box.tables() == before


def test_a_rereg_that_fails_half_way_leaves_a_region_to_be_deregistered(
    box: HcaBox, session: HcaSession, mr: int
):
    other = session.arena(8 * PAGE)
    box.at_command(2, lambda: op.CMD_STAT_INTERNAL_ERR)
    answer = check(
        session,
        IOCTL_REREG_MR,
        ReregMr(mr, TRANSLATION, 0, other, 8 * PAGE, 0),
        errno.EIO,
        VerbReason.REREG_FAILED,
    )
    assert (answer.object, answer.detail) == (op.SW2HW_MPT << 8 | op.CMD_STAT_INTERNAL_ERR, 4)
    box.as_usual()
    assert session.process.locked_pages == 2
    assert box.commands_of(session, IOCTL_DEREG_MR, Object(mr)) == ([], None)
    assert session.process.locked_pages == 0
