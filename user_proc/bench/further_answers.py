"""Answers to what the mail leads to: blocking calls, batches, more at a time, the verifier.

Rules: made from a document's rows alone.
"""

from dataclasses import replace
from typing import Any

from user_proc.bench.answer_parts import Answer, make_answer, versus
from user_proc.bench.full_plan import BASE, PROCESSES, kernel_row
from user_proc.bench.row_figures import RowBook, difference, difference_each
from user_proc.bench.row_plan import DEPTH, Method, Path
from user_proc.bench.wording import microseconds, more_or_less


def against_blocking(book: RowBook) -> Answer | None:
    """Say whether a pended IRP is slower than a call that blocks in the driver."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    methods: tuple[Method, ...] = ("buffered", "neither")
    for method in methods:
        row = replace(BASE, method=method)
        found = book.pair(row, replace(row, path="blocking"))
        if found is not None:
            cost = difference(*found)
            figures[method] = {"difference_us": cost.as_dict()}
            sentences.append(versus(cost, f"METHOD_{method.upper()}: the pended IRP"))
    if not sentences:
        return None
    return make_answer(
        "Is a pended IRP slower than a call that waits in the driver?", sentences, figures
    )


def drained_together(book: RowBook) -> Answer | None:
    """Say what a DPC saves that drains many requests."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    kinds: dict[Path, str] = {"irp": "IRP", "direct": "direct call"}
    for path, name in kinds.items():
        row = kernel_row(path)
        found = book.pair(replace(row, depth=DEPTH), row)
        if found is not None:
            many, one = found
            change = difference_each(many, one)
            figures[path] = {
                "each_us": many.each.as_dict(),
                "alone_us": one.each.as_dict(),
                "difference_us": change.as_dict(),
            }
            sentences.append(
                f"{name}: {microseconds(many.each_us)} us each when one DPC drains {DEPTH}, "
                f"{microseconds(one.each_us)} us alone; {more_or_less(change)}."
            )
    if not sentences:
        return None
    return make_answer(f"What does a DPC that drains {DEPTH} requests save?", sentences, figures)


def many_at_a_time(book: RowBook) -> Answer | None:
    """Say how many requests a second more of them at a time give."""
    alone = book.find(BASE)
    rows = [(f"{DEPTH} in flight", replace(BASE, depth=DEPTH))]
    rows += [(f"{count} processes", replace(BASE, processes=count)) for count in PROCESSES]
    found = [(name, row) for name, spec in rows if (row := book.find(spec)) is not None]
    if alone is None or not found:
        return None
    rates = {"one at a time": alone, **dict(found)}
    parts = [f"{name} {1e6 / row.each_us:,.0f}" for name, row in rates.items()]
    return make_answer(
        "How many requests a second do more at a time give?",
        [f"{parts[0][0].upper()}{', '.join(parts)[1:]} a second."],
        {
            name: {"per_s": round(1e6 / row.each_us, 1), "each_us": row.each.as_dict()}
            for name, row in rates.items()
        },
    )


def verifier_cost(book: RowBook) -> Answer | None:
    """Say what the verifier costs."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    rows = {"A user's IRP": BASE, "A kernel IRP": kernel_row("irp")}
    rows["A direct call"] = kernel_row("direct")
    for name, row in rows.items():
        found = book.pair(replace(row, verifier=True), row)
        if found is not None:
            cost = difference(*found)
            figures[f"{row.client}_{row.path}"] = cost.as_dict()
            sentences.append(f"{name}: {more_or_less(cost)}.")
    if not sentences:
        return None
    return make_answer("What does the verifier cost?", sentences, figures)
