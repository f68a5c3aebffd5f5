"""What is launched: a kernel, groups of user processes, their order, limits and what is success.

A plan can be made in Python or be read from a TOML file (`plan_file`); `check_plan` holds both to
the same rules.

Rules: plain values; nothing here starts anything.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shared.fault_messages import Fault
from shared.fault_points import MOST_FAULTS
from user_proc.errors import SofthcaError
from user_proc.groups.rank_wire import LAUNCH_VARIABLES

NEVER: Final = "never"
ON_FAILURE: Final = "on-failure"
RESTART_POLICIES: Final = (NEVER, ON_FAILURE)

#: Points every group reaches by itself; programs name others.
STARTED: Final = "started"
READY: Final = "ready"
ENDED: Final = "ended"

MOST_RANKS: Final = 512
MOST_RESTARTS: Final = 1000
MOST_NAME: Final = 48
MOST_ARGUMENT_BYTES: Final = 64 * 1024
RESERVED_GROUPS: Final = ("kernel", "hca")

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MOST_NAME - 1}}}\Z")


class PlanError(SofthcaError):
    """A plan that cannot be launched: where it is wrong, and the cure.

    `path` is the key, such as `group[0].after`; `file` and `line` where it stands, if known.
    """

    def __init__(self, path: str, sentence: str, file: str = "", line: int | None = None) -> None:
        place = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        super().__init__(f"{place}{path}: {sentence}" if path else f"{place}{sentence}")
        self.path = path
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Point:
    """A point a whole group has to reach."""

    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.group}:{self.name}"


@dataclass(frozen=True, slots=True)
class Success:
    """Which ends of a rank are good.

    One of the exit codes, or of the signals it may be killed by; and each figure of `reported`
    must have been reported and be at least so large.
    """

    exit_codes: tuple[int, ...] = (0,)
    killed_by: tuple[int, ...] = ()
    reported: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """So many processes of one command; {rank}, {size}, {group} and {kernel} stand for values."""

    name: str
    command: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    count: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    after: tuple[Point, ...] = ()
    until: Point | None = None
    cpus: tuple[tuple[int, ...], ...] = ()  # rank n may use the n-th set, counted round
    time_limit: float | None = None  # seconds, of each rank
    restart: str = NEVER
    restarts: int = 0
    success: Success = Success()


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """The kernel: one that runs under `running`, else one of the launch's own."""

    running: str | None = None
    name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of the launch's kernel, set when every point of `after` has been reached.

    One that waits for nothing is set before the first process starts.
    """

    fault: Fault
    after: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything a launch needs to know; `folder` is where the processes run."""

    groups: tuple[Group, ...]
    kernel: KernelPlan = KernelPlan()
    faults: tuple[PlannedFault, ...] = ()
    barriers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folder: Path = field(default_factory=Path.cwd)
    time_limit: float = 600.0
    grace: float = 2.0
    sample_interval: float = 0.5
    log_limit: int = 16 << 20
    keep_going: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """How many ranks each group has."""
        return {group.name: group.count for group in self.groups}


def function_command(target: str, folder: Path | None = None) -> tuple[str, ...]:
    """Return the command that calls `module:function`, found on the path or in `folder`."""
    place = [] if folder is None else ["--from", escape(str(folder))]
    module = ["-P", "-m", "user_proc.groups.function_runner"]
    return (escape(sys.executable), *module, *place, target)


def script_command(script: Path) -> tuple[str, ...]:
    """Return the command that runs a Python script with this interpreter."""
    return (escape(sys.executable), "-P", escape(str(script)))


def escape(text: str) -> str:
    """Return a text that stands for itself where {rank} and its like are replaced."""
    return text.replace("{", "{{").replace("}", "}}")


def is_name(text: str) -> bool:
    """Tell whether a group, point or barrier may be called so."""
    return _NAME.match(text) is not None


def check_plan(plan: LaunchPlan) -> None:
    """Raise PlanError for what contradicts itself or passes a bound."""
    if not plan.groups:
        raise PlanError("group", "there is none: add a [[group]] with a name and a command")
    names = [group.name for group in plan.groups]
    for index, group in enumerate(plan.groups):
        where = f"group[{index}]"
        if not is_name(group.name) or group.name in RESERVED_GROUPS:
            raise PlanError(
                f"{where}.name",
                f"{group.name!r} is no name for a group: take up to {MOST_NAME} letters, digits, "
                f"'-', '_' and '.', and neither {' nor '.join(RESERVED_GROUPS)}",
            )
        if names.index(group.name) != index:
            raise PlanError(f"{where}.name", f"{group.name!r} is taken: choose another")
        _check_group(group, where, plan)
    total = sum(group.count for group in plan.groups)
    if total > MOST_RANKS:
        raise PlanError("group", f"{total} processes altogether: {MOST_RANKS} are the most")
    for name, members in plan.barriers.items():
        _check_names(f"barriers.{name}", members, names)
        if not is_name(name):
            raise PlanError(f"barriers.{name}", "is no name for a barrier: take letters and digits")
    _check_faults(plan, names)
    _check_order(plan)


