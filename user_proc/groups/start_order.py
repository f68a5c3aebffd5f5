"""Which ranks are to start, to stop, or can never start, by the points that have been reached.

Rules: the supervisor's one thread; looks only, and changes nothing.
"""

from collections.abc import Sequence
from typing import Final

from user_proc.groups.exchange import Exchange
from user_proc.groups.group_plan import ENDED, STARTED, Group, Point
from user_proc.groups.rank_run import RankRun
from user_proc.groups.rank_states import RankState


class StartOrder:
    """The groups of a plan, seen by what they wait for."""

    def __init__(
        self, groups: Sequence[Group], ranks: Sequence[RankRun], exchange: Exchange
    ) -> None:
        self._groups: Final = groups
        self._ranks: Final = ranks
        self._exchange: Final = exchange

    def runs_of(self, group: str) -> list[RankRun]:
        """Return a group's ranks."""
        return [run for run in self._ranks if run.who.group == group]

    def due(self) -> list[RankRun]:
        """Return the ranks that are to start now."""
        ready = {one.name for one in self._groups if all(map(self.has_reached, one.after))}
        return [run for run in self._waiting() if run.who.group in ready]

    def to_stop(self) -> list[RankRun]:
        """Return the ranks that were to run until a point which has been reached."""
        return [
            run
            for group in self._groups
            if group.until is not None and self.has_reached(group.until)
            for run in self.runs_of(group.name)
            if run.is_alive and run.state is not RankState.STOPPING
        ]

    def hopeless(self) -> tuple[str, str] | None:
        """Return a group that can never start, and why; no reason where its own is told already."""
        for group in dict.fromkeys(run.group.name for run in self._waiting()):
            for point in next(one.after for one in self._groups if one.name == group):
                for run in self.runs_of(point.group):
                    if run.is_over and not self._is_at(run, point):
                        told = run.state is not RankState.DONE
                        reason = f"{run.who} has ended and has not reached {point.name!r}"
                        return group, "" if told else f"{group!r} cannot start: {reason}"
        return None

    def why_late(self, limit: float) -> str:
        """Say who is not done, and what the first that waits is waiting for."""
        text = f"the time limit of {limit:g} s has passed"
        busy = [str(run.who) for run in self._ranks if run.is_alive]
        for run in self._waiting():
            missing = next(one for one in run.group.after if not self.has_reached(one))
            return f"{text}: {run.group.name!r} still waits for {str(missing)!r}"
        more = f" and {len(busy) - 1} more" if len(busy) > 1 else ""
        return f"{text}: {busy[0]}{more} still ran" if busy else text

    def has_reached(self, point: Point) -> bool:
        """Tell whether every rank of a group has come to a point."""
        return all(self._is_at(run, point) for run in self.runs_of(point.group))

    def _is_at(self, run: RankRun, point: Point) -> bool:
        if point.name == STARTED:
            return run.pid != 0 or bool(run.ends)
        if point.name == ENDED:
            return run.state is RankState.DONE
        return self._exchange.has_reached(run.who, point.name)

    def _waiting(self) -> list[RankRun]:
        return [run for run in self._ranks if run.state is RankState.WAITING]
