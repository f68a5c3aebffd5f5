"""Memory regions, and memory windows bound to them.

Spec: rdma-core, pyverbs/mr.pyx.
"""

from user_proc.verbs.dm_mr import DMMR
from user_proc.verbs.memory_region import MR
from user_proc.verbs.memory_windows import MW, MWBind, MWBindInfo, mwtype2str
from user_proc.verbs.mr_ex import MREx

__all__ = ["DMMR", "MR", "MW", "MREx", "MWBind", "MWBindInfo", "mwtype2str"]
