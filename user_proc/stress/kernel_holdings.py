"""What a kernel holds for its users, taken out of its state; counters of what happened are not in.

Two looks compare equal exactly when nothing was left behind, and nothing taken away, between them.
"""

import os
import select
from collections.abc import Callable, Mapping
from typing import Any, Final

from shared.clock import now_ns
from user_proc.transport.kernel_control import kernel_state

_LOOKER: Final = "state"  # the kernel's thread that writes down what is looked at here
_PAGE: Final = 4096
_AGAIN_S: Final = 0.05
_MOST_LOOKS: Final = 40
#: Figures of an object that change by themselves.
_MOVING: Final = ("unread", "waiting", "completion_events", "async_events")

#: Takes out of a state what is compared.
Look = Callable[[Mapping[str, Any]], dict[str, Any]]


def objects_held(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return objects with their attributes, numbers, keys, memory and the HCA's own memory."""
    life = state["hca"]["driver"]["hca"]
    contexts = [
        {
            "pid": context["pid"],
            "uar": context["uar"],
            "objects": [
                {name: value for name, value in one.items() if name not in _MOVING}
                for one in context["objects"]
            ],
        }
        for context in life["contexts"]
    ]
    return {
        "contexts": contexts,
        "dead contexts": len(state["hca"]["driver"]["dead_contexts"]),
        "numbers": {name: table["used"] for name, table in life["numbers"].items()},
        "regions": life["regions"],
        "buffers": life["buffers"],
        "icm": {name: life["icm"][name] for name in ("tables", "chunks")},
        "locked": {one["session"]: one["locked_pages"] for one in state["server"]["sessions"]},
        "frames locked": _locked_frames(state),
    }


def everything_held(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same with sessions, IRPs, pool, arenas, the bus, doorbells and descriptors."""
    hca, io = state["hca"], state["io_manager"]
    life = hca["driver"]["hca"]
    return objects_held(state) | {
        "sessions": len(state["server"]["sessions"]),
        "threads": sorted(
            one["name"] for one in state["dispatcher"]["thread_table"] if one["name"] != _LOOKER
        ),
        "irps": io["irps"],
        "pool": io["pool"]["used"],
        "open files": {name: one["open_count"] for name, one in io["devices"].items()},
        "arenas": (state["arena_total"]["used"], state["arena_places"]["used"]),
        "bus": hca["bus"]["segments"],
        "frames": hca["bus"]["frames"]["used"],
        # Mailboxes are kept for the next command.
        "kernel memory": hca["kernel_memory"]["used"] - _PAGE * life["commands"]["mailboxes"],
        "commands": life["commands"]["outstanding"],
        "doorbells": hca["doorbells"]["segments"],
        "told the HCA": hca["link"]["segments"],
        "descriptors": state["descriptors"],
        "descriptors of the HCA": _descriptors(hca["link"]["process"]),
    }


def held_by_processes(kernel_pid: int) -> Look:
    """Return a look that has what the kernel and its HCA hold of the system, too.

    Their threads, and files of shared memory that have this product's name.
    """

    def look(state: Mapping[str, Any]) -> dict[str, Any]:
        hca = state["hca"]["link"]["process"]
        return everything_held(state) | {
            "threads of the kernel": len(os.listdir(f"/proc/{kernel_pid}/task")),
            "threads of the HCA": len(os.listdir(f"/proc/{hca}/task")),
            "files of shared memory": [one for one in os.listdir("/dev/shm") if "softhca" in one],
        }

    return look


def _locked_frames(state: Mapping[str, Any]) -> int:
    """Return frames that are neither in a segment of kernel memory nor in an arena: locked ones."""
    segments: int = sum(one["length"] for one in state["hca"]["bus"]["segments"])
    used: int = state["hca"]["bus"]["frames"]["used"]
    return used - segments // _PAGE


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return 0


def what_is_held(kernel: str, look: Look = everything_held) -> dict[str, Any]:
    """Return what a kernel holds once it stays the same: one that has just started may move yet."""
    before: dict[str, Any] | None = None
    for _ in range(_MOST_LOOKS):
        now = look(kernel_state(kernel))
        if now == before:
            break
        before = now
        select.select([], [], [], _AGAIN_S)
    return now


def what_is_left(
    kernel: str, before: Mapping[str, Any], seconds: float, look: Look = everything_held
) -> list[str]:
    """Wait until a kernel holds no more than before; name what differs when the time is over.

    Fewer descriptors are none left: the HCA closes those of a former session when it looks.
    """
    deadline = now_ns() + int(seconds * 1e9)
    while True:
        now = look(kernel_state(kernel))
        different = [name for name in now if _is_left(name, before[name], now[name])]
        if not different or now_ns() > deadline:
            return [
                f"{name}: {_short(before[name])} before, {_short(now[name])} now"
                for name in different
            ]
        select.select([], [], [], _AGAIN_S)


def _is_left(name: str, before: Any, now: Any) -> bool:
    return bool(now > before if name.startswith("descriptors") else now != before)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]} ..."
