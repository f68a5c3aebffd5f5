"""XRC domains: by inode, across processes, and what becomes of them."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_proc.driver import xrcd_verbs
from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.xrcd_verbs import Xrcd
from shared import verb_codes as codes
from shared.verb_messages import NO_FD, Object, OpenXrcd
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, good, verb

CREAT, EXCL = os.O_CREAT, os.O_EXCL


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    number = os.open(tmp_path / "domain", os.O_RDWR | os.O_CREAT)
    yield number
    os.close(number)


def number_of(session: HcaSession, handle: int) -> int:
    xrcd: Xrcd = session.context.find(Xrcd, handle)
    return xrcd.number


def opened(session: HcaSession, fd: int, oflags: int) -> int:
    return int(good(session, codes.IOCTL_OPEN_XRCD, OpenXrcd(fd, oflags)).handle)


def test_a_domain_without_a_descriptor_is_private(box: HcaBox):
    session = box.session()
    first, second = opened(session, NO_FD, CREAT), opened(session, NO_FD, CREAT)
    assert number_of(session, first) != number_of(session, second)
    answer = verb(session, codes.IOCTL_OPEN_XRCD, OpenXrcd(NO_FD, 0))
    assert answer[:2] == (errno.EAGAIN, Reason.NO_DOMAIN)


def test_processes_with_the_same_inode_share_a_domain(box: HcaBox, descriptor: int, tmp_path: Path):
    ours, theirs = box.session(), box.session("other")
    again = os.open(tmp_path / "domain", os.O_RDONLY)  # another descriptor, the same inode
    first = opened(ours, descriptor, CREAT)
    second = opened(theirs, again, 0)
    assert number_of(ours, first) == number_of(theirs, second)
    os.close(again)


def test_the_rules_of_creation(box: HcaBox, descriptor: int):
    session = box.session()

    def answer(oflags: int) -> tuple[int, int]:
        message = OpenXrcd(descriptor, oflags)
        return verb(session, codes.IOCTL_OPEN_XRCD, message)[:2]

    assert answer(0) == (errno.EAGAIN, Reason.NO_DOMAIN)
    assert answer(CREAT | EXCL) == (0, 0)
    assert answer(CREAT | EXCL) == (errno.EINVAL, Reason.DOMAIN_EXISTS)
    assert answer(CREAT) == (0, 0)
    assert answer(0) == (0, 0)
    assert answer(EXCL) == (errno.EINVAL, Reason.DOMAIN_EXISTS)


def test_a_bad_descriptor(box: HcaBox, descriptor: int):
    session = box.session()
    closed = os.dup(descriptor)
    os.close(closed)
    for number in (closed, 1 << 30):
        answer = verb(session, codes.IOCTL_OPEN_XRCD, OpenXrcd(number, CREAT))
        assert answer[:3] == (errno.EBADF, Reason.BAD_DESCRIPTOR, number)


def test_the_last_to_close_removes_the_domain(box: HcaBox, descriptor: int):
    ours, theirs = box.session(), box.session("other")
    life = box.life
    before = life.numbers.xrcd.inspect()
    own_files = len(os.listdir("/proc/self/fd"))
    first, second = opened(ours, descriptor, CREAT), opened(theirs, descriptor, 0)
    good(ours, codes.IOCTL_CLOSE_XRCD, Object(first))
    assert verb(ours, codes.IOCTL_OPEN_XRCD, OpenXrcd(descriptor, EXCL))[0] == errno.EINVAL
    good(theirs, codes.IOCTL_CLOSE_XRCD, Object(second))
    assert verb(ours, codes.IOCTL_OPEN_XRCD, OpenXrcd(descriptor, 0))[0] == errno.EAGAIN
    assert life.numbers.xrcd.inspect() == before
    assert not notification_of(life).domains
    assert len(os.listdir("/proc/self/fd")) == own_files


def test_the_end_of_a_process_closes_its_domains(box: HcaBox, descriptor: int):
    ours, theirs = box.session(), box.session("other")
    opened(ours, descriptor, CREAT)
    opened(theirs, descriptor, 0)
    ours.end()
    (domain,) = notification_of(box.life).domains.values()
    assert domain.users == 1
    theirs.end()
    assert not notification_of(box.life).domains


def test_an_inode_is_held_while_its_domain_lives(box: HcaBox, tmp_path: Path):
    # Else the next file could have its number, and strangers would share a domain.
    session = box.session()
    path = tmp_path / "short-lived"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    opened(session, descriptor, CREAT)
    (domain,) = notification_of(box.life).domains.values()
    path.unlink()
    os.close(descriptor)
    status = os.fstat(domain.descriptor)
    assert (status.st_dev, status.st_ino) == domain.inode
    assert status.st_nlink == 0


def test_a_process_that_was_replaced_is_not_believed(
    box: HcaBox, descriptor: int, monkeypatch: pytest.MonkeyPatch
):
    session = box.session()
    ticks = iter((1, 2))
    monkeypatch.setattr(xrcd_verbs, "process_start_ticks", lambda pid: next(ticks))
    own_files = len(os.listdir("/proc/self/fd"))
    answer = verb(session, codes.IOCTL_OPEN_XRCD, OpenXrcd(descriptor, CREAT))
    assert answer[:2] == (errno.EBADF, Reason.BAD_DESCRIPTOR)
    assert len(os.listdir("/proc/self/fd")) == own_files


def test_descriptors_of_every_kind_can_be_domains(box: HcaBox):
    session = box.session()
    read, write = os.pipe()
    event = os.eventfd(0)
    numbers = {number_of(session, opened(session, fd, CREAT)) for fd in (read, write, event)}
    assert len(numbers) == 2  # both ends of a pipe are one inode
    for fd in (read, write, event):
        os.close(fd)
