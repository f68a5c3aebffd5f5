"""Posting, polling and arming by kernel clients: by direct call, in kernel memory, at any level."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.channel_interface.ib_status import IbStatus
from kernel_proc.channel_interface.verbs_table import VerbAnswer
from kernel_proc.channel_interface.work_requests import (
    LocalSegment,
    PollAnswer,
    PostAnswer,
    ReceiveRequest,
    SendRequest,
)
from kernel_proc.clients import verb_steps
from kernel_proc.memory.mdl import (
    IO_READ_ACCESS,
    IO_WRITE_ACCESS,
    allocate_mdl,
    build_for_nonpaged_pool,
    free_mdl,
    probe_and_lock_pages,
    unlock_pages,
)
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL, BugCheck
from kernel_proc.scheduling.irql import DEVICE_LEVEL, DISPATCH_LEVEL
from shared import verb_codes as codes
from shared.nt_status import STATUS_SUCCESS
from shared.verb_messages import (
    AllocMw,
    CreateAh,
    CreateCq,
    CreateSrq,
    Event,
    Multicast,
    Object,
    ResizeCq,
)
from shared.verbs_enums import ibv_send_flags, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode
from shared.wqe_layout import BindSegment
from tests.kernel_proc.driver.hca_box import HcaBox, verb
from tests.kernel_proc.driver.kernel_client_user import Client, settle
from tests.kernel_proc.driver.queue_user import QueueUser

ACCESS = 1 | 2 | 4 | 8 | 16
QKEY = 0x1234
RESET, ERR, STATE = 0, 6, 1
SOLICITED = int(ibv_send_flags.IBV_SEND_SOLICITED) | int(ibv_send_flags.IBV_SEND_SIGNALED)
FLUSHED = int(ibv_wc_status.IBV_WC_WR_FLUSH_ERR)


def opcode(name: str) -> int:
    return int(ibv_wr_opcode[f"IBV_WR_{name}"])


class Ends:
    """Two queue pairs of one client, or one that has a shared receive queue too, and a region."""

    def __init__(self, client: Client, qp_type: int = verb_steps.RC, srq: bool = False) -> None:
        self.client, self.table = client, client.table
        self.calls: list[int] = []
        self.pd = client.good(codes.IOCTL_ALLOC_PD).reply.handle
        self.cq = self.run(verb_steps.make_cq, self.table, 63, self._completed)
        self.srq = 0
        if srq:
            answer = client.good(codes.IOCTL_CREATE_SRQ, CreateSrq(self.pd, 0, 8, 2, 0, 0, 0, 0))
            self.srq = answer.reply.handle
        request = verb_steps.qp_request(
            qp_type, self.pd, (self.cq, self.cq), max_send_wr=8, max_recv_wr=8,
            max_send_sge=2, max_recv_sge=2, max_inline_data=64, srq=self.srq,
        )  # fmt: skip
        self.first, self.second = (
            client.good(codes.IOCTL_CREATE_QP, request).reply for _ in range(2)
        )
        registered = self.run(self.table.register_memory, self.pd, 8192, ACCESS)
        self.key = registered.reply.lkey
        (self.view,) = registered.memory
        if qp_type == verb_steps.UD:
            for qp in (self.first, self.second):
                self.run(verb_steps.start_datagrams, self.table, qp.handle, 1, QKEY)
            address = CreateAh(self.pd, 1, 1, 0, 0, 0, 0, b"", 0, 0, 0, 0)
            self.ah = client.good(codes.IOCTL_CREATE_AH, address).reply.handle
        else:
            self._connect(self.first, self.second)
            self._connect(self.second, self.first)

    def _connect(self, qp: Any, peer: Any) -> None:
        def connect() -> None:
            verb_steps.connect(self.table, qp.handle, peer.qpn, 1, 1, mtu=3, access=ACCESS)

        self.run(connect)

    def _completed(self) -> None:
        self.calls.append(self.client.box.processor.irql)

    def run(self, routine: Callable[..., Any], *values: Any) -> Any:
        return self.client.box.processor.run_thread(routine, *values)

    def at_dispatch(self, routine: Callable[..., Any], *values: Any) -> Any:
        processor = self.client.box.processor

        def raised() -> Any:
            old = processor.raise_irql(DISPATCH_LEVEL)
            try:
                return routine(*values)
            finally:
                processor.lower_irql(old)

        return processor.run_thread(raised)

    def segment(self, at: int, length: int) -> LocalSegment:
        return LocalSegment(at, length, self.key)

    def post(self, request: SendRequest) -> PostAnswer:
        answer: PostAnswer = self.at_dispatch(self.table.post_send, self.first.handle, [request])
        return answer

    def receive(self, *requests: ReceiveRequest) -> PostAnswer:
        post, handle = (
            (self.table.post_srq_recv, self.srq)
            if self.srq
            else (self.table.post_recv, self.second.handle)
        )
        answer: PostAnswer = self.at_dispatch(post, handle, requests)
        return answer

    def poll(self, most: int = 16) -> PollAnswer:
        settle(self.client)
        answer: PollAnswer = self.at_dispatch(self.table.poll_cq, self.cq, most)
        return answer

    def peek(self) -> tuple[IbStatus, int]:
        settle(self.client)
        answer: tuple[IbStatus, int] = self.at_dispatch(self.table.peek_cq, self.cq)
        return answer

    def modify(self, handle: int, state: int) -> None:
        def change() -> None:
            verb_steps.modify(self.table, handle, STATE, qp_state=state)

        self.run(change)


@pytest.fixture
def ends(client: Client) -> Ends:
    return Ends(client)


@pytest.fixture
def datagrams(client: Client) -> Ends:
    return Ends(client, verb_steps.UD)


SUCCESS = PostAnswer(IbStatus.SUCCESS, 1)


def datagram(ends: Ends, **values: Any) -> SendRequest:
    parts = {"ah": ends.ah, "remote_qpn": ends.second.qpn, "remote_qkey": QKEY}
    return SendRequest(7, **{"segments": [ends.segment(0, 16)], **parts, **values})


# What is posted arrives


def test_a_send_of_pieces_and_inline_data_arrives_in_order(ends: Ends):
    ends.view[:11] = b"hello world"
    assert ends.receive(*(ReceiveRequest(n, [ends.segment(4096 + n * 64, 64)]) for n in (1, 2)))
    parted = SendRequest(8, segments=[ends.segment(6, 5), ends.segment(0, 5)])
    assert ends.post(parted) == SUCCESS
    assert ends.post(SendRequest(9, inline_data=b"by value", flags=SOLICITED)) == SUCCESS
    status, found = ends.poll()
    assert status is IbStatus.SUCCESS
    assert {one.status for one in found} == {0}
    assert [one.wr_id for one in found if one.opcode == ibv_wc_opcode.IBV_WC_SEND] == [8, 9]
    received = [one for one in found if one.opcode == ibv_wc_opcode.IBV_WC_RECV]
    assert [(one.wr_id, one.byte_len, one.qpn) for one in received] == [
        (1, 10, ends.second.qpn),
        (2, 8, ends.second.qpn),
    ]
    assert bytes(ends.view[4160:4170]) == b"worldhello"
    assert bytes(ends.view[4224:4232]) == b"by value"
    assert ends.poll() == PollAnswer(IbStatus.NOT_FOUND, ())


def test_writes_reads_and_atomics(ends: Ends):
    ends.view[:8] = struct.pack("<Q", 5)
    steps = (
        SendRequest(
            1, opcode("RDMA_WRITE"), [ends.segment(0, 8)], remote_address=4096, rkey=ends.key
        ),
        SendRequest(
            2, opcode("ATOMIC_FETCH_AND_ADD"), [ends.segment(64, 8)],
            remote_address=4096, rkey=ends.key, compare_add=37,
        ),
        SendRequest(
            3, opcode("RDMA_READ"), [ends.segment(128, 8)], remote_address=4096, rkey=ends.key
        ),
    )  # fmt: skip
    answer = ends.run(ends.table.post_send, ends.first.handle, steps)
    assert answer == PostAnswer(IbStatus.SUCCESS, 3)
    assert [(one.wr_id, one.status) for one in ends.poll().completions] == [(1, 0), (2, 0), (3, 0)]
    assert struct.unpack_from("<Q", ends.view, 64) == (5,)
    assert struct.unpack_from("<Q", ends.view, 128) == (42,)


def test_a_window_is_bound_by_a_posted_request(ends: Ends):
    window = ends.client.good(codes.IOCTL_ALLOC_MW, AllocMw(ends.pd, 2)).reply
    key = window.rkey & ~0xFF | (window.rkey + 1) & 0xFF
    bind = SendRequest(1, opcode("BIND_MW"), bind=BindSegment(2 | 4, key, ends.key, 4096, 64))
    # Through the other queue pair, whose side the window is on.
    answer = ends.run(ends.table.post_send, ends.second.handle, [bind])
    assert answer == SUCCESS
    assert [(one.wr_id, one.status) for one in ends.poll().completions] == [(1, 0)]
    assert ends.post(SendRequest(2, opcode("BIND_MW"))).status is IbStatus.INVALID_PARAMETER
    assert ends.post(SendRequest(3, bind=bind.bind)).status is IbStatus.INVALID_PARAMETER


def test_a_datagram_says_where_it_came_from(datagrams: Ends):
    datagrams.view[:16] = b"by address handle"[:16]
    datagrams.receive(ReceiveRequest(3, [datagrams.segment(4096, 256)]))
    request = datagram(datagrams)
    assert datagrams.post(request) == SUCCESS
    came, sent = datagrams.poll().completions
    assert (sent.wr_id, came.wr_id) == (7, 3)
    assert (came.src_qp, came.slid, came.byte_len) == (datagrams.first.qpn, 1, 56)
    assert bytes(datagrams.view[4136:4152]) == b"by address handl"
    # A handle that is gone is found out although the entry was packed before.
    datagrams.client.good(codes.IOCTL_DESTROY_AH, Object(datagrams.ah))
    assert datagrams.post(request) == PostAnswer(IbStatus.INVALID_AV_HANDLE, 0)
    assert datagrams.post(datagram(datagrams, ah=0)).status is IbStatus.INVALID_AV_HANDLE


def test_a_multicast_reaches_who_is_attached(datagrams: Ends):
    gid = bytes.fromhex("ff12401bffff00000000000000000001")
    group = Multicast(datagrams.second.handle, gid, 0xC000)
    datagrams.client.good(codes.IOCTL_ATTACH_MCAST, group)
    address = CreateAh(datagrams.pd, 1, 0xC000, 0, 0, 0, 1, gid, 0, 0, 1, 0)
    handle = datagrams.client.good(codes.IOCTL_CREATE_AH, address).reply.handle
    datagrams.receive(ReceiveRequest(4, [datagrams.segment(4096, 256)]))
    assert datagrams.post(datagram(datagrams, ah=handle, remote_qpn=0xFF_FFFF)) == SUCCESS
    came, _ = datagrams.poll().completions
    assert (came.wr_id, came.wc_flags & 1) == (4, 1)
    assert bytes(datagrams.view[4096 + 24 : 4096 + 40]) == gid
    datagrams.client.good(codes.IOCTL_DETACH_MCAST, group)


def test_a_shared_receive_queue_takes_for_both(client: Client):
    ends = Ends(client, srq=True)
    segments = [ends.segment(4096, 64)]
    assert ends.receive(*(ReceiveRequest(n, segments) for n in range(8))).posted == 8
    full = ends.receive(ReceiveRequest(9, segments))
    assert full == PostAnswer(IbStatus.INSUFFICIENT_RESOURCES, 0)
    assert ends.post(SendRequest(20, inline_data=b"x")) == SUCCESS
    other = ends.run(ends.table.post_send, ends.second.handle, [SendRequest(21, inline_data=b"y")])
    assert other == SUCCESS
    received = [one for one in ends.poll().completions if one.wr_id < 20]
    assert [(one.wr_id, one.qpn) for one in received] == [
        (0, ends.second.qpn),
        (1, ends.first.qpn),
    ]
    assert ends.receive(ReceiveRequest(9, segments), ReceiveRequest(10, segments)).posted == 2
    client.good(codes.IOCTL_DESTROY_QP, Object(ends.first.handle))
    client.good(codes.IOCTL_DESTROY_QP, Object(ends.second.handle))
    client.good(codes.IOCTL_DESTROY_SRQ, Object(ends.srq))
    assert ends.receive(ReceiveRequest(1)).status is IbStatus.INVALID_SRQ_HANDLE


# What is refused


def test_what_cannot_be_posted_ends_the_chain_and_what_was_before_is_posted(ends: Ends):
    good = SendRequest(1, inline_data=b"good")
    wrong = {
        IbStatus.INVALID_WR_TYPE: SendRequest(2, opcode("TSO")),
        IbStatus.INVALID_MAX_SGE: SendRequest(2, segments=[ends.segment(0, 1)] * 9),
        IbStatus.INVALID_SETTING: SendRequest(2, inline_data=bytes(4096)),
        IbStatus.INVALID_PARAMETER: SendRequest(2, segments=[ends.segment(-1, 1)]),
    }
    for expected, request in wrong.items():
        ends.receive(ReceiveRequest(5, [ends.segment(4096, 64)]))
        answer = ends.run(ends.table.post_send, ends.first.handle, [good, request, good])
        assert answer == PostAnswer(expected, 1)
        assert sorted(one.wr_id for one in ends.poll().completions) == [1, 5]
    odd = SendRequest(2, opcode("ATOMIC_CMP_AND_SWP"), [ends.segment(0, 8)], remote_address=4)
    assert ends.post(odd) == PostAnswer(IbStatus.INVALID_PARAMETER, 0)
    read = SendRequest(2, opcode("RDMA_READ"), inline_data=b"data")
    assert ends.post(read) == PostAnswer(IbStatus.INVALID_SETTING, 0)
    many = ReceiveRequest(2, [ends.segment(0, 1)] * 9)
    assert ends.receive(many) == PostAnswer(IbStatus.INVALID_MAX_SGE, 0)
    bad = ReceiveRequest(2, [LocalSegment(0, 1 << 32, ends.key)])
    assert ends.receive(bad) == PostAnswer(IbStatus.INVALID_PARAMETER, 0)


def test_a_queue_of_n_takes_n_and_has_room_when_completions_were_polled(ends: Ends):
    unsignaled = [SendRequest(n, inline_data=b"x", flags=0) for n in range(7)]
    requests = [*unsignaled, SendRequest(7, inline_data=b"x"), SendRequest(8)]
    ends.receive(*(ReceiveRequest(100 + n, [ends.segment(4096, 64)]) for n in range(8)))
    answer = ends.run(ends.table.post_send, ends.first.handle, requests)
    assert answer == PostAnswer(IbStatus.INSUFFICIENT_RESOURCES, 8)
    assert ends.peek() == (IbStatus.SUCCESS, 9)
    assert [one.wr_id for one in ends.poll().completions if one.wr_id < 100] == [7]
    assert ends.peek() == (IbStatus.SUCCESS, 0)
    ends.receive(ReceiveRequest(200, [ends.segment(4096, 64)]))
    assert ends.post(SendRequest(9, inline_data=b"x")) == SUCCESS
    assert sorted(one.wr_id for one in ends.poll().completions) == [9, 200]


def test_handles_and_states(ends: Ends):
    table, nothing = ends.table, 999_999
    send = SendRequest(1, inline_data=b"x")
    assert ends.run(table.post_send, nothing, [send]).status is IbStatus.INVALID_QP_HANDLE
    assert ends.run(table.post_recv, ends.cq, []).status is IbStatus.INVALID_QP_HANDLE
    assert ends.run(table.post_srq_recv, nothing, []).status is IbStatus.INVALID_SRQ_HANDLE
    assert ends.run(table.poll_cq, nothing, 1).status is IbStatus.INVALID_CQ_HANDLE
    assert ends.run(table.peek_cq, ends.first.handle) == (IbStatus.INVALID_CQ_HANDLE, 0)
    assert ends.run(table.req_notify_cq, nothing, False) is IbStatus.INVALID_CQ_HANDLE
    ends.modify(ends.first.handle, ERR)
    ends.modify(ends.first.handle, RESET)
    for post in (table.post_send, table.post_recv):
        answer = ends.run(post, ends.first.handle, [])
        assert answer == PostAnswer(IbStatus.INVALID_QP_STATE, 0)


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        (lambda ends: (codes.IOCTL_DEALLOC_PD, Object(ends.pd)), IbStatus.RESOURCE_BUSY),
        (lambda ends: (codes.IOCTL_DEALLOC_PD, Object(77777)), IbStatus.INVALID_HANDLE),
        (
            lambda ends: (codes.IOCTL_CREATE_CQ, CreateCq(0, 0, 0, 0, 0, 0)),
            IbStatus.INVALID_CQ_SIZE,
        ),
        (lambda ends: (codes.IOCTL_ALLOC_PD, Object(1)), IbStatus.INVALID_PARAMETER),
        (
            lambda ends: (codes.IOCTL_CREATE_CQ, CreateCq(1, 0, 0, 1 << 9, 0, 0)),
            IbStatus.UNSUPPORTED,
        ),
    ],
)
def test_a_refused_verb_has_a_status(ends: Ends, request_of: Any, status: IbStatus):
    assert ends.client.call(*request_of(ends)).status is status


# Levels


@pytest.mark.parametrize("name", ["post_send", "post_recv", "post_srq_recv"])
def test_posting_above_dispatch_level_is_a_bug_check(box: HcaBox, name: str):
    check_level(box, lambda table: getattr(table, name)(1, ()))


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.poll_cq(1, 1),
        lambda table: table.peek_cq(1),
        lambda table: table.req_notify_cq(1, False),
    ],
)
def test_polling_above_dispatch_level_is_a_bug_check(box: HcaBox, call: Any):
    check_level(box, call)


def check_level(box: HcaBox, call: Callable[[Any], object]) -> None:
    client = Client(box)

    def raised() -> None:
        box.processor.raise_irql(DEVICE_LEVEL)
        call(client.table)

    with pytest.raises(BugCheck) as caught:
        box.processor.run_thread(raised)
    assert caught.value.code == IRQL_NOT_LESS_OR_EQUAL
    box.give_back()
    box.close = lambda: None  # type: ignore[method-assign]  # the machine has stopped


# Callbacks


def test_arming_calls_once_for_any_and_for_solicited_only(ends: Ends):
    def notify(solicited: bool) -> IbStatus:
        status: IbStatus = ends.at_dispatch(ends.table.req_notify_cq, ends.cq, solicited)
        return status

    ends.receive(*(ReceiveRequest(n, [ends.segment(4096, 64)]) for n in range(4)))
    assert notify(True) is IbStatus.SUCCESS
    ends.post(SendRequest(1, inline_data=b"x"))
    settle(ends.client)
    assert ends.calls == []
    ends.post(SendRequest(1, inline_data=b"x", flags=SOLICITED))
    settle(ends.client)
    assert ends.calls == [DISPATCH_LEVEL]
    assert notify(False) is IbStatus.SUCCESS  # what is there already counts
    settle(ends.client)
    assert ends.calls == [DISPATCH_LEVEL] * 2
    ends.poll()
    assert notify(False) is IbStatus.SUCCESS
    settle(ends.client)
    assert len(ends.calls) == 2
    ends.post(SendRequest(1, inline_data=b"x"))
    settle(ends.client)
    assert len(ends.calls) == 3


def test_a_client_can_work_from_its_completion_routine_alone(client: Client):
    """Ping-pong between two queue pairs, each turn of it in a DPC."""
    ends = Ends(client)
    turns: list[int] = []
    segments = [ends.segment(4096, 64)]

    def routine() -> None:
        ends.table.req_notify_cq(ends.cq, False)
        for one in ends.table.poll_cq(ends.cq, 16).completions:
            if one.opcode == ibv_wc_opcode.IBV_WC_RECV:
                turns.append(one.qpn)
                if len(turns) < 20:
                    answerer = ends.first if one.qpn == ends.first.qpn else ends.second
                    assert ends.table.post_recv(answerer.handle, [ReceiveRequest(1, segments)])
                    request = SendRequest(2, inline_data=b"ball")
                    assert not ends.table.post_send(answerer.handle, [request]).status

    ends.calls = _Calls(routine)
    for qp in (ends.first, ends.second):
        ends.run(ends.table.post_recv, qp.handle, [ReceiveRequest(1, segments)])
    ends.run(ends.table.req_notify_cq, ends.cq, False)
    ends.post(SendRequest(2, inline_data=b"ball"))
    client.box.processor.run_until(lambda: len(turns) == 20)
    assert turns == [ends.second.qpn, ends.first.qpn] * 10


class _Calls(list[int]):
    """A list that calls a routine for what is appended: the test's way into the DPC."""

    def __init__(self, routine: Callable[[], None]) -> None:
        super().__init__()
        self._routine = routine

    def append(self, level: int) -> None:
        assert level == DISPATCH_LEVEL
        self._routine()


