"""alloc_mw and dealloc_mw, what windows hold, and regions that are bound or zero based."""

import ctypes
import errno

import pytest

from kernel_proc.driver.limits import Profile
from kernel_proc.hca.memory_key import TranslationFault
from kernel_proc.hca.memory_window import MemoryWindow
from kernel_proc.hca_abi import contexts as abi
from shared import verb_codes as codes
from shared.verb_messages import AllocMw, Object, Registered, RegMr, ReregMr
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, good, verb

PAGE = 4096
WRITE, REMOTE_WRITE, MW_BIND, ZERO_BASED = 1, 2, 16, 32
TRANSLATION, PD, ACCESS = 1, 2, 4


@pytest.fixture
def pd(session: HcaSession) -> int:
    return int(good(session, codes.IOCTL_ALLOC_PD).handle)


def region(session: HcaSession, pd: int, access: int = WRITE | MW_BIND) -> tuple[Registered, int]:
    address = session.private_buffer(2 * PAGE)
    return good(session, codes.IOCTL_REG_MR, RegMr(pd, address, 2 * PAGE, address, access)), address


def bind(box: HcaBox, rkey: int, lkey: int) -> MemoryWindow:
    """Bind as the engine does."""
    translation = box.hca.tables.translation
    window, target = translation.named(rkey), translation.named(lkey)
    assert isinstance(window, MemoryWindow)
    assert target is not None
    window.bind(target, target.base, target.length, abi.MPT_FLAG_REMOTE_WRITE, zero_based=False)
    return window


@pytest.mark.parametrize("kind", [1, 2])
def test_a_window_is_one_command_each_way(box: HcaBox, session: HcaSession, pd: int, kind: int):
    before = box.tables()
    names, made = box.commands_of(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, kind))
    assert names == ["SW2HW_MPT"]
    window = box.hca.tables.translation.named(made.rkey)
    assert isinstance(window, MemoryWindow)
    assert (window.is_type_2, window.region) == (kind == 2, None)
    told = session.context.objects()[-1].inspect()
    assert (told["kind"], told["type"], told["key"]) == ("MW", kind, made.rkey)
    names, _ = box.commands_of(session, codes.IOCTL_DEALLOC_MW, Object(made.handle))
    assert names == ["HW2SW_MPT"]
    after = box.tables()
    assert [after[key] for key in ("numbers", "regions", "contexts", "keys")] == [
        before[key] for key in ("numbers", "regions", "contexts", "keys")
    ]


@pytest.mark.parametrize("kind", [0, 3, 255, (1 << 32) - 1])
def test_a_type_there_is_not(box: HcaBox, session: HcaSession, pd: int, kind: int):
    before = box.tables()
    answer = verb(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, kind))
    assert answer[:4] == (errno.EINVAL, VerbReason.BAD_WINDOW_TYPE, 0, kind)
    assert box.tables() == before


def test_windows_hold_their_domain(box: HcaBox, session: HcaSession, pd: int):
    made = good(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, 1))
    answer = verb(session, codes.IOCTL_DEALLOC_PD, Object(pd))
    assert answer[:2] == (errno.EBUSY, VerbReason.IN_USE)
    for code in (codes.IOCTL_DEREG_MR, codes.IOCTL_DEALLOC_PD):
        assert verb(session, code, Object(made.handle)).reason == VerbReason.WRONG_KIND
    good(session, codes.IOCTL_DEALLOC_MW, Object(made.handle))
    answer = verb(session, codes.IOCTL_DEALLOC_MW, Object(made.handle))
    assert answer[:2] == (errno.EINVAL, VerbReason.NO_SUCH_OBJECT)
    good(session, codes.IOCTL_DEALLOC_PD, Object(pd))


def test_windows_are_keys_of_the_process_share():
    with HcaBox(profile=Profile(log_mpts=8, share_percent=10)) as box:
        session = box.session()
        pd = good(session, codes.IOCTL_ALLOC_PD).handle
        share = box.life.numbers.mpt.share
        made = [good(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, 1)) for _ in range(share)]
        answer = verb(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, 1))
        assert answer[:2] == (errno.ENOMEM, VerbReason.OUT_OF_SHARE)
        good(session, codes.IOCTL_DEALLOC_MW, Object(made[0].handle))
        again = good(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, 1))
        assert again.rkey not in {one.rkey for one in made}


def test_a_region_with_windows_is_neither_deregistered_nor_changed(
    box: HcaBox, session: HcaSession, pd: int
):
    mr, address = region(session, pd)
    window = good(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, 1))
    bound = bind(box, window.rkey, mr.lkey)
    before = box.tables()
    busy = (errno.EBUSY, VerbReason.WINDOWS_BOUND, mr.handle)
    assert verb(session, codes.IOCTL_DEREG_MR, Object(mr.handle))[:3] == busy
    for request in (
        ReregMr(mr.handle, ACCESS, 0, 0, 0, 0),
        ReregMr(mr.handle, TRANSLATION, 0, address + PAGE, PAGE, 0),
    ):
        answer = verb(session, codes.IOCTL_REREG_MR, request)
        assert answer[:3] == busy
        assert answer.detail == 1  # IBV_REREG_MR_ERR_INPUT: it is as it was
    assert box.tables() == before
    assert bound.region is not None
    good(session, codes.IOCTL_DEALLOC_MW, Object(window.handle))
    assert bound.region is None
    good(session, codes.IOCTL_REREG_MR, ReregMr(mr.handle, ACCESS, 0, 0, 0, 0))
    good(session, codes.IOCTL_DEREG_MR, Object(mr.handle))


