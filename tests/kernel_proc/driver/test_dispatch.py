"""The door of the driver: control codes, buffers, bytes that are no message, the end of files."""

import errno
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_proc.driver.ah_verbs import create_ah
from kernel_proc.driver.dispatch import VERBS
from kernel_proc.driver.reply_sizes import LONGEST_REPLY
from kernel_proc.hca_abi import command_opcodes as op
from shared.message_codec import encode
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_SUCCESS,
)
from shared.verb_codes import (
    HCA_DEVICE_TYPE,
    IOCTL_ALLOC_PD,
    IOCTL_CREATE_AH,
    IOCTL_DEALLOC_PD,
    IOCTL_DEREG_MR,
    IOCTL_QUERY_DEVICE,
    IOCTL_QUERY_PORT,
    IOCTL_REG_MR,
    IOCTL_REREG_MR,
    VERB_NAMES,
    VERB_OUTPUT_LENGTH,
    VERB_RESULT,
)
from shared.verb_messages import CreateAh, Object, PortQuery, RegMr, ReregMr
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, answer_of, good, verb


def test_every_verb_has_a_handler_and_room_for_its_answer():
    assert set(VERBS) == set(VERB_NAMES)
    assert all(VERB_RESULT.size + size <= VERB_OUTPUT_LENGTH for size in LONGEST_REPLY.values())


def test_a_code_that_is_no_verb_is_no_request(session: HcaSession):
    code = HCA_DEVICE_TYPE << 16 | 0xFFF << 2
    assert session.control(code, b"", 64) == (STATUS_INVALID_DEVICE_REQUEST, b"")


@pytest.mark.parametrize("ioctl", [IOCTL_ALLOC_PD, IOCTL_QUERY_PORT, IOCTL_DEALLOC_PD])
@pytest.mark.parametrize("short_by", [1, 10_000])
def test_without_room_for_the_answer_nothing_is_done(
    box: HcaBox, session: HcaSession, ioctl: int, short_by: int
):
    needed = VERB_RESULT.size + LONGEST_REPLY.get(ioctl, 0)
    before = box.tables()
    data = encode(PortQuery(1)) if ioctl == IOCTL_QUERY_PORT else encode(Object(1))
    status, output = session.control(ioctl, data, max(0, needed - short_by))
    assert (status, output) == (STATUS_BUFFER_TOO_SMALL, b"")
    assert box.tables() == before
    assert session.control(ioctl, data, needed)[0] == STATUS_SUCCESS


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x93\x2a\x01", encode(Object(1)), encode(PortQuery(1))[:-1], bytes(2000)],
)
def test_bytes_that_are_no_message_are_refused(session: HcaSession, data: bytes):
    status, output = session.control(IOCTL_QUERY_PORT, data, VERB_OUTPUT_LENGTH)
    assert status == STATUS_SUCCESS
    assert answer_of(output) == (errno.EINVAL, VerbReason.MALFORMED, 0, 0, None)


@pytest.fixture(scope="module")
def hostile() -> Iterator[HcaSession]:
    with HcaBox() as box:
        yield box.session()


