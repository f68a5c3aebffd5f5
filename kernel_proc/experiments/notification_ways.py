"""Experiment `notification`: six ways to learn of completions and asynchronous events.

Every way serves four CQs with the same events from the same DPC. After latency and rate are
measured, each is cancelled, left alone with more events than it asks for, has objects destroyed,
and ends as the death of its process ends it.

Rules: what a way does when it is disturbed is found out on a virtual clock: what has not happened
after a second of it, with nothing else to do, never happens.
Spec: docs/notification.md; "[RFC v2] Kernel Async Verbs".
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kernel_proc.experiments.experiment import DONE, Progress, Row, run_cell
from kernel_proc.experiments.kernel_irp_client import KernelIrps
from kernel_proc.experiments.notification_clients import (
    KINDS,
    OBJECTS,
    CallbackClient,
    Client,
)
from kernel_proc.experiments.notification_trial import ENDS, OVERFLOW, RETURNS, Trial
from kernel_proc.experiments.sample_figures import listed, spread
from kernel_proc.experiments.user_clients import BlockingClient, MiddlemanClient, PendedIrps
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings

MakeClient = Callable[[Machine, str], Client]

WAYS: Final[dict[str, MakeClient]] = {
    "pended IRPs": PendedIrps,
    "middleman": MiddlemanClient,
    "blocking call": BlockingClient,
    "blocking in kernel mode": partial(BlockingClient, cancellable=False),
    "callback": CallbackClient,
    "kernel client's IRPs": KernelIrps,
}
_WARM_UP: Final = 10


class NotificationWays:
    """The experiment; `ways` make what waits for events on a machine."""

    name = "notification"
    question = "How should a program learn of events: which way costs what, and how does it end?"

    def __init__(self, ways: Mapping[str, MakeClient] = WAYS, kinds: Sequence[str] = KINDS) -> None:
        self._ways = ways
        self._kinds = kinds

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Measure and disturb each way with each kind of event."""
        count = 200 if quick else 2_000
        cells = [(kind, way) for kind in self._kinds for way in self._ways]
        rows = []
        for done, (kind, way) in enumerate(cells):
            progress(done, len(cells), f"{kind} events by {way}")
            rows.append(self._cell(kind, way, count))
        return rows

    def _cell(self, kind: str, way: str, count: int) -> Row:
        def body(machine: Machine) -> Mapping[str, Any]:
            trial = Trial(machine, self._ways[way](machine, kind))
            trial.ask()
            trial.latency(_WARM_UP)
            return {
                **spread("latency", trial.latency(count)),
                **trial.rate(count // OBJECTS),
                "threads": len(trial.client.threads),
                "handled_at": trial.where(),
                "cancel": trial.cancel(),
                "overflow": trial.overflow(),
                "destroy": trial.destroy(),
                "destroy_in_handler": trial.destroy_in_handler(),
                "death": trial.death(),
            }

        return run_cell({"events": kind, "way": way}, body, KernelSettings(seed=1))

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say what each way costs, and which of them lose events, hang, or do not end."""
        done = [row for row in rows if row["outcome"] == DONE]
        costs = [
            f"{way} {_middle(done, way, 'latency_us'):.1f} us, "
            f"{_middle(done, way, 'events_per_s'):,.0f}/s, {_threads(done, way)} waiting"
            for way in dict.fromkeys(row["way"] for row in done)
        ]
        faults = [
            (
                "lose events when nobody asks",
                _ways(done, lambda row: not row["overflow"].startswith(f"{OVERFLOW} of")),
            ),
            (
                "cannot destroy an object while its event is handled",
                _ways(done, lambda row: row["destroy_in_handler"] != RETURNS),
            ),
            ("deliver stale events", _ways(done, lambda row: "stale" in row["destroy"])),
            ("outlive their process", _ways(done, lambda row: row["death"] != ENDS)),
        ]
        said = [f"{what}: {listed(ways)}" for what, ways in faults]
        stopped = [f"in {row['outcome']}: {row['way']}" for row in rows if row["outcome"] != DONE]
        return (
            f"For {OBJECTS} objects, from the DPC to the program, and threads that wait: "
            f"{'; '.join(costs)}. Those that {'; '.join([*said, *stopped])}."
        )


def _middle(rows: Sequence[Row], way: str, key: str) -> float:
    values = [row[key] for row in rows if row["way"] == way]
    return float(sum(values) / len(values))


def _threads(rows: Sequence[Row], way: str) -> int:
    return max(int(row["threads"]) for row in rows if row["way"] == way)


def _ways(rows: Sequence[Row], wanted: Callable[[Row], bool]) -> list[str]:
    """Return the ways of which any row is so."""
    return list(dict.fromkeys(row["way"] for row in rows if wanted(row)))


NOTIFICATION: Final = NotificationWays()
