"""Supervises the processes of a launch: starts them in order, watches, restarts and ends them.

    with Supervisor(plan, kernel="lab", folder=folder) as supervisor:
        while not supervisor.is_over:
            supervisor.step(0.1)
    supervisor.verdict

`step` does whatever is due and returns; between steps the caller may send signals or end the
launch. Leaving the context ends every process, whatever has happened.

Rules: one thread.
"""

import contextlib
import selectors
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from shared.clock import now_ns
from user_proc.groups.exchange import Exchange, RankId
from user_proc.groups.exchange_server import ExchangeServer
from user_proc.groups.group_plan import READY, LaunchPlan, Point, check_plan
from user_proc.groups.guardian_link import GuardianGone, GuardianLink
from user_proc.groups.guardian_packets import Ended, NotStarted, Packet, Started
from user_proc.groups.process_samples import ProcessSamples
from user_proc.groups.rank_rows import KernelProcess, watched
from user_proc.groups.rank_run import RankRun
from user_proc.groups.rank_start import spawn_packet
from user_proc.groups.rank_states import RankEvent, RankState
from user_proc.groups.start_order import StartOrder

SUCCESS: Final = "success"
FAILED: Final = "failed"
TIME_LIMIT: Final = "time limit"

_HURRIED_SECONDS: Final = 0.5  # of grace, when the launch is given up
_LOOK_NS: Final = 250_000_000
_ENDPOINT: Final = "exchange"
_MOST_PACKETS: Final = 64  # at a time
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a launch ended, and why if not well."""

    result: str
    reason: str = ""


class Supervisor:
    """The ranks of a plan; a context manager that leaves none of them."""

    def __init__(
        self, plan: LaunchPlan, kernel: str, folder: Path, process: KernelProcess | None = None
    ) -> None:
        check_plan(plan)
        self.plan: Final = plan
        self.kernel: Final = kernel
        self.verdict: Verdict | None = None
        self.begin_ns: Final = now_ns()
        self.ranks: Final = [
            RankRun(group, rank, folder / f"{group.name}-{rank}.log")
            for group in plan.groups
            for rank in range(group.count)
        ]
        self.samples: Final = ProcessSamples(plan.sample_interval, self.begin_ns)
        self._process = process
        self._endpoint = folder / _ENDPOINT
        self._by_id = {run.who: run for run in self.ranks}
        self._by_number: dict[int, RankRun] = {}
        self._numbers = 0
        self._look_ns = 0
        self._ending = False
        self._stack = contextlib.ExitStack()

    # Its life

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._guardian = stack.enter_context(GuardianLink(self._endpoint))
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._exchange = Exchange(self.plan.sizes, self.plan.barriers)
            self._order = StartOrder(self.plan.groups, self.ranks, self._exchange)
            self._server = ExchangeServer(self._endpoint, self._exchange, self._selector)
            stack.callback(self._server.close)
            self._selector.register(self._guardian, selectors.EVENT_READ, self._hear_guardian)
            if self._process is not None:
                self._selector.register(
                    self._process.pidfd, selectors.EVENT_READ, self._kernel_has_ended
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        left = any(run.is_alive for run in self.ranks)
        self._guardian.grace = min(self.plan.grace, _HURRIED_SECONDS) if left else 0.0
        self._stack.close()

    @property
    def is_over(self) -> bool:
        """Tell whether every rank has ended for good; `verdict` says how it was."""
        return all(run.is_over for run in self.ranks)

    def run(self) -> Verdict:
        """Step until it is over."""
        while not self.is_over:
            self.step(1.0)
        return self.conclude()

    def conclude(self) -> Verdict:
        """Return the verdict of a launch that is over."""
        if self.verdict is None:
            self.verdict = Verdict(SUCCESS)
        return self.verdict

    def step(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for something to do, and do it."""
        try:
            self._start_due_groups()
            for key, _ in self._selector.select(self._wait_seconds(timeout)):
                key.data()
            self._server.expire()
            self._read_exchange()
            self._stop_due_groups()
            self._watch_the_clock()
        except GuardianGone as gone:
            self._guardian_has_gone(gone)

    # What a caller may do between steps

    @property
    def is_ending(self) -> bool:
        """Tell whether the launch is being ended."""
        return self._ending

    def has_reached(self, point: Point) -> bool:
        """Tell whether every rank of a group has come to a point."""
        return self._order.has_reached(point)

    def run_of(self, group: str, rank: int) -> RankRun:
        """Return a rank; KeyError if there is none."""
        return self._by_id[RankId(group, rank)]

    def signal(self, group: str, rank: int, number: int) -> bool:
        """Send a signal to a rank and what it has started; False if it does not run."""
        run = self.run_of(group, rank)
        if not run.is_alive:
            return False
        self._guardian.signal([run.number], number)
        return True

    def stop(self, runs: Iterable[RankRun]) -> None:
        """Ask ranks to end; they are killed when their grace is over."""
        asked = []
        for run in runs:
            if run.state is RankState.WAITING:
                run.take(RankEvent.CALLED_OFF)
                self._server.leave(run.who)
            elif run.is_alive and run.state is not RankState.STOPPING:
                run.take(RankEvent.STOP)
                run.kill_by_ns = now_ns() + round(self.plan.grace * _NS)
                asked.append(run.number)
        self._guardian.signal(asked, signal.SIGTERM)

    def end(self, verdict: Verdict) -> None:
        """End the launch: every rank is asked to, then killed. The first verdict stands."""
        self._ending = True
        if self.verdict is None:
            self.verdict = verdict
        self.stop(self.ranks)

    # Starting and stopping

    def _start_due_groups(self) -> None:
        for run in self._order.due():
            run.take(RankEvent.START)
            self._start(run)
        hopeless = self._order.hopeless()
        if hopeless is not None:
            group, reason = hopeless
            if reason:
                self._fail(reason)
            self.stop(self._order.runs_of(group))

    def _start(self, run: RankRun) -> None:
        """Have a process of a rank started."""
        self._numbers += 1
        run.number = self._numbers
        run.starts += 1
        run.begun_ns = now_ns()
        run.figures = {}
        self._by_number[run.number] = run
        token = self._server.new_token(run.who)
        self._guardian.spawn(spawn_packet(run, self.plan, self.kernel, self._endpoint, token))

    def _stop_due_groups(self) -> None:
        finished = self._order.to_stop()
        for run in finished:
            run.good_if_stopped = True
        self.stop(finished)

    # What is heard

    def _hear_guardian(self) -> None:
        for _ in range(_MOST_PACKETS):
            packet = self._guardian.receive()
            if packet is None:
                break
            self._take_word(packet)

    def _take_word(self, packet: Packet) -> None:
        match packet:
            case Started(number, pid):
                run = self._by_number[number]
                run.pid = pid
                run.take(RankEvent.STARTED)
            case NotStarted(number, sentence):
                run = self._by_number.pop(number)
                run.reason = f"it could not be started: {sentence}"
                run.take(
                    RankEvent.CALLED_OFF if run.state is RankState.STOPPING else RankEvent.BAD_END
                )
                self._is_finished(run)
            case Ended(number):
                self._rank_has_ended(self._by_number.pop(number), packet)

    def _rank_has_ended(self, run: RankRun, ended: Ended) -> None:
        run.figures = self._exchange.figures(run.who)
        run.bound_log(self.plan.log_limit)
        if run.end(ended, now_ns(), stopping=self._ending):
            self._start(run)
        else:
            self._is_finished(run)

    def _is_finished(self, run: RankRun) -> None:
        """Take note of a rank's last end."""
        self._server.leave(run.who)
        if run.state is RankState.FAILED:
            self._fail(f"{run.who}: {run.reason}")

    def _fail(self, reason: str) -> None:
        if self.plan.keep_going:
            self.verdict = self.verdict or Verdict(FAILED, reason)
        else:
            self.end(Verdict(FAILED, reason))

    def _kernel_has_ended(self) -> None:
        assert self._process is not None
        self._selector.unregister(self._process.pidfd)
        log = f": its log is {self._process.log}" if self._process.log else ""
        self.end(Verdict(FAILED, f"the kernel {self.kernel!r} has ended by itself{log}"))

    def _guardian_has_gone(self, gone: GuardianGone) -> None:
        """Nothing can be started or heard any more; the link's end kills what is left."""
        self.verdict = Verdict(FAILED, str(gone))
        for run in self.ranks:
            if not run.is_over:
                run.pid, run.reason = 0, "the guardian was killed"
                if run.is_alive:
                    run.take(RankEvent.STOP)
                run.take(RankEvent.CALLED_OFF)

    def _read_exchange(self) -> None:
        for run in self.ranks:
            if run.is_alive:
                run.figures = self._exchange.figures(run.who)
                if run.state is RankState.RUNNING and self._exchange.has_reached(run.who, READY):
                    run.take(RankEvent.READY)

    # The clock

    def _watch_the_clock(self) -> None:
        now = now_ns()
        overdue = []
        for run in self.ranks:
            limit = run.group.time_limit
            if run.kill_by_ns is not None and now >= run.kill_by_ns:
                run.kill_by_ns = None
                overdue.append(run.number)
            elif limit is not None and run.pid and now - run.begun_ns >= limit * _NS:
                self._rank_is_late(run, limit)
        self._guardian.signal(overdue, signal.SIGKILL)
        if not self._ending and now - self.begin_ns >= self.plan.time_limit * _NS:
            self.end(Verdict(TIME_LIMIT, self._order.why_late(self.plan.time_limit)))
        if now >= self._look_ns:
            self._look_ns = now + _LOOK_NS
            for run in self.ranks:
                run.bound_log(self.plan.log_limit)
        if now >= self.samples.due_ns and (found := watched(self.ranks, self._process)):
            self.samples.take(found)

    def _rank_is_late(self, run: RankRun, limit: float) -> None:
        if run.state is RankState.STOPPING:
            return
        run.timed_out = True
        run.reason = f"the time limit of {limit:g} s has passed"
        self.end(Verdict(TIME_LIMIT, f"{run.who}: {run.reason}"))

    def _wait_seconds(self, timeout: float) -> float:
        """Return how long nothing can be due."""
        due = [self._look_ns]
        due += [self.samples.due_ns] if watched(self.ranks, self._process) else []
        due += [run.kill_by_ns for run in self.ranks if run.kill_by_ns is not None]
        server = self._server.next_deadline_ns()
        due += [] if server is None else [server]
        return max(0.0, min(timeout, (min(due) - now_ns()) / _NS))
