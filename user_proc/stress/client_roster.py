"""The clients of a run as who watches them sees them: started, told, heard, reaped, counted.

Mates are neighbours: places 0 and 1, 2 and 3, and so on. Each is told of the other's end of their
link, and when the other is gone.

Rules: one thread. Whatever ends the roster, no process of it is left: the nursery dies with this
process, and the clients with the nursery.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from user_proc.errors import SofthcaError
from user_proc.stress.client_counts import Counts, make_counts
from user_proc.stress.client_line import Line, LineClosed, Words
from user_proc.transport.child_environment import child_environment

NURSERY: Final = "user_proc.stress.nursery"
_PACKET: Final = 4096
_START_SECONDS: Final = 20.0
_END_SECONDS: Final = 5.0


class RosterFailed(SofthcaError):
    """Clients cannot be started any more."""


@dataclass(slots=True)
class Member:
    """One client: where, which life, and what has been heard of it."""

    place: int
    order: Mapping[str, Any]
    pid: int
    pidfd: int
    line: Line
    ready: bool = False
    killed: bool = False
    left: str = ""  # how it said that it would leave
    done: bool = False
    finding: Words | None = None
    offer: Words | None = None
    mated: bool = False
    silent: bool = False
    code: int | None = None
    samples: dict[str, list[int]] = field(default_factory=lambda: {"control": [], "floor": []})

    def as_expected(self) -> bool:
        """Tell whether it ended as it said, or was told, or because it was killed."""
        if self.killed or self.left == "kill":
            return self.code in (-signal.SIGKILL, 0)
        return self.code == 0 and (self.done or bool(self.left))


class Roster:
    """The living clients, by place."""

    def __init__(self, places: int) -> None:
        self.members: Final[dict[int, Member]] = {}
        self._by_pid: Final[dict[int, Member]] = {}
        descriptor = make_counts(places)
        try:
            self.counts: Final = Counts(descriptor)
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process: Final = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", NURSERY),
                        *(str(theirs.fileno()), str(descriptor), str(os.getpid())),
                    ],
                    stdin=subprocess.DEVNULL,
                    env=child_environment(),
                    pass_fds=[theirs.fileno(), descriptor],
                    process_group=0,
                )
        finally:
            os.close(descriptor)
        self._ended: list[Words] = []

    def start(self, order: Mapping[str, Any]) -> Member:
        """Start a client at the place its order names, which must be empty."""
        place: int = order["place"]
        self.counts.clear(place)
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"start"], [theirs.fileno()])
        pid = self._wait_for_start()
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # ended and reaped already
            pidfd = -1
        member = Member(place, order, pid, pidfd, Line(ours))
        self.members[place] = self._by_pid[pid] = member
        with contextlib.suppress(LineClosed):  # its end will be heard of
            member.line.tell(order)
        return member

    def _wait_for_start(self) -> int:
        while True:
            if not select.select([self._control], [], [], _START_SECONDS)[0]:
                raise RosterFailed(f"no client has started in {_START_SECONDS:g} s")
            words = self._packet()
            if "started" in words:
                return int(words["started"])
            self._ended.append(words)

    def _packet(self) -> Words:
        data = self._control.recv(_PACKET)
        if not data:
            raise RosterFailed("the process that starts clients has ended by itself")
        words: Words = json.loads(data)
        return words

    def kill(self, member: Member) -> None:
        """End a client as no program can prevent."""
        member.killed = True
        with contextlib.suppress(ProcessLookupError):
            if member.pidfd >= 0:
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)

    # Hearing

    def look(self, seconds: float) -> Iterator[Member]:
        """Wait for news at most so long; give each client that has ended, once."""
        lines = {one.line.fileno(): one for one in self.members.values() if not one.silent}
        waiting = [self._control.fileno(), *lines]
        for descriptor in select.select(waiting, [], [], seconds)[0]:
            if descriptor in lines:
                self._hear(lines[descriptor])
            else:
                self._ended.append(self._packet())
        ended, self._ended = self._ended, []
        for words in ended:
            member = self._by_pid.pop(words["ended"], None)
            if member is not None:
                self._hear_to_the_end(member)
                member.code = words["code"]
                self._strike(member)
                yield member

    def _hear(self, member: Member) -> None:
        try:
            for words in member.line.heard():
                self._take(member, words)
        except LineClosed:
            member.silent = True  # of its end the nursery tells

    def _hear_to_the_end(self, member: Member) -> None:
        with contextlib.suppress(LineClosed):
            while heard := member.line.heard():
                for words in heard:
                    self._take(member, words)

    def _take(self, member: Member, words: Words) -> None:
        say = words["say"]
        if say == "ready":
            member.ready = True
        elif say == "leaving":
            member.left = words["how"]
        elif say == "done":
            member.done = True
        elif say == "finding":
            member.finding = words
        elif say == "samples":
            for name, samples in member.samples.items():
                samples.extend(words[name])
        elif say == "offer":
            member.offer = words
            self._introduce(member)
        elif say == "joined":
            self._tell_mate(member, {"do": "mate ready"})

    # Mates

    def _mate(self, member: Member) -> Member | None:
        return self.members.get(member.place ^ 1)

    def _tell_mate(self, member: Member, words: Words) -> None:
        mate = self._mate(member)
        if mate is not None and mate.mated:
            self.tell(mate, words)

    def tell(self, member: Member, words: Words) -> None:
        """Say something to a client, which may have gone."""
        with contextlib.suppress(LineClosed):
            member.line.tell(words)

    def _introduce(self, member: Member) -> None:
        """Tell mates of each other once both have an end to offer."""
        mate = self._mate(member)
        if mate is None or mate.offer is None or member.offer is None:
            return
        for one, other in ((member, mate), (mate, member)):
            assert other.offer is not None
            self.tell(one, {**other.offer, "do": "mate"})
            one.mated = True
        member.offer = mate.offer = None

    def _strike(self, member: Member) -> None:
        """Have a client no more, and tell its mate, which offers another end then."""
        del self.members[member.place]
        member.line.close()
        if member.pidfd >= 0:
            os.close(member.pidfd)
        mate = self._mate(member)
        if mate is not None and member.mated and mate.mated:
            mate.mated = False
            self.tell(mate, {"do": "mate gone"})

    def close(self) -> None:
        """End the nursery and whoever is left."""
        self._control.close()
        for member in list(self.members.values()):
            member.line.close()
            if member.pidfd >= 0:
                os.close(member.pidfd)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its clients are killed with it
            self._process.wait()
