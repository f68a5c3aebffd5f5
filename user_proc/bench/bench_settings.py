"""What a benchmark run was asked to do.

Rules: counts are per row unless they say otherwise; times are integer nanoseconds.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from user_proc.bench.row_plan import FloorSpec, RowSpec, extra_floors, plan_rows

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The size of a run: rounds of fresh processes, blocks in each, operations in each block.

    Each round warms a row up once, and each block again a little, because what stands between
    two blocks cools the caches down.

    `time_limit_ns` bounds all blocks together: a slow machine gets fewer operations in a
    block, and each row says how many it had.
    """

    mode: str
    rounds: int
    blocks_per_round: int
    operations_per_block: int
    warmup_operations: int
    block_warmup_operations: int
    time_limit_ns: int
    rows: tuple[RowSpec, ...]
    floors: tuple[FloorSpec, ...]
    kernel_cpu: int | None = None
    user_cpu: int | None = None

    @property
    def blocks(self) -> int:
        """Return how many blocks each row gets in the whole run."""
        return self.rounds * self.blocks_per_round

    @property
    def warmup_per_round(self) -> int:
        """Return how many operations of a row are performed in a round before or without timing."""
        return self.warmup_operations + self.blocks_per_round * self.block_warmup_operations

    def pinned(self, kernel_cpu: int, user_cpu: int) -> "BenchSettings":
        """Return the same run with kernel and user on one processor core each."""
        return replace(self, kernel_cpu=kernel_cpu, user_cpu=user_cpu)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values; rows and floors stand in their own parts."""
        values = asdict(self)
        del values["rows"], values["floors"]
        return {
            "tool": "softhca bench",
            **values,
            "blocks": self.blocks,
            "loop": "closed",
            "transport": "ipc",
            "wait_mode": "blocking",
            "spin_ns": 0,
            "payload_touched": True,
            "kernel_mode": "free",
        }


def full_run() -> BenchSettings:
    """Return the run that has enough samples for the 99.9th percentile of every row."""
    return BenchSettings(
        mode="full",
        rounds=5,
        blocks_per_round=3,
        operations_per_block=670,
        warmup_operations=200,
        block_warmup_operations=10,
        time_limit_ns=240 * _SECOND,
        rows=plan_rows(),
        floors=extra_floors(),
    )


def quick_run() -> BenchSettings:
    """Return the run that ends within 25 seconds and still has 15 blocks for every row."""
    return BenchSettings(
        mode="quick",
        rounds=3,
        blocks_per_round=5,
        operations_per_block=72,
        warmup_operations=30,
        block_warmup_operations=5,
        time_limit_ns=19 * _SECOND,
        rows=plan_rows(),
        floors=extra_floors(),
    )


def tiny_run() -> BenchSettings:
    """Return a run of four rows and a handful of operations: it shows that all parts work."""
    rows = plan_rows()
    wanted = {
        ("irp", "buffered", "arena", "inline", 64),
        ("irp", "neither", "private", "inline", 4096),
        ("irp", "neither", "none", "dpc", 64),
        ("direct", "none", "none", "dpc", 64),
    }
    return BenchSettings(
        mode="tiny",
        rounds=2,
        blocks_per_round=2,
        operations_per_block=12,
        warmup_operations=3,
        block_warmup_operations=1,
        time_limit_ns=5 * _SECOND,
        rows=tuple(
            row
            for row in rows
            if (row.path, row.method, row.memory, row.completion, row.payload) in wanted
        ),
        floors=tuple(floor for floor in extra_floors() if floor.payload in (0, 64)),
    )