def test_asynchronous_events_come_at_dispatch_level_if_asked_for(ends: Ends):
    client, told = ends.client, []
    table = client.box.hca.tables.events
    table.queue_pair(3, ends.first.qpn)
    settle(client)  # before anybody wants to know

    def routine(event: Event) -> None:
        answer = ends.table.call(codes.IOCTL_ALLOC_PD)
        told.append((event, client.box.processor.irql, answer.status))

    def ask() -> None:
        ends.table.set_event_routine(routine, at_dispatch_level=True)

    ends.run(ask)
    table.queue_pair(5, ends.second.qpn)
    table.port(1, 1)
    settle(client)
    assert [event for event, _, _ in told] == [
        Event(5, ends.first.handle, 0, 1),
        Event(1, ends.second.handle, 0, 1),
        Event(10, 0, 1, 1),
    ]
    assert {(level, status) for _, level, status in told} == {
        (DISPATCH_LEVEL, IbStatus.INVALID_STATE)
    }
    client.box.link.kill("it was pulled out")
    client.box.processor.run_thread(lambda: None)
    assert (told[-1][0].event_type, told[-1][1]) == (8, DISPATCH_LEVEL)


# The end of queues


def test_what_a_reset_or_destroyed_queue_pair_left_is_passed_over(ends: Ends):
    ends.modify(ends.first.handle, ERR)
    requests = [ReceiveRequest(n, [ends.segment(4096, 64)]) for n in range(3)]
    ends.run(ends.table.post_recv, ends.first.handle, requests)
    assert ends.peek() == (IbStatus.SUCCESS, 3)
    (one,) = ends.poll(1).completions
    assert (one.wr_id, one.status) == (0, FLUSHED)
    ends.modify(ends.first.handle, RESET)
    assert ends.peek() == (IbStatus.SUCCESS, 0)
    assert ends.poll() == PollAnswer(IbStatus.NOT_FOUND, ())
    ends.modify(ends.second.handle, ERR)
    ends.run(ends.table.post_recv, ends.second.handle, requests)
    settle(ends.client)
    ends.client.good(codes.IOCTL_DESTROY_QP, Object(ends.second.handle))
    assert ends.poll() == PollAnswer(IbStatus.NOT_FOUND, ())
    answer = ends.run(ends.table.post_recv, ends.second.handle, requests)
    assert answer == PostAnswer(IbStatus.INVALID_QP_HANDLE, 0)
    # The queue pair that was reset is as new.
    peer = ends.client.good(
        codes.IOCTL_CREATE_QP,
        verb_steps.qp_request(verb_steps.RC, ends.pd, (ends.cq, ends.cq), max_send_wr=4),
    ).reply
    ends._connect(ends.first, peer)
    ends._connect(peer, ends.first)
    ends.run(ends.table.post_recv, ends.first.handle, requests)
    send = SendRequest(9, segments=[ends.segment(0, 8)])
    assert ends.run(ends.table.post_send, peer.handle, [send]) == SUCCESS
    assert sorted(one.wr_id for one in ends.poll().completions) == [0, 9]


