"""The constants of libibverbs at module level, and the enumerations they belong to.

    import user_proc.verbs.enums as e; e.IBV_QPT_RC

Spec: rdma-core, pyverbs/enums.pyx (up to v58).
"""

from enum import IntEnum
from typing import TYPE_CHECKING

from shared import verbs_enums
from user_proc.verbs.libibverbs_enums import *  # noqa: F403 - the same names and more

if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """Every member of an enumeration is here."""


for _kind in list(vars(verbs_enums).values()):
    if isinstance(_kind, type) and issubclass(_kind, IntEnum) and _kind is not IntEnum:
        globals().update(_kind.__members__)
globals().update({_name: _value for _name, _value in vars(verbs_enums).items() if "IBV_" in _name})
