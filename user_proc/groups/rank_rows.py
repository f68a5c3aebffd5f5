"""The ranks of a launch as rows of a table, and as processes to be sampled.

Rules: pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from user_proc.groups.process_samples import Watched
from user_proc.groups.rank_run import RankRun

OPS: str = "ops_per_s"


@dataclass(frozen=True, slots=True)
class KernelProcess:
    """The kernel the ranks work on, if its death is to end the launch."""

    pid: int
    pidfd: int
    log: str = ""


def watched(ranks: Sequence[RankRun], kernel: KernelProcess | None) -> list[Watched]:
    """Return the processes that run, the kernel last."""
    found = [
        Watched(*run.who, run.pid, str(run.state), run.figures.get(OPS)) for run in ranks if run.pid
    ]
    if kernel is not None:
        found.append(Watched("kernel", 0, kernel.pid, "running", None))
    return found


def rank_rows(
    ranks: Sequence[RankRun], latest: Mapping[tuple[str, int], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row for each rank, with its last sample."""
    rows = []
    for run in ranks:
        sample = latest.get((run.who.group, run.who.rank), {})
        rows.append(
            {
                "rank": str(run.who),
                "state": str(run.state),
                "pid": run.pid or None,
                "cpu_percent": sample.get("cpu_percent"),
                "rss_bytes": sample.get("rss_bytes"),
                "switches": _switches(sample),
                OPS: run.figures.get(OPS),
                "starts": run.starts,
                "reason": run.reason,
            }
        )
    return rows


def _switches(sample: Mapping[str, Any]) -> int | None:
    if not sample:
        return None
    return int(sample["voluntary_switches"] + sample["involuntary_switches"])
