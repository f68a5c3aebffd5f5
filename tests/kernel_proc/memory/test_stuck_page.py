"""A page that never comes keeps its own session waiting and no other."""

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.private_memory import PrivateMemory
from kernel_proc.scheduling.kernel_clock import RealClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.os_lane import OsLane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from user_proc.memory.private_memory import open_own_memory

PAGE = mmap.PAGESIZE
MNT_DETACH = 2


class Session:
    """One process of a machine, with a lane of its own."""

    def __init__(self, processor: Processor, name: str, private: PrivateMemory) -> None:
        self.processor = processor
        self.process = KProcess(processor, name)
        self.lane = OsLane(processor, f"lane of {name}")
        self.space = AddressSpace(self.process, self.lane, private=private)
        self.results: list[Any] = []

    def start(self, routine: Callable[..., Any], *args: Any) -> KThread:
        def body() -> None:
            try:
                self.results.append(routine(*args))
            except AccessViolation as error:
                self.results.append(error)

        return create_system_thread(self.processor, body, process=self.process)

    def call(self, routine: Callable[..., Any], *args: Any) -> Any:
        thread = self.start(routine, *args)
        self.processor.run_until(lambda: thread.ended)
        return self.results.pop()


@pytest.fixture
def new_session() -> Iterator[Callable[[str, PrivateMemory], Session]]:
    processor = Processor(RealClock())
    sessions: list[Session] = []

    def make(name: str, private: PrivateMemory) -> Session:
        sessions.append(Session(processor, name, private))
        return sessions[-1]

    yield make
    for session in sessions:
        session.lane.close()
    processor.dispatcher.idle.close()


def test_a_stuck_access_holds_up_its_session_alone(
    new_session: Callable[..., Session],
    own_memory: PrivateMemory,
    raw: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """The same with any system: the copy itself is held up."""
    page = raw.map(2)
    raw.poke(page, b"stuck")
    raw.poke(page + PAGE, b"free!")
    pread = os.pread
    inside, go_on = threading.Event(), threading.Event()

    def slow(descriptor: int, length: int, address: int) -> bytes:
        if address == page:
            inside.set()
            assert go_on.wait(20)
        return pread(descriptor, length, address)

    own_memory.maps.find(page)
    monkeypatch.setattr(os, "pread", slow)
    stuck = new_session("stuck", own_memory)
    other = new_session("other", PrivateMemory(*open_own_memory()))
    thread = stuck.start(stuck.space.read, page, 5)
    stuck.processor.run_until(lambda: thread.is_waiting)
    assert inside.wait(20)
    for _ in range(3):
        assert other.call(other.space.read, page + PAGE, 5) == b"free!"
        assert other.call(other.space.write, page + PAGE, b"free!") is None
    assert not thread.ended
    assert stuck.results == []
    go_on.set()
    stuck.processor.run_until(lambda: thread.ended)
    assert stuck.results == [b"stuck"]
    other.space.close()


@pytest.fixture
def stuck_file() -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """A file whose pages never come, and the file system's process."""
    if os.getuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting a FUSE file system needs root and /dev/fuse")
    folder = tempfile.mkdtemp(prefix="stuck-")
    script = Path(__file__).with_name("stuck_file_system.py")
    command = [sys.executable, "-P", str(script), folder]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        if server.stdout.readline() != "ready\n":
            pytest.skip("a FUSE file system cannot be mounted here")
        yield Path(folder) / "file", server
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        ctypes.CDLL(None).umount2(folder.encode(), MNT_DETACH)
        os.rmdir(folder)


@pytest.mark.processes
def test_a_page_of_a_dead_file_system_holds_up_its_session_alone(
    new_session: Callable[..., Session],
    new_owner: Callable[..., Any],
    stuck_file: tuple[Path, "subprocess.Popen[str]"],
):
    path, server = stuck_file
    assert server.stdout is not None
    hostile, friendly = new_owner(), new_owner()
    page = hostile.ask("map_file", str(path))
    stuck, other = (
        new_session("stuck", hostile.private),
        new_session("other", friendly.private),
    )
    thread = stuck.start(stuck.space.read, page, 64)
    stuck.processor.run_until(lambda: thread.is_waiting)
    assert server.stdout.readline() == "read\n"
    second = stuck.start(stuck.space.read, hostile.areas["writable"], 4)
    address = friendly.areas["writable"]
    for _ in range(3):
        assert other.call(other.space.read, address, 4) == b"WWWW"
    hostile.kill()
    assert other.call(other.space.read, address, 4) == b"WWWW"
    assert not thread.ended
    server.kill()
    stuck.processor.run_until(lambda: thread.ended and second.ended)
    first_result, second_result = stuck.results
    assert isinstance(first_result, AccessViolation)
    assert isinstance(second_result, AccessViolation)  # its owner had died meanwhile


@pytest.mark.processes
def test_a_page_under_userfaultfd_ends_with_its_owner_at_the_latest(
    new_session: Callable[..., Session], new_owner: Callable[..., Any]
):
    hostile, friendly = new_owner(), new_owner()
    page = hostile.ask("userfault_page")
    if not page:
        pytest.skip("userfaultfd is refused here")
    stuck, other = (
        new_session("stuck", hostile.private),
        new_session("other", friendly.private),
    )
    thread = stuck.start(stuck.space.read, page, 64)
    assert other.call(other.space.read, friendly.areas["writable"], 4) == b"WWWW"
    hostile.kill()
    stuck.processor.run_until(lambda: thread.ended)
    (result,) = stuck.results
    # The fault is refused (Linux 6.18), or waits and then finds the page of a dying process empty.
    assert isinstance(result, AccessViolation) or result == bytes(64)


def test_an_error_of_the_system_is_an_access_violation(
    new_session: Callable[..., Session],
    own_memory: PrivateMemory,
    raw: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    def refused(*_: object) -> bytes:
        raise OSError(errno.EPERM, "Operation not permitted")

    page = raw.map(1)
    own_memory.maps.find(page)
    monkeypatch.setattr(os, "pread", refused)
    session = new_session("refused", own_memory)
    result = session.call(session.space.read, page, 4)
    assert isinstance(result, AccessViolation)
    assert "Operation not permitted" in str(result)
