"""Faults of commands, events and the HCA as a whole, in one process: what a program sees of them.

docs/faults.md is made of the names of these tests; `test_faults_page.py` compares.
"""

import errno
from typing import Any, NamedTuple

import pytest

from shared.fault_points import DEVICE, FAULT_POINTS
from tests.end_to_end.fault_box import (
    ACCESS_ERR,
    OK,
    PROT_ERR,
    RETRY_ERR,
    Box,
    box,
    events_of,
    shared_box,
)
from tests.end_to_end.fault_scene import LENGTH, Pair, errno_of, reset_hca
from user_proc.errors import SofthcaError
from user_proc.verbs import enums as e
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD

__all__ = ["box", "shared_box"]


# Commands


@pytest.mark.parametrize(
    ("command", "status", "expected"),
    [
        ("SW2HW_MPT", "BAD_PARAM", errno.EINVAL),
        ("SW2HW_MPT", "EXCEED_LIM", errno.ENOMEM),
        ("WRITE_MTT", "INTERNAL_ERR", errno.EIO),
        ("", "RESOURCE_BUSY", errno.EBUSY),
    ],
)
def test_command_fails(box: Box, command: str, status: str, expected: int):
    with box.context() as context:
        pd = PD(context)
        box.set("command-fails", status=status, nth=1, **({"command": command} if command else {}))
        assert errno_of(lambda: MR(pd, LENGTH, 1)) == expected
        assert box.hits() == [1]
        box.the_other_goes_on()
        MR(pd, LENGTH, 1)


def test_command_fails_while_a_queue_pair_is_moved_and_leaves_it_as_it_was(box: Box):
    with box.pair() as pair:
        box.set("command-fails", command="RTS2RTS_QPEE", status="BAD_QPEE_STATE")
        box.set("command-fails", command="RST2INIT_QPEE", status="INTERNAL_ERR", times=1)
        assert errno_of(pair.datagrams) == errno.EIO
        assert pair.statuses(2) == [OK, OK]


def test_command_late(box: Box):
    with box.context() as context:
        box.set("command-late", time="3s", times=2)
        assert 3 <= box.seconds(lambda: context.query_port(1)) < 4
        assert 3 <= box.seconds(lambda: context.query_port(1)) < 4
        assert box.seconds(lambda: context.query_port(1)) < 1


def test_command_late_beyond_patience(box: Box):
    with box.context() as context:
        box.set("command-late", time="100s", times=1)
        assert errno_of(lambda: context.query_port(1)) == errno.EBUSY
        assert errno_of(lambda: context.query_port(1)) == 0  # behind it in the lane


def test_completion_lost(box: Box):
    with box.context() as context:
        box.set("completion-lost", times=1)
        assert 60 <= box.seconds(lambda: errno_of(lambda: context.query_port(1))) < 61
        box.set("completion-lost", times=1)
        assert errno_of(lambda: context.query_port(1)) == errno.EBUSY
        box.the_other_goes_on()
        assert errno_of(lambda: context.query_port(1)) == 0
    reset_hca(box)  # which has the mailboxes back that nobody told of


def test_completion_lost_in_polling_mode():
    box = Box(command_mode="polling")
    try:
        with box.context() as context:
            box.set("completion-lost", times=1)
            assert errno_of(lambda: context.query_port(1)) == errno.EBUSY
            assert errno_of(lambda: context.query_port(1)) == errno.EAGAIN
            reset_hca(box)
        box.the_other_goes_on()
    finally:
        box.finish()


# Interrupts and events


def test_interrupt_lost(box: Box):
    with box.pair() as pair:
        pair.sent.req_notify()
        box.set("interrupt-lost", nth=1)
        pair.post()
        assert pair.status() == OK
        assert box.hits() == [1]
        assert events_of(box) == 0  # the entry is there, and nobody has looked
        pair.context.query_port(1)  # the end of a command is an interrupt
        assert events_of(box) == 1
        pair.channel.get_cq_event(pair.sent)
        pair.sent.ack_events(1)


def commands_of(box: Box) -> int:
    """How many commands the HCA has executed."""
    commands = box.machine.inspect()["hca"]["driver"]["hca"]["commands"]
    return sum(commands["executed"].values())


def test_interrupt_lost_of_every_command(box: Box):
    """The driver looks by itself: each command of a verb ends at the next look."""
    with box.context() as context:
        box.set("interrupt-lost")
        pd = PD(context)
        before = commands_of(box)
        took = box.seconds(lambda: MR(pd, LENGTH, 1).close())
        commands = commands_of(box) - before
        assert commands >= 2
        assert 0.25 * commands <= took < 0.3 * commands
        box.clear()
        assert box.seconds(lambda: context.query_port(1)) < 0.1


