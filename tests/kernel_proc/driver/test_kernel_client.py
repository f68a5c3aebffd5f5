"""Verbs of kernel clients: by direct call, in kernel memory, with callbacks instead of requests."""

import errno
import os
from typing import Any

from kernel_proc.channel_interface.verbs_table import (
    IOCTL_INTERNAL_QUERY_VERBS,
    VerbAnswer,
)
from kernel_proc.driver.notification import notification_of
from kernel_proc.scheduling.event import Event as KernelEvent
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import create_system_thread
from shared import verb_codes as codes
from shared.nt_status import nt_error
from shared.verb_messages import (
    NO_FD,
    CreateCq,
    CreateQp,
    CreateSrq,
    Event,
    Object,
    OpenXrcd,
    QueryDevice,
    ResizeCq,
)
from shared.verb_reasons import VerbReason as Reason
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.kernel_client_user import Client, settle
from tests.kernel_proc.driver.queue_user import (
    ERR,
    INIT,
    RC,
    CqUser,
    QueueUser,
    ReceiveUser,
    attributes,
)

STATE, TO_INIT = 0x1, 0x39


def make_cq(client: Client, on_completion: Any = None, cqe: int = 15) -> CqUser:
    request = CreateCq(cqe, 0, int(on_completion is not None), 0, 0, 0)
    answer = client.good(codes.IOCTL_CREATE_CQ, request, on_completion)
    (memory,) = answer.memory
    return CqUser(client.doorbells, answer.reply, memory)


def make_qp(client: Client, cq: CqUser, srq: int = 0) -> tuple[Any, ReceiveUser | None]:
    pd = client.good(codes.IOCTL_ALLOC_PD).reply.handle
    request = CreateQp(RC, pd, cq.handle, cq.handle, srq, 0, 4, 4, 1, 1, 0, 0, 0, 0, 0, 0)
    answer = client.good(codes.IOCTL_CREATE_QP, request)
    created = answer.reply
    if not created.max_recv_wr:
        return created, None
    ring = ReceiveUser(
        client.doorbells, 2, created.receive_slot, created.max_recv_wr, created.receive_stride,
        answer.memory[0],
    )  # fmt: skip
    return created, ring


def to_error(client: Client, handle: int) -> None:
    client.good(codes.IOCTL_MODIFY_QP, attributes(handle, TO_INIT, qp_state=INIT))
    client.good(codes.IOCTL_MODIFY_QP, attributes(handle, STATE, qp_state=ERR))


def test_a_completion_calls_the_client_at_dispatch_level(client: Client):
    levels: list[int] = []
    cq = make_cq(client, lambda: levels.append(client.box.processor.irql))
    created, ring = make_qp(client, cq)
    to_error(client, created.handle)
    cq.arm()
    assert ring is not None
    ring.post()
    settle(client)
    assert levels == [DISPATCH_LEVEL]
    entry = cq.poll()
    assert entry is not None
    assert entry.qpn == created.qpn
    ring.post()
    settle(client)
    assert len(levels) == 1  # it was armed once


def test_asynchronous_events_come_one_by_one_at_passive_level(client: Client):
    told: list[tuple[Event, int]] = []
    cq = make_cq(client)
    first, second = (make_qp(client, cq)[0] for _ in range(2))
    table = client.box.hca.tables.events
    table.queue_pair(5, first.qpn)
    settle(client)  # before anybody wants to know

    def routine(event: Event) -> None:
        told.append((event, client.box.processor.irql))

    client.table.set_event_routine(routine)
    table.queue_pair(3, second.qpn)
    table.port(1, 1)
    settle(client)
    client.box.processor.run_until(lambda: len(told) == 3)
    assert [event for event, _ in told] == [
        Event(1, first.handle, 0, 1),
        Event(5, second.handle, 0, 1),
        Event(10, 0, 1, 1),
    ]
    assert {level for _, level in told} == {PASSIVE_LEVEL}
    destroyed = client.good(codes.IOCTL_DESTROY_QP, Object(first.handle)).reply
    assert destroyed.async_events == 1


def test_destroying_waits_for_the_call_that_is_under_way(client: Client):
    processor = client.box.processor
    created, _ = make_qp(client, make_cq(client))
    inside, go_on = (KernelEvent(processor, notification=True) for _ in range(2))
    order: list[str] = []

    def routine(event: Event) -> None:
        inside.set()
        go_on.wait()
        order.append("told")

    client.table.set_event_routine(routine)
    client.box.hca.tables.events.queue_pair(3, created.qpn)
    settle(client)
    processor.run_until(lambda: bool(inside.signal_state))

    def destroy() -> None:
        assert client.table.call(codes.IOCTL_DESTROY_QP, Object(created.handle)).errno == 0
        order.append("destroyed")

    thread = create_system_thread(processor, destroy)
    settle(client)
    assert not thread.ended
    go_on.set()
    processor.run_until(lambda: thread.ended)
    assert order == ["told", "destroyed"]


def test_an_object_can_be_destroyed_in_the_call_about_it(client: Client):
    created, _ = make_qp(client, make_cq(client))
    answers: list[VerbAnswer] = []

    def routine(event: Event) -> None:
        answers.append(client.table.call(codes.IOCTL_DESTROY_QP, Object(event.object)))

    client.table.set_event_routine(routine)
    client.box.hca.tables.events.queue_pair(3, created.qpn)
    settle(client)
    client.box.processor.run_until(lambda: bool(answers))
    assert answers[0].errno == 0
    assert answers[0].reply.async_events == 1


