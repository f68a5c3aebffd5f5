"""Events: channels and their descriptors, acknowledgement, asynchronous events, deaths, forks."""

import os
import select
import threading

import pytest

from shared.nt_status import STATUS_CANCELLED
from shared.verb_codes import (
    IOCTL_GET_CA_FATAL_EVENT,
    IOCTL_GET_CA_PORT_EVENT,
    IOCTL_GET_CQ_ASYNC_EVENT,
    IOCTL_GET_CQ_COMP_EVENT,
    IOCTL_GET_QP_ASYNC_EVENT,
    VERB_RESULT,
)
from shared.verb_messages import COMPLETION_EVENT
from tests.user_proc.verbs.stand_in import Wire
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.event_counts import EventCounts
from user_proc.verbs.event_fd_queue import EventFdQueue
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp import QP, QPCap, QPInitAttr


@pytest.fixture
def channel(context: Context) -> CompChannel:
    return CompChannel(context)


def readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def complete(wire: Wire, cq: CQ, count: int = 1) -> None:
    wire.tell(IOCTL_GET_CQ_COMP_EVENT, COMPLETION_EVENT, cq.handle, count)


def take_all(context: Context) -> None:
    """Let the listener of this process have what has come."""
    context.session().process.channel.listener().new_flag().is_set()


def test_the_descriptor_is_readable_while_an_event_waits(
    context: Context, channel: CompChannel, wire: Wire
):
    cq = CQ(context, 4, None, channel)
    assert wire.last("create_cq").has_channel == 1
    assert not readable(channel.fd)
    complete(wire, cq, 2)
    take_all(context)
    for left in (True, False):
        assert readable(channel.fd)
        channel.get_cq_event(cq)
        assert readable(channel.fd) == left
    assert cq.num_events == 2
    cq.ack_events(2)
    with pytest.raises(PyverbsUserError, match="1 events cannot be acknowledged: 0 have been got"):
        cq.ack_events(1)


def test_two_requests_are_kept_pended(context: Context, channel: CompChannel, wire: Wire):
    cq = CQ(context, 4, None, channel)
    CompChannel(context)
    assert len(wire.pended[IOCTL_GET_CQ_COMP_EVENT]) == 2
    for _ in range(5):
        complete(wire, cq)
        channel.get_cq_event(cq)
    assert len(wire.pended[IOCTL_GET_CQ_COMP_EVENT]) in (1, 2)
    assert channel.fd >= 0
    assert len(wire.pended[IOCTL_GET_CQ_COMP_EVENT]) == 2


def test_getting_an_event_waits_for_it(context: Context, channel: CompChannel, wire: Wire):
    cq = CQ(context, 4, None, channel)
    wire.on_idle = lambda: complete(wire, cq)
    channel.get_cq_event(cq)
    assert cq.num_events == 1


def test_a_descriptor_set_not_to_block(context: Context, channel: CompChannel):
    cq = CQ(context, 4, None, channel)
    os.set_blocking(channel.fd, False)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to get CQ event. Errno: 11"):
        channel.get_cq_event(cq)
    os.set_blocking(context.async_fd, False)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to get async event. Errno: 11"):
        context.get_async_event()


def test_the_event_of_another_queue_is_acknowledged_there(
    context: Context, channel: CompChannel, wire: Wire
):
    expected, other = CQ(context, 4, None, channel), CQ(context, 4, None, channel)
    complete(wire, other)
    with pytest.raises(PyverbsRDMAError, match=r"^Received event on an unexpected CQ$"):
        channel.get_cq_event(expected)
    assert (expected.num_events, other.num_events) == (0, 0)
    other.close()


def test_closing_acknowledges_what_was_got_and_drops_what_was_not(
    context: Context, channel: CompChannel, wire: Wire
):
    cq, other = CQ(context, 4, None, channel), CQ(context, 4, None, channel)
    complete(wire, cq, 2)
    channel.get_cq_event(cq)
    complete(wire, other)
    take_all(context)
    cq.close()
    channel.get_cq_event(other)
    assert not readable(channel.fd)
    channel.close()
    channel.close()
    with pytest.raises(PyverbsUserError, match="the CompChannel is closed"):
        _ = channel.fd
    assert wire.names()[-2:] == ["destroy_cq", "destroy_cq"]


def test_asynchronous_events_name_their_type_and_are_asked_for_when_wanted(
    context: Context, pd: PD, cq: CQ, wire: Wire
):
    assert not wire.pended[IOCTL_GET_QP_ASYNC_EVENT]
    assert not readable(context.async_fd)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()))
    wire.tell(IOCTL_GET_QP_ASYNC_EVENT, e.IBV_EVENT_COMM_EST, qp.handle)
    wire.tell(IOCTL_GET_CA_PORT_EVENT, e.IBV_EVENT_LID_CHANGE)
    take_all(context)
    assert readable(context.async_fd)
    event = context.get_async_event()
    assert str(event) == "Event Type              : IBV_EVENT_COMM_EST  \n"
    assert context.get_async_event().event_type == e.IBV_EVENT_LID_CHANGE
    assert not readable(context.async_fd)
    event.ack()
    event.ack()
    qp.close()


