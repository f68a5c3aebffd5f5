"""Verbs from processes that break every rule, and ends of processes in the midst of verbs.

Whatever they do, the kernel and its HCA live, others are served, and all that was theirs is free
again.
"""

import contextlib
import errno
import mmap
import os
import random
import re
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import verb_codes as codes
from shared.doorbell_layout import STATUS_PAGE_LENGTH
from shared.message_codec import encode
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_INVALID_DEVICE_REQUEST,
)
from shared.verb_codes import VERB_NAMES, VERB_OUTPUT_LENGTH, VERB_RESULT
from shared.verb_messages import Object, RegMr
from shared.verb_reasons import VerbReason
from tests.end_to_end.conftest import END_SECONDS, READY_USER, Kernel, wait_until
from tests.end_to_end.hostile_verbs_user import ENOUGH, RawVerbs
from tests.ready_python import Program
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess

pytestmark = pytest.mark.processes

Start = Callable[..., Kernel]
FEWEST_DESCRIPTORS = 1171
NOTIFICATIONS = {code for code in VERB_NAMES if code >= codes.IOCTL_GET_CA_FATAL_EVENT}


class HostileUsers:
    """Processes of `hostile_verbs_user`, none of which outlives its test."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.all: list[Program] = []

    def start(self, *words: str) -> Program:
        code = "from tests.end_to_end.hostile_verbs_user import main; main()"
        arguments = [self._kernel.name, *words]
        started = READY_USER.start(code, *arguments, stdin=subprocess.DEVNULL, stderr=None)
        self.all.append(started)
        return started

    def are_up(self) -> None:
        """Wait until each is about to begin."""
        for user in self.all:
            assert user.stdout is not None
            assert select.select([user.stdout], [], [], END_SECONDS)[0]
            assert user.stdout.readline() == "up\n"

    def end(self) -> None:
        for user in self.all:
            with contextlib.suppress(ProcessLookupError):
                user.kill()
            user.wait()
            assert user.stdout is not None
            user.stdout.close()


@pytest.fixture
def plain(start: Start) -> Kernel:
    """A kernel as users have it; its exit says whether it ended well."""
    kernel = start()
    assert kernel.first_words == "ready\n", kernel.first_words
    return kernel


@pytest.fixture
def hostile(plain: Kernel) -> Iterator[HostileUsers]:
    users = HostileUsers(plain)
    yield users
    users.end()


def used(kernel: Kernel) -> dict[str, Any]:
    """What is in use of everything that users can take."""
    state = kernel.state()
    hca = state["hca"]
    driver = hca["driver"]["hca"]
    return {
        "numbers": driver["numbers"],
        "regions": driver["regions"],
        "buffers": driver["buffers"],
        "chunks": driver["icm"]["chunks"],
        "outstanding": driver["commands"]["outstanding"],
        "contexts": len(driver["contexts"]),
        "segments": len(hca["bus"]["segments"]),
        "frames": hca["bus"]["frames"]["used"],
        "doorbells": len(hca["doorbells"]["segments"]),
        "arenas": state["arena_total"],
        "descriptors": state["descriptors"],
        "threads": state["os_threads"],
        "sessions": len(state["server"]["sessions"]),
    }


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def hca_of(kernel: Kernel) -> int:
    pid: int = kernel.state()["hca"]["link"]["process"]
    return pid


def check_witness(kernel: Kernel) -> None:
    """Somebody else has the device, and a verb that asks the HCA."""
    user = RawVerbs(kernel.name)
    pd = user.ask(codes.IOCTL_ALLOC_PD).handle
    arena = user.process.allocate(4096)
    region = user.ask(codes.IOCTL_REG_MR, RegMr(pd, arena.address, 4096, arena.address, 1))
    assert user.ask(codes.IOCTL_DEREG_MR, Object(region.handle)) is None
    user.close()


def check_noop(kernel: Kernel) -> None:
    """Somebody else is served by a device that needs no HCA."""
    with UserProcess.connect(kernel.name) as process, process.open_device("noop") as device:
        assert device.device_io_control(0x80012000, b"well", bytearray(4)) == 4


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [8, pytest.param(32, marks=pytest.mark.stress)])
def test_no_bytes_and_no_length_harm_anybody(plain: Kernel, tags: int):
    check_witness(plain)
    plain.wait_for_sessions(0)
    before, hca = used(plain), hca_of(plain)
    held = descriptors_of(hca)
    user = RawVerbs(plain.name)
    dice = random.Random(1)
    good = encode(Object(0))

    statuses: set[int] = set()

    def ask(code: int, data: bytes, length: int = VERB_OUTPUT_LENGTH) -> None:
        try:
            output = user.raw(code, data, length)
        except NtStatusError as error:
            statuses.add(error.status)
            return
        number, reason, _, _ = VERB_RESULT.unpack_from(output)
        assert (number == 0) == (reason == VerbReason.NONE)
        assert number == 0 or number in errno.errorcode

    for code in VERB_NAMES.keys() - NOTIFICATIONS:
        for size in (0, 1, 2, 5, 40, 300, 66_000):
            ask(code, dice.randbytes(size))
        for tag in dice.sample(range(40, 72), tags):
            head = bytes([tag, 1])
            for item in (b"\0", b"\xff", b"\xce\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8, b"\xc0"):
                ask(code, b"\xdc\x00\x0e" + head + item * 12)
        for length in (*range(0, 60, 3), VERB_OUTPUT_LENGTH - 1, VERB_OUTPUT_LENGTH + 1):
            ask(code, good, length)
    assert statuses == {STATUS_BUFFER_TOO_SMALL}
    for code in VERB_NAMES:
        for method in range(1, 4):
            with pytest.raises(NtStatusError) as refused:
                user.raw(code | method, good)
            assert refused.value.status == STATUS_INVALID_DEVICE_REQUEST
    check_witness(plain)
    user.close()
    plain.wait_for_sessions(0)
    wait_until(lambda: used(plain) == before)  # its lanes end when they have closed all
    wait_until(lambda: descriptors_of(hca) <= held)  # it takes its mail when it looks
    assert plain.stop() == 0


# --- shared memory -------------------------------------------------------------------------------


def leads_to_status_page(path: Path) -> bool:
    try:
        return "softhca-status" in os.readlink(path)
    except FileNotFoundError:  # the one the folder was listed with
        return False


def test_the_status_page_is_nobodys_to_write(plain: Kernel):
    user = RawVerbs(plain.name)
    found = [path for path in Path("/proc/self/fd").iterdir() if leads_to_status_page(path)]
    assert found
    again = os.open(found[0], os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            os.pwrite(again, b"dead", 128)
        with pytest.raises(PermissionError):
            mmap.mmap(again, STATUS_PAGE_LENGTH)
        with pytest.raises(PermissionError):
            os.ftruncate(again, 0)
    finally:
        os.close(again)
    user.close()


def spray(plain: Kernel, hostile: HostileUsers, seconds: float) -> None:
    """Let two write over all they share; nobody else notices."""
    check_witness(plain)
    plain.wait_for_sessions(0)
    before, hca = used(plain), hca_of(plain)
    held = descriptors_of(hca)
    for seed in (11, 12):
        hostile.start("spray", str(seed), str(seconds))
    hostile.are_up()
    rounds = 0
    while any(user.poll() is None for user in hostile.all):
        check_witness(plain)
        check_noop(plain)
        rounds += 1
    assert rounds > 1
    for user in hostile.all:
        assert user.stdout is not None
        (words,) = user.stdout.read().splitlines()
        assert int(words.removeprefix("made ")) > ENOUGH
    plain.wait_for_sessions(0)
    wait_until(lambda: used(plain) == before)  # its lanes end when they have closed all
    wait_until(lambda: descriptors_of(hca) <= held)  # it takes its mail when it looks
    assert hca_of(plain) == hca
    assert plain.stop() == 0
    assert "failed" not in plain.log


def test_whoever_writes_over_all_it_shares_harms_itself_alone(plain: Kernel, hostile: HostileUsers):
    spray(plain, hostile, 0.8)


@pytest.mark.stress
def test_whoever_writes_over_all_it_shares_for_long_harms_itself_alone(
    plain: Kernel, hostile: HostileUsers
):
    spray(plain, hostile, 20)


# --- ends ----------------------------------------------------------------------------------------


def test_users_killed_in_the_midst_of_verbs_leave_nothing(plain: Kernel, hostile: HostileUsers):
    check_witness(plain)
    plain.wait_for_sessions(0)
    before, hca = used(plain), hca_of(plain)
    held = descriptors_of(hca)
    dice = random.Random(3)
    for turn in range(3):
        users = [hostile.start("verbs", str(4 * turn + seed)) for seed in range(4)]
        hostile.are_up()
        for user in users:
            select.select([], [], [], dice.random() * 0.1)  # anywhere
            user.kill()
        hostile.end()
        hostile.all.clear()
    plain.wait_for_sessions(0)
    wait_until(lambda: used(plain) == before)  # its lanes end when they have closed all
    wait_until(lambda: descriptors_of(hca) <= held)  # it takes its mail when it looks
    check_witness(plain)
    assert plain.stop() == 0


def test_a_user_that_is_stopped_holds_nobody(plain: Kernel, hostile: HostileUsers):
    users = [hostile.start("verbs", str(seed)) for seed in range(3)]
    hostile.are_up()
    for user in users:
        user.send_signal(signal.SIGSTOP)
    check_witness(plain)
    check_noop(plain)
    users[0].kill()
    plain.wait_for_sessions(2)
    assert plain.stop() == 0


def test_when_the_hca_is_killed_every_verb_ends_and_the_kernel_goes_on(
    plain: Kernel, hostile: HostileUsers
):
    users = [hostile.start("verbs", str(seed)) for seed in range(8)]
    hostile.are_up()
    os.kill(hca_of(plain), signal.SIGKILL)
    for user in users:
        output, _ = user.communicate(timeout=END_SECONDS)
        assert output.splitlines()[0].startswith("DeviceFatal:"), output
    check_noop(plain)
    state = plain.wait_for_sessions(0)
    assert state["arena_total"]["used"] == 0
    assert state["hca"]["doorbells"]["segments"] == []
    assert plain.stop() == 0


def test_when_the_hca_stands_still_others_are_served_and_the_kernel_stops(
    start: Start,
):
    kernel = start("--stop-timeout-ms", "700")
    users = HostileUsers(kernel)
    try:
        for seed in range(3):
            users.start("verbs", str(seed))
        users.are_up()
        hca = hca_of(kernel)
        pidfd = os.pidfd_open(hca)
        os.kill(hca, signal.SIGSTOP)
        for _ in range(3):
            check_noop(kernel)
        users.all[0].kill()  # whatever waits for the HCA
        check_noop(kernel)
        assert kernel.stop() == 4
        assert "not run down in time" in kernel.log or "by force" in kernel.log
        assert select.select([pidfd], [], [], END_SECONDS)[0]
        os.close(pidfd)
    finally:
        users.end()


def test_an_hca_that_stood_still_for_a_while_goes_on(plain: Kernel, hostile: HostileUsers):
    users = [hostile.start("verbs", str(seed)) for seed in range(3)]
    hostile.are_up()
    hca = hca_of(plain)
    os.kill(hca, signal.SIGSTOP)
    check_noop(plain)
    os.kill(hca, signal.SIGCONT)
    check_witness(plain)
    assert [user.poll() for user in users] == [None] * 3
    hostile.end()
    plain.wait_for_sessions(0)
    assert plain.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_kernel_that_ends_during_verbs_ends_them_and_its_hca(
    plain: Kernel, hostile: HostileUsers, number: int
):
    users = [hostile.start("verbs", str(seed)) for seed in range(4)]
    hostile.are_up()
    pidfd = os.pidfd_open(hca_of(plain))
    assert plain.stop(number) == (0 if number == signal.SIGTERM else -number)
    for user in users:
        output, _ = user.communicate(timeout=END_SECONDS)
        assert output.splitlines()[-1].startswith("made "), output
    assert select.select([pidfd], [], [], END_SECONDS)[0]
    os.close(pidfd)


# --- too many ------------------------------------------------------------------------------------


def test_contexts_and_requests_without_end_are_bounded_and_come_back(plain: Kernel):
    check_witness(plain)
    plain.wait_for_sessions(0)
    before = used(plain)
    with UserProcess.connect(plain.name) as process:
        device = process.open_device(codes.HCA_DEVICE, overlapped=True)
        for _ in range(300):
            process.open_device(codes.HCA_DEVICE)
        pended = 0
        request = encode(Object(0))

        def pend_all() -> None:
            nonlocal pended
            while pended < 2000:
                device.start(codes.IOCTL_GET_CQ_COMP_EVENT, request, bytearray(VERB_OUTPUT_LENGTH))
                pended += 1

        with pytest.raises(NtStatusError) as refused:
            pend_all()
        assert refused.value.errno == errno.EAGAIN
        assert pended >= 200
        check_witness(plain)
    plain.wait_for_sessions(0)
    wait_until(lambda: used(plain) == before)  # its lanes end when they have closed all
    assert plain.stop() == 0


def test_one_process_cannot_take_all_protection_domains(start: Start):
    kernel = start("--hca-percent-per-process", "1", "--hca-objects-per-process", "400")
    greedy, other = RawVerbs(kernel.name), RawVerbs(kernel.name)
    handles: list[int] = []
    while hasattr(reply := greedy.ask(codes.IOCTL_ALLOC_PD), "handle"):
        handles.append(reply.handle)
        assert len(handles) <= 400
    assert (reply.errno, reply.reason) == (errno.ENOMEM, VerbReason.OUT_OF_SHARE)
    assert reply.detail == len(handles)
    assert other.ask(codes.IOCTL_ALLOC_PD).handle
    assert greedy.ask(codes.IOCTL_DEALLOC_PD, Object(handles.pop())) is None
    assert greedy.ask(codes.IOCTL_ALLOC_PD).handle
    greedy.close()
    other.close()
    assert kernel.stop() == 0


@pytest.mark.parametrize("descriptors", [12, 64, 1024])
def test_a_kernel_with_too_few_descriptors_says_so(start: Start, descriptors: int):
    kernel = start(descriptors=descriptors)
    assert re.fullmatch(
        f"error: a kernel .* needs {FEWEST_DESCRIPTORS} descriptors, "
        f"the limit is {descriptors}; raise .*\\n",
        kernel.first_words,
    )
    assert kernel.end() == 1


def test_a_kernel_with_few_descriptors_serves_a_user(start: Start):
    kernel = start(descriptors=FEWEST_DESCRIPTORS)
    assert kernel.first_words == "ready\n"
    check_witness(kernel)
    wait_until(lambda: not kernel.state()["server"]["sessions"])
    assert kernel.stop() == 0
