"""What a benchmark run was asked to do.

Rules: counts are per row unless they say otherwise; times are integer nanoseconds.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from user_proc.bench.row_plan import FloorSpec, RowSpec, extra_floors, plan_rows

MINIMUM_BLOCKS: Final = 15
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The size of a run: rounds of fresh processes, blocks in each, operations in each block.

    `time_limit_ns` bounds all blocks together: a slow machine gets fewer operations in a
    block, and each row says how many it had.
    """

    mode: str
    rounds: int
    blocks_per_round: int
    operations_per_block: int
    warmup_operations: int
    time_limit_ns: int
    rows: tuple[RowSpec, ...]
    floors: tuple[FloorSpec, ...]
    kernel_cpu: int | None = None
    user_cpu: int | None = None

    @property
    def blocks(self) -> int:
        """Return how many blocks each row gets in the whole run."""
        return self.rounds * self.blocks_per_round

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
        }


def full_run() -> BenchSettings:
    """Return the run that has enough samples for the 99.9th percentile of every row."""
    return BenchSettings(
        mode="full",
        rounds=5,
        blocks_per_round=3,
        operations_per_block=670,
        warmup_operations=200,
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
        operations_per_block=70,
        warmup_operations=30,
        time_limit_ns=15 * _SECOND,
        rows=plan_rows(),
        floors=extra_floors(),
    )
