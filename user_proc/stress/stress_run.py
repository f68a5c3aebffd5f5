"""A stress run: clients that do random programs, are killed, and start again, until time is up.

Rules: one thread. The run ends at the first finding; whatever ends it, all it started is ended.
"""

import random
from typing import Final

from shared.clock import now_ns
from user_proc.bench.progress_view import Progress
from user_proc.stress.client_roster import Member, Roster, RosterFailed
from user_proc.stress.findings import DIED, HANG
from user_proc.stress.kernel_holdings import held_by_processes, what_is_held, what_is_left
from user_proc.stress.planner import Planner, seed_of
from user_proc.stress.stress_kernel import log_end, stress_kernel
from user_proc.stress.stress_result import Failure, Figures, StressResult
from user_proc.stress.stress_settings import StressSettings
from user_proc.transport.kernel_starter import StartedKernel

#: A client that has not moved for so long hangs: its own patience ends long before.
HANG_S: Final = 60.0
_STOP_S: Final = 60.0
_NOTHING_LEFT_S: Final = 30.0
_LOOK_S: Final = 0.05
_NS: Final = 1_000_000_000


class CountRun:
    """The run of one count of clients at one kernel."""

    def __init__(
        self, settings: StressSettings, count: int, kernel: StartedKernel, result: StressResult
    ) -> None:
        self._settings: Final = settings
        self._kernel: Final = kernel
        self._count: Final = count
        self._result: Final = result
        self._roster: Final = Roster(count + 1)
        self._chance: Final = random.Random(f"{settings.seed} kills {count}")
        self._lives = [0] * count
        self._base = [0, 0]  # of clients that have ended
        self._stopping = False
        self.figures: Final = Figures(count)
        result.counts.append(self.figures)

    def run(self, progress: Progress) -> None:
        """Have the clients at work for the time asked for, then end them."""
        settings, figures = self._settings, self.figures
        quiet = {"place": self._count, "quiet": True, "kernel": self._kernel.name}
        self._roster.start(quiet)
        begin = now_ns()
        end = begin + int(settings.seconds * _NS)
        next_row, next_kill = begin + _NS, self._next_kill(begin)
        for place in range(self._count):
            self._start(place)
        while now_ns() < end and not self._result.failures:
            self._hear()
            now = now_ns()
            if now >= next_kill:
                self._kill_one()
                next_kill = self._next_kill(next_kill)
            if now >= next_row:
                self._row(round((next_row - begin) / _NS))
                next_row += _NS
                progress.advance(now - begin, end - begin, self._text())
                self._find_hangs()
        figures.seconds = (now_ns() - begin) / 1e9
        self._count_up()
        self._stop()

    def close(self) -> None:
        """End whoever is left."""
        self._roster.close()

    # Starting and ending

    def _start(self, place: int) -> None:
        life = self._lives[place]
        self._lives[place] += 1
        self.figures.lives += 1
        order = {
            "place": place,
            "life": life,
            "kernel": self._kernel.name,
            "seed": seed_of(self._settings.seed, place, life),
            "linked": self._count > 1,
            "faulty": bool(self._settings.faults),
        }
        self._roster.start(order)

    def _next_kill(self, after_ns: int) -> int:
        rate = self._settings.kills
        return after_ns + int(self._chance.expovariate(rate) * _NS) if rate else 1 << 63

    def _kill_one(self) -> None:
        living = [
            one
            for one in self._roster.members.values()
            if "quiet" not in one.order and not one.killed
        ]
        if living:
            self._roster.kill(self._chance.choice(living))
            self.figures.kills += 1

    def _hear(self) -> None:
        for member in self._roster.look(_LOOK_S):
            operations, completions, step, _ = self._roster.counts.read(member.place)
            self._base[0] += operations
            self._base[1] += completions
            self._judge_end(member, step)
            if not self._stopping and "quiet" not in member.order and not self._result.failures:
                self._start(member.place)

    def _judge_end(self, member: Member, step: int) -> None:
        if "quiet" in member.order:
            self.figures.control.extend(member.samples["control"])
            self.figures.floor.extend(member.samples["floor"])
        if member.finding is not None:
            found = member.finding
            self._fail(member, found["step"], found["kind"], found["text"])
        elif not member.as_expected():
            self._fail(member, step, DIED, f"the client ended by itself, exit code {member.code}")

    def _fail(self, member: Member, step: int, kind: str, text: str) -> None:
        if not self._kernel.running:
            kind, text = DIED, f"the kernel has ended ({text}): {log_end(self._kernel)}"
        seed = member.order.get("seed", 0)
        steps = Planner(seed).steps()[: step + 1] if "seed" in member.order else []
        self._result.failures.append(
            Failure(
                self._count, member.place, member.order.get("life", 0), seed, step, kind, text,
                [list(one) for one in steps],
            )
        )  # fmt: skip

    def _find_hangs(self) -> None:
        now = now_ns()
        for member in list(self._roster.members.values()):
            if "quiet" in member.order or member.killed:
                continue
            _, _, step, moved_ns = self._roster.counts.read(member.place)
            if now - moved_ns > HANG_S * _NS:
                self._fail(member, step, HANG, f"the client has not moved for {HANG_S:g} s")
                self._roster.kill(member)

    def _stop(self) -> None:
        """Tell every client to settle and end, and wait until all have."""
        self._stopping = True
        for member in self._roster.members.values():
            self._roster.tell(member, {"do": "stop"})
        deadline = now_ns() + int(_STOP_S * _NS)
        while self._roster.members and now_ns() < deadline:
            self._hear()
        for member in list(self._roster.members.values()):
            step = self._roster.counts.read(member.place)[2]
            self._fail(member, step, HANG, f"the client did not end in {_STOP_S:g} s")
            self._roster.kill(member)

    # Counting

    def _totals(self) -> tuple[int, int]:
        operations, completions = self._base
        for place in self._roster.members:
            more = self._roster.counts.read(place)
            operations += more[0]
            completions += more[1]
        return operations, completions

    def _count_up(self) -> None:
        self.figures.operations, self.figures.completions = self._totals()

    def _row(self, second: int) -> None:
        before = (self.figures.operations, self.figures.completions)
        killed = sum(row["kills"] for row in self.figures.rows)
        self._count_up()
        self.figures.rows.append(
            {
                "clients": self._count,
                "second": second,
                "operations": self.figures.operations - before[0],
                "completions": self.figures.completions - before[1],
                "kills": self.figures.kills - killed,
            }
        )

    def _text(self) -> str:
        row = self.figures.rows[-1]
        return (
            f"{self._count} clients: {row['operations']} operations and {row['completions']} "
            f"completions a second, {self.figures.kills} kills"
        )


def run_stress(settings: StressSettings, progress: Progress) -> StressResult:
    """Run every count of clients asked for, each at a fresh kernel."""
    result = StressResult(settings.seed)
    for count in settings.clients:
        run_count(settings, count, result, progress)
        if result.failures:
            break
    return result


def run_count(
    settings: StressSettings, count: int, result: StressResult, progress: Progress
) -> None:
    """Run one count, and see that nothing is left of it."""
    with stress_kernel(settings.kernel_options(count), result.leaks, settings.faults) as kernel:
        look = held_by_processes(kernel.pid)
        before = what_is_held(kernel.name, look)
        one = CountRun(settings, count, kernel, result)
        try:
            one.run(progress)
        except RosterFailed:
            if kernel.running:
                raise
        finally:
            one.close()
        if kernel.running:
            result.leaks.extend(what_is_left(kernel.name, before, _NOTHING_LEFT_S, look))
