"""Experiment `contiguity`: does a queue or a region in one piece perform better?

A cell makes CQs, QPs or regions of one length by one strategy of the driver, in memory of which a
part is in use by others; or it moves messages within a region made so. Times of creation are the
latency model's, on the virtual clock; the emulator's own are told apart.

Rules: the HCA of the cell is an object of this process, whose tables are read between two verbs.
Spec: "Using of fast mutexes in WinIb" (openib-windows, November 2005); docs/allocation.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from kernel_proc.experiments.contiguity_cells import (
    CQ,
    MR,
    QP,
    Object,
    make_objects,
    move_messages,
)
from kernel_proc.experiments.contiguity_verdict import CREATE, MOVE, NO_MODEL, size, tell
from kernel_proc.experiments.experiment import Progress, Row, run_cell
from kernel_proc.machine import Machine
from kernel_proc.settings import ALLOCATIONS, KIB, MIB, KernelSettings


class Plan(NamedTuple):
    """What is varied.

    `timed` is made under each of `models` with `timed_percents` of the frames in use; messages
    are moved with `moved_percents` of them in use.
    """

    objects: Sequence[Object]
    percents: Sequence[int]
    timed: Sequence[Object]
    models: Sequence[str]
    timed_percents: Sequence[int]
    moved_percents: Sequence[int]
    message: int


QUICK: Final = Plan(
    objects=(
        Object(CQ, KIB), Object(CQ, 64 * KIB), Object(QP, 64 * KIB), Object(MR, 4 * MIB),
    ),
    percents=(0, 5, 95),
    timed=(Object(MR, 4 * MIB),),
    models=("plausible", "prm-ceiling"),
    timed_percents=(0,),
    moved_percents=(0, 50),
    message=MIB,
)  # fmt: skip

FULL: Final = Plan(
    objects=(
        # The device has no longer queues than 8 MiB.
        *(Object(CQ, length) for length in (KIB, 4 * KIB, 64 * KIB, MIB, 4 * MIB, 8 * MIB)),
        *(Object(QP, length) for length in (4 * KIB, 64 * KIB, MIB, 4 * MIB, 8 * MIB)),
        *(Object(MR, length) for length in (4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)),
    ),
    percents=(0, 1, 5, 25, 50, 75, 90, 95),
    timed=(
        Object(CQ, 64 * KIB), Object(QP, 64 * KIB), Object(MR, 4 * KIB), Object(MR, 4 * MIB),
        Object(MR, 64 * MIB),
    ),
    models=("plausible", "prm-ceiling"),
    timed_percents=(0, 5, 50),
    moved_percents=(0, 5, 50),
    message=MIB,
)  # fmt: skip


class Contiguity:
    """The experiment; `plans` are the quick one and the full one."""

    name = "contiguity"
    question = "Does contiguous memory perform better, and can it be had as memory fragments?"

    def __init__(
        self,
        plans: tuple[Plan, Plan] = (QUICK, FULL),
        strategies: Sequence[str] = ALLOCATIONS,
    ) -> None:
        self._plans = plans
        self._strategies = strategies

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Make every object by every strategy in every memory, under the models, and move some."""
        cells = list(self._cells(self._plans[not quick]))
        rows = []
        for done, (text, cell) in enumerate(cells):
            progress(done, len(cells), text)
            rows.append(cell())
        return rows

    def _cells(self, plan: Plan) -> Iterable[tuple[str, Callable[[], Row]]]:
        creations = [
            *product(plan.objects, plan.percents, (NO_MODEL,)),
            *product(plan.timed, plan.timed_percents, plan.models),
        ]
        for strategy in self._strategies:
            for wanted, percent, model in creations:
                text = f"{strategy}: {wanted.kind} of {size(wanted.length)}, {percent} % in use"
                yield text, _creation(strategy, wanted, percent, model)
            for percent in plan.moved_percents:
                yield f"{strategy}: messages", _messages(strategy, plan.message, percent)

    def verdict(self, rows: Sequence[Row]) -> str:
        """Tell the device's part, the price in fragmented memory, and the emulator's part."""
        return tell(rows, self._strategies)


def _creation(strategy: str, wanted: Object, percent: int, model: str) -> Callable[[], Row]:
    def body(machine: Machine) -> Mapping[str, Any]:
        return make_objects(machine, wanted, percent)

    return _cell(CREATE, strategy, wanted, percent, model, body)


def _messages(strategy: str, length: int, percent: int) -> Callable[[], Row]:
    def body(machine: Machine) -> Mapping[str, Any]:
        return move_messages(machine, length, percent)

    return _cell(MOVE, strategy, Object(MR, length), percent, NO_MODEL, body)


def _cell(
    what: str,
    strategy: str,
    wanted: Object,
    percent: int,
    model: str,
    body: Callable[[Machine], Mapping[str, Any]],
) -> Callable[[], Row]:
    labels = {
        "what": what,
        "strategy": strategy,
        "object": wanted.kind,
        "bytes": wanted.length,
        "in_use_percent": percent,
        "model": model,
    }
    settings = KernelSettings(seed=1, allocation=strategy, latency_model=model)
    return lambda: run_cell(labels, body, settings)


CONTIGUITY: Final = Contiguity()