@pytest.mark.parametrize("windows_first", [False, True])
def test_a_session_that_ends_takes_its_windows_before_its_regions(
    box: HcaBox, session: HcaSession, pd: int, windows_first: bool
):
    made = []
    if windows_first:
        made = [good(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, kind)) for kind in (1, 2)]
    mr, _ = region(session, pd)
    made = made or [good(session, codes.IOCTL_ALLOC_MW, AllocMw(pd, kind)) for kind in (1, 2)]
    for window in made:
        bind(box, window.rkey, mr.lkey)
    lines = len(box.lines)
    session.end()
    assert [line for line in box.lines[lines:] if "not destroyed" in line] == []
    assert box.hca.tables.windows == {}
    assert box.life.inspect()["contexts"] == []
    assert session.process.locked_pages == 0


def test_windows_of_another_session_do_not_keep_a_region_that_ends(
    box: HcaBox, session: HcaSession, pd: int
):
    mr, _ = region(session, pd)
    other = box.session("other")
    good(other, codes.IOCTL_ALLOC_PD)
    foreign = good(other, codes.IOCTL_ALLOC_MW, AllocMw(1, 1))
    window = bind(box, foreign.rkey, mr.lkey)  # as if both were of one domain
    assert verb(session, codes.IOCTL_DEREG_MR, Object(mr.handle)).reason == (
        VerbReason.WINDOWS_BOUND
    )
    lines = len(box.lines)
    session.end()
    assert [line for line in box.lines[lines:] if "not destroyed" in line] == []
    assert window.region is None
    assert box.hca.tables.translation.named(mr.lkey) is None
    good(other, codes.IOCTL_DEALLOC_MW, Object(foreign.handle))


# Zero based


def reached(box: HcaBox, key: int, address: int, length: int) -> bytes:
    """What the HCA finds at an address of a key."""
    translation, memory = box.hca.tables.translation, box.hca.tables.memory
    entry = translation.named(key)
    assert entry is not None
    found = translation.find(key, entry.pd, 0, address, length)
    runs = translation.runs(found, address, length)
    return b"".join(bytes(memory.read(*run)) for run in runs)


@pytest.mark.parametrize("kind", ["arena", "private"])
@pytest.mark.parametrize("offset", [0, 24])
def test_a_zero_based_region_counts_from_its_first_byte(
    box: HcaBox, session: HcaSession, pd: int, kind: str, offset: int
):
    base = session.arena(4 * PAGE) if kind == "arena" else session.private_buffer(4 * PAGE)
    data = bytes(range(256)) * 64
    ctypes.memmove(base, data, len(data))
    address, length = base + offset, 2 * PAGE
    made = good(session, codes.IOCTL_REG_MR, RegMr(pd, address, length, 0, WRITE | ZERO_BASED))
    assert reached(box, made.lkey, 0, length) == data[offset : offset + length]
    assert reached(box, made.lkey, PAGE - 4, 8) == data[offset + PAGE - 4 :][:8]
    for wrong in (address, length):
        with pytest.raises(TranslationFault):
            reached(box, made.lkey, wrong, 1)


def test_a_region_becomes_zero_based_and_ceases_to_be(box: HcaBox, session: HcaSession, pd: int):
    mr, address = region(session, pd)
    ctypes.memmove(address, b"begin", 5)
    change = ReregMr(mr.handle, ACCESS, 0, 0, 0, WRITE | ZERO_BASED)
    names, changed = box.commands_of(session, codes.IOCTL_REREG_MR, change)
    assert names == ["WRITE_MTT", "HW2SW_MPT", "SW2HW_MPT"]
    assert reached(box, changed.lkey, 0, 5) == b"begin"
    with pytest.raises(TranslationFault):
        reached(box, changed.lkey, address, 5)
    good(session, codes.IOCTL_REREG_MR, change._replace(access=WRITE))
    assert reached(box, changed.lkey, address, 5) == b"begin"
    with pytest.raises(TranslationFault):
        reached(box, changed.lkey, 0, 5)
    names, _ = box.commands_of(
        session, codes.IOCTL_REREG_MR, change._replace(access=WRITE | REMOTE_WRITE)
    )
    assert names == ["HW2SW_MPT", "SW2HW_MPT"]


def test_a_zero_based_region_stays_so_with_other_memory(box: HcaBox, session: HcaSession, pd: int):
    mr, _ = region(session, pd, WRITE | ZERO_BASED)
    other = session.arena(2 * PAGE) + 40
    ctypes.memmove(other, b"other", 5)
    good(session, codes.IOCTL_REREG_MR, ReregMr(mr.handle, TRANSLATION, 0, other, PAGE, 0))
    assert reached(box, mr.lkey, 0, 5) == b"other"


@pytest.mark.parametrize("bit", [64, 256, 512])
def test_what_the_device_cannot_do_is_not_supported_in_a_change_either(
    box: HcaBox, session: HcaSession, pd: int, bit: int
):
    mr, _ = region(session, pd)
    before = box.tables()
    answer = verb(session, codes.IOCTL_REREG_MR, ReregMr(mr.handle, ACCESS, 0, 0, 0, WRITE | bit))
    assert answer[:2] == (errno.EOPNOTSUPP, VerbReason.ACCESS_NOT_SUPPORTED)
    assert box.tables() == before
