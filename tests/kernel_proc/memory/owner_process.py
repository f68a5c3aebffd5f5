"""A user process for the memory tests: makes areas, hands its memory over, obeys.

usage: owner_process.py SOCKET UID
"""

import ctypes
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import sys
from typing import Any

from shared.segment import map_segment
from user_proc.memory.private_memory import open_own_memory

PAGE = mmap.PAGESIZE
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
FIXED_ADDRESS = 0x7E00_0000_0000
PR_SET_DUMPABLE = 4
SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine, -1)
UFFDIO_API, UFFDIO_REGISTER = 0xC018_AA3F, 0xC020_AA00

NEW_PROGRAM = """
import ctypes, json, mmap, os, signal, socket, sys
signal.alarm(60)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
page = libc.mmap({address}, {page}, 3, 0x32, -1, 0)
ctypes.memset(page, ord("N"), {page})
peer = socket.socket(fileno=int(sys.argv[1]))
peer.send(json.dumps({{"pid": os.getpid()}}).encode())
while peer.recv(100):
    peer.send(json.dumps(ctypes.string_at(page, 8).hex()).encode())
"""

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def area(pages: int, fill: str, protection: int = READ_WRITE, at: int | None = None) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x10 if at else 0)
    address = int(libc.mmap(at, pages * PAGE, READ_WRITE, flags, -1, 0))
    ctypes.memset(address, ord(fill), pages * PAGE)
    libc.mprotect(address, pages * PAGE, protection)
    return address


class Owner:
    """One method for each command of the test."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.kept: list[Any] = []

    def peek(self, address: int, length: int) -> str:
        return ctypes.string_at(address, length).hex()

    def unmap(self, address: int, pages: int) -> None:
        libc.munmap(address, pages * PAGE)

    def map_file(self, path: str) -> int:
        mapping = mmap.mmap(os.open(path, os.O_RDWR), PAGE)
        self.kept.append(mapping)
        return ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    def map_arena(self, descriptor: int, length: int, fill: str) -> int:
        mapping = map_segment(descriptor, length)
        mapping[:] = fill.encode() * length
        self.kept.append(mapping)
        return ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    def userfault_page(self) -> int:
        """Return a page that only an answer to its fault could fill, or 0 where that is refused."""
        descriptor = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
        if descriptor < 0:
            return 0
        fcntl.ioctl(descriptor, UFFDIO_API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        page = int(libc.mmap(None, PAGE, READ_WRITE, flags, -1, 0))
        register = bytearray(struct.pack("QQQQ", page, PAGE, 1, 0))
        fcntl.ioctl(descriptor, UFFDIO_REGISTER, register)
        return page

    def execute(self) -> None:
        """Become another program, with the same pid and something at the same address."""
        os.set_inheritable(self.peer.fileno(), True)
        program = NEW_PROGRAM.format(address=FIXED_ADDRESS, page=PAGE)
        os.execv(sys.executable, [sys.executable, "-c", program, str(self.peer.fileno())])


def main() -> None:
    signal.alarm(60)  # the test may die before it ends this process
    peer, uid = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    if uid:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as in a process that was this user from its start
    areas = {
        "pid": os.getpid(),
        "writable": area(4, "W"),
        "fixed": area(1, "F", at=FIXED_ADDRESS),
        "read_only": area(1, "R", mmap.PROT_READ),
        "no_access": area(1, "X", 0),
        "hole": area(3, "H"),
    }
    libc.munmap(areas["hole"] + PAGE, PAGE)
    memory = open_own_memory()
    socket.send_fds(peer, [json.dumps(areas).encode()], memory)
    owner = Owner(peer)
    while True:
        message, descriptors, _, _ = socket.recv_fds(peer, 1 << 16, 4)
        if not message:
            return
        command, *arguments = json.loads(message)
        answer = getattr(owner, command)(*descriptors, *arguments)
        peer.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
