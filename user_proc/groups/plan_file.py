"""Reads a launch's TOML file into a plan; every complaint names file, line, key and cure.

Rules: reads the file and nothing else; starts nothing.
Spec: TOML 1.0.
"""

import os
import signal
import tomllib
from pathlib import Path
from typing import Any, Final

from user_proc.faults.fault_values import FaultFileError, parse_fault
from user_proc.groups.group_plan import (
    MOST_RANKS,
    MOST_RESTARTS,
    NEVER,
    ON_FAILURE,
    RESTART_POLICIES,
    Group,
    KernelPlan,
    LaunchPlan,
    PlanError,
    PlannedFault,
    Point,
    Success,
    check_plan,
    function_command,
    script_command,
)
from user_proc.groups.toml_lines import key_lines, line_of
from user_proc.groups.toml_values import Table

MOST_BYTES: Final = 1 << 20
MOST_SECONDS: Final = 7 * 24 * 3600.0

_SPREAD: Final = "spread"
_RUNS: Final = ("run", "script", "command")
_WHOLE: Final = 2.0**53

#: The settings of a kernel, as `softhca kernel start` and `python -m kernel_proc` have them.
KERNEL_SETTINGS: Final[dict[str, type]] = {
    "verifier": bool,
    "guarded_mutexes_at_apc_level": bool,
    "threaded_dpcs": bool,
    "hca": bool,
    "seed": int,
    "driver": list,
    "latency_model": str,
    "latency_factor": float,
    "hca_profile": str,
    "command_mode": str,
    "fragmentation": int,
    "allocation": str,
    "max_qp_rd_atom": int,
    "spin_us": int,
    "hca_spin_us": int,
    "arena_bytes_per_process": int,
    "arena_bytes_total": int,
    "pool_bytes_per_process": int,
    "locked_bytes_per_process": int,
    "kernel_memory_bytes": int,
    "hca_percent_per_process": int,
    "hca_objects_per_process": int,
    "max_sessions": int,
    "max_threads_per_session": int,
    "max_requests_per_session": int,
    "max_handles_per_session": int,
    "max_silent_connections": int,
    "hello_timeout_ms": int,
    "stop_timeout_ms": int,
}


