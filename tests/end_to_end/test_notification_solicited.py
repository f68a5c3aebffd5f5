"""N1 with messages that succeed: which of them wake up who waits for solicited ones only.

The queue pair is connected to itself; what was delivered is counted by the driver.
"""

import select
import uuid
from collections.abc import Iterator

import pytest

from tests.end_to_end.verbs_things import attributes
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

pytestmark = pytest.mark.processes

NAME = f"solicited-{uuid.uuid4().hex[:8]}"
WAKE_SECONDS = 20.0
SIGNALED, SOLICITED = int(e.IBV_SEND_SIGNALED), int(e.IBV_SEND_SOLICITED)


class Loop:
    """A queue pair that sends to itself; its receives complete on a queue of their own."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.channel = CompChannel(context)
        self.receives = CQ(context, 16, None, self.channel)
        self.sends = CQ(context, 16)
        self.pd = PD(context)
        self.mr = MR(self.pd, 64, int(e.IBV_ACCESS_LOCAL_WRITE))
        init = QPInitAttr(
            int(e.IBV_QPT_RC), scq=self.sends, rcq=self.receives, cap=QPCap(8, 8, 1, 1)
        )
        self.qp = QP(self.pd, init)
        lid = context.query_port(1).lid
        self.qp.to_rts(attributes(dest_qp_num=self.qp.qp_num, ah_attr=AHAttr(dlid=lid)))

    def send(self, flags: int = 0) -> None:
        """Have a message go round; it has arrived, and lies in the queue, when this returns."""
        element = SGE(self.mr.buf, 8, self.mr.lkey)
        self.qp.post_recv(RecvWR(1, 1, [element]))
        self.qp.post_send(SendWR(2, num_sge=1, sg=[element], send_flags=SIGNALED | flags))
        while not (found := self.sends.poll()[1]):
            pass
        assert found[0].status == e.IBV_WC_SUCCESS

    def poll(self, count: int = 1) -> None:
        """Take so many receives, all there are."""
        found: list[int] = []
        while len(found) < count:
            found += [wc.status for wc in self.receives.poll(8)[1]]
        assert found == [e.IBV_WC_SUCCESS] * count

    def wait(self) -> None:
        assert select.select([self.channel.fd], [], [], WAKE_SECONDS)[0], "a wake-up was lost"
        self.channel.get_cq_event(self.receives)
        self.receives.ack_events(1)

    def delivered(self) -> int:
        """Events the driver has delivered, and those it holds, when a command is behind them."""
        for _ in range(2):
            self.qp.query(e.IBV_QP_STATE)
        (context,) = kernel_state(NAME)["hca"]["driver"]["hca"]["contexts"]
        (one,) = [found for found in context["objects"] if found["handle"] == self.receives.handle]
        total: int = one["completion_events"] + one["unread"]
        return total


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    with (
        start_kernel(NAME, settings={"verifier": True}),
        Context(name="mthca0", kernel=NAME) as opened,
    ):
        yield opened


@pytest.fixture
def loop(context: Context) -> Iterator[Loop]:
    made = Loop(context)
    yield made
    for one in (made.channel, made.sends, made.pd):
        one.close()


def test_n1_only_a_solicited_message_wakes_up_who_waits_for_one(loop: Loop):
    loop.receives.req_notify(True)
    for _ in range(3):
        loop.send()
    assert loop.delivered() == 0
    loop.send(SOLICITED)
    loop.wait()
    loop.poll(4)
    loop.send(SOLICITED)
    assert loop.delivered() == 1  # once armed is one event


def test_n1_any_message_wakes_up_who_waits_for_any(loop: Loop):
    for flags in (0, SOLICITED):
        loop.receives.req_notify(False)
        loop.send(flags)
        loop.wait()
        loop.poll()
    assert loop.delivered() == 2


def test_n1_arming_for_any_while_armed_for_solicited_widens(loop: Loop):
    loop.receives.req_notify(True)
    loop.receives.req_notify(False)
    loop.send()
    loop.wait()
    assert loop.delivered() == 1


def test_n1_arming_for_solicited_while_armed_for_any_does_not_narrow(loop: Loop):
    loop.receives.req_notify(False)
    loop.receives.req_notify(True)
    loop.send()
    loop.wait()
    assert loop.delivered() == 1


def test_n3_of_what_came_before_the_arm_only_a_solicited_message_counts(loop: Loop):
    loop.send()
    loop.receives.req_notify(True)
    assert loop.delivered() == 0
    loop.poll()
    loop.send(SOLICITED)
    loop.wait()
    loop.poll()
    loop.send(SOLICITED)
    loop.send()
    loop.receives.req_notify(True)
    loop.wait()
    loop.poll(2)
    assert loop.delivered() == 2


def test_a_queue_without_a_channel_tells_nothing(context: Context, loop: Loop):
    for solicited in (False, True):
        loop.sends.req_notify(solicited)
        loop.send(SOLICITED)
        loop.poll()
    assert loop.delivered() == 0
