"""One look at a kernel: what of its state is counted, laid out so that two looks can be compared.

Rules: imports nothing of the kernel: the state is data of another program.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

State = dict[str, Any]

#: What queue pairs and ports count, as the HCA names it.
FIGURES: Final = (
    "sent_messages", "sent_bytes", "received_messages", "received_bytes", "rnr_naks_sent",
    "rnr_naks_received", "retries", "timeouts", "flushes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """What was counted at a time.

    A count is the sum of its parts, which come and go: requests with sessions, say.
    `device` is what the HCA told of itself: empty without one, or when it tells nothing, which
    `silence` gives the reason of.
    """

    clock_ns: int
    pid: int
    counts: dict[str, dict[str, int]]
    sessions: dict[int, State]
    objects: dict[str, int]
    queues: dict[str, Any]
    request_times: dict[int, int]
    hca: State
    device: State
    silence: str
    owners: dict[int, int]


def look_at(state: State) -> Look:
    """Take what is counted from a kernel's state."""
    driver: State = state["hca"].get("driver", {})
    told: State = state["hca"].get("device", {}) if driver else {}
    silence = str(told.get("error", ""))
    device: State = {} if silence else told
    contexts = driver.get("hca", {}).get("contexts", [])
    by_process = {session["process_number"]: session for session in state["server"]["sessions"]}
    return Look(
        clock_ns=state["clock_ns"],
        pid=state["process"],
        counts=_counts(state, driver, device),
        sessions=_sessions(state, contexts),
        objects=dict(Counter(each["kind"] for context in contexts for each in context["objects"])),
        queues=_queues(state, driver),
        request_times=dict(state["server"]["request_times"]["up_to_ns"]),
        hca=driver,
        device=device,
        silence=silence,
        owners={
            each["number"]: by_process[context["process_number"]]["session"]
            for context in contexts
            if context["process_number"] in by_process
            for each in context["objects"]
            if each["kind"] == "QP"
        },
    )


def _counts(state: State, driver: State, device: State) -> dict[str, dict[str, int]]:
    dispatcher, server, hca = state["dispatcher"], state["server"], driver.get("hca", {})
    counts = {
        "requests": {str(one["session"]): one["requests"] for one in server["sessions"]},
        "echoes": {"": server["echoes"]},
        "wire_bytes": {"": server["wire_bytes"]},
        "irps": {"": state["io_manager"]["irps_allocated"]},
        "thread_switches": {"": dispatcher["switches"]},
        "dpcs": {"": dispatcher["dpcs"]},
        "interrupts": {"": dispatcher["interrupts"]},
    }
    if hca:
        counts["verbs"] = {"": hca["verbs"]}
        counts["commands"] = hca["commands"]["executed"]
    if device:
        counts["doorbells"] = {page: told["rings"] for page, told in device["doorbells"].items()}
        counts["turns"] = {"": device["rounds"]["turns"]}
        counts["events"] = {"": device["events"]["written"]}
    return counts


def _sessions(state: State, contexts: list[State]) -> dict[int, State]:
    objects = Counter[int]()
    for context in contexts:
        objects[context["process_number"]] += len(context["objects"])
    return {
        one["session"]: {
            "session": one["session"],
            "process": one["process"],
            "pid": one["pid"] or None,
            "state": "ending" if one["ending"] else "open",
            "requests": one["requests"],
            "in_flight": one["in_flight"],
            "objects": objects[one["process_number"]],
            "locked_pages": one["locked_pages"],
            "arena_bytes": one["arenas"]["quota"]["used"],
        }
        for one in state["server"]["sessions"]
    }


def _queues(state: State, driver: State) -> dict[str, Any]:
    irps = state["io_manager"]["irps"]
    threads = state["dispatcher"]["thread_table"]
    return {
        "irps": len(irps),
        "irps_by_holder": dict(Counter(irp["held_by"] for irp in irps)),
        "dpcs": state["dispatcher"]["dpc_queue"],
        "threads_ready": sum(thread["state"] == "ready" for thread in threads),
        "commands": driver.get("hca", {}).get("commands", {}).get("outstanding", 0),
    }
