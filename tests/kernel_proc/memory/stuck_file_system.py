"""A FUSE file system with one file, `file`, whose bytes never come: its pages stay stuck.

usage: stuck_file_system.py FOLDER (root; prints "ready", then "read" for each request for bytes)
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import sys

INIT, LOOKUP, FORGET, GETATTR, OPEN, READ = 26, 1, 2, 3, 14, 15
INTERRUPT, BATCH_FORGET, RELEASE, FLUSH, ACCESS = 36, 42, 18, 25, 34
ROOT, FILE, SIZE = 1, 2, 1 << 16
MS_NOSUID_NODEV = 6


def attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o666
    return struct.pack("<6Q10I", node, SIZE, *(0,) * 4, *(0,) * 3, mode, 1, 0, 0, 0, 4096, 0)


class FileSystem:
    def __init__(self, folder: str) -> None:
        self.device = os.open("/dev/fuse", os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if libc.mount(b"stuck", folder.encode(), b"fuse", MS_NOSUID_NODEV, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")

    def answer(self, request: int, data: bytes = b"", error: int = 0) -> None:
        os.write(self.device, struct.pack("<IiQ", 16 + len(data), -error, request) + data)

    def serve(self) -> None:
        while True:
            message = os.read(self.device, 1 << 20)
            _, operation, request, node = struct.unpack_from("<IIQQ", message)
            if operation == READ:
                print("read", flush=True)
            elif operation not in (FORGET, INTERRUPT, BATCH_FORGET):
                self.serve_one(operation, request, node)

    def serve_one(self, operation: int, request: int, node: int) -> None:
        valid = 1000
        if operation == INIT:
            figures = struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 16, 12, SIZE, 1, 16, 0, *(0,) * 8)
            self.answer(request, figures)
        elif operation == LOOKUP:
            entry = struct.pack("<4Q2I", FILE, 0, valid, valid, 0, 0)
            self.answer(request, entry + attributes(FILE))
        elif operation == GETATTR:
            self.answer(request, struct.pack("<Q2I", valid, 0, 0) + attributes(node))
        elif operation == OPEN:
            self.answer(request, struct.pack("<Q2I", 0, 0, 0))
        elif operation in (RELEASE, FLUSH, ACCESS):
            self.answer(request)
        else:
            self.answer(request, error=errno.ENOSYS)


if __name__ == "__main__":
    signal.alarm(60)  # the test may die before it ends this process
    file_system = FileSystem(sys.argv[1])
    print("ready", flush=True)
    file_system.serve()
