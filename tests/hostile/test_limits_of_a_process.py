"""Every limit of one process: reached, and passed by one; others have theirs all the same."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.settings import KernelSettings
from shared import verb_codes as codes
from shared.envelope import KIND_CLOSE, make_header, parse_header
from shared.ioctl_codes import METHOD_OUT_DIRECT, noop_code
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_INVALID_HANDLE,
    STATUS_QUOTA_EXCEEDED,
    STATUS_SUCCESS,
    STATUS_TOO_MANY_OPENED_FILES,
    STATUS_TOO_MANY_THREADS,
    STATUS_WORKING_SET_QUOTA,
)
from shared.verb_messages import Object, RegMr
from shared.verb_reasons import VerbReason as Reason
from tests.end_to_end.verbs_raw import RawVerbs
from tests.hostile.machines import User, holdings, make_machine
from user_proc.errors import NtStatusError
from user_proc.io.overlapped import Overlapped

KIB = 1024
PAGE = 4096


def taken(take: Callable[[], object], most: int) -> int:
    """Take as often as it is allowed; how often that was."""
    for count in range(most):
        if take() is None:
            return count
    raise AssertionError(f"{most} times, and no end")


def refused(call: Callable[[], object], status: int) -> bool:
    """Call, and tell whether it was refused, which is with that status only."""
    try:
        call()
    except NtStatusError as error:
        found = error
    else:
        return False
    assert found.status == status
    if status == STATUS_INSUFFICIENT_RESOURCES:
        assert found.errno == errno.EAGAIN
    return True


def arenas(user: User) -> None:
    """Two pages are allowed."""
    for _ in range(2):
        assert user.door.allocate_arena(PAGE).status == STATUS_SUCCESS
    third = user.door.allocate_arena(1)
    assert third.status == STATUS_QUOTA_EXCEEDED
    assert user.door.free_arena(1) == STATUS_SUCCESS
    assert user.door.allocate_arena(1).status == STATUS_SUCCESS


def pool(user: User) -> None:
    """A system buffer and an IRP: the longest that goes, and one byte more."""
    device = user.process.open_device("noop")
    code = noop_code(0, 0, touch=False)

    def goes(length: int) -> bool:
        return not refused(
            lambda: device.device_io_control(code, bytes(length)), STATUS_QUOTA_EXCEEDED
        )

    least, most = 0, 64 * KIB
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if goes(middle) else (least, middle)
    assert goes(least)
    assert not goes(least + 1)
    assert 64 * KIB - least < 4 * KIB  # the rest is the IRP's
    device.close()


def locked(user: User) -> None:
    """Sixteen pages are allowed, of all regions together, an arena's as others."""
    verbs = user.verbs()
    pd = verbs.good(codes.IOCTL_ALLOC_PD).handle
    memory = user.process.allocate(32 * PAGE, page_aligned=True)

    def register(first: int, count: int) -> Any:
        address = memory.address + first * PAGE
        return verbs.ask(codes.IOCTL_REG_MR, RegMr(pd, address, count * PAGE, address, 1))

    assert register(0, 17)[:2] == (errno.ENOMEM, Reason.TOO_MANY_LOCKED_PAGES)
    half = register(0, 8)
    assert (half.errno, register(8, 8).errno) == (0, 0)
    assert user.door.session.process.locked_pages == 16
    more = register(16, 1)
    assert more[:2] == (errno.ENOMEM, Reason.TOO_MANY_LOCKED_PAGES)
    assert user.door.session.process.locked_pages == 16
    verbs.good(codes.IOCTL_DEREG_MR, Object(half.reply.handle))
    assert register(16, 8).errno == 0
    verbs.device.close()
    assert user.door.session.process.locked_pages == 0
    code = noop_code(METHOD_OUT_DIRECT, 0)
    with user.process.open_device("noop") as noop:
        assert noop.device_io_control(code, None, memory.view[: 16 * PAGE]) == 16 * PAGE
        beyond = memory.view[: 17 * PAGE]
        assert refused(lambda: noop.device_io_control(code, None, beyond), STATUS_WORKING_SET_QUOTA)