def test_the_death_of_the_hca_is_told(client: Client):
    told: list[Event] = []
    client.table.set_event_routine(told.append)
    settle(client)
    client.box.link.kill("it was pulled out")
    client.box.processor.run_until(lambda: bool(told))
    assert told == [Event(8, 0, 0, 1)]
    answer = client.call(codes.IOCTL_ALLOC_PD)
    assert (answer.errno, answer.reason) == (errno.EIO, Reason.DEVICE_FATAL)


def test_above_apc_level_a_verb_would_wait(client: Client):
    def at_dispatch() -> tuple[VerbAnswer, VerbAnswer]:
        processor = client.box.processor
        old = processor.raise_irql(DISPATCH_LEVEL)
        answers = (
            client.table.call(codes.IOCTL_ALLOC_PD),
            client.table.register_memory(1, 4096, 1),
        )
        processor.lower_irql(old)
        return answers

    for answer in client.box.processor.run_thread(at_dispatch):
        assert (answer.errno, answer.reason) == (errno.EAGAIN, Reason.WOULD_WAIT)


def test_registered_memory_is_the_clients_until_it_is_deregistered(client: Client):
    pd = client.good(codes.IOCTL_ALLOC_PD).reply.handle
    before = client.box.life.inspect()["buffers"]

    def register(length: int, access: int) -> VerbAnswer:
        answer: VerbAnswer = client.box.processor.run_thread(
            client.table.register_memory, pd, length, access
        )
        return answer

    answer = register(40000, 1)
    assert answer.errno == 0
    assert sum(len(piece) for piece in answer.memory) >= 40000
    assert all(len(piece) == 4096 for piece in answer.memory)  # above 16 KiB: single pages
    assert len(register(16384, 1).memory) == 1
    assert client.call(codes.IOCTL_DEALLOC_PD, Object(pd)).errno == errno.EBUSY
    client.good(codes.IOCTL_DEREG_MR, Object(answer.reply.handle))
    assert client.box.life.inspect()["buffers"]["buffers"] == before["buffers"] + 1
    assert register(0, 1).reason == Reason.LENGTH_ZERO
    assert register(4096, 2).reason == Reason.ACCESS_NEEDS_LOCAL_WRITE


def test_the_other_verbs(client: Client):
    assert isinstance(client.good(codes.IOCTL_QUERY_DEVICE).reply, QueryDevice)
    pd = client.good(codes.IOCTL_ALLOC_PD).reply.handle
    domain = client.good(codes.IOCTL_OPEN_XRCD, OpenXrcd(NO_FD, os.O_CREAT)).reply.handle
    assert client.call(codes.IOCTL_OPEN_XRCD, OpenXrcd(0, os.O_CREAT)).errno == errno.EBADF
    cq = make_cq(client, cqe=7)
    answer = client.good(codes.IOCTL_RESIZE_CQ, ResizeCq(cq.handle, 1000, 0, 0))
    assert answer.reply.cqe == 1023
    assert sum(len(piece) for piece in answer.memory) == 65536
    srq = client.good(codes.IOCTL_CREATE_SRQ, CreateSrq(pd, 1, 4, 1, domain, cq.handle, 0, 0))
    assert len(srq.memory) == 1
    assert client.call(codes.IOCTL_CLOSE_XRCD, Object(domain)).errno == errno.EBUSY


def test_what_a_client_cannot_ask(client: Client):
    for code, request in (
        (codes.IOCTL_GET_CQ_COMP_EVENT, Object(0)),
        (codes.IOCTL_CREATE_CQ, Object(0)),
        (codes.IOCTL_ALLOC_PD, Object(0)),
        (codes.IOCTL_DEALLOC_PD, None),
        (0x1234, None),
    ):
        answer = client.call(code, request)
        assert (answer.errno, answer.reason) == (errno.EINVAL, Reason.MALFORMED)


def test_closing_the_file_frees_everything(box: HcaBox):
    before = box.life.inspect()["numbers"]
    client, other = Client(box), Client(box)
    doorbells = notification_of(box.life).kernel_doorbells
    assert doorbells is not None
    assert doorbells.users == 2
    cq = make_cq(client)
    make_qp(client, cq)
    client.close()
    assert notification_of(box.life).kernel_doorbells is doorbells
    make_cq(other)
    other.doorbells.words.release()
    other.close()
    assert notification_of(box.life).kernel_doorbells is None
    assert box.life.inspect()["numbers"] == before
    assert box.life.inspect()["buffers"]["buffers"] == 3  # the event queues


def test_no_user_can_ask_for_the_table(box: HcaBox):
    status, _ = box.session().control(IOCTL_INTERNAL_QUERY_VERBS, b"", 0)
    assert nt_error(status)


def test_users_and_kernel_clients_work_side_by_side(client: Client):
    user = QueueUser(client.box)
    calls: list[int] = []
    cq = make_cq(client, lambda: calls.append(1))
    created, ring = make_qp(client, cq)
    to_error(client, created.handle)
    theirs = user.cq()
    cq.arm()
    theirs.arm()
    assert ring is not None
    ring.post()
    settle(client)
    assert calls == [1]
    assert theirs.poll() is None
