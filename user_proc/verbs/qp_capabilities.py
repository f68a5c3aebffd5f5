"""The capabilities of a queue pair: how many requests and elements, and bytes sent inline.

Spec: rdma-core, pyverbs/qp.pyx; ibv_create_qp(3).
"""

from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_u32
from user_proc.verbs.printing import Line, lines


class QPCap(PyverbsObject):
    """ibv_qp_cap."""

    max_send_wr = CField(to_u32)
    max_recv_wr = CField(to_u32)
    max_send_sge = CField(to_u32)
    max_recv_sge = CField(to_u32)
    max_inline_data = CField(to_u32)

    def __init__(
        self,
        max_send_wr: IntLike = 1,
        max_recv_wr: IntLike = 10,
        max_send_sge: IntLike = 1,
        max_recv_sge: IntLike = 1,
        max_inline_data: IntLike = 0,
    ) -> None:
        super().__init__()
        self.max_send_wr = max_send_wr
        self.max_recv_wr = max_recv_wr
        self.max_send_sge = max_send_sge
        self.max_recv_sge = max_recv_sge
        self.max_inline_data = max_inline_data

    def copy(self) -> "QPCap":
        """Make an equal one."""
        return QPCap(
            self.max_send_wr,
            self.max_recv_wr,
            self.max_send_sge,
            self.max_recv_sge,
            self.max_inline_data,
        )

    def shown(self, one: str, many: str) -> list[Line]:
        """Give the fields with their labels; the words for requests and elements differ."""
        return [
            (f"max send {one}", self.max_send_wr),
            (f"max recv {one}", self.max_recv_wr),
            (f"max send {many}", self.max_send_sge),
            (f"max recv {many}", self.max_recv_sge),
            ("max inline data", self.max_inline_data),
        ]

    def __str__(self) -> str:
        return lines(20, self.shown("wrs", "sges"))
