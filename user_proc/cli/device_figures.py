"""What the HCA tells of itself, as rows of `softhca show`: figures of queue pairs, ports, device.

A kernel asks its HCA each time it writes its state. An HCA that tells nothing - it is dead, or its
process is stopped - leaves "error" in their place, and `silence` says so.

Rules: imports nothing of the kernel: the state is data of another program.
"""

from collections import Counter
from typing import Any, Final

from user_proc.errors import SofthcaError

State = dict[str, Any]

FIGURES: Final = (
    "sent_messages", "sent_bytes", "received_messages", "received_bytes", "rnr_naks_sent",
    "rnr_naks_received", "retries", "timeouts", "flushes",
)  # fmt: skip
DEVICE_FIGURES: Final = (
    *FIGURES, "drops", "doorbells_rung", "doorbell_scans", "turns", "events_written",
    "page_look_ups", "private_copies",
)  # fmt: skip
_UNKNOWN: Final = dict.fromkeys(("bound", "region", "address", "length", "rights", "queue_pair"))
_KEY_VARIANTS: Final = 8  # bits
_NOTHING: Final = {**dict.fromkeys(FIGURES), "drops": None}


class HcaSilent(SofthcaError):
    """The HCA tells nothing of itself."""


def device_of(state: State) -> State:
    """Return what the HCA told; empty without one, or when it tells nothing."""
    if not state["hca"].get("driver"):
        return {}
    told: State = state["hca"]["device"]
    return {} if "error" in told else told


def silence(state: State) -> str:
    """Return why the HCA told nothing; empty if it did, or if there is none."""
    if not state["hca"].get("driver"):
        return ""
    return str(state["hca"]["device"].get("error", ""))


def queue_pair_figures(device: State, number: int) -> State:
    """Return a QP's figures; None for each if the HCA has no such QP (in Reset it has none)."""
    told = device.get("qps", {}).get(str(number))
    return dict(told["counters"]) if told is not None else dict(_NOTHING)


def windows_of(state: State) -> State:
    """Return the HCA's memory windows by what of their keys stays the same."""
    told: State = device_of(state).get("windows", {})
    return {str(window["key"] >> _KEY_VARIANTS): window for window in told.values()}


def window_figures(windows: State, key: int) -> State:
    """Return a window's key of now and what it is bound to; None for each that is not known.

    `key` is the one it was allocated with.
    """
    told = windows.get(str(key >> _KEY_VARIANTS))
    return {"key": key, **_UNKNOWN} if told is None else {"bound": told["region"] != 0, **told}


def port_rows(state: State) -> list[State]:
    """Return the ports with their figures: those of their QPs, living and gone, and their drops."""
    reason = silence(state)
    if reason:
        raise HcaSilent(f"{reason}: 'softhca show device' tells its state")
    return [
        {
            "port": int(number),
            **told,
            **told["counters"],
            "drops": dict(Counter(told["drops"]) + Counter(told["counters"]["drops"])),
        }
        for number, told in device_of(state).get("ports", {}).items()
    ]


def device_figures(state: State) -> State:
    """Return the figures of the whole HCA; None for each that it did not tell."""
    device = device_of(state)
    if not device:
        return dict.fromkeys(DEVICE_FIGURES)
    ports = port_rows(state)
    drops = sum((Counter(port["drops"]) for port in ports), Counter[str]())
    pages = device["doorbells"].values()
    return {
        **{name: sum(port[name] for port in ports) for name in FIGURES},
        "drops": drops.total(),
        "doorbells_rung": sum(page["rings"] for page in pages),
        "doorbell_scans": sum(page["scans"] for page in pages),
        "turns": device["rounds"]["turns"],
        "events_written": device["events"]["written"],
        "page_look_ups": device["translation"]["page_look_ups"],
        "private_copies": device["private_copies"]["jobs"],
    }
