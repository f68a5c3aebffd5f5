"""What a run of the verbs' benchmark says in words: the boundary, registration, the control mix.

Every sentence is built from this run's rows; a row that was not taken takes its sentence with it.

Rules: made from a document's rows alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from user_proc.bench.answer_parts import Answer, make_answer
from user_proc.bench.verbs.verb_results import CONTROL_MIX
from user_proc.bench.wording import microseconds, payload_text, share

Row = Mapping[str, Any]

_PAGE: Final = 4096
_MEMORY_WORDS: Final = {
    "arena": "arena memory",
    "private": "private memory",
    "kernel": "memory the kernel client has made",
}


def answers_of(rows: Iterable[Row]) -> list[Answer]:
    """Return the answers this run can give."""
    taken = list(rows)
    found = (question(taken) for question in (_boundary, _user_and_kernel, _registration, _mix))
    return [answer for answer in found if answer is not None]


def _plain(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["bytes"] is None and row["verb"] != CONTROL_MIX]


def _groups(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def _total(rows: Iterable[Row], name: str) -> float:
    return float(sum(row[name] for row in rows))


def _boundary(rows: list[Row]) -> Answer | None:
    """Say which part of the verbs that send commands is not the device's."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for (model, client), group in _groups(_plain(rows), "latency_model", "client").items():
        sending = [row for row in group if row["commands"] and row["device_us"] is not None]
        if not sending:
            continue
        whole, boundary = _total(sending, "p50_us"), _total(sending, "boundary_us")
        waited = _total(sending, "command_us")
        figures[f"{model} {client}"] = {
            "verbs": len(sending),
            "p50_us": round(whole, 3),
            "boundary_us": round(boundary, 3),
            "command_us": round(waited, 3),
        }
        sentences.append(
            f"Model {model}, {client} client: of {microseconds(whole)} us for the {len(sending)} "
            f"verbs that send commands, {share(boundary, whole)} are not the device's execution; "
            f"the driver waited {microseconds(waited)} us for commands, so "
            f"{share(max(0.0, whole - waited), whole)} were spent outside of them."
        )
    return make_answer("Which share of a verb is the boundary?", sentences, figures)


def _user_and_kernel(rows: list[Row]) -> Answer | None:
    """Compare the two clients over the verbs both have."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for (model,), group in _groups(_plain(rows), "latency_model").items():
        by_verb = _groups(group, "verb")
        pairs = [
            {row["client"]: row["p50_us"] for row in both}
            for both in by_verb.values()
            if {row["client"] for row in both} == {"user", "kernel"}
        ]
        if not pairs:
            continue
        user = sum(pair["user"] for pair in pairs)
        kernel = sum(pair["kernel"] for pair in pairs)
        each = (user - kernel) / len(pairs)
        figures[model] = {"verbs": len(pairs), "user_us": user, "kernel_us": kernel}
        more = "more" if each >= 0 else "less"
        sentences.append(
            f"Model {model}: the {len(pairs)} verbs that both have take {microseconds(user)} us "
            f"by IOCTL and {microseconds(kernel)} us by direct call, {microseconds(abs(each))} us "
            f"{more} a verb."
        )
    return make_answer("What does a verb cost a user beyond a kernel client?", sentences, figures)


def _registration(rows: list[Row]) -> Answer | None:
    """Say what a registration costs at least, and what each page adds."""
    registered = [row for row in rows if row["verb"] == "reg_mr" and row["bytes"] is not None]
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for (layout, memory), group in _groups(registered, "layout", "memory").items():
        least, most = (
            choose(group, key=lambda row: row["bytes"]) for choose in _SMALLEST_AND_LARGEST
        )
        pages = (most["bytes"] - least["bytes"]) // _PAGE
        if pages <= 0:
            continue
        added = most["p50_us"] - least["p50_us"]
        part = {
            "least_us": least["p50_us"],
            "bytes": most["bytes"],
            "p50_us": most["p50_us"],
            "per_page_us": round(added / pages, 4),
            "commands": len(most["commands"]),
        }
        sentence = (
            f"{_MEMORY_WORDS[memory].capitalize()}, {layout}: "
            f"{microseconds(least['p50_us'])} us for {payload_text(least['bytes'])}, "
            f"{microseconds(most['p50_us'])} us for {payload_text(most['bytes'])}: "
        )
        sentence += (
            f"{added / pages:.3f} us for each page more" if added > 0 else "no more for more pages"
        )
        if added > 0 and most["command_us"] is not None and least["command_us"] is not None:
            waited = most["command_us"] - least["command_us"]
            part["per_page_commands_us"] = round(waited / pages, 4)
            sentence += (
                f", of which {max(0.0, waited) / pages:.3f} us waiting for "
                f"{len(most['commands'])} commands of the largest"
            )
        figures[f"{layout} {memory}"] = part
        sentences.append(sentence + ".")
    return make_answer("What does registering memory cost?", sentences, figures)


_SMALLEST_AND_LARGEST: Final[tuple[Callable[..., Row], ...]] = (min, max)


def _mix(rows: list[Row]) -> Answer | None:
    """Say how many verbs a second several processes get, and beside what."""
    mixes = sorted(
        (row for row in rows if row["verb"] == CONTROL_MIX), key=lambda row: row["processes"]
    )
    if not mixes:
        return None
    first, last = mixes[0], mixes[-1]
    sentences = [
        f"{_processes(row)}: {row['ops_per_s']:,.0f} verbs a second, {row['ratio']:.2f} of the "
        f"{row['floor_ops_per_s']:,.0f} echoes a second of as many; a mix of "
        f"{row['verbs_per_operation']} verbs takes {microseconds(row['p50_us'] / 1000)} ms."
        for row in mixes
    ]
    if last is not first:
        sentences.append(
            f"{_processes(last)} together get {last['ops_per_s'] / first['ops_per_s']:.2f} times "
            f"what {_processes(first).lower()} gets."
        )
    figures = {
        str(row["processes"]): {"ops_per_s": row["ops_per_s"], "ratio": row["ratio"]}
        for row in mixes
    }
    return make_answer("How does the control mix scale?", sentences, figures)


def _processes(row: Row) -> str:
    return "One process" if row["processes"] == 1 else f"{row['processes']} processes"
