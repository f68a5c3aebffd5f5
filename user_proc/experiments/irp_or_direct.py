"""Experiment `irp-or-direct`: the ways a request can take, from user and kernel, on one page.

A kernel client sends an IRP built by hand, by IoBuildDeviceIoControlRequest, or used again, or
calls directly; a user program sends an IRP, is served by fast I/O, or blocks in the driver. Rows
that are subtracted from each other have their blocks taken in turn.

Spec: the plan of "[RFC v2] Kernel Async Verbs"; docs/benchmark.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from user_proc.bench.full_plan import BASE, kernel_row
from user_proc.bench.row_plan import RowSpec
from user_proc.bench.wording import more_or_less
from user_proc.experiments.experiment import Progress, Row
from user_proc.experiments.row_run import KernelOptions, book_of, take_rows

IRP: Final = kernel_row("irp")
BUILT: Final = kernel_row("irp_built")
REUSED: Final = kernel_row("irp_reused")
DIRECT: Final = kernel_row("direct")
USER_DPC: Final = replace(BASE, completion="dpc")
USER_DEVICE: Final = BASE
BLOCKING: Final = replace(BASE, path="blocking")
USER_NEITHER: Final = replace(BASE, method="neither", completion="inline")
FAST_IO: Final = replace(USER_NEITHER, path="fast_io")
NEITHER_DPC: Final = replace(USER_NEITHER, completion="dpc")
DECLINED: Final = replace(FAST_IO, completion="dpc")  # fast I/O cannot be pended

PLAN: Final[tuple[RowSpec, ...]] = (
    IRP,
    BUILT,
    REUSED,
    DIRECT,
    replace(IRP, completion="inline"),
    replace(DIRECT, completion="inline"),
    USER_DPC,
    USER_NEITHER,
    FAST_IO,
    NEITHER_DPC,
    DECLINED,
    USER_DEVICE,
    BLOCKING,
)

#: What is compared, row against row, in the words of the verdict.
COMPARED: Final = (
    ("a kernel client's IRP against a direct call", IRP, DIRECT),
    ("an IRP built by the I/O manager against one by hand", BUILT, IRP),
    ("an IRP used again against a new one", REUSED, IRP),
    ("a user's IRP against fast I/O", USER_NEITHER, FAST_IO),
    ("a request that fast I/O declines against an IRP alone", DECLINED, NEITHER_DPC),
    ("a pended IRP against a blocking call", USER_DEVICE, BLOCKING),
    ("a user's IRP against a kernel client's", USER_DPC, IRP),
    ("the same without the user's buffers copied", NEITHER_DPC, IRP),
)


class IrpOrDirect:
    """The experiment; `options` are settings of its kernels."""

    name = "irp-or-direct"
    question = "What does an IRP cost over a direct call, fast I/O or a call that blocks?"

    def __init__(
        self, plan: Sequence[RowSpec] = PLAN, options: KernelOptions | None = None
    ) -> None:
        self._plan = plan
        self._options = options or {}

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Measure the rows."""
        return take_rows(self._plan, quick, progress, self._options)

    def verdict(self, rows: Sequence[Row]) -> str:
        """Give every difference with its interval."""
        book = book_of(rows)
        parts = [
            f"{words}: {more_or_less(book.difference(one, other).figure)}"
            for words, one, other in COMPARED
            if book.has(one, other)
        ]
        text = "; ".join(parts)
        return f"{text[:1].upper()}{text[1:]}."
