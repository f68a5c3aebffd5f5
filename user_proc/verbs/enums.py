"""The constants of libibverbs at module level, and the enumerations they belong to.

    import user_proc.verbs.enums as e; e.IBV_QPT_RC

Spec: rdma-core, pyverbs/enums.pyx (up to v58).
"""

from enum import IntEnum
from typing import TYPE_CHECKING

from user_proc.verbs import libibverbs_enums
from user_proc.verbs.libibverbs_enums import *  # noqa: F403 - the same names and more

if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """Every member of an enumeration is here."""


for _kind in list(vars(libibverbs_enums).values()):
    if isinstance(_kind, type) and issubclass(_kind, IntEnum) and _kind is not IntEnum:
        globals().update(_kind.__members__)
_names = vars(libibverbs_enums)
globals().update({_name: _value for _name, _value in _names.items() if "IBV_" in _name})
