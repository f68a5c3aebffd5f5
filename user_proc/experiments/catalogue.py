"""All experiments by name: those with user processes of their own, and those of the child.

A new one with user processes is imported and listed here; one inside a machine is listed in the
child's own catalogue and found there.
"""

from typing import Final

from user_proc.experiments.buffering import Buffering
from user_proc.experiments.command_share import CommandShare
from user_proc.experiments.experiment import Experiment, Progress, Result, result_of
from user_proc.experiments.irp_or_direct import IrpOrDirect
from user_proc.experiments.kernel_child import listed, run_in_child
from user_proc.experiments.speed_path import SpeedPath

_OWN: Final[tuple[Experiment, ...]] = (
    IrpOrDirect(),
    Buffering(),
    CommandShare(),
    SpeedPath(),
)


def own_experiments() -> dict[str, Experiment]:
    """Return the experiments with user processes of their own."""
    return {one.name: one for one in _OWN}


def questions() -> dict[str, str]:
    """Return the question of every experiment; ours stand before the child's."""
    return {**listed(), **{name: one.question for name, one in own_experiments().items()}}


def run_experiment(name: str, quick: bool, progress: Progress) -> Result:
    """Run one experiment; ExperimentFailed if it does not come to its end."""
    progress(0, 1, f"{name}: starting")

    def told(done: int, total: int, text: str) -> None:
        progress(min(done, total), max(total, 1), f"{name}: {text}")

    experiment = own_experiments().get(name)
    if experiment is None:
        return run_in_child(name, quick, told)
    return result_of(experiment, experiment.run(quick, told))
