"""One client of the experiment `notification`, its events, and what is done to it.

Figures first, then disturbances: it is cancelled, left alone with more events than it asks for, has
objects destroyed, and ends.

Rules: from outside the machine. What has not happened after a second of the virtual clock, with
nothing else to do, never happens.
Spec: docs/experiments-notification.md.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from kernel_proc.experiments.notification_clients import (
    OBJECTS,
    CallbackClient,
    Client,
    Source,
)
from kernel_proc.experiments.sample_figures import in_us
from kernel_proc.machine import Machine
from kernel_proc.scheduling.irql import irql_name
from kernel_proc.scheduling.processor import Deadlock
from kernel_proc.scheduling.raised_status import RaisedStatus
from kernel_proc.scheduling.timer import Timer

OVERFLOW: Final = 200
_SECOND_NS: Final = 1_000_000_000
RETURNS: Final = "returns"
NEVER: Final = "never returns"
ENDS: Final = "ends"


class Trial:
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
        for _ in range(OVERFLOW):
            self.fire(0)
            self.settle()
        self.ask()
        self.until(lambda: False)
        answers = self.client.heard[heard:]
        return f"{sum(one.events for one in answers)} of {OVERFLOW} in {len(answers)}"

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
