"""Patterns, and the fault that is found when a byte is another one."""

from types import SimpleNamespace
from typing import Any

import pytest

from user_proc.perftest.data_check import CLIENT, SERVER, find_fault, pattern, prepare


class Memory:
    """An endpoint's lanes, without a device."""

    def __init__(self, qps: int, shared: bool = False) -> None:
        self.qps = [SimpleNamespace(qp_num=0x400 + number) for number in range(qps)]
        self.srq = object() if shared else None
        self._sent = [bytearray(64) for _ in range(qps)]
        self._arrived = [bytearray(b"x" * 64) for _ in range(qps)]

    def sent(self, index: int, size: int) -> memoryview:
        return memoryview(self._sent[index])[:size]

    def arrived(self, index: int, size: int) -> memoryview:
        return memoryview(self._arrived[index])[:size]


@pytest.mark.parametrize("shared", [False, True])
def test_every_byte_counts(shared: bool):
    one: Any = Memory(2, shared)
    two: Any = Memory(2, shared)
    prepare(one, CLIENT, 64)
    prepare(two, SERVER, 64)
    assert "byte 0 of the 64" in find_fault(two, CLIENT, 64)
    for index in range(2):
        two.arrived(index, 64)[:] = one.sent(index, 64)
    assert find_fault(two, CLIENT, 64) == ""
    assert find_fault(two, SERVER, 64) != ""
    where = 0 if shared else 1
    two.arrived(where, 64)[63] ^= 1
    assert f"byte 63 of the 64 that arrived at queue pair {0x400 + where:#x}" in find_fault(
        two, CLIENT, 64
    )
    assert find_fault(two, CLIENT, 64, spared=1) == ""


def test_patterns_differ_by_side_queue_pair_and_size():
    made = {pattern(side, index, size)[:16] for side in (CLIENT, SERVER) for index in (0, 1)
            for size in (16, 32)}  # fmt: skip
    assert len(made) == 8
