"""What a benchmark run was asked to do.

Rules: counts are per row unless they say otherwise; times are integer nanoseconds.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from user_proc.bench.full_plan import (
    BASE,
    extra_floors,
    kernel_row,
    open_loop_rows,
    plan_rows,
    stage_rows,
)
from user_proc.bench.row_plan import FloorSpec, RowSpec
from user_proc.bench.timed_loops import SENDER_SPIN_NS

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The size of a run: rounds of fresh processes, blocks in each, operations in each block.

    Each round warms a row up once, and each block again a little, because what stands between
    two blocks cools the caches down.

    `kernel_spin_us` is how long a kernel without work looks for a request before it sleeps.
    `time_limit_ns` bounds all blocks together: a slow machine gets fewer operations in a
    block, and each row says how many it had. `kernel_starts` and `idle_ns` are for what a kernel
    costs without requests.
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
    rate_per_s: float | None = None
    stage_rows: tuple[RowSpec, ...] = ()
    kernel_spin_us: int = 60
    kernel_starts: int = 3
    idle_ns: int = 1 * _SECOND

    @property
    def blocks(self) -> int:
        """Return how many blocks each row gets in the whole run."""
        return self.rounds * self.blocks_per_round

    @property
    def warmup_per_round(self) -> int:
        """Return how many operations of a row are performed in a round before or without timing."""
        return self.warmup_operations + self.blocks_per_round * self.block_warmup_operations

    @property
    def interval_ns(self) -> int:
        """Return the distance of the intended starts of an open loop, 0 in a closed one."""
        return round(_SECOND / self.rate_per_s) if self.rate_per_s else 0

    def scheduled(self, rate_per_s: float) -> "BenchSettings":
        """Return a run that starts so many requests a second, whether the last has ended or not."""
        return replace(self, rate_per_s=rate_per_s, rows=open_loop_rows())

    def with_stages(self) -> "BenchSettings":
        """Return the same run with stage times of sampled requests."""
        return replace(self, stage_rows=stage_rows())

    def pinned(self, kernel_cpu: int, user_cpu: int) -> "BenchSettings":
        """Return the same run with kernel and user on one processor core each."""
        return replace(self, kernel_cpu=kernel_cpu, user_cpu=user_cpu)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values; rows and floors stand in their own parts."""
        values = asdict(self)
        del values["rows"], values["floors"], values["stage_rows"]
        return {
            "tool": "softhca bench",
            **values,
            "blocks": self.blocks,
            "loop": "open" if self.rate_per_s else "closed",
            "transport": "ipc",
            "wait_mode": "blocking",
            "spin_ns": SENDER_SPIN_NS if self.rate_per_s else 0,
            "payload_touched": True,
            "stages": bool(self.stage_rows),
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
        kernel_starts=10,
        idle_ns=30 * _SECOND,
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
        time_limit_ns=16 * _SECOND,
        rows=plan_rows(),
        floors=extra_floors(),
    )


def tiny_run() -> BenchSettings:
    """Return a run of seven rows and a handful of operations: it shows that all parts work."""
    neither = replace(BASE, method="neither", completion="inline")
    return BenchSettings(
        mode="tiny",
        rounds=1,
        blocks_per_round=4,
        operations_per_block=12,
        warmup_operations=3,
        block_warmup_operations=1,
        time_limit_ns=5 * _SECOND,
        kernel_starts=1,
        idle_ns=_SECOND // 20,
        rows=(
            replace(BASE, completion="inline"),
            replace(BASE, processes=2),
            neither,
            replace(neither, path="fast_io"),
            replace(neither, memory="private", payload=4096),
            kernel_row("irp"),
            kernel_row("direct"),
        ),
        floors=tuple(floor for floor in extra_floors() if floor.payload in (0, 64)),
    )
