"""Faults of ports, links, requests and keys, in one process: what a program sees of them.

docs/faults.md is made of the names of these tests; `test_faults_page.py` compares.
"""

import pytest

from tests.end_to_end.fault_box import (
    ACCESS_ERR,
    KEYED,
    OK,
    PROT_ERR,
    RELIABLE,
    RETRY_ERR,
    Box,
    address_of,
    box,
    shared_box,
)
from tests.end_to_end.fault_scene import LENGTH
from user_proc.verbs import enums as e
from user_proc.verbs.mr import MR
from user_proc.verbs.wr import SGE, SendWR

__all__ = ["box", "shared_box"]


# Port and link


def test_port_down(box: Box):
    with box.pair() as pair:
        box.set("port-down", port=1, lasts="60s")
        event = pair.context.get_async_event()
        assert event.event_type == e.IBV_EVENT_PORT_ERR
        event.ack()
        assert pair.context.query_port(1).state == e.IBV_PORT_DOWN
        assert pair.context.query_port(2).state == e.IBV_PORT_ACTIVE
        assert pair.statuses(1) == [RETRY_ERR]
        event = pair.context.get_async_event()
        assert event.event_type == e.IBV_EVENT_PORT_ACTIVE
        event.ack()
        assert pair.context.query_port(1).state == e.IBV_PORT_ACTIVE


def test_port_down_is_up_again_when_it_is_cleared(box: Box):
    with box.context() as context:
        box.set("port-down", port=2, lasts="600s")
        assert context.query_port(2).state == e.IBV_PORT_DOWN
        box.clear()
        assert context.query_port(2).state == e.IBV_PORT_ACTIVE


@pytest.mark.parametrize(("lasts", "expected"), [("1ms", OK), ("60s", RETRY_ERR)])
def test_link_down(box: Box, lasts: str, expected: int):
    with box.pair() as pair:
        box.set("link-down", lasts=lasts)
        assert pair.statuses(1) == [expected]
        figures = box.figures(pair.sender)
        assert figures["timeouts"] == figures["retries"] + (expected != OK) > 0


def test_link_down_is_nothing_to_datagrams(box: Box):
    with box.pair() as pair:
        qp = pair.datagrams()
        pair.entries(1, qp)
        box.set("link-down", lasts="1s", port=1)
        pair.post_datagram(qp)
        assert pair.status() == OK
        assert pair.received.poll(1)[0] == 0


def test_request_lost(box: Box):
    with box.pair() as pair:
        box.set("request-lost", every=2, queue_pair=pair.sender.qp_num)
        for opcode in RELIABLE:
            assert pair.statuses(2, opcode) == [OK, OK]
        assert box.figures(pair.sender)["retries"] == box.hits()[0] > 0


def test_request_lost_of_datagrams(box: Box):
    with box.pair() as pair:
        qp = pair.datagrams()
        pair.entries(4, qp)
        box.set("request-lost", nth=2)
        for _ in range(4):
            pair.post_datagram(qp)
            assert pair.status() == OK
        assert len(pair.completions(pair.received, 3)) == 3
        assert pair.received.poll(1)[0] == 0


def test_request_doubled(box: Box):
    with box.pair() as pair:
        box.set("request-doubled")
        for opcode in RELIABLE:
            pair.mr.write(bytes(8), 8, LENGTH)
            assert pair.statuses(2, opcode) == [OK, OK]
            if opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
                assert int.from_bytes(pair.mr.read(8, LENGTH), "little") == 2  # each added once
        assert len(pair.completions(pair.received, 2)) == 2
        assert pair.received.poll(1)[0] == 0
        assert box.figures(pair.receiver)["received_messages"] == 2 * len(RELIABLE)


def test_request_doubled_of_datagrams(box: Box):
    with box.pair() as pair:
        qp = pair.datagrams()
        pair.entries(2, qp)
        box.set("request-doubled", nth=1)
        pair.post_datagram(qp)
        assert pair.status() == OK
        assert len(pair.completions(pair.received, 2)) == 2


@pytest.mark.parametrize("opcode", RELIABLE)
def test_ack_lost(box: Box, opcode: int):
    with box.pair() as pair:
        pair.mr.write(bytes(8), 8, LENGTH)
        box.set("ack-lost", nth=1)
        assert pair.statuses(2, opcode) == [OK, OK]
        assert box.hits() == [1]
        figures = box.figures(pair.sender)
        assert (figures["timeouts"], figures["retries"]) == (1, 1)
        if opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
            assert int.from_bytes(pair.mr.read(8, LENGTH), "little") == 2


def test_ack_lost_always(box: Box):
    with box.pair() as pair:
        box.set("ack-lost", queue_pair=pair.sender.qp_num)
        assert pair.statuses(1) == [RETRY_ERR]
        assert box.hits() == [4]  # the request and three retries
        assert len(pair.completions(pair.received, 1)) == 1  # and it was received, once


def test_ack_lost_with_a_probability_is_the_same_under_a_seed(box: Box):
    counts = []
    for _ in range(2):
        with box.pair() as pair:
            box.set("ack-lost", probability="30%", seed=7)
            assert pair.statuses(12, e.IBV_WR_RDMA_WRITE) == [OK] * 12
            counts.append(box.hits()[0])
            box.clear()
    assert counts[0] == counts[1] > 1


def test_ack_lost_of_private_memory(box: Box):
    # Where the answer comes later than the request's call.
    with box.pair() as pair:
        memory = bytearray(2 * LENGTH)
        from_private = MR(pair.pd, 2 * LENGTH, 7, address_of(memory))
        box.set("ack-lost", times=1)
        pair.mr, shared = from_private, pair.mr
        pair.entries(1)
        pair.mr = shared
        assert pair.statuses(2, e.IBV_WR_SEND) == [OK, OK]
        assert box.hits() == [1]


def test_ack_lost_is_nothing_to_who_waits_for_none(box: Box):
    # The answer of private memory comes late for UC, too, but is no acknowledgement.
    with box.pair() as pair:
        memory = bytearray(2 * LENGTH)
        from_private = MR(pair.pd, 2 * LENGTH, 7, address_of(memory))
        sender, receiver = pair.unreliable()
        pair.mr, shared = from_private, pair.mr
        pair.entries(6, receiver)
        pair.mr = shared
        box.set("ack-lost", every=1)
        for number in range(3):
            element = SGE(pair.mr.buf, 64, pair.mr.lkey)
            request = SendWR(number, num_sge=1, sg=[element])
            sender.post_send(request)
            assert pair.status() == OK
        assert len(pair.completions(pair.received, 3)) == 3
        assert pair.received.poll(1)[0] == 0
        assert box.hits() == [0]


# Keys


@pytest.mark.parametrize("opcode", KEYED)
def test_remote_key_corrupt(box: Box, opcode: int):
    with box.pair() as pair:
        box.set("remote-key-corrupt", nth=2)
        assert pair.statuses(2, opcode) == [OK, ACCESS_ERR]
        event = pair.context.get_async_event()
        assert event.event_type == e.IBV_EVENT_QP_ACCESS_ERR
        event.ack()
        for qp in (pair.sender, pair.receiver):
            assert qp.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_ERR


@pytest.mark.parametrize("opcode", RELIABLE)
def test_local_key_corrupt(box: Box, opcode: int):
    with box.pair() as pair:
        box.set("local-key-corrupt", nth=2, queue_pair=pair.sender.qp_num)
        assert pair.statuses(2, opcode) == [OK, PROT_ERR]
        assert pair.sender.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_ERR
        assert pair.receiver.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_RTS
