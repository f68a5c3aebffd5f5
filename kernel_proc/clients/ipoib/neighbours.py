"""Who is where: the next hops of an interface, and the packets that wait to know.

A neighbour is asked for by ARP. Its answer tells QP and GID; its LID is the one the answer came
from, where a subnet with a manager would be asked for a path. The address handle is made later,
at a level at which verbs can wait. There are so many neighbours at most: another one takes the
place of the one heard of longest ago.

Rules: DISPATCH_LEVEL under the interface's lock.
Spec: RFC 4391, section 9; RFC 826.
"""

from collections import deque
from enum import IntEnum
from typing import Final, NamedTuple

MOST_NEIGHBOURS: Final = 256
MOST_WAITING: Final = 8  # packets for one neighbour
MOST_TRIES: Final = 3


class State(IntEnum):
    """How far a neighbour is known."""

    ASKED = 0
    ANSWERED = 1  # an address handle is due
    REACHABLE = 2


class Packet(NamedTuple):
    """A packet on its way out."""

    ethertype: int
    data: bytes


class Path(NamedTuple):
    """Where a neighbour is."""

    qpn: int
    lid: int


class Neighbour:
    """One next hop; `handle` is its address handle, `path` what that leads to or will lead to."""

    __slots__ = ("handle", "ip", "path", "state", "tries", "waiting")

    def __init__(self, ip: bytes) -> None:
        self.ip = ip
        self.state = State.ASKED
        self.tries = 0
        self.path = Path(0, 0)
        self.handle = 0
        self.waiting: deque[Packet] = deque()


class NeighbourTable:
    """Neighbours by IPv4 address; `retired` are address handles nobody needs any more."""

    __slots__ = ("_all", "retired")

    def __init__(self) -> None:
        self._all: dict[bytes, Neighbour] = {}
        self.retired: list[int] = []

    def __len__(self) -> int:
        return len(self._all)

    def find(self, ip: bytes) -> Neighbour | None:
        """Return a neighbour that is known or asked for."""
        return self._all.get(ip)

    def add(self, ip: bytes) -> tuple[Neighbour, int]:
        """Have another neighbour; return it, and the packets lost with the one it replaces."""
        lost = 0
        if len(self._all) >= MOST_NEIGHBOURS:
            lost = self.remove(next(iter(self._all)))
        neighbour = self._all[ip] = Neighbour(ip)
        return neighbour, lost

    def remove(self, ip: bytes) -> int:
        """Forget a neighbour; return how many packets waited for it."""
        gone = self._all.pop(ip)
        self._retire(gone)
        return len(gone.waiting)

    def learn(self, neighbour: Neighbour, path: Path) -> bool:
        """Note where a neighbour says it is; True if an address handle is due now."""
        self._all[neighbour.ip] = self._all.pop(neighbour.ip)  # heard of last
        if neighbour.state is not State.ASKED and neighbour.path == path:
            return False
        self._retire(neighbour)
        neighbour.path = path
        neighbour.state = State.ANSWERED
        return True

    def due(self) -> list[Neighbour]:
        """Return those that need an address handle."""
        return [one for one in self._all.values() if one.state is State.ANSWERED]

    def asked(self) -> list[Neighbour]:
        """Return those that have not answered."""
        return [one for one in self._all.values() if one.state is State.ASKED]

    def _retire(self, neighbour: Neighbour) -> None:
        if neighbour.handle:
            self.retired.append(neighbour.handle)
            neighbour.handle = 0
