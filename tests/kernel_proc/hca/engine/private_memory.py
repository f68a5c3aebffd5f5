"""Registered memory of this very process, and copies from and to it that wait until told."""

import ctypes
import mmap
import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from kernel_proc.hca.engine import private_copier
from kernel_proc.hca_abi import registers as reg
from tests.kernel_proc.hca.engine.engine_bench import ALL_RIGHTS
from tests.kernel_proc.hca.hca_bench import PAGE, Bench

SEGMENT = 9
LENGTH = 400 * 1024


class PrivateRegion:
    """Registered memory of this very process, which no segment holds."""

    def __init__(self, bench: Bench, length: int = LENGTH, flags: int = ALL_RIGHTS) -> None:
        self.map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.length = length
        pages = range(self.start, self.start + length, PAGE)
        bus = [SEGMENT << reg.SEGMENT_SHIFT | page for page in pages]
        self.key = bench.mpt(bus, length, start=self.start, flags=flags)

    def at(self, offset: int = 0, length: int | None = None) -> tuple[int, int, int]:
        return self.start + offset, self.length - offset if length is None else length, self.key

    @property
    def view(self) -> memoryview:
        return memoryview(self.map)

    def fill(self, seed: int) -> bytes:
        data = random.Random(seed).randbytes(self.length)
        self.map[:] = data
        return data


class Gate:
    """A copy that waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        write = private_copier._write

        def waits(descriptor: int, address: int, data: memoryview) -> None:
            self.entered.set()
            assert self.open.wait(20)
            write(descriptor, address, data)

        monkeypatch.setattr(private_copier, "_write", waits)


def step_until(bench: Bench, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        bench.device.run_once()
        os.sched_yield()