class Beside(NamedTuple):
    """A fault beside which interrupts are lost, and what of it a verb and a write may end with."""

    values: dict[str, Any]
    errno: int = 0
    status: int = OK
    within: float = 5.0


BESIDE = {
    "command-fails": Beside({"status": "INTERNAL_ERR", "every": 2}, errno.EIO),
    "command-late": Beside({"time": "700ms"}),
    "completion-lost": Beside({"times": 1}, errno.EBUSY, within=61),
    "interrupt-lost": Beside({"every": 3}),
    "interrupt-doubled": Beside({"every": 2}),
    "event-queue-full": Beside({"lasts": "3s"}),
    "port-down": Beside({"port": 1, "lasts": "3s"}, status=RETRY_ERR),
    "link-down": Beside({"lasts": "3s"}, status=RETRY_ERR),
    "request-lost": Beside({"every": 2}),
    "request-doubled": Beside({"every": 2}),
    "ack-lost": Beside({"every": 2}),
    "remote-key-corrupt": Beside({"times": 1}, status=ACCESS_ERR),
    "local-key-corrupt": Beside({"times": 1}, status=PROT_ERR),
    "hca-slow": Beside({"time": "20ms", "lasts": "3s"}),
    "hca-paused": Beside({"lasts": "3s"}),
}


def refusal_and_seconds(box: Box, pair: Pair) -> tuple[int, float]:
    """Ask for a port: the errno, and how long it took."""
    found: list[int] = []
    took = box.seconds(lambda: found.append(errno_of(lambda: pair.context.query_port(1))))
    return found[0], took


def test_interrupt_lost_beside_every_other_fault_of_the_hca(box: Box):
    """Verbs, requests and events end as documented, and none waits for longer than that."""
    points = {name for name, point in FAULT_POINTS.items() if point.place == DEVICE}
    assert set(BESIDE) == points - {"hca-failed"}  # which interrupts in any case
    for point, beside in BESIDE.items():
        with box.pair() as pair:
            pair.sent.req_notify()
            box.set("interrupt-lost")
            box.set(point, **beside.values)
            pair.post(e.IBV_WR_RDMA_WRITE)
            for _ in range(2):
                refusal, took = refusal_and_seconds(box, pair)
                assert refusal in (0, beside.errno), point
                assert took < beside.within, point
            assert pair.status() in (OK, beside.status), point
            pair.channel.get_cq_event(pair.sent)
            pair.sent.ack_events(1)
            box.clear()
        box.the_other_goes_on()
    reset_hca(box)


def test_interrupt_doubled(box: Box):
    with box.pair() as pair:
        box.set("interrupt-doubled")
        for _ in range(3):
            pair.sent.req_notify()
            pair.post()
            pair.channel.get_cq_event(pair.sent)
            assert pair.status() == OK
        pair.sent.ack_events(3)
        assert events_of(box) == 3
        assert box.hits()[0] >= 2


def test_event_queue_full(box: Box):
    with box.pair() as pair:
        pair.sent.req_notify()
        box.set("event-queue-full", lasts="5s")
        pair.post()
        assert pair.status() == OK
        assert 4.9 <= box.seconds(lambda: pair.channel.get_cq_event(pair.sent)) < 5.1
        pair.sent.ack_events(1)
        assert events_of(box) == 1
        assert box.hits() == []  # it is over by itself


def test_event_queue_full_delays_verbs(box: Box):
    with box.context() as context:
        box.set("event-queue-full", lasts="5s")
        assert 4.9 <= box.seconds(lambda: context.query_port(1)) < 5.1


# Pace and death


def test_hca_slow(box: Box):
    with box.pair() as pair:
        box.set("hca-slow", time="50ms", lasts="2s")
        assert box.seconds(lambda: pair.statuses(3)) >= 0.1
        assert box.seconds(lambda: pair.context.query_port(1)) >= 0.049
        assert box.hits()[0] > 3


def test_hca_paused(box: Box):
    with box.pair() as pair:
        box.set("hca-paused", lasts="4s")
        assert 4 <= box.seconds(lambda: pair.statuses(1)) < 5
        box.set("hca-paused", lasts="4s")
        assert 4 <= box.seconds(lambda: pair.context.query_port(1)) < 5


@pytest.mark.parametrize("point", ["hca-failed", "hca-killed"])
def test_hca_failed_or_killed(box: Box, point: str):
    with box.pair() as pair:
        box.set(point)
        event = pair.context.get_async_event()
        assert event.event_type == e.IBV_EVENT_DEVICE_FATAL
        event.ack()
        for act in (pair.sent.poll, pair.context.query_device, lambda: PD(pair.context)):
            assert errno_of(act) == errno.EIO
        with pytest.raises(SofthcaError, match="reset-hca"):
            box.set(point)
        reset_hca(box)
        assert box.hits() == []  # a fault is the HCA's it was set in