@pytest.mark.parametrize("size", [40, 1000])
def test_a_cq_is_moved_with_what_waits_in_it(ends: Ends, size: int):
    ends.receive(*(ReceiveRequest(n, [ends.segment(4096, 64)]) for n in range(8)))
    ends.post(SendRequest(100, inline_data=b"x"))
    assert ends.peek() == (IbStatus.SUCCESS, 2)
    answer = ends.client.good(codes.IOCTL_RESIZE_CQ, ResizeCq(ends.cq, size, 0, 0))
    assert sum(map(len, answer.memory)) >= size * 64
    assert [one.wr_id for one in ends.poll().completions] == [0, 100]
    for number in range(1, 8):
        ends.post(SendRequest(100 + number, inline_data=b"x"))
        assert [one.wr_id for one in ends.poll().completions] == [number, 100 + number]
    refused = ends.client.call(codes.IOCTL_RESIZE_CQ, ResizeCq(ends.cq, 0, 0, 0))
    assert refused.status is IbStatus.INVALID_CQ_SIZE
    assert ends.poll() == PollAnswer(IbStatus.NOT_FOUND, ())


def test_entries_of_large_queues_lie_in_pages(client: Client):
    ends = Ends(client)
    request = verb_steps.qp_request(
        verb_steps.RC, ends.pd, (ends.cq, ends.cq), max_send_wr=512, max_recv_wr=512
    )
    first, second = (client.good(codes.IOCTL_CREATE_QP, request) for _ in range(2))
    assert len(first.memory) > 1
    ends._connect(first.reply, second.reply)
    ends._connect(second.reply, first.reply)
    for turn in range(40):
        receives = [ReceiveRequest(n, [ends.segment(4096, 64)]) for n in range(20)]
        sends = [SendRequest(n, segments=[ends.segment(0, 8)]) for n in range(20)]
        assert not ends.run(ends.table.post_recv, second.reply.handle, receives).status
        assert not ends.run(ends.table.post_send, first.reply.handle, sends).status
        found = ends.poll(40).completions
        assert len(found) == 40, turn
        assert {one.status for one in found} == {0}


