"""The guardian: the parent of every rank, which lets none of them outlive the launcher.

    python -P -m user_proc.groups.guardian SOCKET_FD ENDPOINT

It starts what the launcher says, each in a session of its own, and tells of their ends. It is a
subreaper: whoever loses its parent below it becomes its child, so that none gets away by forking.
When the launcher's end of the socket closes, however that came, it kills all of them, removes the
launcher's socket name, and ends. Should the guardian itself be killed, the ranks die with it
(PR_SET_PDEATHSIG), and the launcher, a subreaper too, ends what is left of their sessions.

Rules: one thread, so that what runs between fork and exec is safe. It reads nothing of the ranks.
Spec: prctl(2); wait4(2), waitid(2) WNOWAIT: a number is not used again before its end is taken.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections import Counter, deque
from typing import Final

from shared.clock import now_ns
from user_proc.groups.guardian_packets import (
    MAX_PACKET,
    Ended,
    Finish,
    NotStarted,
    Packet,
    SignalThem,
    Spawn,
    Started,
    decode_packet,
    encode_packet,
)
from user_proc.groups.process_tree import (
    ProcessEntry,
    become_subreaper,
    descendants,
    die_with_parent,
    kill_all,
    kill_sessions,
    send_signal,
    session_members,
)

_QUIET: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_LOG_MODE: Final = 0o600
_MOST_PACKETS: Final = 32  # before ends are looked for again
_MOST_LOOKS: Final = 10  # that find nobody although somebody is there
_LOOK: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Guardian:
    """The processes it has started, by pid, and the way to the launcher."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._numbers: dict[int, int] = {}  # pid to number
        self._unsent: deque[bytes] = deque()  # so that the launcher's sends are always taken
        self._pid = os.getpid()

    def run(self, child_ended: int) -> None:
        """Serve the launcher until it is finished or gone; then nothing of the ranks is left."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(child_ended, select.POLLIN)
        try:
            while True:
                wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
                poll.modify(self._link, wanted)
                ready = dict(poll.poll())
                self._send()
                if child_ended in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(child_ended, 4096)
                    self._take_ends()
                if ready.get(self._link.fileno(), 0) & ~select.POLLOUT and not self._serve():
                    break
        except OSError:
            pass  # the launcher is gone
        finally:
            self._kill_everything()

    def _serve(self) -> bool:
        """Carry out some of the packets that have come; False when one was the last."""
        for _ in range(_MOST_PACKETS):
            try:
                data = self._link.recv(MAX_PACKET, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if not data or not self._carry_out(decode_packet(data)):
                return False
        return True

    def _carry_out(self, packet: Packet) -> bool:
        """Do what the launcher says; False when it says that this is the end."""
        match packet:
            case Spawn() as spawn:
                self._tell(self._spawn(spawn))
            case SignalThem(numbers, sent):
                self._signal(set(numbers), sent)
            case Finish(grace_ms):
                self._end_softly(grace_ms)
                return False
            case other:
                raise ValueError(f"{type(other).__name__} is not for a guardian")
        return True

    def _tell(self, packet: Packet) -> None:
        self._unsent.append(encode_packet(packet))
        self._send()

    def _send(self) -> None:
        """Send what the launcher has room for."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._link.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()

    def _spawn(self, spawn: Spawn) -> Packet:
        """Start a process, or say why it cannot be."""
        guardian, cpus = self._pid, spawn.cpus

        def prepare() -> None:
            die_with_parent(guardian)
            if cpus:
                os.sched_setaffinity(0, cpus)

        try:
            log = os.open(spawn.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _LOG_MODE)
            try:
                process = subprocess.Popen(
                    spawn.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **spawn.environment},
                    cwd=spawn.folder,
                    start_new_session=True,
                    preexec_fn=prepare,
                )
            finally:
                os.close(log)
        except FileNotFoundError as error:
            return NotStarted(spawn.number, f"{error.filename!r} is not there")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return NotStarted(spawn.number, str(error))
        process.returncode = 0  # its end is taken here, not by Popen
        self._numbers[process.pid] = spawn.number
        return Started(spawn.number, process.pid)

    def _signal(self, numbers: set[int], sent: int) -> None:
        """Send a signal to sessions; SIGKILL until there is nobody left to get it."""
        sessions = [pid for pid, number in self._numbers.items() if number in numbers]
        if sent == signal.SIGKILL:
            kill_sessions(sessions)
        else:
            self._send_all(session_members(sessions), sent)

    def _send_all(self, entries: list[ProcessEntry], sent: int) -> None:
        for entry in entries:
            send_signal(entry, sent)

    def _take_ends(self) -> None:
        """Take the end of whatever has ended: a rank, or somebody's orphan."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, _LOOK)
            except ChildProcessError:
                return
            if found is None:
                return
            if found.si_pid in self._numbers:
                self._take_ends_of_ranks()
            else:
                os.waitpid(found.si_pid, 0)

    def _take_ends_of_ranks(self) -> None:
        """Tell of each rank that has ended, after what they left behind is ended, too."""
        ended = [pid for pid in self._numbers if os.waitid(os.P_PID, pid, _LOOK) is not None]
        left = Counter(entry.session for entry in kill_sessions(ended))
        for pid in ended:
            _, status, used = os.wait4(pid, 0)
            self._tell(
                Ended(
                    self._numbers.pop(pid),
                    os.waitstatus_to_exitcode(status),
                    used.ru_utime,
                    used.ru_stime,
                    used.ru_maxrss * 1024,
                    used.ru_nvcsw,
                    used.ru_nivcsw,
                    left[pid],
                )
            )

    def _end_softly(self, grace_ms: int) -> None:
        """Ask everything that runs to end, and wait for it for a while."""
        until = now_ns() + grace_ms * 1_000_000
        asked = False
        while self._everything():
            if not asked:
                self._send_all(self._everything(), signal.SIGTERM)
                asked = True
            left_ms = (until - now_ns()) // 1_000_000
            if left_ms <= 0:
                return
            select.poll().poll(min(left_ms, 20))
            self._reap()

    def _everything(self) -> list[ProcessEntry]:
        return descendants(self._pid)

    def _kill_everything(self) -> None:
        """End all until there is no child: who loses its parent is one at once.

        That a look finds nobody says less: one may have been begun, and its parent have ended,
        while the others were looked at.
        """
        for _ in range(_MOST_LOOKS):
            kill_all(self._everything, between=self._reap)
            if not self._reap():
                break

    def _reap(self) -> bool:
        """Take the ends of all that have ended; False if there is no child any more."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True


def _ignore(number: int, frame: object) -> None:
    """Do nothing: the signal's number goes to the wake-up pipe."""


def main() -> None:
    """Be the guardian of the launcher at the other end of the socket."""
    link = socket.socket(fileno=int(sys.argv[1]))
    become_subreaper()
    child_ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in _QUIET:  # handlers, since what is ignored stays so in a started program
        signal.signal(number, _ignore)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        Guardian(link).run(child_ended)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(sys.argv[2])
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(sys.argv[2]))  # if nothing else is in it


if __name__ == "__main__":
    main()
