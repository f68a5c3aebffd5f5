"""One rank while a launch runs: its state, its process, its log, and what it came to.

Rules: the supervisor's one thread.
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from user_proc.groups.exchange import RankId
from user_proc.groups.group_plan import ON_FAILURE, Group, Success
from user_proc.groups.guardian_packets import Ended
from user_proc.groups.rank_states import ALIVE, OVER, RankEvent, RankState, following

_KEPT: Final = 64 * 1024
_TAIL: Final = 4096
_MOST_WORDS: Final = 200


@dataclass(frozen=True, slots=True)
class RankResult:
    """What became of a rank; times and counts are sums over its processes."""

    group: str
    rank: int
    state: str
    reason: str
    exit_code: int | None
    killed_by: str | None
    starts: int
    seconds: float
    cpu_user_s: float
    cpu_system_s: float
    max_rss_bytes: int
    voluntary_switches: int
    involuntary_switches: int
    left_behind: int
    figures: Mapping[str, float]
    log: str


class RankRun:
    """A rank under supervision."""

    def __init__(self, group: Group, rank: int, log: Path) -> None:
        self.group: Final = group
        self.who: Final = RankId(group.name, rank)
        self.log: Final = log
        self.state = RankState.WAITING
        self.reason = ""
        self.number = 0  # of its present process, among all of the launch
        self.pid = 0
        self.starts = 0
        self.begun_ns = 0
        self.kill_by_ns: int | None = None  # when it has not ended by then
        self.good_if_stopped = False  # it was to run until a point, which has been reached
        self.timed_out = False
        self.figures: Mapping[str, float] = {}
        self.ends: list[Ended] = []
        self._lived_ns = 0

    @property
    def is_over(self) -> bool:
        """Tell whether it has ended for good, or will never begin."""
        return self.state in OVER

    @property
    def is_alive(self) -> bool:
        """Tell whether a process of it runs, or is about to."""
        return self.state in ALIVE

    def take(self, event: RankEvent) -> None:
        """Go to the state that follows."""
        self.state = following(self.state, event)

    def end(self, ended: Ended, now_ns: int, stopping: bool) -> bool:
        """Take the end of its process; True if another process is to take its place."""
        self.ends.append(ended)
        self._lived_ns += now_ns - self.begun_ns
        self.pid, self.kill_by_ns = 0, None
        why = judge(ended.code, self.figures, self.group.success)
        if self.state is RankState.STOPPING:
            self._take_stopped_end()
        elif why is None:
            self.reason = ""
            self.take(RankEvent.GOOD_END)
        elif self._may_begin_again(stopping):
            self.reason = why
            self.take(RankEvent.AGAIN)
            return True
        else:
            self.fail(why)
        return False

    def _take_stopped_end(self) -> None:
        if self.timed_out:
            self.take(RankEvent.BAD_END)
        else:
            self.take(RankEvent.GOOD_END if self.good_if_stopped else RankEvent.CALLED_OFF)

    def fail(self, why: str) -> None:
        """Take note that it has failed."""
        words = last_words(self.log)
        self.reason = f"{why}; its last words: {words}" if words else why
        self.take(RankEvent.BAD_END)

    def _may_begin_again(self, stopping: bool) -> bool:
        group = self.group
        return not stopping and group.restart == ON_FAILURE and self.starts <= group.restarts

    def bound_log(self, limit: int) -> None:
        """Keep the beginning and the end of a log that has grown too long."""
        try:
            size = self.log.stat().st_size
            if size <= limit:
                return
            kept = min(_KEPT, limit // 4)
            with self.log.open("r+b") as file:
                head = file.read(kept)
                file.seek(-kept, os.SEEK_END)
                tail = file.read()
                file.truncate(0)
            note = f"\n[softhca launch: {size - len(head) - len(tail)} bytes were dropped here]\n"
            with self.log.open("ab") as file:  # its writer goes on behind this, too
                file.write(head + note.encode() + tail)
        except OSError:
            return  # no room, or somebody removed it: its writer goes on all the same

    def result(self) -> RankResult:
        """Return what became of it so far."""
        last = self.ends[-1].code if self.ends else None
        return RankResult(
            group=self.who.group,
            rank=self.who.rank,
            state=str(self.state),
            reason=self.reason,
            exit_code=last if last is not None and last >= 0 else None,
            killed_by=signal_name(-last) if last is not None and last < 0 else None,
            starts=self.starts,
            seconds=round(self._lived_ns / 1e9, 3),
            cpu_user_s=round(sum(end.user_s for end in self.ends), 3),
            cpu_system_s=round(sum(end.system_s for end in self.ends), 3),
            max_rss_bytes=max((end.max_rss_bytes for end in self.ends), default=0),
            voluntary_switches=sum(end.voluntary_switches for end in self.ends),
            involuntary_switches=sum(end.involuntary_switches for end in self.ends),
            left_behind=sum(end.left_behind for end in self.ends),
            figures=dict(self.figures),
            log=self.log.name,
        )


def judge(code: int, figures: Mapping[str, float], success: Success) -> str | None:
    """Return why an end is a bad one; None if it is good."""
    if code < 0 and -code not in success.killed_by:
        return f"killed by {signal_name(-code)}"
    if code >= 0 and code not in success.exit_codes:
        return f"exit code {code}"
    for name, least in success.reported.items():
        if name not in figures:
            return f"it has not reported {name}"
        if figures[name] < least:
            return f"it reported {name} = {figures[name]:g}, which is less than {least:g}"
    return None


def signal_name(number: int) -> str:
    """Return the name of a signal; its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_words(log: Path) -> str:
    """Return the last line of a log, as a terminal may show it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    words = lines[-1][:_MOST_WORDS] if lines else ""
    return "".join(one if one.isprintable() else "?" for one in words)
