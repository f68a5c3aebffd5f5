"""What an extended completion queue is asked to be, and how it is polled.

Spec: rdma-core, pyverbs/cq.pyx; ibv_create_cq_ex(3).
"""

from user_proc.verbs.argument_types import optional
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_u32, to_u64
from user_proc.verbs.comp_channel import CompChannel
from user_proc.verbs.completion import create_wc_flags_to_str
from user_proc.verbs.object_fields import ObjectField
from user_proc.verbs.pd import PD
from user_proc.verbs.printing import lines


class CqInitAttrEx(PyverbsObject):
    """ibv_cq_init_attr_ex; `comp_mask` says whether `flags` and `parent_domain` count."""

    cqe = CField(to_u32)
    comp_vector = CField(to_u32)
    wc_flags = CField(to_u64)
    comp_mask = CField(to_u32)
    flags = CField(to_u32)
    comp_channel = ObjectField(CompChannel)
    parent_domain = ObjectField(PD)

    def __init__(
        self,
        cqe: IntLike = 100,
        channel: CompChannel | None = None,
        comp_vector: IntLike = 0,
        wc_flags: IntLike = 0,
        comp_mask: IntLike = 0,
        flags: IntLike = 0,
        parent_domain: PD | None = None,
    ) -> None:
        super().__init__()
        self.cqe = cqe
        self._comp_channel = optional("channel", channel, CompChannel)
        self.comp_vector = comp_vector
        self.wc_flags = wc_flags
        self.comp_mask = comp_mask
        self.flags = flags
        self._parent_domain = optional("parent_domain", parent_domain, PD)

    def __str__(self) -> str:
        return lines(
            22,
            [
                ("Number of CQEs", self.cqe),
                ("WC flags", create_wc_flags_to_str(self.wc_flags)),
                ("comp mask", self.comp_mask),
                ("flags", self.flags),
            ],
        )


class PollCqAttr(PyverbsObject):
    """ibv_poll_cq_attr."""

    comp_mask = CField(to_u32)

    def __init__(self) -> None:
        super().__init__()
        self.comp_mask = 0


class WcTmInfo(PyverbsObject):
    """What a tag-matching device says of a completion."""

    tag = CField(to_u64)
    priv = CField(to_u32)

    def __init__(self) -> None:
        super().__init__()
        self.tag = 0
        self.priv = 0
