"""What a run of the data path's benchmark says in words.

Every sentence is built from this run's rows; a row that was not taken takes its sentence with it.

Rules: made from a document's rows alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from user_proc.bench.answer_parts import Answer, make_answer
from user_proc.bench.speed.speed_rows import (
    DISPATCH,
    EVENT,
    KERNEL,
    LOADED,
    MESSAGE_RATE,
    PASSIVE,
    POLLING,
    UNLOADED,
    USER,
)
from user_proc.bench.wording import microseconds, payload_text

Row = Mapping[str, Any]


def answers_of(rows: Iterable[Row]) -> list[Answer]:
    """Return the answers this run can give."""
    taken = list(rows)
    asked = (_message, _load, _event, _bandwidth, _rate, _kernel)
    return [answer for question in asked if (answer := question(taken)) is not None]


def _find(rows: Sequence[Row], **values: Any) -> Row | None:
    usual = {"load": UNLOADED, "mode": POLLING, "transport": "RC", "qps": 1, "client": USER}
    wanted = {**usual, **values}
    return next((row for row in rows if all(row[name] == wanted[name] for name in wanted)), None)


def _message(rows: Sequence[Row]) -> Answer | None:
    """Say what a small message costs, over its floor."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for name, words, values in (
        ("post_to_poll", "From post until polled, an RDMA write of {} in one process takes", {}),
        ("send_lat", "One way, an RC send of {} between two polling processes takes", {}),
        ("send_lat", "A datagram of {} takes", {"transport": "UD"}),
        ("write_lat", "An RDMA write of {}, seen by the peer in its memory, takes", {}),
    ):
        row = _find(rows, op=name, bytes=64, **values)
        if row is None:
            continue
        figures[f"{name} {row['transport']}"] = _figures(row)
        sentences.append(
            f"{words.format(payload_text(64))} {microseconds(row['p50_us'])} us{_tail(row)}, "
            f"{row['ratio']:.2f} times {_floor(row)}."
        )
    return make_answer("What does a small message cost?", sentences, figures)


def _figures(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("p50_us", "p99_us", "floor_p50_us", "ratio")}


def _tail(row: Row) -> str:
    return "" if row["p99_us"] is None else f", p99 {microseconds(row['p99_us'])} us"


def _floor(row: Row) -> str:
    words = {
        "relay": "a word's way through a relay process",
        "relay_return": "a word's way to a relay process and back",
        "echo": "half an echo of the kernel's loop",
    }
    return f"{words[row['floor']]} ({microseconds(row['floor_p50_us'])} us)"


def _load(rows: Sequence[Row]) -> Answer | None:
    """Compare loaded rows with the same rows unloaded."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for row in rows:
        if row["load"] != LOADED:
            continue
        same = ("op", "transport", "bytes", "qps", "depth", "processes", "mode")
        idle = _find(rows, **{name: row[name] for name in same})
        if idle is None:
            continue
        times = row["p50_us"] / idle["p50_us"]
        label = f"{row['op']} {row['transport']} {payload_text(row['bytes'])}, {row['mode']}"
        figures[label] = {
            "loaded_p50_us": row["p50_us"],
            "p50_us": idle["p50_us"],
            "times": round(times, 3),
            "floor_times": round(row["floor_p50_us"] / max(1e-3, idle["floor_p50_us"]), 3),
        }
        sentences.append(
            f"{label}: {microseconds(row['p50_us'])} us instead of "
            f"{microseconds(idle['p50_us'])}, {times:.2f} times; its floor "
            f"{figures[label]['floor_times']:.2f} times."
        )
    return make_answer("What does a load of control verbs do to it?", sentences, figures)


def _event(rows: Sequence[Row]) -> Answer | None:
    """Say what sleeping between messages costs."""
    slept = [row for row in rows if row["mode"] == EVENT and row["load"] == UNLOADED]
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for row in slept:
        label = f"{row['op']} {row['transport']} {payload_text(row['bytes'])}"
        figures[label] = _figures(row)
        sentences.append(
            f"{label}: {microseconds(row['p50_us'])} us{_tail(row)}, {row['ratio']:.2f} times "
            f"{_floor(row)}."
        )
    return make_answer("What does it cost when all sleep until an event?", sentences, figures)


def _bandwidth(rows: Sequence[Row]) -> Answer | None:
    """Say how much of a copy's bandwidth is reached: the largest share, and that of 1 MiB."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for op in ("write_bw", "send_bw", "read_bw"):
        streams = [row for row in rows if row["op"] == op and row["load"] == UNLOADED]
        if not streams:
            continue
        best = max(streams, key=lambda row: row["ratio"])
        chosen = _find(rows, op=op, bytes=1 << 20, processes=2)
        sentences.append(f"{op}: {_share_of_copy(best)}, is the largest share")
        figures[op] = {"best_ratio": best["ratio"], "best_bytes": best["bytes"]}
        if chosen is not None:
            sentences[-1] += f"; with 1 MiB it is {_share_of_copy(chosen)}"
            figures[op] |= {"ratio_1_mib": chosen["ratio"], "bw_gib_s_1_mib": chosen["bw_gib_s"]}
        sentences[-1] += "."
    return make_answer(
        "How much of a copy between the same regions is reached?", sentences, figures
    )


def _share_of_copy(row: Row) -> str:
    return (
        f"{row['bw_gib_s']:.2f} GiB/s, {row['ratio']:.2f} of the copy's "
        f"{row['floor_bw_gib_s']:.2f} ({payload_text(row['bytes'])}, "
        f"{row['processes']} processes, {row['qps']} QP)"
    )


def _rate(rows: Sequence[Row]) -> Answer | None:
    """Say how many small messages go through a second."""
    rates = [
        row
        for row in rows
        if (row["op"], row["load"], row["client"]) == (MESSAGE_RATE, UNLOADED, USER)
    ]
    if not rates:
        return None
    sentences = [
        f"{row['transport']}, {payload_text(row['bytes'])}, depth {row['depth']}, {row['qps']} QP, "
        f"{row['processes']} processes: {row['msg_per_s']:,.0f} messages a second."
        for row in rates
    ]
    figures = {
        f"{row['transport']} {row['bytes']} B {row['qps']} QP {row['processes']} processes": {
            "msg_per_s": row["msg_per_s"]
        }
        for row in rates
    }
    return make_answer("How many small messages a second?", sentences, figures)


def _kernel(rows: Sequence[Row]) -> Answer | None:
    """Say what the same takes by a kernel client, beside a user process."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for irql in (PASSIVE, DISPATCH):
        written = _find(rows, op="post_to_poll", bytes=64, client=KERNEL, irql=irql)
        stream = _find(rows, op=MESSAGE_RATE, bytes=64, client=KERNEL, irql=irql)
        if written is None or stream is None:
            continue
        figures[irql] = {**_figures(written), "msg_per_s": stream["msg_per_s"]}
        sentences.append(
            f"At {irql}: {microseconds(written['p50_us'])} us from post until polled, an RDMA "
            f"write of 64 B; {stream['msg_per_s']:,.0f} messages of 64 B a second."
        )
    user = _find(rows, op="post_to_poll", bytes=64, processes=1)
    if not sentences:
        return None
    if user is not None:
        sentences.append(f"The write takes a user process {microseconds(user['p50_us'])} us.")
    return make_answer("What does a kernel client's data path cost?", sentences, figures)
