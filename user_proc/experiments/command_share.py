"""Experiment `command-share`: which part of a control verb is the way to the driver?

The overheads are measured: a kernel client's IRP over a direct call, and a user's device control
over the same direct call. The command times come from the child's `command-times`, where each
verb's commands were carried out on a virtual clock under means from 10 us to 1 s. The share is the
overhead's part of overhead and command time together; it counts for little below one percent.

Beside the emulator's own overheads stands the one measured in 2005 between an IRP and fast I/O,
since an emulator's microseconds are not a machine's.

Spec: "[RFC v2] Kernel Async Verbs"; figures of 2005: Tzachi Dar, openib-windows, 18 November 2005.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final

from user_proc.bench.mail_answers import FAST_IO_2005, IRPS_2005
from user_proc.bench.row_plan import RowSpec
from user_proc.bench.wording import microseconds, share
from user_proc.experiments.experiment import Progress, Row
from user_proc.experiments.irp_or_direct import DIRECT, IRP, USER_DPC
from user_proc.experiments.kernel_child import run_in_child
from user_proc.experiments.row_run import book_of, take_rows

#: Whose requests are measured, each against what it is more than.
Pairs = Mapping[str, tuple[RowSpec, RowSpec]]
PAIRS: Final[Pairs] = {"kernel": (IRP, DIRECT), "user": (USER_DPC, DIRECT)}
LITTLE: Final = 0.01
_TIMES: Final = "command-times"
_SHOWN_US: Final = (10, 100, 1_000, 10_000)
_CLIENTS: Final = ("kernel", "user", "2005")
_NEVER: Final = "never"
_UNIT: Final = 1_000_000
CONNECTION: Final = "connection, a side"

TakeTimes = Callable[[bool, Progress], list[Row]]
TakeOverheads = Callable[[bool, Progress], Mapping[str, float]]


def measured_overheads(
    quick: bool, progress: Progress, pairs: Pairs = PAIRS
) -> Mapping[str, float]:
    """Return by how many microseconds each client's request exceeds a direct call."""
    plan = dict.fromkeys(row for pair in pairs.values() for row in pair)
    book = book_of(take_rows(tuple(plan), quick, progress, {}))
    measured = {client: book.difference(*pair).figure.value for client, pair in pairs.items()}
    return {**measured, "2005": _UNIT / IRPS_2005 - _UNIT / FAST_IO_2005}


def measured_times(quick: bool, progress: Progress) -> list[Row]:
    """Return a row for each verb with its time under each mean."""
    rows: list[Row] = run_in_child(_TIMES, quick, progress)["rows"]
    return rows


class CommandShare:
    """The experiment; what it measures with can be replaced."""

    name = "command-share"
    question = "From which command time on do the microseconds of a request matter no more?"

    def __init__(
        self,
        take_times: TakeTimes = measured_times,
        take_overheads: TakeOverheads = measured_overheads,
    ) -> None:
        self._take_times = take_times
        self._take_overheads = take_overheads

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Measure overheads and command times; one row for each verb."""
        overheads = self._take_overheads(quick, lambda d, t, text: progress(d, 2 * t, text))
        times = self._take_times(quick, lambda d, t, text: progress(t + d, 2 * t, text))
        real = [row["real_us"] / row["commands"] for row in times if row.get("commands")]
        return [_verb_row(row, overheads, median(real) if real else 0.0) for row in times]

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say where each overhead falls below one percent, A and B apart from C."""
        sending = [row for row in rows if row.get("commands")]
        short = [row for row in sending if set(row["classes"]) <= set("AB")]
        connection = [row for row in sending if row["verb"] == CONNECTION]
        long = [row for row in sending if row not in short and row not in connection]
        free = [row["verb"] for row in rows if row.get("commands") == 0]
        sentences = [
            f"{words} ({microseconds(overhead)} us): {_little(short, client)} with commands of "
            f"class A and B, {_little(long, client)} with one of class C among them, "
            f"{_little(connection, client)} for a connection, which is three of class C a side."
            for client, words, overhead in _overheads(rows)
        ]
        floor_us = max((row["measured"]["floor_us"] for row in sending), default=0.0)
        return (
            f"Below one percent of overhead and command time: {' '.join(sentences)} Verbs "
            f"without a command ({', '.join(free)}) are overhead alone. Means below "
            f"{floor_us:.0f} us are of the virtual clock only: that long an emulated command takes."
        )


def _verb_row(verb: Row, overheads: Mapping[str, float], floor_us: float) -> Row:
    """Return a verb with the shares of each overhead under each mean."""
    if "commands" not in verb:
        return dict(verb)  # a mean under which the machine stopped
    times = {
        int(key.removeprefix("at_").removesuffix("_us")): us
        for key, us in verb.items()
        if key.startswith("at_")
    }
    shares = {
        client: {mean: _share(overhead, us) for mean, us in times.items()}
        for client, overhead in overheads.items()
    }
    row: Row = {key: verb[key] for key in ("verb", "outcome", "commands", "classes")}
    for client in _CLIENTS:
        row[f"{client}_little_from_us"] = _first_little(shares[client])
    for mean in (mean for mean in _SHOWN_US if mean in times):
        row[f"user_percent_at_{mean}"] = round(100 * shares["user"][mean], 3)
    row["user_percent_at_bounds"] = round(100 * shares["user"][max(times)], 3)
    row["measured"] = {
        "floor_us": round(floor_us, 1),
        "overheads_us": {client: round(overhead, 3) for client, overhead in overheads.items()},
    }
    row["shares"] = {
        client: {str(mean): part for mean, part in parts.items()}
        for client, parts in shares.items()
    }
    return row


def _share(overhead_us: float, command_us: float) -> float:
    whole = overhead_us + command_us
    return overhead_us / whole if whole > 0 else 1.0


def _first_little(shares: Mapping[int, float]) -> int | str:
    """Return the mean from which on the share stays below one percent."""
    found: int | str = _NEVER
    for mean in sorted(shares, reverse=True):
        if shares[mean] >= LITTLE:
            break
        found = mean
    return found


def _overheads(rows: Sequence[Row]) -> list[tuple[str, str, float]]:
    overheads = next(row["measured"]["overheads_us"] for row in rows if "measured" in row)
    words = {
        "kernel": "A kernel client's IRP over a direct call",
        "user": "A user's IOCTL over a direct call",
        "2005": "An IRP over fast I/O in 2005",
    }
    return [(client, words[client], overheads[client]) for client in _CLIENTS]


def _little(verbs: Sequence[Row], client: str) -> str:
    """Say from which mean on the share of every verb is small, and of which it never is."""
    first = {row["verb"]: row[f"{client}_little_from_us"] for row in verbs}
    never = [row for row in verbs if first[row["verb"]] == _NEVER]
    means = [int(mean) for mean in first.values() if mean != _NEVER]
    text = f"from a mean of {max(means):,} us on" if means else "from no mean"
    if not never:
        return text
    most = max(_at_bounds(row["shares"][client]) for row in never)
    names = ", ".join(row["verb"] for row in never)
    return f"{text} (never {names}: {share(most, 1)} at the bound of its class)"


def _at_bounds(shares: Mapping[str, float]) -> float:
    """Return the share under the longest mean, where classes are cut at their bounds."""
    return shares[max(shares, key=int)]