def test_destroying_waits_for_the_acknowledgement(context: Context, pd: PD, cq: CQ, wire: Wire):
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()))
    assert context.async_fd >= 0
    wire.tell(IOCTL_GET_QP_ASYNC_EVENT, e.IBV_EVENT_QP_FATAL, qp.handle)
    event = context.get_async_event()
    destroying, done = threading.Event(), threading.Event()
    delivered = wire.answers["destroy_qp"] = lambda request: (
        destroying.set(),
        Wire._destroyed(wire, request),
    )[1]
    assert delivered

    def acknowledge() -> None:
        assert destroying.wait(10)
        done.set()
        event.ack()

    helper = threading.Thread(target=acknowledge)
    helper.start()
    qp.close()
    assert done.is_set()
    helper.join(10)


def test_an_interrupted_wait_for_acknowledgement_leaves_the_object_destroyed(
    context: Context, pd: PD, cq: CQ, wire: Wire, monkeypatch: pytest.MonkeyPatch
):
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()))
    assert context.async_fd >= 0
    wire.tell(IOCTL_GET_QP_ASYNC_EVENT, e.IBV_EVENT_QP_FATAL, qp.handle)
    event = context.get_async_event()

    def interrupted(self: EventCounts, *arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EventCounts, "wait_for_acknowledgement", interrupted)
        with pytest.raises(KeyboardInterrupt):
            qp.close()
    qp.close()
    assert wire.names().count("destroy_qp") == 1
    event.ack()


def test_a_queue_that_overran_is_told_by_poll(context: Context, cq: CQ, wire: Wire):
    wire.tell(IOCTL_GET_CQ_ASYNC_EVENT, e.IBV_EVENT_CQ_ERR, cq.handle)
    take_all(context)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to poll CQ. Errno: 5.*overrun"):
        cq.poll()
    context.get_async_event().ack()


def test_the_device_dies(context: Context, channel: CompChannel, pd: PD, wire: Wire):
    cq = CQ(context, 4, None, channel)
    descriptor = context.async_fd
    wire.tell(IOCTL_GET_CA_FATAL_EVENT, e.IBV_EVENT_DEVICE_FATAL)
    take_all(context)
    assert readable(descriptor)
    assert readable(channel.fd)
    assert context.get_async_event().event_type == e.IBV_EVENT_DEVICE_FATAL
    for act in (context.get_async_event, cq.poll, lambda: channel.get_cq_event(cq), cq.req_notify):
        with pytest.raises(PyverbsRDMAError, match=r"Errno: 5, Input/output error: the device has"):
            act()
    context.close()


def test_the_connection_ends(wire: Wire):
    process = UserProcess.in_process(wire)
    context = Context(name="mthca0", process=process)
    channel = CompChannel(context)
    cq = CQ(context, 4, None, channel)
    process.close()
    for act in (
        context.query_device,
        cq.poll,
        lambda: channel.get_cq_event(cq),
        context.get_async_event,
        lambda: MR(PD(context), 64),
    ):
        with pytest.raises(PyverbsRDMAError, match="Errno: 5") as caught:
            act()
        assert caught.value.error_code == 5
    cq.close()
    context.close()


def test_requests_cancelled_with_the_file_are_no_death(context: Context, wire: Wire):
    assert context.async_fd >= 0
    wire.end_request(IOCTL_GET_CA_PORT_EVENT, b"", STATUS_CANCELLED)
    take_all(context)
    assert context.query_port(1).state == 4
    assert not wire.pended[IOCTL_GET_CA_PORT_EVENT]


@pytest.mark.parametrize("output", [b"", b"\1\2", VERB_RESULT.pack(0, 0, 0, 0) + b"\xc1"])
def test_an_answer_nobody_understands_ends_the_session(
    context: Context, cq: CQ, wire: Wire, output: bytes
):
    wire.end_request(IOCTL_GET_CQ_ASYNC_EVENT, output)
    take_all(context)
    with pytest.raises(PyverbsRDMAError, match="get_cq_async_event was answered with"):
        cq.poll()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # on purpose
def test_a_forked_child_is_told_what_to_do(context: Context, pd: PD, cq: CQ):
    region = MR(pd, 64)
    region.view()[0] = 7
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()))
    acts = (
        context.query_device,
        context.close,
        context.get_async_event,
        cq.poll,
        cq.req_notify,
        cq.close,
        lambda: PD(context),
        lambda: qp.query(1),
        qp.close,
        lambda: CompChannel(context),
    )
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        told = []
        for act in acts:
            try:
                act()
                told.append("nothing")
            except PyverbsUserError as error:
                told.append("fork" if "before fork" in str(error) else str(error))
            except BaseException as error:
                told.append(repr(error))
        told.append(str(region.view()[0]))
        os.write(writer, "\n".join(told).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as words:
        assert words.read().split("\n") == ["fork"] * len(acts) + ["7"]
    assert status == 0
    assert context.query_port(1).state == 4


def test_queue_of_events_keeps_order_and_count():
    queue: EventFdQueue[str] = EventFdQueue()
    queue.put("a", 2)
    queue.put("b")
    assert (len(queue), queue.discard(lambda one: one == "a")) == (3, 2)
    assert readable(queue.fd)
    assert (queue.take(), queue.take(), readable(queue.fd)) == ("b", None, False)
    queue.end()
    queue.end()
    assert readable(queue.fd)
    queue.wait()
    queue.close()
    queue.close()
    queue.put("c")
    assert (queue.take(), queue.fd) == (None, -1)
