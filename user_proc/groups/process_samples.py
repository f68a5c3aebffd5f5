"""What the processes of a launch use while they run: read now and then, at a bounded cost.

Samples are taken no oftener than asked for, and so seldom that reading takes a fiftieth of the
time at most. When there are too many, every second moment is dropped and the interval doubled, so
that the document stays small however long the launch runs.

Rules: the supervisor's one thread. Numbers of processes are psutil's affair here, never signals'.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import psutil

from shared.clock import now_ns

MOST_SAMPLES: Final = 4000
_SHARE: Final = 50

_GONE: Final = (psutil.NoSuchProcess, psutil.AccessDenied, OSError)


class Watched(NamedTuple):
    """A process to look at."""

    group: str
    rank: int
    pid: int
    state: str
    ops_per_s: float | None


@dataclass(slots=True)
class _Seen:
    process: Any
    cpu_s: float
    at_ns: int


class ProcessSamples:
    """The samples of a launch, and the last one of each process."""

    def __init__(self, interval_s: float, begin_ns: int) -> None:
        self.taken: list[dict[str, Any]] = []
        self.latest: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.interval_ns = round(interval_s * 1e9)
        self.due_ns = begin_ns
        self._begin_ns = begin_ns
        self._seen: dict[int, _Seen] = {}
        self._children: dict[int, list[int]] = {}

    def take(self, watched: list[Watched]) -> None:
        """Look at each process that still runs."""
        begin_ns = now_ns()
        found = {}
        for one in self._with_hca(watched):
            sample = self._sample(one, begin_ns)
            if sample is not None:
                found[one.group, one.rank] = sample
        self._seen = {one: seen for one, seen in self._seen.items() if seen.at_ns == begin_ns}
        self.latest = dict(found)
        self.taken += found.values()
        self._thin_out()
        cost_ns = now_ns() - begin_ns
        self.due_ns = begin_ns + max(self.interval_ns, _SHARE * cost_ns)

    def _with_hca(self, watched: list[Watched]) -> Iterator[Watched]:
        """Give the processes, and behind the kernel the one it runs its HCA in."""
        for one in watched:
            yield one
            if one.group == "kernel":
                for number, pid in enumerate(self._children_of(one.pid)):
                    yield Watched("hca", number, pid, one.state, None)

    def _children_of(self, pid: int) -> list[int]:
        known = self._children.get(pid, [])
        if not known or not all(psutil.pid_exists(child) for child in known):
            try:
                known = [child.pid for child in psutil.Process(pid).children()]
            except _GONE:
                known = []
            self._children[pid] = known
        return known

    def _sample(self, one: Watched, at_ns: int) -> dict[str, Any] | None:
        """Read a process; None if it has ended."""
        seen = self._seen.get(one.pid)
        try:
            process = psutil.Process(one.pid) if seen is None else seen.process
            with process.oneshot():
                times = process.cpu_times()
                memory = process.memory_info().rss
                switches = process.num_ctx_switches()
                threads = process.num_threads()
        except _GONE:
            return None
        cpu_s = times.user + times.system
        since_ns = 0 if seen is None else at_ns - seen.at_ns
        used = 0.0 if seen is None else cpu_s - seen.cpu_s
        self._seen[one.pid] = _Seen(process, cpu_s, at_ns)
        return {
            "at_s": round((at_ns - self._begin_ns) / 1e9, 3),
            "group": one.group,
            "rank": one.rank,
            "pid": one.pid,
            "state": one.state,
            "cpu_percent": round(100e9 * used / since_ns, 1) if since_ns else None,
            "cpu_s": round(cpu_s, 3),
            "rss_bytes": memory,
            "voluntary_switches": switches.voluntary,
            "involuntary_switches": switches.involuntary,
            "threads": threads,
            "ops_per_s": one.ops_per_s,
        }

    def _thin_out(self) -> None:
        """Drop every second moment while there are too many samples."""
        while len(self.taken) > MOST_SAMPLES:
            moments = sorted({sample["at_s"] for sample in self.taken})
            kept = set(moments[::2])
            if len(kept) == len(moments):
                return  # one moment alone
            self.taken = [sample for sample in self.taken if sample["at_s"] in kept]
            self.interval_ns *= 2
