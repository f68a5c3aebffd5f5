"""What a run of the data path's benchmark was asked to do: its rows, blocks and times.

Rules: times are integer nanoseconds. The time of a run is shared by its blocks; a slow machine gets
fewer messages in a block, and each row says how many it had.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from user_proc.bench.speed.speed_rows import (
    ATOMIC_BYTES,
    DISPATCH,
    EVENT,
    KERNEL,
    LOADED,
    MESSAGE_RATE,
    PASSIVE,
    SpeedSpec,
    allowed,
)

LOAD_CLIENTS: Final = 8
DEPTH: Final = 64
_SECOND: Final = 1_000_000_000
_MS: Final = 1_000_000
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SpeedSettings:
    """The size of a run.

    Each round has a fresh kernel and fresh user processes, and `blocks_per_round` blocks of every
    row, each beside a block of its floor. `time_ns` is for all of them together. A block of a row
    is about `block_ns`, of one with sleeping ends twice that.
    """

    mode: str
    rounds: int
    blocks_per_round: int
    block_ns: int
    floor_operations: int
    most_operations: int
    warmup: int
    time_ns: int
    rows: tuple[SpeedSpec, ...]
    load_clients: int = LOAD_CLIENTS

    @property
    def blocks(self) -> int:
        """Return how many blocks each row gets in the whole run."""
        return self.rounds * self.blocks_per_round

    @property
    def processes(self) -> int:
        """Return the processes the largest row needs: its own and the relay."""
        return max(2, *(row.processes for row in self.rows)) + 1

    @property
    def largest(self) -> int:
        """Return the bytes of the largest message."""
        return max(row.bytes for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values; the rows are in the document anyway."""
        values = asdict(replace(self, rows=self.rows[:1]))
        del values["rows"]
        return {
            "tool": "softhca bench speed",
            **values,
            "blocks": self.blocks,
            "loop": "closed",
            "memory": "arena",
            "inline": False,
        }


def full_run() -> SpeedSettings:
    """Return the run with all sizes, counts of queue pairs and processes."""
    return SpeedSettings(
        mode="full",
        rounds=5,
        blocks_per_round=3,
        block_ns=40 * _MS,
        floor_operations=2_000,
        most_operations=20_000,
        warmup=50,
        time_ns=300 * _SECOND,
        rows=allowed(_full_rows()),
    )


def quick_run() -> SpeedSettings:
    """Return the run that ends within 45 seconds and still has 15 blocks for every row."""
    return SpeedSettings(
        mode="quick",
        rounds=1,
        blocks_per_round=15,
        block_ns=30 * _MS,
        floor_operations=1_000,
        most_operations=5_000,
        warmup=5,
        time_ns=31 * _SECOND,
        rows=allowed(_quick_rows()),
    )


def tiny_run() -> SpeedSettings:
    """Return a run of few messages: it shows that all parts work."""
    return SpeedSettings(
        mode="tiny",
        rounds=1,
        blocks_per_round=2,
        block_ns=_MS,
        floor_operations=20,
        most_operations=64,
        warmup=2,
        time_ns=3 * _SECOND,
        rows=allowed(_tiny_rows()),
        load_clients=2,
    )


def _tiny_rows() -> Iterator[SpeedSpec]:
    yield SpeedSpec("post_to_poll", processes=1)
    for op in ("send_lat", "write_lat", "read_lat"):
        yield SpeedSpec(op)
    yield SpeedSpec("atomic_lat", bytes=ATOMIC_BYTES)
    yield SpeedSpec("send_lat", "UD")
    yield SpeedSpec("send_lat", mode=EVENT)
    for op in ("send_bw", "write_bw", "read_bw"):
        yield SpeedSpec(op, bytes=64 * _KIB, depth=4)
    yield SpeedSpec("write_bw", bytes=64 * _KIB, qps=2, depth=4, processes=4)
    yield SpeedSpec(MESSAGE_RATE, depth=DEPTH)
    yield SpeedSpec(MESSAGE_RATE, "UD", depth=DEPTH)
    yield from _of_kernel()
    yield SpeedSpec("send_lat", load=LOADED)


def _of_kernel() -> Iterator[SpeedSpec]:
    """Give the rows of a kernel client, by the level at which it posts and polls."""
    for irql in (PASSIVE, DISPATCH):
        yield SpeedSpec("post_to_poll", processes=0, client=KERNEL, irql=irql)
        yield SpeedSpec(MESSAGE_RATE, depth=DEPTH, processes=0, client=KERNEL, irql=irql)


