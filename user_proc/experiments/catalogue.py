"""All experiments by name: those with user processes of their own, and those of the child.

A new one with user processes is imported and listed here; one inside a machine is listed in the
child's own catalogue and found there.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from user_proc.experiments.buffering import Buffering
from user_proc.experiments.command_share import CommandShare
from user_proc.experiments.experiment import Experiment, Progress, Result, result_of
from user_proc.experiments.irp_or_direct import IrpOrDirect
from user_proc.experiments.kernel_child import listed, run_in_child

_OWN: Final[tuple[Experiment, ...]] = (IrpOrDirect(), Buffering(), CommandShare())


def own_experiments() -> dict[str, Experiment]:
    """Return the experiments with user processes of their own."""
    return {one.name: one for one in _OWN}


def questions() -> dict[str, str]:
    """Return the question of every experiment; ours stand before the child's."""
    return {**listed(), **{name: one.question for name, one in own_experiments().items()}}


def run_experiments(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Result]:
    """Run these experiments in turn; yield each result as it is there."""
    own = own_experiments()
    for index, name in enumerate(names):

        def told(done: int, total: int, text: str, name: str = name, index: int = index) -> None:
            whole = max(total, 1)
            progress(index * whole + min(done, whole), len(names) * whole, f"{name}: {text}")

        told(0, 1, "starting")
        experiment = own.get(name)
        if experiment is None:
            yield run_in_child(name, quick, told)
        else:
            yield result_of(experiment, experiment.run(quick, told))
