"""What a kernel holds for its users, taken out of its state; counters of what happened are not in.

Two looks compare equal exactly when nothing was left behind, and nothing taken away, between them.
"""

import os
from typing import Any

from tests.end_to_end.conftest import wait_until
from user_proc.transport.kernel_control import kernel_state

_LOOKER = "state"  # the kernel's thread that writes down what is looked at here
#: Figures of an object that change by themselves.
_MOVING = ("unread", "waiting", "completion_events", "async_events")


def objects_held(state: dict[str, Any]) -> dict[str, Any]:
    """Objects with their attributes, numbers, keys, memory and the HCA's own memory."""
    life = state["hca"]["driver"]["hca"]
    numbers = {name: table["used"] for name, table in life["numbers"].items()}
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
        "numbers": numbers,
        "regions": life["regions"],
        "buffers": life["buffers"],
        "icm": {name: life["icm"][name] for name in ("tables", "chunks")},
        "locked": {one["session"]: one["locked_pages"] for one in state["server"]["sessions"]},
        "frames locked": _locked_frames(state),
    }


def everything_held(state: dict[str, Any]) -> dict[str, Any]:
    """The same, with sessions, IRPs, pool, arenas, the bus, doorbells and descriptors."""
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
        "kernel memory": hca["kernel_memory"]["used"] - 4096 * life["commands"]["mailboxes"],
        "commands": life["commands"]["outstanding"],
        "doorbells": hca["doorbells"]["segments"],
        "told the HCA": hca["link"]["segments"],
        "descriptors": state["descriptors"],
        "descriptors of the HCA": _descriptors(hca["link"]["process"]),
    }


def _locked_frames(state: dict[str, Any]) -> int:
    """Frames that are neither in a segment of kernel memory nor in an arena: locked ones."""
    segments: int = sum(one["length"] for one in state["hca"]["bus"]["segments"])
    used: int = state["hca"]["bus"]["frames"]["used"]
    return used - segments // 4096


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return 0


def wait_for_nothing_more(kernel: str, before: dict[str, Any]) -> None:
    """Wait until a kernel holds what it held before; fail with the difference."""
    seen: dict[str, Any] = {}

    def reached() -> bool:
        seen.clear()
        seen.update(everything_held(kernel_state(kernel)))
        return seen == before

    try:
        wait_until(reached)
    except AssertionError:
        more = {name: (before[name], seen[name]) for name in seen if seen[name] != before[name]}
        raise AssertionError(f"held before and now: {more}") from None
