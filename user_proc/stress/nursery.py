"""A process that forks clients: what all of them import is imported once.

Run as `python -P -m user_proc.stress.nursery CONTROL COUNTS`, two descriptors: a socket of packets
over which each start comes, with the client's line, and the words in which clients count. It
answers with the pid, and tells later how each ended.

Rules: it ends when its socket does, and takes every client with it; they die with it, too, however
it dies (PR_SET_PDEATHSIG).
"""

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Final

from user_proc.stress.client_counts import Counts
from user_proc.stress.client_line import Line
from user_proc.stress.stress_client import be_a_client

_PACKET: Final = 4096
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> None:
    """Be killed when the parent ends; at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Nursery:
    """The forking process; `pids` are its clients."""

    def __init__(self, control: socket.socket, counts: Counts) -> None:
        self._control: Final = control
        self._counts: Final = counts
        self._pids: Final[set[int]] = set()
        self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Fork for every packet, reap whoever ends, until the socket is closed."""
        while True:
            readable = select.select([self._control.fileno(), self._wake], [], [])[0]
            if self._wake in readable:
                os.read(self._wake, _PACKET)
                self._reap()
            if self._control.fileno() in readable:
                data, descriptors, _, _ = socket.recv_fds(self._control, _PACKET, 1)
                if not data:
                    return
                self._start(descriptors[0])

    def _start(self, descriptor: int) -> None:
        own = os.getpid()
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with(own)
            self._control.close()
            os.set_inheritable(descriptor, False)
            os.close(self._wake)
            be_a_client(Line(socket.socket(fileno=descriptor)), self._counts)
        os.close(descriptor)
        self._pids.add(pid)
        self._tell({"started": pid})

    def _reap(self) -> None:
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._pids.discard(pid)
            self._tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, words: dict[str, int]) -> None:
        self._control.send(json.dumps(words).encode())

    def end_all(self) -> None:
        """Kill and reap every client."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)


def main(arguments: list[str]) -> int:
    """Serve until the socket is closed."""
    control, counts, parent = (int(one) for one in arguments)
    die_with(parent)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever started it ends it
    gc.freeze()
    nursery = Nursery(socket.socket(fileno=control), Counts(counts))
    try:
        nursery.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        nursery.end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
