"""The launcher's end of its guardian: starting it, asking it, outliving it.

Rules: one thread. Whatever ends this process, the socket's end is the guardian's sign.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from user_proc.errors import SofthcaError
from user_proc.groups.guardian_packets import (
    MAX_PACKET,
    Finish,
    Packet,
    SignalThem,
    Spawn,
    Started,
    decode_packet,
    encode_packet,
)
from user_proc.groups.process_tree import ProcessEntry, become_subreaper, descendants, kill_all
from user_proc.transport.child_environment import child_environment

_END_SECONDS: Final = 10.0  # beyond the grace: killing what is left


class GuardianGone(SofthcaError):
    """The guardian has ended by itself: somebody killed it."""

    def __init__(self) -> None:
        super().__init__("the process that guards the ranks was killed, and they with it")


class GuardianLink:
    """A guardian of our own; a context manager that leaves nothing of what it has started."""

    def __init__(self, endpoint: Path) -> None:
        self.sessions: set[int] = set()
        self.grace: float = 0.0  # what is left at the end has so much time
        self._was_subreaper = become_subreaper()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link = ours
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "user_proc.groups.guardian"),
                        *(str(theirs.fileno()), str(endpoint)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=child_environment(),
                    start_new_session=True,  # Ctrl-C in the terminal is the launcher's
                    pass_fds=[theirs.fileno()],
                )
        except BaseException:
            ours.close()
            become_subreaper(self._was_subreaper)
            raise

    def fileno(self) -> int:
        """Return the descriptor that is readable when the guardian has something to say."""
        return self._link.fileno()

    @property
    def pid(self) -> int:
        """The guardian's process number."""
        return self._process.pid

    def spawn(self, spawn: Spawn) -> None:
        """Have a process started; ValueError if its command and environment are too long."""
        self._send(spawn)

    def signal(self, numbers: Sequence[int], sent: int) -> None:
        """Have a signal sent to every process of these sessions."""
        if numbers:
            self._send(SignalThem(numbers, sent))

    def receive(self) -> Packet | None:
        """Return what the guardian has told, if anything; GuardianGone if it is no more."""
        try:
            data = self._link.recv(MAX_PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionError:
            data = b""
        if not data:
            raise GuardianGone
        packet = decode_packet(data)
        if isinstance(packet, Started):
            self.sessions.add(packet.pid)
        return packet

    def _send(self, packet: Packet) -> None:
        data = encode_packet(packet)
        try:
            self._link.send(data)
        except (BrokenPipeError, ConnectionResetError):
            raise GuardianGone from None

    def close(self) -> None:
        """Have everything ended that still runs, and wait for it."""
        try:
            with contextlib.suppress(OSError, GuardianGone):
                self._send(Finish(round(self.grace * 1000)))
            self._await_end()
        finally:
            self._link.close()
            become_subreaper(self._was_subreaper)

    def _await_end(self) -> None:
        try:
            self._process.wait(self.grace + _END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0:
            kill_all(self._orphans, between=self._reap)
            self._reap()

    def _orphans(self) -> list[ProcessEntry]:
        """What a killed guardian leaves becomes ours: those of its sessions, and those below."""
        found = [one for one in descendants(os.getpid()) if one.session in self.sessions]
        return found + [below for one in found for below in descendants(one.pid)]

    def _reap(self) -> None:
        for session in self.sessions:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-session, os.WNOHANG)[0]:  # its process group
                    pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()
