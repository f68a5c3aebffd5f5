"""The tables of `softhca show`: which rows a kind has, and the columns they are shown in."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from shared.verbs_enums import ibv_access_flags
from user_proc.cli import state_rows as rows
from user_proc.cli.columns import Column
from user_proc.cli.device_figures import DEVICE_FIGURES, port_rows
from user_proc.cli.memory_rows import memory_rows
from user_proc.cli.state_rows import Rows, State
from user_proc.verbs.utils import text_of_gid


class Table(NamedTuple):
    """How a kind is found and shown; `upright` gives a row a line for each value."""

    rows: Callable[[State], Rows]
    columns: tuple[Column, ...]
    upright: bool = False


def _access(flags: int) -> str:
    names = [one.name.removeprefix("IBV_ACCESS_") for one in ibv_access_flags if flags & one]
    return " ".join(names).lower() or "local_read"


def _gid(digits: str) -> str:
    return text_of_gid(bytes.fromhex(digits)) if digits.strip("0") else ""


def _gids(all_digits: list[str]) -> str:
    return ", ".join(map(_gid, all_digits))


def _parents(parents: list[tuple[str, int]]) -> str:
    return ", ".join(f"{kind} {handle}" for kind, handle in parents)


def _drops(drops: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(drops.items()))


_FIGURES: Final = (
    Column("sent_messages", "SENT"),
    Column("sent_bytes", "SENT BYTES"),
    Column("received_messages", "RECEIVED"),
    Column("received_bytes", "RECEIVED BYTES"),
    Column("rnr_naks_sent", "RNR SENT"),
    Column("rnr_naks_received", "RNR RECEIVED"),
    Column("retries", "RETRIES"),
    Column("timeouts", "TIMEOUTS"),
    Column("flushes", "FLUSHES"),
    Column("drops", "DROPS", _drops, may_go=True),
)
_OWNER: Final = (Column("session", "SESSION"), Column("pid", "PID"))
_HEAD: Final = (Column("handle", "HANDLE"), *_OWNER, Column("context", "CONTEXT"))
_TAIL: Final = (
    Column("users", "USERS"),
    Column("parents", "OF", _parents, may_go=True),
    Column("dead", "HCA", lambda dead: "dead" if dead else "", may_go=True),
)
_NUMBER: Final = Column("number", "NUMBER", hex)
_EVENTS: Final = (
    Column("async_events", "ASYNC EVENTS"),
    Column("unread", "UNREAD"),
    Column("waiting", "WAITING"),
)


def _objects(kind: str, *columns: Column) -> Table:
    return Table(partial(rows.object_rows, kind=kind), (*_HEAD, *columns, *_TAIL))


_OBJECTS: Final = {
    "pd": _objects("PD", Column("pdn", "NUMBER", hex)),
    "mr": _objects(
        "MR",
        Column("key", "KEY", hex),
        Column("address", "ADDRESS", hex),
        Column("length", "LENGTH"),
        Column("access", "ACCESS", _access),
        Column("usable", "USABLE"),
    ),
    "mw": _objects(
        "MW",
        Column("type", "TYPE"),
        Column("key", "KEY", hex),
        Column("bound", "BOUND"),
        Column("region", "REGION", hex),
        Column("address", "ADDRESS", hex),
        Column("length", "LENGTH"),
        Column("rights", "RIGHTS", " ".join),
        Column("queue_pair", "QP", hex),
    ),
    "ah": _objects(
        "AH",
        Column("port", "PORT"),
        Column("dlid", "LID", hex),
        Column("dgid", "GID", _gid, may_go=True),
    ),
    "cq": _objects(
        "CQ",
        _NUMBER,
        Column("entries", "ENTRIES"),
        Column("channel", "CHANNEL"),
        Column("completion_events", "EVENTS"),
        *_EVENTS,
    ),
    "qp": _objects(
        "QP",
        _NUMBER,
        Column("type", "TYPE"),
        Column("state", "STATE"),
        *_FIGURES,
        *_EVENTS,
        Column("groups", "GROUPS", _gids, may_go=True),
    ),
    "srq": _objects("SRQ", _NUMBER, Column("entries", "ENTRIES"), Column("xrc", "XRC"), *_EVENTS),
    "xrcd": _objects("XRC domain", _NUMBER, Column("opened", "OPENED")),
}

_SESSIONS: Final = Table(
    rows.session_rows,
    (
        *_OWNER,
        Column("process", "PROCESS"),
        Column("state", "STATE"),
        Column("threads", "THREADS", lambda threads: str(len(threads))),
        Column("in_flight", "IN FLIGHT"),
        Column("requests", "REQUESTS"),
        Column("handles", "HANDLES"),
        Column("contexts", "CONTEXTS"),
        Column("objects", "OBJECTS"),
        Column("arena_bytes", "ARENA BYTES"),
        Column("locked_pages", "LOCKED PAGES"),
    ),
)

_IRPS: Final = Table(
    rows.irp_rows,
    (
        Column("irp", "IRP"),
        *_OWNER,
        Column("thread", "THREAD"),
        Column("function", "FUNCTION"),
        Column("request", "REQUEST", may_go=True),
        Column("held_by", "HELD BY"),
        Column("state", "STATE"),
        Column("cancellable", "CANCELLABLE"),
        Column("cancelled", "CANCELLED"),
    ),
)

_THREADS: Final = Table(
    rows.thread_rows,
    (
        Column("thread", "THREAD"),
        *_OWNER,
        Column("name", "NAME"),
        Column("priority", "PRIORITY"),
        Column("irps", "IRPS"),
        Column("state", "STATE"),
        Column("waits_for", "WAITS FOR"),
    ),
)

_PORTS: Final = Table(
    port_rows,
    (
        Column("port", "PORT"),
        Column("state", "STATE"),
        Column("lid", "LID", hex),
        Column("gids", "GIDS", _gids),
        *_FIGURES,
        Column("pkey_violations", "BAD P_KEYS"),
        Column("qkey_violations", "BAD Q_KEYS"),
    ),
)

_DEVICE_KEYS: Final = (
    "device", "state", "failure", "pid", "asleep", "resets", "interrupts", "firmware",
    "command_mode", "commands", "commands_failed", "commands_outstanding", "verbs", "contexts",
    "icm_chunks", "icm_maps", "icm_unmaps", "mtt_segments", "mtt_used", "mtt_longest_free",
    "pd_used", "mpt_used", "cq_used", "qp_used", "srq_used", "xrcd_used", "mgm_used",
    "figures", *DEVICE_FIGURES,
)  # fmt: skip

_DEVICES: Final = Table(
    rows.device_rows,
    tuple(Column(key, key.replace("_", " ")) for key in _DEVICE_KEYS),
    upright=True,
)

_COMMANDS: Final = Table(
    rows.command_rows,
    (
        Column("command", "COMMAND"),
        Column("count", "COUNT"),
        Column("failed", "FAILED"),
        Column("asked_us_each", "ASKED US EACH"),
        Column("achieved_us_each", "ACHIEVED US EACH"),
    ),
)

_MEMORY: Final = Table(
    memory_rows,
    (
        Column("memory", "MEMORY"),
        Column("used", "USED"),
        Column("limit", "LIMIT"),
        Column("unit", "UNIT"),
    ),
)

TABLES: Final[dict[str, Table]] = {
    "session": _SESSIONS,
    **_OBJECTS,
    "port": _PORTS,
    "irp": _IRPS,
    "thread": _THREADS,
    "device": _DEVICES,
    "command": _COMMANDS,
    "memory": _MEMORY,
}
