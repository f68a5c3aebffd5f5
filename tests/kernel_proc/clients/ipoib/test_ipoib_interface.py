"""Two interfaces on the ports of one HCA, as kernel code uses them; a virtual clock."""

from collections.abc import Iterator

import pytest

from kernel_proc.clients.ipoib import datagram_port
from kernel_proc.clients.ipoib.datagram_port import DatagramPort, Received
from kernel_proc.clients.ipoib.frames import REPLY, REQUEST, Arp
from kernel_proc.clients.ipoib.interface import Interface
from kernel_proc.clients.ipoib.neighbours import MOST_TRIES, MOST_WAITING, Packet
from kernel_proc.clients.ipoib.send_queue import MOST_QUEUED
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.ipoib_layout import (
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    IPOIB_COUNTERS,
    IPOIB_MTU,
    LIMITED_BROADCAST,
)
from shared.nt_status import (
    STATUS_DEVICE_BUSY,
    STATUS_DEVICE_NOT_READY,
    STATUS_INVALID_BUFFER_SIZE,
    STATUS_SUCCESS,
)
from tests.kernel_proc.driver.hca_box import HcaBox

NOBODY = bytes((10, 0, 0, 99))


class Net:
    """A machine with interfaces, whose packets are kept by port."""

    def __init__(self, box: HcaBox) -> None:
        self.box = box
        self.came: dict[int, list[tuple[int, Received]]] = {1: [], 2: [], 3: []}
        self.levels: set[int] = set()
        self.interfaces = [self.interface(1), self.interface(2)]

    def interface(self, port: int, number: int = 0) -> Interface:
        def on_packet(ethertype: int, received: Received) -> None:
            self.levels.add(self.box.processor.irql)
            self.came[number or port].append((ethertype, received))

        ip = bytes((10, 0, 0, number or port))
        one = Interface(self.box.io, port, ip, on_packet)
        self.box.processor.run_thread(one.bring_up)
        self.settle()
        return one

    def settle(self) -> None:
        """Let the HCA, the DPCs and the work items do what there is to do now."""
        for _ in range(6):
            while self.box.hca.run_once():
                pass
            self.box.processor.run_thread(lambda: None)

    def send(self, sender: Interface, to: bytes, data: bytes) -> int:
        status: int = self.box.processor.run_thread(sender.send, to, Packet(ETHERTYPE_IPV4, data))
        return status

    def frames(self, number: int) -> list[bytes]:
        self.settle()
        return [received.frame for _, received in self.came[number]]

    def close(self) -> None:
        for one in self.interfaces:
            self.box.processor.run_thread(one.take_down)


@pytest.fixture
def net() -> Iterator[Net]:
    with HcaBox() as box:
        made = Net(box)
        yield made
        made.close()


def test_packets_go_there_and_back_after_one_question(net: Net):
    one, two = net.interfaces
    for number in range(5):
        assert net.send(one, two.ip, b"there %d" % number) == STATUS_SUCCESS
    assert net.frames(2) == [b"there %d" % number for number in range(5)]
    assert net.send(two, one.ip, b"back") == STATUS_SUCCESS
    assert net.frames(1) == [b"back"]
    assert (one.counters["arp_requests_sent"], two.counters["arp_requests_sent"]) == (2, 1)
    assert (two.counters["arp_replies_sent"], one.counters["arp_replies_received"]) == (1, 1)
    assert one.counters["arp_replies_sent"] == 0  # the question told where the asker is
    ((ethertype, received),) = net.came[1]
    assert (ethertype, received.lid, received.by_multicast) == (ETHERTYPE_IPV4, 2, False)
    assert received.qpn == int.from_bytes(two.hardware_address[:4], "big")
    assert net.levels == {DISPATCH_LEVEL}


def test_the_largest_packet_passes_and_no_larger_one(net: Net):
    one, two = net.interfaces
    largest = bytes(range(256)) * 8
    assert net.send(one, two.ip, largest[:IPOIB_MTU]) == STATUS_SUCCESS
    assert net.frames(2) == [largest[:IPOIB_MTU]]
    assert net.send(one, two.ip, bytes(IPOIB_MTU + 1)) == STATUS_INVALID_BUFFER_SIZE
    assert net.send(one, two.ip, b"") == STATUS_INVALID_BUFFER_SIZE


def test_a_broadcast_reaches_all_but_its_sender(net: Net):
    one, two = net.interfaces
    third = net.interface(1, 3)
    net.interfaces.append(third)
    assert net.send(one, LIMITED_BROADCAST, b"everybody") == STATUS_SUCCESS
    assert (net.frames(1), net.frames(2), net.frames(3)) == ([], [b"everybody"], [b"everybody"])
    assert two.counters["rx_multicast"] >= 1
    assert net.came[2][0][1].by_multicast
    # Two interfaces of one port talk as well.
    assert net.send(one, third.ip, b"neighbour") == STATUS_SUCCESS
    assert net.frames(3)[1:] == [b"neighbour"]