def read_plan(file: Path) -> LaunchPlan:
    """Return the plan in a file; PlanError says in one sentence what is wrong with it."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise PlanError("", f"cannot be read: {error.strerror}", str(file)) from None
    if len(data) > MOST_BYTES:
        raise PlanError("", f"has more than {MOST_BYTES} bytes: is it the right file?", str(file))
    return parse_plan(data, file)


def parse_plan(data: bytes, file: Path) -> LaunchPlan:
    """Return the plan a file's bytes describe; paths in it are found from the file's folder."""
    try:
        text = data.decode("utf-8")
        values = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise PlanError("", f"is no TOML: {error}", str(file)) from None
    try:
        plan = _plan(Table(values), file.resolve().parent)
        check_plan(plan)
    except PlanError as error:
        line = line_of(error.path, key_lines(text))
        raise PlanError(error.path, error.sentence, str(file), line) from None
    return plan


def _plan(table: Table, folder: Path) -> LaunchPlan:
    groups = tuple(_group(one, folder) for one in table.tables("group"))
    barriers = table.table("barriers")
    plan = LaunchPlan(
        groups=groups,
        kernel=_kernel(table.table("kernel"), folder),
        faults=tuple(_fault(one) for one in table.tables("fault")),
        barriers={name: tuple(barriers.members(name, str)) for name in barriers.names_left()},
        folder=folder,
        time_limit=table.number("time_limit", float, 0.1, MOST_SECONDS, 600.0),
        grace=table.number("grace", float, 0.0, 3600.0, 2.0),
        sample_interval=table.number("sample_interval", float, 0.1, 3600.0, 0.5),
        log_limit=table.number("log_limit", int, 1024, 1 << 40, 16 << 20),
        keep_going=table.take("keep_going", bool, False),
    )
    table.refuse_the_rest()
    return plan


def _kernel(table: Table, folder: Path) -> KernelPlan:
    running = table.take("running", str, None)
    name = table.take("name", str, None)
    settings: dict[str, Any] = {}
    for key, kind in KERNEL_SETTINGS.items():
        if table.has(key) and running is not None:
            raise PlanError(table.where(key), "is for a kernel of one's own: leave 'running' out")
        value = table.texts(key) if kind is list else table.take(key, kind, None)
        if value not in (None, ()):
            settings[key] = value
    if running is not None and name is not None:
        raise PlanError(table.where("name"), "is for a kernel of one's own: leave 'running' out")
    table.refuse_the_rest()
    if "driver" in settings:
        settings["driver"] = [_place(one, folder) for one in settings["driver"]]
    if "latency_model" in settings:
        settings["latency_model"] = _place(settings["latency_model"], folder)
    if "hca_profile" in settings:
        settings["hca_profile"] = str(folder / settings["hca_profile"])
    return KernelPlan(running, name, settings)


def _fault(table: Table) -> PlannedFault:
    point = table.take("point", str)
    after = tuple(_point(one, table.where("after")) for one in table.texts("after"))
    try:
        return PlannedFault(parse_fault(point, table.take_the_rest()), after)
    except FaultFileError as error:
        raise PlanError(table.path, str(error)) from None


def _place(text: str, folder: Path) -> str:
    """Return a file's place, seen from the plan's folder; other texts as they are."""
    place = text.partition(":")[0]
    return str(folder / text) if "/" in place or place.endswith((".py", ".toml")) else text


def _group(table: Table, folder: Path) -> Group:
    restart = table.choice("restart", RESTART_POLICIES, NEVER)
    restarts = table.number("restarts", int, 0, MOST_RESTARTS, 0)
    if (restart == ON_FAILURE) != (restarts > 0):
        key = "restarts" if restart == ON_FAILURE else "restart"
        raise PlanError(
            table.where(key), 'restart = "on-failure" and a number of restarts go together'
        )
    environment = table.table("environment")
    group = Group(
        name=table.take("name", str),
        command=_command(table, folder),
        arguments=table.texts("arguments"),
        count=table.number("count", int, 1, MOST_RANKS, 1),
        environment={key: environment.take(key, str) for key in environment.names_left()},
        after=tuple(_point(one, table.where("after")) for one in table.texts("after")),
        until=_optional_point(table, "until"),
        cpus=_cpus(table),
        time_limit=table.number("time_limit", float, 0.1, MOST_SECONDS, None),
        restart=restart,
        restarts=restarts,
        success=_success(table.table("success")),
    )
    table.refuse_the_rest()
    return group


def _command(table: Table, folder: Path) -> tuple[str, ...]:
    """Return the command of the one way that is given to say it."""
    given = [key for key in _RUNS if table.has(key)]
    if len(given) != 1:
        raise PlanError(
            table.where(given[1] if given else "run"),
            'give one of run = "module:function", script = "file.py", command = ["program", ...]',
        )
    run = table.take("run", str, None)
    script = table.take("script", str, None)
    command = table.texts("command")
    if run is not None:
        module, colon, name = run.partition(":")
        if not colon or not all(part.isidentifier() for part in [*module.split("."), name]):
            raise PlanError(table.where("run"), f'is {run!r}: write it as "module:function"')
        return function_command(run, folder)
    if script is not None:
        if not (folder / script).is_file():
            raise PlanError(table.where("script"), f"there is no file {folder / script}")
        return script_command(folder / script)
    return command


def _point(text: str, where: str) -> Point:
    group, colon, name = text.partition(":")
    if not colon:
        raise PlanError(where, f'is {text!r}: write a group and its point, as in "server:ready"')
    return Point(group, name)


def _optional_point(table: Table, key: str) -> Point | None:
    text = table.take(key, str, None)
    return None if text is None else _point(text, table.where(key))


def _cpus(table: Table) -> tuple[tuple[int, ...], ...]:
    """Return the sets of processors ranks take in turn."""
    allowed = sorted(os.sched_getaffinity(0))
    where = table.where("cpus")
    if table.has("cpus") and not table.is_list("cpus"):
        table.choice("cpus", (_SPREAD,), _SPREAD)
        return tuple((cpu,) for cpu in allowed)
    sets = []
    for index, one in enumerate(table.take("cpus", list, [])):
        cpus = one if isinstance(one, list) else [one]
        if not cpus or not all(type(cpu) is int and cpu in allowed for cpu in cpus):
            raise PlanError(
                f"{where}[{index}]",
                f"is {one!r}: this process may use the processors "
                f"{', '.join(map(str, allowed))}, each or lists of them",
            )
        sets.append(tuple(cpus))
    return tuple(sets)


def _success(table: Table) -> Success:
    given = table.has("exit_codes")
    codes = table.members("exit_codes", int) or ([] if given else [0])
    for index, code in enumerate(codes):
        if not 0 <= code <= 255:
            raise PlanError(f"{table.where('exit_codes')}[{index}]", "lies between 0 and 255")
    killed_by = [
        _signal(name, f"{table.where('killed_by')}[{index}]")
        for index, name in enumerate(table.members("killed_by", str))
    ]
    reported = table.table("reported")
    least = {
        key: reported.number(key, float, -_WHOLE, _WHOLE, 0.0) for key in reported.names_left()
    }
    table.refuse_the_rest()
    if not codes and not killed_by:
        raise PlanError(table.where("exit_codes"), "is empty: no end would be a good one")
    return Success(tuple(codes), tuple(killed_by), least)


def _signal(name: str, where: str) -> int:
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise PlanError(where, f"{name!r} is no signal: write it as SIGKILL") from None
