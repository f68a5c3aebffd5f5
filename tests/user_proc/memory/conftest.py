"""A lifeline whose kernel is this test."""

import os
from collections.abc import Iterator

import pytest

from shared.segment import create_segment, round_to_pages


class FakeKernel:
    """Grants real segments, and remembers who has what."""

    name = "test"

    def __init__(self) -> None:
        self.limit = 1 << 30
        self.granted: dict[int, int] = {}
        self.placed: dict[int, int] = {}
        self.freed: list[int] = []
        self.refuse_place = False

    def allocate_arena(self, length: int) -> tuple[int, int]:
        if sum(self.granted.values()) + length > self.limit:
            raise PermissionError("quota exceeded")
        assert length == round_to_pages(length)
        arena_id = len(self.granted) + len(self.freed) + 1
        descriptor = create_segment("test", length)
        self.granted[arena_id] = length
        return arena_id, descriptor

    def arena_mapped(self, arena_id: int, base: int) -> None:
        if self.refuse_place:
            raise PermissionError("not there")
        self.placed[arena_id] = base

    def free_arena(self, arena_id: int) -> None:
        del self.granted[arena_id]
        self.placed.pop(arena_id, None)
        self.freed.append(arena_id)

    def holds(self, address: int, length: int) -> bool:
        """Whether the range lies in one placed arena."""
        return any(
            base <= address and address + length <= base + self.granted[arena_id]
            for arena_id, base in self.placed.items()
        )


@pytest.fixture
def fake_kernel() -> Iterator[FakeKernel]:
    before = len(os.listdir("/proc/self/fd"))
    yield FakeKernel()
    assert len(os.listdir("/proc/self/fd")) <= before + 8


def arenas_mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("/memfd:test" in line for line in maps)


@pytest.fixture
def count_mappings() -> object:
    """How many segments are mapped in this process."""
    return arenas_mapped