def _quick_rows() -> Iterator[SpeedSpec]:
    yield SpeedSpec("post_to_poll", processes=1)
    yield SpeedSpec("post_to_poll", bytes=64 * _KIB, processes=1)
    for size in (2, 64, 4 * _KIB, 64 * _KIB):
        yield SpeedSpec("send_lat", bytes=size)
    for size in (64, 4 * _KIB):
        yield SpeedSpec("send_lat", "UD", bytes=size)
    for op in ("write_lat", "read_lat"):
        for size in (64, 64 * _KIB):
            yield SpeedSpec(op, bytes=size)
    yield SpeedSpec("atomic_lat", bytes=ATOMIC_BYTES)
    yield SpeedSpec("send_lat", mode=EVENT)
    yield SpeedSpec("send_lat", bytes=4 * _KIB, mode=EVENT)
    yield SpeedSpec("read_lat", mode=EVENT)
    for op in ("send_bw", "write_bw", "read_bw"):
        for size, depth in ((4 * _KIB, DEPTH), (64 * _KIB, 16), (_MIB, 8), (8 * _MIB, 4)):
            yield SpeedSpec(op, bytes=size, depth=depth)
    yield SpeedSpec("send_bw", "UD", bytes=4 * _KIB, depth=DEPTH)
    yield SpeedSpec("write_bw", bytes=64 * _KIB, qps=16, depth=16)
    yield SpeedSpec("write_bw", bytes=_MIB, depth=8, processes=4)
    yield SpeedSpec(MESSAGE_RATE, bytes=2, depth=DEPTH)
    yield SpeedSpec(MESSAGE_RATE, depth=DEPTH)
    yield SpeedSpec(MESSAGE_RATE, "UD", depth=DEPTH)
    yield SpeedSpec(MESSAGE_RATE, qps=16, depth=DEPTH)
    yield SpeedSpec(MESSAGE_RATE, depth=DEPTH, processes=4)
    yield from _of_kernel()
    yield from _loaded()


def _loaded() -> Iterator[SpeedSpec]:
    yield SpeedSpec("post_to_poll", processes=1, load=LOADED)
    yield SpeedSpec("send_lat", load=LOADED)
    yield SpeedSpec("send_lat", mode=EVENT, load=LOADED)
    yield SpeedSpec("write_bw", bytes=_MIB, depth=8, load=LOADED)
    yield SpeedSpec(MESSAGE_RATE, depth=DEPTH, load=LOADED)


_SIZES: Final = (2, 64, 512, 4 * _KIB, 32 * _KIB, 256 * _KIB, _MIB, 8 * _MIB)


def _depth_of(size: int) -> int:
    return DEPTH if size <= 4 * _KIB else 16 if size < _MIB else 8 if size < 8 * _MIB else 4


def _full_rows() -> Iterator[SpeedSpec]:
    yield from _quick_rows()
    for size in _SIZES:
        yield SpeedSpec("post_to_poll", bytes=size, processes=1)
        for op in ("send_lat", "write_lat", "read_lat"):
            yield SpeedSpec(op, bytes=size)
        yield SpeedSpec("send_lat", "UD", bytes=size)
        for op in ("send_bw", "write_bw", "read_bw"):
            yield SpeedSpec(op, bytes=size, depth=_depth_of(size))
        yield SpeedSpec("send_bw", "UD", bytes=size, depth=_depth_of(size))
        for op in ("send_lat", "read_lat"):
            yield SpeedSpec(op, bytes=size, mode=EVENT)
    for op in ("send_lat", "read_lat", "post_to_poll"):
        yield SpeedSpec(op, processes=1 if op == "post_to_poll" else 2, load=LOADED)
    yield SpeedSpec("send_lat", "UD", mode=EVENT)
    yield SpeedSpec("atomic_lat", bytes=ATOMIC_BYTES, mode=EVENT)
    for count in (4, 16, 64):
        yield SpeedSpec("write_bw", bytes=64 * _KIB, qps=count, depth=16)
        yield SpeedSpec(MESSAGE_RATE, qps=count, depth=DEPTH)
    for processes in (4, 8):
        yield SpeedSpec("write_bw", bytes=_MIB, depth=8, processes=processes)
        yield SpeedSpec(MESSAGE_RATE, depth=DEPTH, processes=processes)
        yield SpeedSpec("send_lat", processes=processes)
