"""What a kernel did between two looks, as plain values: what `softhca top` shows and prints.

A rate is of one second. What cannot be known - of an HCA that tells nothing, or of a process that
has gone - is None.

Rules: one thread; a counter that fell has begun anew, with another HCA.
"""

import time
from typing import Any, Final

from shared.clock import now_ns
from user_proc.top.look import FIGURES, Look, look_at
from user_proc.top.percentiles import request_percentiles
from user_proc.top.processes import ProcessTable
from user_proc.transport.kernel_control import kernel_state

_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_RATES: Final = (
    "requests", "echoes", "verbs", "commands", "irps", "interrupts", "dpcs", "thread_switches",
    "doorbells", "turns", "events", "wire_bytes",
)  # fmt: skip

Sample = dict[str, Any]


class Watch:
    """Looks at one kernel again and again; the first look tells nothing yet."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._processes: Final = ProcessTable()
        self._look, _, _ = self._take()

    def next_sample(self, interval_s: float) -> Sample:
        """Let the interval pass and tell what happened in it.

        KernelNotRunning, KernelDied or KernelNotResponding if there is no kernel to ask any more.
        """
        before = self._look
        time.sleep(max(0.0, interval_s - (now_ns() - before.clock_ns) / _NS_PER_S))
        after, processes, asked_ns = self._take()
        self._look = after
        return _sample(self.name, before, after, processes, asked_ns)

    def _take(self) -> tuple[Look, dict[int, dict[str, Any]], int]:
        asked = now_ns()
        look = look_at(kernel_state(self.name))
        took_ns = now_ns() - asked
        pids = {one["pid"] for one in look.sessions.values() if one["pid"]} | {look.pid}
        device = _device_pid(look)
        if device is not None:
            pids.add(device)
        return look, self._processes.look(pids), took_ns


def _device_pid(look: Look) -> int | None:
    link = look.hca.get("link", {})
    return None if link.get("dead", True) else link.get("process") or None


def _sample(
    name: str, before: Look, after: Look, processes: dict[int, dict[str, Any]], asked_ns: int
) -> Sample:
    seconds = max(1, after.clock_ns - before.clock_ns) / _NS_PER_S
    device_pid = _device_pid(after)
    return {
        "name": name,
        "seconds": round(seconds, 3),
        "asked_ms": round(asked_ns / _NS_PER_MS, 1),
        "kernel": {"pid": after.pid, **processes[after.pid]},
        "hca": {
            "state": _hca_state(after),
            "pid": device_pid,
            **(processes[device_pid] if device_pid is not None else {}),
            **_load(before.device, after.device),
        },
        "rates": {key: _rate(before.counts, after.counts, key, seconds) for key in _RATES},
        "request_us": request_percentiles(before.request_times, after.request_times),
        "queues": after.queues,
        "objects": after.objects,
        "sessions": _sessions(before, after, processes, seconds),
        "ports": _ports(before, after, seconds),
        "qps": _queue_pairs(before, after, seconds),
    }


def _hca_state(look: Look) -> str:
    if not look.hca:
        return "none"
    if not look.hca["up"]:
        return f"dead: {look.hca['failure']}"
    return f"silent: {look.silence}" if look.silence else "up"


def _change(before: int, after: int) -> int:
    return after - before if after >= before else after


def _rate(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]], key: str, seconds: float
) -> float | None:
    """Return the rate of a count; what was counted by a part that has gone since is not in it."""
    if key not in after:
        return None
    then = before.get(key, {})
    changes = (_change(then.get(part, 0), count) for part, count in after[key].items())
    return round(sum(changes) / seconds, 1)


def _load(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float | None]:
    """Return how the HCA spent its time, in percent."""
    if not before or not after or after["times"]["now_ns"] <= before["times"]["now_ns"]:
        return dict.fromkeys(("busy_percent", "looking_percent", "asleep_percent"))
    then, now = before["times"], after["times"]
    whole = now["now_ns"] - then["now_ns"]
    looked = _change(then["looked_ns"], now["looked_ns"])
    slept = _change(then["slept_ns"], now["slept_ns"])
    busy = max(0, whole - looked - slept)  # a sleep that began before is counted at its end
    shares = (busy, looked, slept)
    names = ("busy_percent", "looking_percent", "asleep_percent")
    return {
        name: round(min(100.0, 100 * part / whole), 1)
        for name, part in zip(names, shares, strict=True)
    }


def _sessions(
    before: Look, after: Look, processes: dict[int, dict[str, Any]], seconds: float
) -> list[Sample]:
    rows = []
    for number, one in after.sessions.items():
        then = before.sessions.get(number, {"requests": 0})["requests"]
        usage = processes.get(one["pid"], {"cpu_percent": None, "rss_bytes": None})
        rate = round((one["requests"] - then) / seconds, 1)
        rows.append({**one, **usage, "requests_per_s": rate})
    return rows


def _figures(before: dict[str, int], after: dict[str, int], seconds: float) -> dict[str, float]:
    return {
        f"{key}_per_s": round(_change(before.get(key, 0), after[key]) / seconds, 1)
        for key in FIGURES
    }


def _ports(before: Look, after: Look, seconds: float) -> list[Sample]:
    then = before.device.get("ports", {})
    return [
        {
            "port": int(number),
            "state": port["state"],
            **_figures(then.get(number, {}).get("counters", {}), port["counters"], seconds),
        }
        for number, port in after.device.get("ports", {}).items()
    ]


def _queue_pairs(before: Look, after: Look, seconds: float) -> list[Sample]:
    """Return the queue pairs that did anything, the busiest first."""
    then = before.device.get("qps", {})
    rows = []
    for number, told in after.device.get("qps", {}).items():
        rates = _figures(then.get(number, {}).get("counters", {}), told["counters"], seconds)
        if any(rates.values()):
            owner = after.owners.get(int(number))
            rows.append({"number": int(number), "session": owner, "state": told["state"], **rates})
    return sorted(rows, key=_bytes_moved, reverse=True)


def _bytes_moved(row: Sample) -> tuple[float, float]:
    moved = row["sent_bytes_per_s"] + row["received_bytes_per_s"]
    return moved, row["sent_messages_per_s"] + row["received_messages_per_s"]