def test_who_does_not_answer_is_asked_so_often_and_given_up(net: Net):
    one, _ = net.interfaces
    before = one.counters["arp_requests_sent"]
    statuses = [net.send(one, NOBODY, b"lost") for _ in range(MOST_WAITING + 1)]
    assert statuses == [STATUS_SUCCESS] * MOST_WAITING + [STATUS_DEVICE_BUSY]
    begin = net.box.processor.clock.now_ns()
    net.box.processor.run_until(lambda: one.counters["unresolved"] == 1)
    assert net.box.processor.clock.now_ns() - begin >= MOST_TRIES * 1_000_000_000
    assert one.counters["arp_requests_sent"] - before == MOST_TRIES
    assert one.counters["tx_dropped"] == MOST_WAITING + 1
    assert net.send(one, net.interfaces[1].ip, b"still here") == STATUS_SUCCESS
    assert net.frames(2) == [b"still here"]


def test_who_answers_the_second_question_gets_what_waited(net: Net):
    one, two = net.interfaces
    net.box.processor.run_thread(two.take_down)
    assert net.send(one, two.ip, b"patience") == STATUS_SUCCESS
    net.settle()
    net.box.processor.run_thread(two.bring_up)
    # Its announcement alone is an answer.
    assert net.frames(2) == [b"patience"]


def test_a_new_queue_pair_is_followed(net: Net):
    one, two = net.interfaces
    net.send(one, two.ip, b"first")
    assert net.frames(2) == [b"first"]
    net.box.processor.run_thread(two.take_down)
    assert not two.is_up
    assert net.send(two, one.ip, b"down") == STATUS_DEVICE_NOT_READY
    net.box.processor.run_thread(two.bring_up)
    net.settle()
    net.send(one, two.ip, b"second")
    assert net.frames(2) == [b"first", b"second"]


def test_another_address_is_announced(net: Net):
    one, two = net.interfaces
    other = bytes((10, 0, 0, 77))
    net.box.processor.run_thread(two.set_address, other)
    net.send(one, other, b"renamed")
    assert net.frames(2) == [b"renamed"]


def test_more_packets_than_places_wait_and_then_are_dropped(net: Net):
    one, two = net.interfaces
    net.send(one, two.ip, b"known")
    net.settle()

    def flood() -> list[int]:
        packet = Packet(ETHERTYPE_IPV4, b"flood")
        old = net.box.processor.raise_irql(DISPATCH_LEVEL)
        statuses = [one.send(two.ip, packet) for _ in range(datagram_port.SENDS + MOST_QUEUED + 5)]
        net.box.processor.lower_irql(old)
        return statuses

    statuses = net.box.processor.run_thread(flood)
    assert statuses.count(STATUS_DEVICE_BUSY) == 5
    assert one.counters["tx_dropped"] == 5
    net.settle()
    net.settle()
    assert one.counters["tx_packets"] == datagram_port.SENDS + MOST_QUEUED + 3
    assert len(net.came[2]) >= datagram_port.RECEIVES


def test_garbage_from_the_wire_is_counted_and_harms_nobody(net: Net):
    one, two = net.interfaces
    run = net.box.processor.run_thread
    stranger = run(DatagramPort, net.box.io, 1, lambda: None, lambda event: None)
    handle = run(stranger.make_handle, 2)
    qpn = int.from_bytes(two.hardware_address[:4], "big")
    liar = Arp(REPLY, bytes(20), one.ip, bytes(20), two.ip).packed()
    own = stranger.address.packed()
    everybody = Arp(REQUEST, own, LIMITED_BROADCAST, bytes(20), two.ip).packed()
    for data in (b"", b"short", liar, everybody, liar[:-1], bytes(60)):
        for ethertype in (ETHERTYPE_ARP, 0, 0xFFFF):
            run(stranger.send, Packet(ethertype, data), handle, qpn)
            net.settle()
    assert two.counters["rx_malformed"] == 6 + 2  # as ARP, and what has no packet
    assert {ethertype for ethertype, _ in net.came[2]} == {0, 0xFFFF}
    assert two.counters["arp_requests_received"] == 0
    run(stranger.close)
    net.send(two, one.ip, b"unharmed")
    assert net.frames(1) == [b"unharmed"]
    assert set(two.counters) == set(IPOIB_COUNTERS)


def test_the_death_of_the_hca_takes_an_interface_down_and_a_reset_lets_it_up(net: Net):
    one, two = net.interfaces
    net.box.link.kill("it was pulled out")
    net.box.processor.run_until(lambda: not one.is_up and not two.is_up)
    assert net.send(one, two.ip, b"dead") == STATUS_DEVICE_NOT_READY
    assert net.box.processor.run_thread(net.box.extension.reset) is not None
    for interface in (one, two):
        net.box.processor.run_thread(interface.bring_up)
    net.send(one, two.ip, b"again")
    assert net.frames(2) == [b"again"]


def test_taking_down_leaves_nothing(box_of_its_own: HcaBox):
    before = box_of_its_own.tables()
    net = Net(box_of_its_own)
    one, two = net.interfaces
    net.send(one, two.ip, b"x")
    net.send(one, NOBODY, b"waits")
    net.settle()
    net.close()
    net.close()
    after = box_of_its_own.tables()
    assert {**after, "icm": 0} == {**before, "icm": 0}


@pytest.fixture
def box_of_its_own() -> Iterator[HcaBox]:
    with HcaBox() as box:
        yield box
