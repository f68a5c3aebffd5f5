"""The state of the device, told in pieces between rounds: whole, bounded, each message once."""

import contextlib
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from kernel_proc.hca.inspection import Inspection
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.inspection_text import LENGTH, part_of, tree_of
from tests.kernel_proc.hca.engine.engine_bench import Region, User, pair, wr
from tests.kernel_proc.hca.hca_bench import Bench

ROOM = 1 << 20


def open_files() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself
            found.append(os.stat(f"/proc/self/fd/{name}").st_ino)
    return found


class Paper:
    """What the kernel hands over."""

    def __init__(self) -> None:
        self.file = os.memfd_create("paper")
        self.answer = os.eventfd(0, os.EFD_NONBLOCK)

    def hand_over(self, bench: Bench, room: int = ROOM) -> Inspection:
        return Inspection(bench.device.parts(), os.dup(self.file), os.dup(self.answer), room)

    def raw(self) -> bytes:
        data = os.pread(self.file, 2 * ROOM, 0)
        length = LENGTH.unpack_from(data)[0] if data else 0
        return data[LENGTH.size : length]

    def tree(self) -> dict[str, Any]:
        return tree_of(part_of(line) for line in self.raw().splitlines())

    def answered(self) -> bool:
        try:
            return os.eventfd_read(self.answer) > 0
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self.file)
        os.close(self.answer)


@pytest.fixture
def paper() -> Iterator[Paper]:
    paper = Paper()
    yield paper
    assert os.fstat(paper.file).st_size < 2 * ROOM
    inode = os.fstat(paper.file).st_ino
    paper.close()
    assert inode not in open_files()


def write(one: User, region: Region, length: int) -> None:
    other = (region.start + 4096, region.key)
    one.send(wr("RDMA_WRITE"), [region.at(0, length)], remote=other)
    assert [completion.status for completion in one.sends()] == [0]


def test_it_is_whole_and_told_at_its_end(bench: Bench, ends: tuple[User, User], paper: Paper):
    write(ends[0], Region(bench, 8192), 100)
    asked = paper.hand_over(bench)
    assert asked.step(lambda: 0, 1)
    assert paper.answered()
    assert paper.tree() == bench.device.inspect()
    figures = paper.tree()["qps"]["2000"]["counters"]
    assert (figures["sent_messages"], figures["sent_bytes"]) == (1, 100)


def test_nothing_is_told_before_the_last_piece(bench: Bench, ends: tuple[User, User], paper: Paper):
    clock = count()
    asked = paper.hand_over(bench)
    pieces = 0
    while not asked.step(lambda: next(clock), 1):
        pieces += 1
        assert paper.raw() == b""
        assert not paper.answered()
    assert pieces > 20
    assert paper.tree() == bench.device.inspect()


def test_each_message_is_counted_once_whatever_goes_meanwhile(bench: Bench, paper: Paper):
    one, other = pair(bench)
    region = Region(bench, 8192)
    for _ in range(3):
        write(one, region, 10)
    clock = count()
    asked = paper.hand_over(bench)
    for _ in range(18):  # well into the tables, before the queue pairs
        assert not asked.step(lambda: next(clock), 1)
    while not paper.raw() and not asked.step(lambda: next(clock), 1):
        if one.state:
            write(one, region, 10)
            assert one.run(op.ERR2RST_QPEE) == op.CMD_STAT_OK
    told = paper.tree()
    assert "2000" not in told["qps"]
    port = told["ports"]["1"]["counters"]
    assert port["sent_messages"] == port["received_messages"] == 4
    assert port == bench.device.inspect()["ports"]["1"]["counters"]
    assert other.state


@pytest.mark.parametrize("room", [100, 500, 2000])
def test_it_keeps_within_its_room_and_counts_what_it_left_out(
    bench: Bench, ends: tuple[User, User], paper: Paper, room: int
):
    assert paper.hand_over(bench, room).step(lambda: 0, 1)
    assert len(os.pread(paper.file, ROOM, 0)) <= room
    whole = sum(1 for _ in bench.device.parts())
    assert paper.tree()["left_out"] + len(paper.raw().splitlines()) - 1 == whole


def test_a_file_that_cannot_be_written_ends_it(bench: Bench, paper: Paper):
    reader = os.open(f"/proc/self/fd/{paper.file}", os.O_RDONLY)
    asked = Inspection(bench.device.parts(), reader, os.dup(paper.answer), ROOM)
    assert asked.step(lambda: 0, 1)
    assert paper.answered()
    assert paper.raw() == b""
