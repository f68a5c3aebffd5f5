"""Who connects: identified by the system, watched by a pidfd, whatever the system offers."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kernel_proc.server import peer as peer_module
from kernel_proc.server.peer import PeerRefused, identify
from shared.connection_file import process_start_ticks

NO_SUCH_OPTION = 9999


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours


@pytest.mark.parametrize("option", [peer_module._SO_PEERPIDFD, NO_SUCH_OPTION])
def test_the_peer_is_known_by_pid_start_and_pidfd(
    connection: socket.socket, option: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peer_module, "_SO_PEERPIDFD", option)
    before = len(os.listdir("/proc/self/fd"))
    peer = identify(connection)
    assert peer.pid == os.getpid()
    assert peer.start_ticks == process_start_ticks(os.getpid())
    assert peer.is_alive()
    assert not os.get_inheritable(peer.pidfd)
    peer.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.processes
@pytest.mark.parametrize("option", [peer_module._SO_PEERPIDFD, NO_SUCH_OPTION])
def test_a_peer_that_has_ended_is_refused(option: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peer_module, "_SO_PEERPIDFD", option)
    path = f"\0softhca-peer-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        code = (
            "import socket\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            f"s.connect({path!r})\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        connection, _ = listener.accept()
        before = len(os.listdir("/proc/self/fd"))
        with connection, pytest.raises(PeerRefused, match=r"has ended|cannot be watched"):
            identify(connection)
        assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_process_of_another_namespace_is_refused(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    nobody = peer_module._CREDENTIALS.pack(0, os.geteuid(), os.getegid())
    monkeypatch.setattr(peer_module, "_CREDENTIALS", FixedAnswer(nobody))
    with pytest.raises(PeerRefused, match="pid namespace"):
        identify(connection)


class FixedAnswer:
    """A struct that unpacks what it was given, whatever the system said."""

    size = 12

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def unpack(self, data: bytes) -> tuple[int, int, int]:
        assert len(data) == self.size
        pid, uid, gid = (
            int.from_bytes(self._packed[at : at + 4], "little", signed=True) for at in (0, 4, 8)
        )
        return pid, uid, gid
