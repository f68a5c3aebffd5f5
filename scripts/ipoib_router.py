#!/usr/bin/env -S bash -c 'exec "$(dirname -- "$(readlink -f -- "$0")")/_python" "$0" "$@"'
"""Routes IPv4 packets between the IPoIB subnets of several kernels, until it is interrupted.

    ipoib_router.py KERNEL=ADDRESS [KERNEL=ADDRESS ...]

The router has the interface "ipoib1" of each kernel, with that address in a network of 24 bits. A
kernel's other clients send what is for another network to that address.
"""

import argparse
import ipaddress
import queue
import signal
import struct
import sys
import threading
from typing import NamedTuple

from shared.ipoib_layout import ETHERTYPE_IPV4
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.io.ipoib_door import IpoibDoor, IpoibPacket
from user_proc.process import UserProcess

DEVICE = "ipoib1"
HEADER_SIZE, TTL_AT, CHECKSUM_AT, DESTINATION_AT = 20, 8, 10, 16


class Side(NamedTuple):
    """An interface of the router; a request to receive waits by a handle of its own."""

    process: UserProcess
    network: ipaddress.IPv4Network
    sends: IpoibDoor
    receives: IpoibDoor


def checksum(header: bytes) -> int:
    """The checksum of RFC 791; 0 over a header that has the right one."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def forwarded(data: bytes) -> bytes | None:
    """The packet as it goes on, with one hop less to live; None if it goes nowhere."""
    size = (data[0] & 15) * 4 if data else 0
    if len(data) < HEADER_SIZE or data[0] >> 4 != 4 or not HEADER_SIZE <= size <= len(data):
        return None
    header = bytearray(data[:size])
    if checksum(header) or header[TTL_AT] <= 1:
        return None
    header[TTL_AT] -= 1
    header[CHECKSUM_AT : CHECKSUM_AT + 2] = bytes(2)
    header[CHECKSUM_AT : CHECKSUM_AT + 2] = checksum(header).to_bytes(2, "big")
    return bytes(header) + data[size:]


def route(packet: IpoibPacket, came_by: Side, sides: list[Side]) -> bool:
    """Send a packet on, into another network it is for; False if there is none."""
    data = forwarded(packet.data) if packet.ethertype == ETHERTYPE_IPV4 else None
    if data is None:
        return False
    destination = data[DESTINATION_AT : DESTINATION_AT + 4]
    for side in sides:
        if side is not came_by and ipaddress.IPv4Address(destination) in side.network:
            side.sends.send(destination, data)
            return True
    return False


def serve(side: Side, sides: list[Side]) -> None:
    """Route what comes by one side; a packet that cannot be sent is dropped, as a router does."""
    while True:
        packet = side.receives.receive()
        try:
            route(packet, side, sides)
        except NtStatusError as error:
            print(f"dropped: {error}", file=sys.stderr, flush=True)


def open_side(text: str) -> Side:
    """Be a router's interface in a kernel."""
    name, _, address = text.partition("=")
    interface = ipaddress.IPv4Interface(f"{address}/24")
    process = UserProcess.connect(name)
    doors = [IpoibDoor(process.open_device(DEVICE)) for _ in range(2)]
    doors[0].set_address(interface.ip.packed)
    return Side(process, interface.network, *doors)


def main() -> int:
    """Route until a signal comes, or a kernel ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sides", nargs="+", metavar="KERNEL=ADDRESS")
    # Not an Event: a handler that came as its lock is taken would wait for itself.
    over: queue.SimpleQueue[SofthcaError | None] = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, lambda *_: over.put(None))
    signal.signal(signal.SIGINT, lambda *_: over.put(None))
    try:
        sides = [open_side(text) for text in parser.parse_args().sides]
    except (SofthcaError, ValueError) as error:
        parser.error(str(error))

    def run(side: Side) -> None:
        try:
            serve(side, sides)
        except SofthcaError as error:
            over.put(error)

    for side in sides:
        threading.Thread(target=run, args=(side,), daemon=True).start()
    print("routing", *(side.network for side in sides), flush=True)
    ended = over.get()
    if ended is not None:
        print(f"ended: {ended}", file=sys.stderr)
    sys.stdout.flush()
    return 0 if ended is None else 1


if __name__ == "__main__":
    sys.exit(main())
