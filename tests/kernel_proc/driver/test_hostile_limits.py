"""Users that take all they can get, and work that would keep the processor: others get theirs."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.driver.limits import Profile
from kernel_proc.driver.number_allocator import NumberAllocator
from kernel_proc.driver.page_runs import mtt_entries, page_shift
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.memory.bus import RUNS_AT_ONCE, FrameMap
from kernel_proc.memory.page_frames import FrameRun, PageFrameAllocator
from kernel_proc.scheduling.dispatcher import Dispatcher
from kernel_proc.scheduling.kthread import create_system_thread
from shared import verb_codes as codes
from shared.nt_status import STATUS_DEVICE_NOT_READY
from shared.segment import PAGE_SIZE
from shared.verb_messages import CreateAh, Multicast, Object, RegMr
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import Answer, HcaBox, verb
from tests.kernel_proc.driver.queue_user import UD, QueueUser

SHARE = 25
SMALL = Profile(
    log_qps=11, log_cqs=8, log_srqs=7, log_mpts=9, log_pds=6, log_mgms=5, share_percent=SHARE
)
ENOMEM_OF_SHARE = (errno.ENOMEM, VerbReason.OUT_OF_SHARE)


class Taker:
    """A process that makes one kind of object again and again."""

    def __init__(self, box: HcaBox) -> None:
        self.user = QueueUser(box)
        self.groups = 0
        self._made: dict[str, Any] = {}

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def pd(self) -> Answer:
        return self.user.ask(codes.IOCTL_ALLOC_PD)

    def mr(self) -> Answer:
        at = self.shared("memory", lambda: self.user.memory(PAGE_SIZE))
        return self.user.ask(codes.IOCTL_REG_MR, RegMr(self.user.pd, at, 64, at, 1))

    def cq(self) -> Answer:
        request = self.shared("cq request", self.user.cq_request)
        return self.user.ask(codes.IOCTL_CREATE_CQ, request)

    def srq(self) -> Answer:
        request = self.shared("srq request", lambda: self.user.srq_request())
        return self.user.ask(codes.IOCTL_CREATE_SRQ, request)

    def qp(self) -> Answer:
        cq = self.shared("cq", self.user.cq)
        request = self.shared(
            "qp request", lambda: self.user.qp_request(UD, send_cq=cq.handle, receive_cq=cq.handle)
        )
        return self.user.ask(codes.IOCTL_CREATE_QP, request)

    def group(self) -> Answer:
        cq = self.shared("cq", self.user.cq)
        qp = self.shared("qp", lambda: self.user.qp(cq, UD))
        self.groups += 1
        gid = b"\xff" + self.groups.to_bytes(15, "big")
        return self.user.ask(codes.IOCTL_ATTACH_MCAST, Multicast(qp.handle, gid, 0xC001))


@pytest.mark.parametrize("kind", ["pd", "mr", "cq", "srq", "qp", "group"])
def test_one_process_has_its_share_of_a_table_and_others_get_theirs(kind: str):
    with HcaBox(profile=SMALL) as box:
        greedy, modest = Taker(box), Taker(box)
        getattr(modest, kind)()  # what it needs besides is there
        box.session()
        before = box.tables()
        taken, answer = 0, getattr(greedy, kind)()
        while not answer.errno:
            taken, answer = taken + 1, getattr(greedy, kind)()
        assert answer[:2] == ENOMEM_OF_SHARE or (kind == "group" and answer.errno == errno.ENOMEM)
        assert taken > 1
        assert answer.detail == 0 or taken <= answer.detail
        assert getattr(greedy, kind)().errno == errno.ENOMEM  # and the refusal took nothing
        assert getattr(modest, kind)().errno == 0
        greedy.user.session.end()
        left = box.tables()
        assert left["numbers"]["mgm"] == before["numbers"]["mgm"]
        assert left["regions"]["regions"] <= before["regions"]["regions"] + 1
        another = Taker(box)
        assert getattr(another, kind)().errno == 0
        for used in box.life.memberships, box.life.objects:
            assert greedy.user.session.process not in used


def test_a_share_is_whole_again_after_each_is_given_back():
    numbers = NumberAllocator(6, 4, 24, share_percent=50)
    one, other = object(), object()
    for _ in range(3):
        taken = [numbers.take(one) for _ in range(numbers.share)]
        assert len(taken) == 30
        with pytest.raises(VerbRefused) as refused:
            numbers.take(one)
        assert (refused.value.reason, refused.value.detail) == (VerbReason.OUT_OF_SHARE, 30)
        kept = numbers.take(other)
        for number in (*taken, kept):
            numbers.free(number)
        assert len(numbers) == 0
    whole = [numbers.take(None) for _ in range(numbers.size)]  # the kernel has no share
    with pytest.raises(VerbRefused) as full:
        numbers.take(other)
    assert full.value.reason is VerbReason.OUT_OF_NUMBERS
    assert len(set(whole)) == 60


def test_objects_are_counted_over_all_contexts_of_a_process():
    with HcaBox(profile=Profile(most_objects=6)) as box:
        session = box.session()
        first = session.handle
        pd = verb(session, codes.IOCTL_ALLOC_PD, None).reply.handle
        path = CreateAh(pd, 1, 1, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0)
        handles = [verb(session, codes.IOCTL_CREATE_AH, path).reply.handle for _ in range(4)]
        session.open()
        assert verb(session, codes.IOCTL_ALLOC_PD, None).errno == 0
        answer = verb(session, codes.IOCTL_ALLOC_PD, None)
        assert answer[:4] == (errno.ENOMEM, VerbReason.OUT_OF_HANDLES, 0, 6)
        assert verb(box.session(), codes.IOCTL_ALLOC_PD, None).errno == 0
        session.close()
        session.handle = first
        assert verb(session, codes.IOCTL_CREATE_AH, path).errno == 0
        assert verb(session, codes.IOCTL_CREATE_AH, path).errno == errno.ENOMEM
        assert verb(session, codes.IOCTL_DESTROY_AH, Object(handles[0])).errno == 0
        assert verb(session, codes.IOCTL_CREATE_AH, path).errno == 0


# --- long work -----------------------------------------------------------------------------------


def scattered(count: int) -> list[FrameRun]:
    return [FrameRun(2 * number, 1) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, RUNS_AT_ONCE, RUNS_AT_ONCE + 1, 3 * RUNS_AT_ONCE + 5])
@pytest.mark.parametrize("offset", [0, 8, PAGE_SIZE + 8])
def test_pieces_of_runs_are_short_and_together_the_whole(count: int, offset: int):
    length = count * PAGE_SIZE - min(offset, count * PAGE_SIZE - 1) or 1
    frames = FrameMap(scattered(count))
    for _ in range(2):  # the second time the ends are known
        pieces = list(frames.split_by_pieces(1 << 48, offset % PAGE_SIZE, length))
        assert max(map(len, pieces)) <= RUNS_AT_ONCE
        whole = [run for piece in pieces for run in piece]
        at = 1 << 48
        for bus, size in whole:
            assert (bus, size > 0) == (at, True)
            at += size
        assert at == (1 << 48) + length
        assert whole == frames.split(1 << 48, offset % PAGE_SIZE, length)


def test_frames_by_pieces_are_as_many_and_all_come_back():
    frames = PageFrameAllocator(100_000, largest_run=2)
    pauses: list[int] = []
    runs = frames.allocate_by_pieces(70_001, lambda: pauses.append(frames.used))
    assert runs is not None
    assert sum(run.count for run in runs) == frames.used == 70_001
    assert max(run.count for run in runs) == 2
    assert len(pauses) >= 4
    assert frames.allocate_by_pieces(50_000, lambda: None) is None
    assert frames.used == 70_001
    frames.free_by_pieces(runs, lambda: pauses.append(frames.used))
    assert (frames.used, runs) == (0, [])
    assert frames.allocate(99_000) is not None


def test_the_page_size_and_the_entries_come_from_any_iterable():
    runs = [(run.start * PAGE_SIZE, PAGE_SIZE) for run in scattered(9)]
    assert page_shift(iter(runs), 0) == page_shift(runs, 0) == 12
    assert mtt_entries(iter(runs), 12) == mtt_entries(runs, 12)


class Stretches:
    """How often the processor was offered to others, told by a thread that takes every offer."""

    def __init__(self, box: HcaBox) -> None:
        self.taken = 0
        self._box = box
        self._over = False

    def __enter__(self) -> "Stretches":
        create_system_thread(self._box.processor, self._run, name="others")
        return self

    def _run(self) -> None:
        while not self._over:
            self.taken += 1
            self._box.processor.dispatcher.yield_execution()

    def __exit__(self, *_: object) -> None:
        self._over = True


def test_others_run_while_much_scattered_memory_is_registered(monkeypatch: pytest.MonkeyPatch):
    length = 3 * RUNS_AT_ONCE * PAGE_SIZE
    with HcaBox(largest_run=1, verifier=False) as box:
        session = box.session()
        address = session.private_buffer(length)
        pd = verb(session, codes.IOCTL_ALLOC_PD, None).reply.handle
        pauses = 0
        pause = Dispatcher.pause

        def counted(dispatcher: Dispatcher) -> None:
            nonlocal pauses
            pauses += 1
            pause(dispatcher)

        monkeypatch.setattr(Dispatcher, "pause", counted)
        with Stretches(box) as others:
            answer = verb(session, codes.IOCTL_REG_MR, RegMr(pd, address, length, address, 1))
        assert answer.errno == 0
        # Frames, ends and runs for the page size, ends and runs for the entries.
        assert pauses >= 2 + 2 * (3 + 2)
        assert others.taken >= pauses


def test_others_run_while_many_objects_and_handles_are_run_down():
    with HcaBox() as box:
        session = box.session()
        pd = verb(session, codes.IOCTL_ALLOC_PD, None).reply.handle
        path = CreateAh(pd, 1, 1, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0)
        for _ in range(600):
            assert verb(session, codes.IOCTL_CREATE_AH, path).errno == 0
        for _ in range(130):
            session.try_open()
        with Stretches(box) as others:
            session.end()
        assert others.taken >= 600 // 256 + 130 // 64


def test_contexts_without_objects_leave_no_lines_in_the_log():
    with HcaBox() as box:
        session = box.session()
        lines = len(box.lines)
        for _ in range(50):
            session.close(session.try_open()[1])
        assert len(box.lines) == lines


def test_the_end_of_a_context_looks_at_no_regions_of_others():
    with HcaBox() as box:
        taker = Taker(box)
        for _ in range(20):
            assert taker.mr().errno == 0
        idle = box.session()
        live = box.life.regions._live
        assert len(live[taker.user.session.context]) == 20
        assert idle.context not in live
        idle.end()
        assert len(live[taker.user.session.context]) == 20
        taker.user.session.end()
        assert list(live) == [None]  # the driver's own


# --- a device that fails at once -----------------------------------------------------------------


@pytest.mark.parametrize("nth", [0, 7, 30])
def test_an_internal_error_while_it_comes_up_is_seen_at_once_and_told(nth: int):
    box = HcaBox(wait=False)

    def fail() -> None:
        raise LookupError("of the device")

    box.at_command(nth, fail)
    session = box.session(opened=False)
    began = box.processor.clock.now_ns()
    assert session.try_open() == (STATUS_DEVICE_NOT_READY, 0)
    assert box.processor.clock.now_ns() - began < 2_000_000_000
    (line,) = [line for line in box.lines if "did not come up" in line]
    assert "its error buffer holds" in line or "catastrophic" in line
    assert box.extension.inspect()["failure"] in line
    box.as_usual()
    assert box.processor.run_thread(box.extension.reset)
    session.open()
    box.close()


def test_what_an_hca_died_of_while_it_came_up_is_what_is_told():
    box = HcaBox(wait=False)
    box.at_command(12, lambda: box.link.kill("exit code 1; its last words: no memory"))
    box.processor.run_until(lambda: bool(box.extension.settled.signal_state))
    assert box.extension.inspect()["failure"] == "exit code 1; its last words: no memory"
    (line,) = [line for line in box.lines if "did not come up" in line]
    assert line.endswith("its last words: no memory")
    assert box.processor.run_thread(box.extension.reset)
    box.close()
