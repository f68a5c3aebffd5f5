"""What a run of the verbs' benchmark was asked to do.

Rules: times are integer nanoseconds. A time limit is shared by the blocks of its part of the run; a
slow machine gets fewer operations in a block, and each row says how many it had.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

MODELS: Final = ("none", "plausible", "prm-ceiling")
#: A model whose commands take up to 100 ms: a pass over all verbs takes more than a second.
SLOW_MODEL: Final = "prm-ceiling"
RUNNING: Final = "running"  # the layout of a kernel that is not ours
MOST_PROCESSES: Final = 200

_SECOND: Final = 1_000_000_000
_MIB: Final = 1 << 20
_SIZES: Final = tuple(4096 << shift for shift in range(0, 19, 2))  # 4 KiB to 1 GiB
_QUICK_SIZES: Final = (4096, 65_536, _MIB, 16 * _MIB, 64 * _MIB)


@dataclass(frozen=True, slots=True)
class VerbsSettings:
    """The size of a run.

    Each round has fresh kernels and user processes, and `blocks_per_round` blocks of every row,
    each beside a block of its floor. `fragmentation` is the longest run of page frames in the
    kernel whose registrations are scattered. A kernel client's memory is made by the driver page by
    page, which limits its regions. With `name` a running kernel is measured.
    """

    mode: str
    rounds: int
    blocks_per_round: int
    passes_per_block: int
    slow_passes: int
    warmup_passes: int
    floor_operations: int
    models: tuple[str, ...]
    processes: tuple[int, ...]
    sizes: tuple[int, ...]
    verbs_ns: int
    registration_ns: int
    mix_ns: int
    opens: int
    largest_kernel_region: int
    fragmentation: int = 1
    name: str | None = None

    @property
    def blocks(self) -> int:
        """Return how many blocks each row gets in the whole run."""
        return self.rounds * self.blocks_per_round

    @property
    def base_model(self) -> str | None:
        """Return the model under which registrations and the mix are measured, if any is fit."""
        return next((model for model in self.models if model != SLOW_MODEL), None)

    @property
    def layouts(self) -> tuple[str, ...]:
        """Return how memory lies that is registered."""
        return ("contiguous", "scattered") if self.name is None else (RUNNING,)

    def at_kernel(self, name: str, model: str) -> "VerbsSettings":
        """Return the same run at a kernel that runs already, whose latency model is this."""
        return replace(self, name=name, models=(model,))

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {
            "tool": "softhca bench verbs",
            **asdict(self),
            "models": list(self.models),
            "processes": list(self.processes),
            "sizes": list(self.sizes),
            "blocks": self.blocks,
            "loop": "closed",
            "transport": "ipc",
            "wait_mode": "blocking",
        }


def full_run() -> VerbsSettings:
    """Return the run with every size and many counts of processes."""
    return VerbsSettings(
        mode="full",
        rounds=5,
        blocks_per_round=3,
        passes_per_block=70,
        slow_passes=2,
        warmup_passes=5,
        floor_operations=300,
        models=MODELS,
        processes=(1, 2, 4, 8, 16, 32, 64),
        sizes=_SIZES,
        verbs_ns=60 * _SECOND,
        registration_ns=60 * _SECOND,
        mix_ns=60 * _SECOND,
        opens=20,
        largest_kernel_region=64 * _MIB,
    )


def quick_run() -> VerbsSettings:
    """Return the run that ends within 45 seconds and still has 15 blocks for every row."""
    return VerbsSettings(
        mode="quick",
        rounds=1,
        blocks_per_round=15,
        passes_per_block=8,
        slow_passes=1,
        warmup_passes=2,
        floor_operations=60,
        models=MODELS,
        processes=(1, 8, 64),
        sizes=_QUICK_SIZES,
        verbs_ns=6 * _SECOND,
        registration_ns=4 * _SECOND,
        mix_ns=7 * _SECOND,
        opens=10,
        largest_kernel_region=_MIB,
    )


def tiny_run() -> VerbsSettings:
    """Return a run of few operations: it shows that all parts work."""
    return VerbsSettings(
        mode="tiny",
        rounds=1,
        blocks_per_round=2,
        passes_per_block=2,
        slow_passes=1,
        warmup_passes=1,
        floor_operations=5,
        models=("none",),
        processes=(1, 2),
        sizes=(4096, 65_536),
        verbs_ns=_SECOND,
        registration_ns=_SECOND,
        mix_ns=_SECOND,
        opens=2,
        largest_kernel_region=_MIB,
    )
