"""Experiment `notification`: four ways to learn of completions and asynchronous events.

Every way serves four CQs with the same events from the same DPC. After latency and rate are
measured, each is cancelled, left alone with more events than it asks for, has objects destroyed,
and ends as the death of its process ends it.

Rules: what a way does when it is disturbed is found out on a virtual clock: what has not happened
after a second of it, with nothing else to do, never happens.
Spec: docs/notification.md; "[RFC v2] Kernel Async Verbs".
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kernel_proc.experiments.experiment import DONE, Progress, Row, run_cell
from kernel_proc.experiments.notification_clients import (
    KINDS,
    OBJECTS,
    CallbackClient,
    Client,
    Source,
)
from kernel_proc.experiments.sample_figures import in_us, listed, spread
from kernel_proc.experiments.user_clients import BlockingClient, MiddlemanClient, PendedIrps
from kernel_proc.machine import Machine
from kernel_proc.scheduling.irql import irql_name
from kernel_proc.scheduling.processor import Deadlock
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.timer import Timer
from kernel_proc.settings import KernelSettings

MakeClient = Callable[[Machine, str], Client]

WAYS: Final[dict[str, MakeClient]] = {
    "pended IRPs": PendedIrps,
    "middleman": MiddlemanClient,
    "blocking call": BlockingClient,
    "blocking in kernel mode": partial(BlockingClient, cancellable=False),
    "callback": CallbackClient,
}
_WARM_UP: Final = 10
_OVERFLOW: Final = 200
_SECOND_NS: Final = 1_000_000_000
RETURNS: Final = "returns"
NEVER: Final = "never returns"
ENDS: Final = "ends"


class _Trial:
    """One client, its events, and the machine between them."""

    def __init__(self, machine: Machine, client: Client) -> None:
        self.machine = machine
        self.processor = machine.processor
        self.client = client
        self.source = Source(machine, client.kind)

    def until(self, predicate: Callable[[], bool]) -> bool:
        """Run until it holds; False when it does not within a second of the virtual clock."""
        limit = Timer(self.processor)
        limit.set(_SECOND_NS)
        self.processor.run_until(lambda: predicate() or bool(limit.signal_state))
        limit.cancel()
        return predicate()

    def settle(self) -> None:
        """Run until nothing is ready, the device included."""
        dispatcher = self.processor.dispatcher
        with contextlib.suppress(Deadlock):
            self.processor.run_until(
                lambda: (
                    not dispatcher.ready_queue.summary
                    and not dispatcher.hardware
                    and not self.processor.dpc_queue
                )
            )

    def fire(self, *numbers: int) -> None:
        """Tell of an event of each of these objects."""
        self.source.fire([self.client.cqns[number] for number in numbers])

    def ask(self) -> None:
        """Have the client wait for events, unless it still does."""
        if not self.client.asking:
            self.client.ask()
        self.settle()

    def stop(self) -> str:
        """Have it wait no more; say by what, and whether that worked."""
        how = self.client.cancel()
        if isinstance(self.client, CallbackClient):
            return how
        return how if self.until(lambda: not self.client.asking) else f"{how} does not end it"

    # Figures

    def latency(self, count: int) -> list[int]:
        """Return what passed between an event's DPC and the program, one event at a time."""
        client = self.client
        samples = []
        for index in range(count):
            self._tell_and_hear(index % OBJECTS)
            samples.append(client.heard[-1].at_ns - self.source.fired_ns)
            self.settle()
        return samples

    def rate(self, rounds: int) -> dict[str, Any]:
        """Tell of an event of every object at once, and again when all were heard."""
        io = self.machine.io
        irps, switches = io.irps_allocated, self.processor.thread_switches
        began, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(rounds):
            self._tell_and_hear(*range(OBJECTS))
            self.settle()
        events = rounds * OBJECTS
        took, cpu = time.perf_counter_ns() - began, time.thread_time_ns() - cpu
        return {
            "events_per_s": round(events * 1e9 / took),
            "cpu_us": in_us(cpu / events),
            "irps": round((io.irps_allocated - irps) / events, 2),
            "switches": round((self.processor.thread_switches - switches) / events, 2),
        }

    def _tell_and_hear(self, *numbers: int) -> None:
        heard = self.client.heard
        due = len(heard) + len(numbers)
        self.fire(*numbers)
        self.processor.run_until(lambda: len(heard) >= due)

    def where(self) -> str:
        """Return at which IRQL the program handles an event."""
        levels: list[int] = []
        with self._handling(lambda number: levels.append(self.processor.irql)):
            self.fire(0)
            self.until(lambda: bool(levels))
            self.settle()
        return irql_name(levels[0])

    # Disturbances

    @contextlib.contextmanager
    def _handling(self, routine: Callable[[int], object]) -> Iterator[None]:
        self.client.on_heard = routine
        try:
            yield
        finally:
            self.client.on_heard = lambda number: None

    def cancel(self) -> str:
        """Cancel, tell of an event meanwhile, ask again: was it kept?"""
        how = self.stop()
        before = len(self.client.heard)
        self.fire(0)
        self.settle()
        at_once = len(self.client.heard) > before
        self.ask()
        if at_once:
            return f"{how}: called all the same"
        kept = self.until(lambda: len(self.client.heard) > before)
        return f"{how}: event {'kept' if kept else 'lost'}"

    def overflow(self) -> str:
        """Tell of many events of one object while nobody asks; how many are heard of?"""
        self.stop()
        heard = len(self.client.heard)
        for _ in range(_OVERFLOW):
            self.fire(0)
            self.settle()
        self.ask()
        self.until(lambda: False)
        answers = self.client.heard[heard:]
        return f"{sum(one.events for one in answers)} of {_OVERFLOW} in {len(answers)}"

    def destroy(self) -> str:
        """Destroy an object of which an event was not read: does an event still come?"""
        self.stop()
        before = len(self.client.heard)
        self.fire(1)
        self.settle()
        unread = len(self.client.heard) == before
        outcome = self._try_destroy(1)
        self.ask()
        self.settle()
        stale = unread and any(one.number == 1 for one in self.client.heard[before:])
        return f"{outcome}, a stale event" if stale else outcome

    def _try_destroy(self, number: int) -> str:
        """Destroy in a thread that does not handle events."""
        ended: list[str] = []

        def destroy() -> None:
            self.client.destroy(number)
            ended.append(RETURNS)

        self.client.program.new_thread("destroyer").enter_kernel(destroy)
        return RETURNS if self.until(lambda: bool(ended)) else NEVER

    def destroy_in_handler(self) -> str:
        """Destroy an object while its event is being handled, before anything else is asked."""
        ended: list[str] = []

        def destroy(number: int) -> None:
            try:
                self.client.destroy(number)
                ended.append(RETURNS)
            except RaisedStatus:
                ended.append("refused")

        with self._handling(destroy):
            self.fire(2)
            self.until(lambda: bool(ended))
        return ended[0] if ended else NEVER

    def death(self) -> str:
        """End it while it waits, with an event unread: what is left?"""
        self.fire(3)
        threads = self.client.threads
        try:
            self.client.end()
        except Deadlock:
            stuck = sum(not thread.ended for thread in threads)
            return f"never ends: {stuck} threads wait on"
        left = self.client.left() + sum(len(thread.irps) for thread in threads)
        return ENDS if not left else f"ends, {left} left"


class NotificationWays:
    """The experiment; `ways` make what waits for events on a machine."""

    name = "notification"
    question = (
        "What do pended IRPs, a middleman, a blocking call and a callback cost to tell of events, "
        "and how do they end?"
    )

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
            trial = _Trial(machine, self._ways[way](machine, kind))
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
                _ways(done, lambda row: not row["overflow"].startswith(f"{_OVERFLOW} of")),
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