def test_the_table_of_a_closed_file_names_nothing(box: HcaBox):
    client = Client(box)
    ends = Ends(client)
    table = ends.table
    client.close()
    send, receive = [SendRequest(1, inline_data=b"x")], [ReceiveRequest(1)]
    run = box.processor.run_thread
    assert run(table.post_send, ends.first.handle, send).status is IbStatus.INVALID_QP_HANDLE
    assert run(table.post_recv, ends.first.handle, receive).status is IbStatus.INVALID_QP_HANDLE
    assert run(table.poll_cq, ends.cq, 1).status is IbStatus.INVALID_CQ_HANDLE
    assert run(table.req_notify_cq, ends.cq, False) is IbStatus.INVALID_CQ_HANDLE


# Registrations


def test_contiguous_memory_and_a_users_locked_pages_are_registered(client: Client):
    ends, box = Ends(client), client.box
    buffer = box.memory.allocate_contiguous(8192)
    assert buffer is not None
    mdl = allocate_mdl(box.processor, buffer, 8192)
    assert mdl is not None

    def register(what: Any, access: int = ACCESS) -> VerbAnswer:
        answer: VerbAnswer = ends.run(ends.table.register_mdl, ends.pd, what, access)
        return answer

    assert register(mdl).status is IbStatus.INVALID_PERMISSION  # not built yet
    build_for_nonpaged_pool(mdl)
    key = register(mdl).reply
    buffer.view[100:105] = b"there"
    read = SendRequest(
        1, opcode("RDMA_READ"), [ends.segment(0, 5)], remote_address=100, rkey=key.rkey
    )
    assert ends.post(read) == SUCCESS
    assert ends.poll().completions[0].status == 0
    assert bytes(ends.view[:5]) == b"there"
    client.good(codes.IOCTL_DEREG_MR, Object(key.handle))
    free_mdl(mdl)
    box.memory.free(buffer)

    session = box.session()
    base = session.arena(1 << 16)
    locked: list[Any] = []

    def lock(io: Any, thread: Any, operation: int) -> int:
        one = allocate_mdl(box.processor, base + 100, 5000)
        assert one is not None
        probe_and_lock_pages(one, 1, operation)
        locked.append(one)
        return STATUS_SUCCESS

    session.service(lock, IO_WRITE_ACCESS)
    session.service(lock, IO_READ_ACCESS)
    assert register(locked[1]).status is IbStatus.INVALID_PERMISSION
    key = register(locked[0]).reply
    ends.view[:4] = b"user"
    write = SendRequest(
        2, opcode("RDMA_WRITE"), [ends.segment(0, 4)], remote_address=4990, rkey=key.rkey
    )
    assert ends.post(write) == SUCCESS
    assert ends.poll().completions[0].status == 0
    view = session.space.arena_view(base + 100 + 4990, 4)
    assert view is not None
    assert bytes(view) == b"user"
    client.good(codes.IOCTL_DEREG_MR, Object(key.handle))
    for one in locked:
        unlock_pages(one)


