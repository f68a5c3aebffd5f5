"""The rows of `softhca show`, taken from a kernel's state: plain values, as `--json` prints them.

Owners are joined by the kernel's number of their process, since one process may have several
sessions. What belongs to the kernel itself has neither session nor pid.

Rules: imports nothing of the kernel: the state is data of another program.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from shared.verb_codes import HCA_DEVICE, VERB_NAMES
from user_proc.cli.device_figures import (
    device_figures,
    device_of,
    queue_pair_figures,
    silence,
    window_figures,
    windows_of,
)
from user_proc.verbs.utils import qp_state_to_str, qp_type_to_str

State = dict[str, Any]
Rows = list[dict[str, Any]]


def _owners(state: State) -> dict[int, State]:
    return {session["process_number"]: session for session in state["server"]["sessions"]}


def _owned(owners: dict[int, State], thing: State) -> dict[str, Any]:
    """Return a thing with its session and pid, which come first; None for the kernel's own."""
    session = owners.get(thing["process_number"])
    head = {"session": None if session is None else session["session"], "pid": None}
    return {**head, **thing, "pid": thing["pid"] or None}


def _driver(state: State) -> State:
    """Return what the HCA's driver shows; empty for a kernel without an HCA."""
    driver: State = state["hca"].get("driver", {})
    return driver


def _contexts(state: State) -> list[State]:
    driver = _driver(state)
    return [*driver.get("hca", {}).get("contexts", []), *driver.get("dead_contexts", [])]


def object_rows(state: State, kind: str) -> Rows:
    """Return the verbs objects of a kind, of all contexts; those on a dead HCA are marked."""
    return list(_objects(state, kind))


def _objects(state: State, kind: str) -> Iterator[dict[str, Any]]:
    owners = _owners(state)
    known, told = _TOLD_BY_THE_HCA.get(kind, _NOTHING_TOLD)
    source = known(state)
    for context in _contexts(state):
        owner = _owned(owners, context)
        head = {key: owner[key] for key in ("session", "pid", "context", "dead")}
        for found in context["objects"]:
            if found["kind"] == kind:
                row = {**head, **found}
                # The HCA of now may have given the number of an object of before to another.
                yield {**row, **told(row, {} if row["dead"] else source)}


def _of_queue_pair(row: State, device: State) -> dict[str, Any]:
    return {
        "type": qp_type_to_str(row["type"]),
        "state": qp_state_to_str(row["state"]),
        **queue_pair_figures(device, row["number"]),
    }


def _of_window(row: State, windows: State) -> dict[str, Any]:
    return window_figures(windows, row["key"])


_Told = tuple[Callable[[State], State], Callable[[State, State], dict[str, Any]]]
_NOTHING_TOLD: Final[_Told] = (lambda state: {}, lambda row, source: {})
#: The kinds of which the HCA knows more than the driver: where that is, and what of it is shown.
_TOLD_BY_THE_HCA: Final[dict[str, _Told]] = {
    "QP": (device_of, _of_queue_pair),
    "MW": (windows_of, _of_window),
}


def session_rows(state: State) -> Rows:
    """Return the sessions, those being run down included."""
    contexts, objects = Counter[int](), Counter[int]()
    for context in _contexts(state):
        contexts[context["process_number"]] += 1
        objects[context["process_number"]] += len(context["objects"])
    return [
        {
            **session,
            "state": "ending" if session["ending"] else "open",
            "contexts": contexts[session["process_number"]],
            "objects": objects[session["process_number"]],
            "arena_bytes": session["arenas"]["quota"]["used"],
        }
        for session in state["server"]["sessions"]
    ]


def thread_rows(state: State) -> Rows:
    """Return the kernel's threads: those of sessions and its own."""
    owners = _owners(state)
    return [_owned(owners, thread) for thread in state["dispatcher"]["thread_table"]]


def irp_rows(state: State) -> Rows:
    """Return the requests of all threads; a verb's has its name."""
    owners = _owners(state)
    return [
        {**_owned(owners, irp), "request": _request(irp["code"])}
        for irp in state["io_manager"]["irps"]
    ]


def _request(code: int) -> str | None:
    return VERB_NAMES.get(code, hex(code)) if code else None


def command_rows(state: State) -> Rows:
    """Return the HCA's commands by name: the time the model asked for, and what they took."""
    commands = _driver(state).get("hca", {}).get("commands", {})
    failed = commands.get("failed", {})
    return [
        {
            "command": name,
            **times,
            "failed": failed.get(name, 0),
            "asked_us_each": round(times["asked_ns"] / times["count"] / 1000, 1),
            "achieved_us_each": round(times["achieved_ns"] / times["count"] / 1000, 1),
        }
        for name, times in commands.get("times", {}).items()
    ]


def device_rows(state: State) -> Rows:
    """Return the HCA: its process, its state, its tables; nothing for a kernel without one."""
    driver = _driver(state)
    if not driver:
        return []
    hca, link = driver["hca"], driver["link"]
    row = {
        "device": HCA_DEVICE,
        "state": "up" if driver["up"] else "dead",
        "failure": driver["failure"] or None,
        "pid": (not link["dead"] and link.get("process")) or None,
        "asleep": link.get("sleeps") if driver["up"] else None,
        "resets": driver["resets"],
        "interrupts": link["line_raised"],
        "figures": silence(state) or None,
        **device_figures(state),
    }
    return [{**row, **_life(hca)}] if hca else [row]


def _life(hca: State) -> dict[str, Any]:
    commands, icm, mtt = hca["commands"], hca["icm"], hca["regions"]["mtt_segments"]
    return {
        "firmware": hca["firmware"],
        "command_mode": commands["mode"],
        "commands": sum(commands["executed"].values()),
        "commands_failed": sum(commands["failed"].values()),
        "commands_outstanding": commands.get("outstanding", 0),
        "verbs": hca["verbs"],
        "contexts": len(hca["contexts"]),
        "icm_chunks": icm["chunks"],
        "icm_maps": icm["maps"],
        "icm_unmaps": icm["unmaps"],
        "mtt_segments": mtt["size"],
        "mtt_used": mtt["used"],
        "mtt_longest_free": mtt["longest_free"],
        **{f"{name}_used": table["used"] for name, table in hca["numbers"].items()},
    }