def share(user: User) -> None:
    """One percent of the protection domains."""
    verbs = user.verbs()
    count = taken(lambda: _domain(verbs, Reason.OUT_OF_SHARE), 1000)
    assert count == (1 << 15) // 100


def objects(user: User) -> None:
    """Five objects of all kinds and openings together."""
    first, second = user.verbs(), user.verbs()
    assert taken(lambda: _domain(first, Reason.OUT_OF_HANDLES), 10) == 5
    assert _domain(second, Reason.OUT_OF_HANDLES) is None
    first.device.close()
    assert taken(lambda: _domain(second, Reason.OUT_OF_HANDLES), 10) == 5


def _domain(verbs: RawVerbs, reason: Reason) -> int | None:
    answer = verbs.ask(codes.IOCTL_ALLOC_PD)
    if not answer.errno:
        return int(answer.reply.handle)
    assert answer[:2] == (errno.ENOMEM, reason)
    return None


def threads(user: User) -> None:
    """Two threads are allowed: the one that connected, and another."""
    welcome = user.door.welcome

    def ask(thread: int) -> int:
        header = make_header(
            KIND_CLOSE, session=welcome.session, epoch=welcome.epoch, thread=thread, request_id=1
        )
        return parse_header(user.door.exchange([header])[0]).status

    known = len(user.door.session.threads)
    assert known <= 1
    statuses = [ask(100 + number) for number in range(3 - known)]
    assert statuses == [STATUS_INVALID_HANDLE] * (2 - known) + [STATUS_TOO_MANY_THREADS]


def requests(user: User) -> None:
    """Eight requests in the kernel, and what makes room all the same."""
    verbs = user.verbs()
    pended: list[Overlapped] = []

    def pend() -> Overlapped | None:
        def one() -> None:
            request = verbs.pend(codes.IOCTL_GET_CA_PORT_EVENT, Object(0))
            pended.append(request.overlapped)

        full = refused(one, STATUS_INSUFFICIENT_RESOURCES)
        return None if full else pended[-1]

    assert taken(pend, 20) == 8
    assert user.door.session.in_flight == 8
    assert verbs.device.cancel_ex(pended[0])
    with pytest.raises(NtStatusError):
        pended[0].wait(1)
    assert pend() is not None
    assert pend() is None
    verbs.device.close()


def handles(user: User) -> None:
    """Four handles are allowed."""
    made = []

    def event() -> object:
        def one() -> None:
            made.append(user.process.create_event())

        return None if refused(one, STATUS_TOO_MANY_OPENED_FILES) else made[-1]

    assert taken(event, 10) == 4
    made[0].close()
    assert event() is not None
    assert event() is None


#: The limit of each setting, and how it is reached and passed.
LIMITS: dict[str, tuple[int, Callable[[User], None]]] = {
    "arena_bytes_per_process": (2 * PAGE, arenas),
    "pool_bytes_per_process": (64 * KIB, pool),
    "locked_bytes_per_process": (64 * KIB, locked),
    "hca_percent_per_process": (1, share),
    "hca_objects_per_process": (5, objects),
    "max_threads_per_session": (2, threads),
    "max_requests_per_session": (8, requests),
    "max_handles_per_session": (4, handles),
}


def test_every_limit_of_a_process_is_here():
    settings = set(KernelSettings._fields)
    of_one = {name for name in settings if name.endswith(("_per_process", "_per_session"))}
    assert set(LIMITS) == of_one


@pytest.mark.parametrize("name", LIMITS)
def test_at_the_limit_and_one_beyond(name: str):
    limit, reach = LIMITS[name]
    machine = make_machine(**{name: limit})
    greedy = User(machine, "greedy")
    reach(greedy)
    other = User(machine, "other")  # while the greedy one has all it may
    reach(other)
    greedy.close()
    other.close()
    assert holdings(machine)["sessions"] == []
    assert holdings(machine)["contexts"] == []
    machine.close()
