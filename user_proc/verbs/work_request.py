"""Work requests: scatter/gather elements, what all requests have in common, and receives.

A request keeps values, not the objects it was made of, and can be posted any number of times. The
entry a queue takes is packed once and kept until a field changes.

Spec: rdma-core, pyverbs/wr.pyx; ibv_post_recv(3); shared/wqe_layout.py.
"""

import ctypes
from collections.abc import Sequence

from shared.wqe_layout import RECEIVE_HEAD
from shared.wqe_layout import SGE as ELEMENT
from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.base import PyverbsCM
from user_proc.verbs.c_integers import CField, IntLike, to_int, to_u32, to_u64
from user_proc.verbs.printing import lines


class SGE(PyverbsCM):
    """A piece of registered memory."""

    addr = CField(to_u64)
    length = CField(to_u32)
    lkey = CField(to_u32)

    def __init__(self, addr: IntLike, length: IntLike, lkey: IntLike) -> None:
        super().__init__()
        self.addr = addr
        self.length = length
        self.lkey = lkey

    def read(self, length: IntLike, offset: IntLike) -> bytes:
        """Load bytes from the memory; the offset is in bytes."""
        return ctypes.string_at(self.addr + to_int(offset), to_u32(length))

    def __str__(self) -> str:
        return lines(
            22, [("Address", hex(self.addr)), ("Length", self.length), ("Key", hex(self.lkey))]
        )


Piece = tuple[int, int, int]


def pieces_of(number: int, sg: Sequence[SGE] | None) -> list[Piece]:
    """Copy so many elements; IndexError if there are fewer."""
    given = [] if sg is None else sg
    return [
        (one.addr, one.length, one.lkey)
        for one in (require("sge", given[index], SGE) for index in range(number))
    ]


class WorkRequest(PyverbsCM):
    """What receives and sends have in common."""

    wr_id = CField(to_u64)

    def __init__(self, wr_id: IntLike, pieces: list[Piece]) -> None:
        super().__init__()
        self.wr_id = wr_id
        self._sg = pieces
        self._num_sge = len(pieces)
        self._packed: bytes | None = None

    @property
    def num_sge(self) -> int:
        """How many of the elements count."""
        return self._num_sge

    @num_sge.setter
    def num_sge(self, val: IntLike) -> None:
        number = to_int(val)
        if not 0 <= number <= len(self._sg):
            raise IndexError(f"num_sge {number}: the request has {len(self._sg)} elements")
        self._num_sge = number
        self._packed = None

    @property
    def sg_list(self) -> list[SGE]:
        """Copies of the elements."""
        return [SGE(*piece) for piece in self._sg]

    @property
    def total_length(self) -> int:
        """Bytes of the elements that count."""
        return sum(piece[1] for piece in self._sg[: self._num_sge])

    def _elements(self) -> bytes:
        return b"".join(ELEMENT.pack(*piece) for piece in self._sg[: self._num_sge])


class RecvWR(WorkRequest):
    """A receive request; without elements it takes messages without data."""

    def __init__(
        self,
        wr_id: IntLike = 0,
        num_sge: IntLike = 0,
        sg: Sequence[SGE] | None = None,
        next_wr: "RecvWR | None" = None,
    ) -> None:
        super().__init__(wr_id, pieces_of(to_int(num_sge), sg))
        self._next_wr = optional("next_wr", next_wr, RecvWR)

    @property
    def next_wr(self) -> "RecvWR | None":
        """The request posted after this one."""
        return self._next_wr

    @next_wr.setter
    def next_wr(self, val: "RecvWR | None") -> None:
        self._next_wr = optional("val", val, RecvWR)

    def entry(self) -> bytes:
        """Give the request as it lies in a receive ring."""
        packed = self._packed
        if packed is None:
            packed = self._packed = RECEIVE_HEAD.pack(self._num_sge) + self._elements()
        return packed

    def take_over(self, other: "RecvWR") -> None:
        """Become a copy of another request."""
        self.__dict__.update(other.__dict__)

    def __str__(self) -> str:
        return lines(22, [("WR ID", self.wr_id), ("Num SGE", self.num_sge)])
