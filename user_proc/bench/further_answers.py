"""Answers to what the mail leads to: blocking calls, batches, more at a time, the verifier.

Rules: made from a document's rows alone.
"""

from dataclasses import replace
from typing import Any

from user_proc.bench.answer_parts import Answer, make_answer, versus
from user_proc.bench.full_plan import BASE, PROCESSES, kernel_row
from user_proc.bench.row_figures import RowBook
from user_proc.bench.row_plan import DEPTH, Method, Path
from user_proc.bench.wording import microseconds, more_or_less


def against_blocking(book: RowBook) -> Answer | None:
    """Say whether a pended IRP is slower than a call that blocks in the driver."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    methods: tuple[Method, ...] = ("buffered", "neither")
    for method in methods:
        pended = replace(BASE, method=method)
        blocking = replace(pended, path="blocking")
        if book.has(pended, blocking):
            cost = book.difference(pended, blocking).figure
            figures[method] = {"difference_us": cost.as_dict()}
            sentences.append(versus(cost, f"METHOD_{method.upper()}: the pended IRP"))
    return make_answer(
        "Is a pended IRP slower than a call that waits in the driver?", sentences, figures
    )


def drained_together(book: RowBook) -> Answer | None:
    """Say what a DPC saves that drains many requests."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    kinds: dict[Path, str] = {"irp": "An IRP", "direct": "A direct call"}
    for path, name in kinds.items():
        one = kernel_row(path)
        many = replace(one, depth=DEPTH)
        if book.has(one, many):
            together, alone = book.each(many), book.each(one)
            change = book.difference_each(many, one).figure
            figures[path] = {
                "each_us": together.as_dict(),
                "alone_us": alone.as_dict(),
                "difference_us": change.as_dict(),
            }
            sentences.append(
                f"{name}: {microseconds(together.value)} us each when one DPC drains {DEPTH}, "
                f"{microseconds(alone.value)} us alone; {more_or_less(change)}."
            )
    return make_answer(f"What does a DPC that drains {DEPTH} requests save?", sentences, figures)


def many_at_a_time(book: RowBook) -> Answer | None:
    """Say how many requests a second more of them at a time give."""
    rows = {"one at a time": BASE, f"{DEPTH} in flight": replace(BASE, depth=DEPTH)}
    rows |= {f"{count} processes": replace(BASE, processes=count) for count in PROCESSES}
    found = {name: book.each(row) for name, row in rows.items() if book.has(row)}
    if "one at a time" not in found or len(found) < 2:
        return None
    rates = ", ".join(f"{name} {1e6 / each.value:,.0f}" for name, each in found.items())
    return make_answer(
        "How many requests a second do more at a time give?",
        [f"{rates[0].upper()}{rates[1:]} a second."],
        {
            name: {"per_s": round(1e6 / each.value, 1), "each_us": each.as_dict()}
            for name, each in found.items()
        },
    )


def verifier_cost(book: RowBook) -> Answer | None:
    """Say what the verifier costs."""
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    rows = {"A user's IRP": BASE, "A kernel IRP": kernel_row("irp")}
    rows["A direct call"] = kernel_row("direct")
    for name, row in rows.items():
        checked = replace(row, verifier=True)
        if book.has(row, checked):
            cost = book.difference(checked, row).figure
            figures[f"{row.client}_{row.path}"] = cost.as_dict()
            sentences.append(f"{name}: {more_or_less(cost)}.")
    return make_answer("What does the verifier cost?", sentences, figures)
