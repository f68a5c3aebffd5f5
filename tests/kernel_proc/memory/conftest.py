"""A machine with one process whose memory is this test's own or that of a real other process."""

import ctypes
import json
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.pool import PoolAllocator
from kernel_proc.memory.private_memory import PrivateMemory
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.os_lane import InlineLane, Lane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from user_proc.memory.private_memory import open_own_memory

HERE = Path(__file__).resolve().parent

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class RawMemory:
    """Mappings of this process by address, to be protected and unmapped at will."""

    def __init__(self) -> None:
        self._mapped: list[tuple[int, int]] = []

    def map(self, pages: int, protection: int = mmap.PROT_READ | mmap.PROT_WRITE) -> int:
        length = pages * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = _libc.mmap(None, length, protection, flags, -1, 0)
        assert address not in (None, 2**64 - 1)
        self._mapped.append((address, length))
        return int(address)

    def protect(self, address: int, pages: int, protection: int) -> None:
        assert _libc.mprotect(address, pages * mmap.PAGESIZE, protection) == 0

    def unmap(self, address: int, pages: int) -> None:
        assert _libc.munmap(address, pages * mmap.PAGESIZE) == 0

    def peek(self, address: int, length: int) -> bytes:
        return ctypes.string_at(address, length)

    def poke(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def clear(self) -> None:
        for address, length in self._mapped:
            _libc.munmap(address, length)


class Kernel:
    """A processor, one process, its address space, and pool."""

    def __init__(
        self, *, verifier: bool, private: PrivateMemory | None, lane: Lane | None = None
    ) -> None:
        self.processor = Processor(VirtualClock(), verifier=verifier)
        self.process = KProcess(self.processor, "user")
        self.lane = lane or InlineLane(self.processor)
        self.space = AddressSpace(self.process, self.lane, private=private)
        self.process.address_space = self.space
        self.pool = PoolAllocator(self.processor)

    def start(self, routine: Callable[..., Any], *args: Any) -> "Call":
        return Call(self.processor, self.process, routine, *args)

    def run(self, routine: Callable[..., Any], *args: Any) -> Any:
        """Call in a thread of the process; return its value or raise its exception."""
        call = self.start(routine, *args)
        self.processor.run_until(lambda: call.thread.ended)
        return call.result()

    def run_at(self, irql: int, routine: Callable[..., Any], *args: Any) -> Any:
        """The same, at a raised IRQL."""

        def raised() -> Any:
            old = self.processor.raise_irql(irql)
            try:
                return routine(*args)
            finally:
                self.processor.lower_irql(old)

        return self.run(raised)


class Call:
    """A routine in a kernel thread of its own."""

    def __init__(
        self, processor: Processor, process: KProcess, routine: Callable[..., Any], *args: Any
    ) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self._routine = routine
        self.thread: KThread = create_system_thread(processor, self._body, *args, process=process)

    def _body(self, *args: Any) -> None:
        try:
            self.value = self._routine(*args)
        except Exception as error:
            self.error = error

    def result(self) -> Any:
        assert self.thread.ended
        if self.error is not None:
            raise self.error
        return self.value


@pytest.fixture
def raw() -> Iterator[RawMemory]:
    memory = RawMemory()
    yield memory
    memory.clear()


@pytest.fixture
def own_memory() -> Iterator[PrivateMemory]:
    """Private memory whose owner is this very process."""
    private = PrivateMemory(*open_own_memory())
    yield private
    private.close()


@pytest.fixture
def kernel(own_memory: PrivateMemory) -> Kernel:
    return Kernel(verifier=False, private=own_memory)


@pytest.fixture
def verified(own_memory: PrivateMemory) -> Kernel:
    """The same under verifier."""
    return Kernel(verifier=True, private=own_memory)


@pytest.fixture
def new_kernel() -> Callable[..., Kernel]:
    return Kernel


class Owner:
    """Another process that handed over its memory; `areas` are its addresses by name."""

    def __init__(self, uid: int = 0) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket = ours
        ours.settimeout(30)
        script = HERE / "owner_process.py"
        arguments = [sys.executable, "-P", str(script), str(theirs.fileno()), str(uid)]
        root = str(HERE.parents[2])
        with theirs:
            self.process = subprocess.Popen(
                arguments, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": root}
            )
        message, descriptors, _, _ = socket.recv_fds(ours, 1 << 16, 2)
        self.areas: dict[str, int] = json.loads(message)
        self.descriptors = tuple(descriptors)
        self.private = PrivateMemory(*descriptors)

    def ask(self, command: str, *arguments: Any, descriptors: tuple[int, ...] = ()) -> Any:
        message = json.dumps([command, *arguments]).encode()
        socket.send_fds(self.socket, [message], descriptors)
        return self.answer()

    def answer(self) -> Any:
        return json.loads(self.socket.recv(1 << 16))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.socket.close()
        self.private.close()


@pytest.fixture
def new_owner() -> Iterator[Callable[..., Owner]]:
    owners: list[Owner] = []

    def start(uid: int = 0) -> Owner:
        owners.append(Owner(uid))
        return owners[-1]

    yield start
    for owner in owners:
        owner.close()