def _check_faults(plan: LaunchPlan, names: Sequence[str]) -> None:
    if plan.faults and plan.kernel.running is not None:
        raise PlanError("fault[0]", "is for a kernel of one's own: leave 'kernel.running' out")
    if len(plan.faults) > MOST_FAULTS:
        raise PlanError("fault[0]", f"there are {len(plan.faults)}: {MOST_FAULTS} are the most")
    for index, one in enumerate(plan.faults):
        key = f"fault[{index}].after"
        for point in one.after:
            _check_point(key, point, names)


def _check_group(group: Group, where: str, plan: LaunchPlan) -> None:
    if group.count < 1:
        raise PlanError(f"{where}.count", f"{group.count} is too few: give at least 1")
    if not group.command or not group.command[0]:
        raise PlanError(f"{where}.command", "is empty: name the program first")
    most = MOST_ARGUMENT_BYTES
    length = sum(len(part.encode(errors="replace")) for part in (*group.command, *group.arguments))
    if length > most:
        raise PlanError(f"{where}.command", f"has {length} bytes: {most} are the most")
    if group.restart not in RESTART_POLICIES:
        raise PlanError(f"{where}.restart", f"is one of: {', '.join(RESTART_POLICIES)}")
    if not 0 <= group.restarts <= MOST_RESTARTS:
        raise PlanError(f"{where}.restarts", f"lies between 0 and {MOST_RESTARTS}")
    _check_texts(group, where)
    points = [*((f"{where}.after", point) for point in group.after)]
    points += [(f"{where}.until", group.until)] if group.until is not None else []
    for key, point in points:
        _check_point(key, point, [one.name for one in plan.groups])
        if point.group == group.name:
            raise PlanError(key, f"{group.name!r} cannot wait for itself: name another group")


def _check_point(key: str, point: Point, groups: Sequence[str]) -> None:
    _check_names(key, [point.group], groups)
    if not is_name(point.name):
        raise PlanError(key, f"{point.name!r} is no point: write it as in 'server:ready'")


def _check_names(key: str, used: Sequence[str], known: Sequence[str]) -> None:
    for name in used:
        if name not in known:
            raise PlanError(key, f"there is no group {name!r}: the groups are {', '.join(known)}")


def _check_order(plan: LaunchPlan) -> None:
    """Refuse groups that wait for each other in a circle."""
    waits = {group.name: [point.group for point in group.after] for group in plan.groups}
    for index, group in enumerate(plan.groups):
        circle = _circle(group.name, waits)
        if circle:
            text = " -> ".join(circle)
            raise PlanError(
                f"group[{index}].after", f"the groups wait in a circle, {text}: break it at one"
            )


def _circle(start: str, waits: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a way from a group back to itself, or nothing."""
    ways: list[list[str]] = [[start]]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        for following in waits[way[-1]]:
            if following == start:
                return [*way, start]
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


def values_of(group: Group, rank: int, kernel: str) -> dict[str, str]:
    """Return what the variables stand for."""
    return {
        "rank": str(rank),
        "size": str(group.count),
        "group": group.name,
        "kernel": kernel,
    }


VARIABLES: Final = ("rank", "size", "group", "kernel")
_VARIABLE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace {rank} and its like; {{ and }} stand for braces. ValueError for anything else."""

    def replace(match: re.Match[str]) -> str:
        whole = match.group()
        if whole in ("{{", "}}"):
            return whole[0]
        if match.group(1) not in VARIABLES:
            known = ", ".join(f"{{{name}}}" for name in VARIABLES)
            raise ValueError(
                f"{whole!r} stands for nothing: there are {known}, and a brace is written twice"
            )
        return values[match.group(1)]

    return _VARIABLE.sub(replace, text)


def _check_texts(group: Group, where: str) -> None:
    """Refuse variables that stand for nothing, and what no process can be started with."""
    example = dict.fromkeys(VARIABLES, "")
    texts = [(f"{where}.command[{index}]", text) for index, text in enumerate(group.command)]
    texts += [(f"{where}.arguments[{index}]", text) for index, text in enumerate(group.arguments)]
    texts += [(f"{where}.environment.{name}", text) for name, text in group.environment.items()]
    for key, text in texts:
        try:
            substitute(text, example).encode()
        except ValueError as error:  # of an encoding, too
            raise PlanError(key, str(error)) from None
        if "\0" in text:
            raise PlanError(key, "holds a zero byte: no process can be started with that")
    for name in group.environment:
        if not name or "=" in name or "\0" in name:
            raise PlanError(f"{where}.environment.{name}", "is no name of a variable")
        if name in LAUNCH_VARIABLES:
            raise PlanError(f"{where}.environment.{name}", "is the launch's own: take another name")