@given(
    ioctl=st.sampled_from(sorted(code for code in VERBS if VERBS[code].request is not None)),
    data=st.binary(max_size=64) | st.lists(st.integers(0, 1 << 64)).map(str).map(str.encode),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_break_the_driver(hostile: HcaSession, ioctl: int, data: bytes):
    status, output = hostile.control(ioctl, data, VERB_OUTPUT_LENGTH)
    assert status == STATUS_SUCCESS
    assert answer_of(output).errno == errno.EINVAL


def test_the_input_of_a_verb_without_one_is_not_looked_at(session: HcaSession):
    status, output = session.control(IOCTL_QUERY_DEVICE, b"\xc1", VERB_OUTPUT_LENGTH)
    assert (status, answer_of(output).errno) == (STATUS_SUCCESS, 0)


# Contexts


def test_handles_of_one_file_mean_nothing_in_another(box: HcaBox, session: HcaSession):
    pd = good(session, IOCTL_ALLOC_PD)
    first = session.handle
    session.open()
    assert verb(session, IOCTL_DEALLOC_PD, pd)[:2] == (errno.EINVAL, VerbReason.NO_SUCH_OBJECT)
    session.close()
    session.handle = first
    good(session, IOCTL_DEALLOC_PD, pd)
    stranger = box.session("stranger")
    assert verb(stranger, IOCTL_DEALLOC_PD, pd).reason == VerbReason.NO_SUCH_OBJECT


def test_closing_the_file_frees_leaf_to_root(box: HcaBox, session: HcaSession):
    before = {**box.tables(), "contexts": []}
    session_address = session.private_buffer(4096)
    pd = good(session, IOCTL_ALLOC_PD).handle
    good(session, IOCTL_REG_MR, RegMr(pd, session_address, 4096, session_address, 0))
    good(session, IOCTL_CREATE_AH, CreateAh(pd, 1, 7, 0, 0, 0, 0, b"", 0, 0, 0, 0))
    lines = len(box.lines)
    names = box.names_of_commands(session.close)
    assert names == ["HW2SW_MPT"]
    assert box.tables() == before
    assert len(box.lines) == lines + 1
    assert "closed: 3 objects freed" in box.lines[-1]


def test_a_parent_younger_than_its_child_is_freed_after_it(box: HcaBox, session: HcaSession):
    address = session.private_buffer(4096)
    pd = good(session, IOCTL_ALLOC_PD).handle
    mr = good(session, IOCTL_REG_MR, RegMr(pd, address, 4096, address, 0)).handle
    young = good(session, IOCTL_ALLOC_PD).handle
    good(session, IOCTL_REREG_MR, ReregMr(mr, 2, young, 0, 0, 0))
    session.close()
    assert box.life.inspect()["contexts"] == []
    assert not any("not destroyed" in line for line in box.lines)


def test_ten_thousand_objects_are_freed_quickly():
    with HcaBox(verifier=False) as box:
        session = box.session()
        pd = good(session, IOCTL_ALLOC_PD).handle
        context = session.context
        ah = CreateAh(pd, 1, 7, 0, 0, 0, 0, b"", 0, 0, 0, 0)
        for _ in range(8_000):
            create_ah(box.life, context, ah, None)  # type: ignore[arg-type] # needs no IRP
        address = session.private_buffer(4096)
        for _ in range(300):
            good(session, IOCTL_REG_MR, RegMr(pd, address, 4096, address, 0))
        for _ in range(1_700):
            good(session, IOCTL_ALLOC_PD)
        assert len(context) == 10_001
        started = time.perf_counter()
        session.close()
        assert time.perf_counter() - started < 2.0
        assert "10001 objects freed" in box.lines[-1]


def test_what_cannot_be_destroyed_is_logged_and_let_go(box: HcaBox, session: HcaSession):
    address = session.private_buffer(4096)
    pd = good(session, IOCTL_ALLOC_PD).handle
    good(session, IOCTL_REG_MR, RegMr(pd, address, 4096, address, 0))
    box.at_command(0, lambda: op.CMD_STAT_INTERNAL_ERR)
    session.close()
    box.as_usual()
    assert session.process.locked_pages == 0
    assert any("MR 2 was not destroyed" in line for line in box.lines)


def test_a_verb_waits_for_the_object_another_has_in_hand(box: HcaBox, session: HcaSession):
    address = session.private_buffer(4096)
    pd = good(session, IOCTL_ALLOC_PD).handle
    mr = good(session, IOCTL_REG_MR, RegMr(pd, address, 4096, address, 0)).handle
    calls = [session.begin_verb(IOCTL_DEREG_MR, Object(mr), session.new_thread()) for _ in range(3)]
    box.processor.run_until(lambda: all(call.done for call, _ in calls))
    errors = sorted(answer_of(request.output or b"").errno for _, request in calls)
    assert errors == [0, errno.EINVAL, errno.EINVAL]
