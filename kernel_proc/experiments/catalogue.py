"""All experiments of this room, by name.

A new one is an object with what `Experiment` asks for, imported and listed here.
"""

from typing import Final

from kernel_proc.experiments.contiguity import CONTIGUITY
from kernel_proc.experiments.dma_api import DMA_API
from kernel_proc.experiments.experiment import Experiment
from kernel_proc.experiments.mutex_choice import MUTEX
from kernel_proc.experiments.notification_ways import NOTIFICATION
from kernel_proc.experiments.one_path import ONE_PATH
from kernel_proc.experiments.scheduling_ways import SCHEDULING
from kernel_proc.experiments.verb_command_times import COMMAND_TIMES

_ALL: Final[tuple[Experiment, ...]] = (
    COMMAND_TIMES,
    CONTIGUITY,
    DMA_API,
    MUTEX,
    NOTIFICATION,
    ONE_PATH,
    SCHEDULING,
)

EXPERIMENTS: Final[dict[str, Experiment]] = {one.name: one for one in _ALL}
