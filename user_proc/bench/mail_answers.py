"""Answers to the mail: an IRP against direct call and fast I/O, buffering, 2005, commands.

Rules: made from a document's rows alone.
Spec: docs/benchmark.md; figures of 2005: Tzachi Dar, openib-windows, 18 November 2005.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from user_proc.bench.answer_parts import Answer, make_answer, versus
from user_proc.bench.full_plan import BASE, LARGEST, PAYLOADS, kernel_row
from user_proc.bench.row_figures import Figure, Gap, RowBook, crossing
from user_proc.bench.row_plan import Path, RowSpec
from user_proc.bench.wording import (
    about_size,
    microseconds,
    more_or_less,
    payload_text,
    share,
    span,
)

#: Operations a second from a user process and back, completed at once, on a machine of 2005.
IRPS_2005: Final = 321_926
FAST_IO_2005: Final = 1_422_475
#: The ceilings of the MT25208's command classes.
CLASSES_MS: Final = (("A", 1), ("B", 10), ("C", 100), ("D", 1000))

_NEITHER: Final = replace(BASE, method="neither")
_INLINE: Final = replace(_NEITHER, completion="inline")
_FAST: Final = replace(_INLINE, path="fast_io")
_BUFFER_SIZES: Final = (*PAYLOADS[1:], LARGEST)
_SHORT_COMMAND_US: Final = 30.0


def over_direct_call(book: RowBook) -> Answer | None:
    """Say what an IRP costs a kernel client over a direct call."""
    irp, direct = kernel_row("irp"), kernel_row("direct")
    if not book.has(irp, direct):
        return None
    cost, times = book.difference(irp, direct).figure, book.ratio(irp, direct).figure
    sentences = [
        f"A kernel client's IRP of {payload_text(BASE.payload)}, allocated each time and completed "
        f"by a DPC, took {microseconds(book.p50_us(irp))} us, the same request by a direct call "
        f"{microseconds(book.p50_us(direct))} us.",
        versus(cost, "The IRP"),
    ]
    figures: dict[str, Any] = {
        "irp_us": book.p50(irp).as_dict(),
        "direct_us": book.p50(direct).as_dict(),
        "difference_us": cost.as_dict(),
        "ratio": times.as_dict(),
    }
    if cost.shown:
        sentences.append(f"That is {times.value:.2f} times the direct call.")
    variants: dict[Path, str] = {
        "irp_reused": "One that is reused",
        "irp_built": "One by IoBuildDeviceIoControlRequest",
    }
    for path, name in variants.items():
        if book.has(kernel_row(path)):
            over = book.difference(kernel_row(path), direct).figure
            figures[f"{path}_difference_us"] = over.as_dict()
            sentences.append(versus(over, name))
    return make_answer(
        "What does an IRP cost a kernel client over a direct call?", sentences, figures
    )


def over_fast_io(book: RowBook) -> Answer | None:
    """Say what an IRP costs a user program over fast I/O, size by size."""
    costs = _by_size(book, _INLINE, _FAST, PAYLOADS)
    if BASE.payload not in costs:
        return None
    sentences = [
        f"A user program's request of {payload_text(BASE.payload)}, METHOD_NEITHER and completed "
        f"inline, took {microseconds(book.p50_us(_INLINE))} us as an IRP. Against the same request "
        f"as fast I/O, taken in turn with it: {more_or_less(costs[BASE.payload].figure)}.",
    ]
    others = [
        f"at {payload_text(size)} {more_or_less(cost.figure)}"
        for size, cost in costs.items()
        if size != BASE.payload
    ]
    if others:
        sentences.append(f"Other sizes: {', '.join(others)}.")
    return make_answer(
        "What does an IRP cost a user program over fast I/O?", sentences, _size_figures(costs)
    )


def _by_size(
    book: RowBook, first: RowSpec, second: RowSpec, sizes: Iterable[int]
) -> dict[int, Gap]:
    """Return the difference of two rows for each size at which both were taken."""
    costs = {}
    for size in sizes:
        one, other = replace(first, payload=size), replace(second, payload=size)
        if book.has(one, other):
            costs[size] = book.difference(one, other)
    return costs


def _size_figures(costs: Mapping[int, Gap]) -> dict[str, Any]:
    return {
        "difference_us": [
            {"payload": size, **cost.figure.as_dict()} for size, cost in costs.items()
        ]
    }


def buffering(book: RowBook) -> Answer | None:
    """Say what buffering costs at each size, and from which size mapping wins."""
    costs = _by_size(book, BASE, _NEITHER, _BUFFER_SIZES)
    if len(costs) < 2:
        return None
    parts = [f"{payload_text(size)}: {more_or_less(cost.figure)}" for size, cost in costs.items()]
    sentences = [
        "METHOD_BUFFERED against METHOD_NEITHER in an arena, completed by the device. "
        + "; ".join(parts)
        + "."
    ]
    sizes = list(costs)
    from_size = crossing(sizes, list(costs.values()))
    sentences.append(_mapping_wins(from_size, sizes))
    figures = {**_size_figures(costs), "mapping_wins_from_bytes": _open_ended(from_size)}
    control = replace(BASE, payload=0), replace(_NEITHER, payload=0)
    if book.has(*control):
        nothing = book.difference(*control).figure
        figures["difference_without_payload_us"] = nothing.as_dict()
        sentences.append(
            f"Without a payload, where the two methods do the same: {more_or_less(nothing)}."
        )
    return make_answer(
        "What does buffering cost, and from which size does mapping win?", sentences, figures
    )


def _mapping_wins(size: Figure, sizes: Sequence[int]) -> str:
    least, most = payload_text(sizes[0]), payload_text(sizes[-1])
    if size.high == 0:
        return f"Mapping wins at every size measured, from {least} up."
    if size.low == float("inf"):
        return f"Up to {most}, mapping is not shown to win at any size."
    low = f"{least} or less" if size.low == 0 else about_size(size.low)
    high = f"beyond {most}" if size.high == float("inf") else about_size(size.high)
    interval = f"95 % interval {low} to {high}"
    if size.value == 0:
        return f"Mapping wins from {least} or less ({interval})."
    if size.value == float("inf"):
        return f"From which size mapping wins is not shown ({interval})."
    return f"Mapping wins from about {about_size(size.value)} ({interval})."


def _open_ended(figure: Figure) -> dict[str, float | None]:
    """Return a size as JSON values: null where it lies beyond the largest size measured."""
    ends = (("value", figure.value), ("low", figure.low), ("high", figure.high))
    return {name: None if end == float("inf") else round(end) for name, end in ends}


def against_2005(book: RowBook) -> Answer | None:
    """Say how the figures of 2005 compare, as a ratio."""
    irp, fast = replace(BASE, completion="inline", payload=0), replace(_FAST, payload=0)
    if not book.has(irp, fast):
        return None
    here, cost = book.ratio(irp, fast).figure, book.difference(irp, fast).figure
    rates = [1e6 / book.p50_us(row) for row in (irp, fast)]
    then = FAST_IO_2005 / IRPS_2005
    then_us = 1e6 / IRPS_2005 - 1e6 / FAST_IO_2005
    sentences = [
        f"In November 2005 an empty request from a user process, completed at once, was measured "
        f"at {IRPS_2005:,} a second as an IRP and {FAST_IO_2005:,} as fast I/O: {then:.2f} to 1, "
        f"{then_us:.2f} us apart.",
        f"Here the median is {rates[0]:,.0f} IRPs a second; fast I/O, taken in turn with them, is "
        f"{here.value:.2f} times as fast ({span(here, lambda value: f'{value:.2f}', '')}). "
        f"{versus(cost, 'The IRP')}",
    ]
    if here.high < then:
        sentences.append(
            "The ratio is smaller here because both requests pass between two processes first."
        )
    return make_answer(
        "How do the figures of 2005 compare?",
        sentences,
        {
            "irps_per_s_2005": IRPS_2005,
            "fast_io_per_s_2005": FAST_IO_2005,
            "ratio_2005": round(then, 3),
            "difference_2005_us": round(then_us, 3),
            "irps_per_s": round(rates[0], 1),
            "fast_io_per_s": round(rates[1], 1),
            "ratio": here.as_dict(),
            "difference_us": cost.as_dict(),
            "slower_than_2005": {
                "irp": round(IRPS_2005 / rates[0], 1),
                "fast_io": round(FAST_IO_2005 / rates[1], 1),
            },
        },
    )


def share_of_commands(book: RowBook) -> Answer | None:
    """Say which share of a command of each class these microseconds are."""
    pairs = (
        ("of a kernel client over the direct call", kernel_row("irp"), kernel_row("direct")),
        ("of a user program over fast I/O", _INLINE, _FAST),
    )
    sentences: list[str] = []
    figures: dict[str, Any] = {}
    for where, first, second in pairs:
        if book.has(first, second):
            cost = book.difference(first, second).figure
            sentences.append(_shares(where, cost))
            figures[first.client] = {
                "difference_us": cost.as_dict(),
                "percent_of_class": {
                    name: _scaled(cost, 1 / (10.0 * ms)).as_dict(6) for name, ms in CLASSES_MS
                },
            }
    if not sentences:
        return None
    sentences.append("A class is a ceiling: the shorter a command, the larger the share.")
    return make_answer("Which share of a command are these microseconds?", sentences, figures)


def _scaled(figure: Figure, factor: float) -> Figure:
    return Figure(figure.value * factor, figure.low * factor, figure.high * factor)


def _shares(where: str, cost: Figure) -> str:
    if cost.high <= 0:
        return f"The IRP {where}: {more_or_less(cost)}, so no share of a command."
    size = cost.value if cost.low > 0 else cost.high
    limit = "" if cost.low > 0 else "at most "
    shares = [
        f"{share(size, 1000.0 * ms)} of a class {name} command ({ms:,} ms)"
        for name, ms in CLASSES_MS
    ]
    return (
        f"The IRP {where}: {more_or_less(cost)}. That is {limit}{', '.join(shares)}; "
        f"{limit}{share(size, _SHORT_COMMAND_US)} of a command of {_SHORT_COMMAND_US:g} us."
    )
