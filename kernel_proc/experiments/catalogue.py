"""All experiments of this room, by name.

A new one is an object with what `Experiment` asks for, imported and listed here.
"""

from typing import Final

from kernel_proc.experiments.experiment import Experiment
from kernel_proc.experiments.scheduling import SCHEDULING

_ALL: Final[tuple[Experiment, ...]] = (SCHEDULING,)

EXPERIMENTS: Final[dict[str, Experiment]] = {one.name: one for one in _ALL}