def test_pool_and_nothing_cannot_be_registered(client: Client):
    pd = client.good(codes.IOCTL_ALLOC_PD).reply.handle
    box = client.box
    block = box.io.pool.allocate(4096, "Test")
    assert block is not None
    for length, status in ((4096, IbStatus.INVALID_PERMISSION), (0, IbStatus.INVALID_PARAMETER)):
        mdl = allocate_mdl(box.processor, block, length)
        assert mdl is not None
        build_for_nonpaged_pool(mdl)
        answer = box.processor.run_thread(client.table.register_mdl, pd, mdl, ACCESS)
        assert answer.status is status
        free_mdl(mdl)
    box.io.pool.free(block)


# Hostile users


def test_no_user_reaches_a_kernel_clients_queues(ends: Ends):
    user = ends.client.box.session()
    assert user.context.uar != 0
    for handle in (ends.first.handle, ends.cq, ends.pd):
        for code in (codes.IOCTL_QUERY_QP, codes.IOCTL_DESTROY_CQ, codes.IOCTL_DEALLOC_PD):
            assert verb(user, code, Object(handle)).errno != 0
    # What a user rings in his own segment with the kernel's slots moves nothing of the kernel's.
    theirs = QueueUser(ends.client.box, user)
    for slot in (ends.first.send_slot, ends.second.receive_slot):
        theirs.doorbells.store(slot, 5)
        for kind in (1, 2, 3, 4):
            theirs.doorbells.ring(kind, slot)
    settle(ends.client)
    assert ends.peek() == (IbStatus.SUCCESS, 0)
    ends.receive(ReceiveRequest(1, [ends.segment(4096, 64)]))
    assert ends.post(SendRequest(2, inline_data=b"x")) == SUCCESS
    assert [one.wr_id for one in ends.poll().completions] == [1, 2]
