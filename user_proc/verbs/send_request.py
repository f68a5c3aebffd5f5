"""Send requests of every opcode.

Spec: rdma-core, pyverbs/wr.pyx; ibv_post_send(3); shared/wqe_layout.py.
"""

import ctypes
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from shared.verbs_enums import ibv_send_flags, ibv_wr_opcode
from shared.wqe_layout import ADDRESS_VECTOR, SEND_HEAD
from user_proc.verbs.addr import AH
from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.base import inc_rkey
from user_proc.verbs.c_integers import CField, IntLike, to_int, to_u32, to_u64
from user_proc.verbs.memory_windows import MW, MWBindInfo
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.utils import names_of_send_flags
from user_proc.verbs.work_request import SGE, WorkRequest, pieces_of

_INLINE: Final = int(ibv_send_flags.IBV_SEND_INLINE)
_SIGNALED: Final = int(ibv_send_flags.IBV_SEND_SIGNALED)
_SEND: Final = int(ibv_wr_opcode.IBV_WR_SEND)
_WITHOUT_SGE: Final = (
    int(ibv_wr_opcode.IBV_WR_LOCAL_INV),
    int(ibv_wr_opcode.IBV_WR_BIND_MW),
    int(ibv_wr_opcode.IBV_WR_SEND_WITH_INV),
)
_NO_VECTOR: Final = bytes(ADDRESS_VECTOR.size)
_U32: Final = 0xFFFF_FFFF

#: Of a send queue: the type of its queue pair, `max_sge` and `max_inline`.
Limits = tuple[int, int, int]


class _PackedField(CField):
    """A field that is part of the packed entry, which a new value makes stale."""

    def __set_name__(self, owner: type, name: str) -> None:
        slot, convert = f"_{name}", self._convert

        def store(instance: Any, value: object) -> None:
            setattr(instance, slot, convert(value))
            instance._packed = None

        property.__init__(self, attrgetter(slot), store)


def opcode_to_str(opcode: int) -> str:
    """Name a send request's operation."""
    try:
        return ibv_wr_opcode(opcode).name
    except ValueError:
        return f"Unknown opcode ({opcode})"


class SendWR(WorkRequest):
    """A send request of any opcode; of the setters of one kind the last one counts."""

    imm_data = _PackedField(to_u32)
    opcode = _PackedField(to_int)
    send_flags = _PackedField(to_u32)

    def __init__(
        self,
        wr_id: IntLike = 0,
        opcode: IntLike = _SEND,
        num_sge: IntLike = 0,
        imm_data: IntLike = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: IntLike = _SIGNALED,
        next_wr: "SendWR | None" = None,
    ) -> None:
        operation, number = to_int(opcode), to_int(num_sge)
        if operation not in _WITHOUT_SGE and (number < 1 or sg is None):
            raise PyverbsUserError("A WR needs at least one SGE")
        super().__init__(wr_id, pieces_of(number, sg))
        self._next_wr = optional("next_wr", next_wr, SendWR)
        self.opcode = operation
        self.imm_data = imm_data
        self.send_flags = send_flags
        self.ah: AH | None = None
        self._remote = 0, 0  # address and key
        self._operands = 0, 0  # compare_add and swap
        self._datagram = 0, 0  # queue pair and Q_Key
        self._vector = _NO_VECTOR
        self._window: tuple[int, int, bool] | None = None
        self._srqn = 0
        self._fit: tuple[bytes, Limits] = b"", (0, 0, 0)

    @property
    def next_wr(self) -> "SendWR | None":
        """The request posted after this one."""
        return self._next_wr

    @next_wr.setter
    def next_wr(self, val: "SendWR | None") -> None:
        self._next_wr = optional("val", val, SendWR)

    @property
    def sg_list(self) -> list[SGE]:
        """Copies of the elements; assign a list to have others, as many as `num_sge`."""
        return [SGE(*piece) for piece in self._sg]

    @sg_list.setter
    def sg_list(self, val: Sequence[SGE]) -> None:
        self._sg = pieces_of(max(self._num_sge, len(val)), val)
        self._packed = None

    @property
    def rdma_remote_addr(self) -> int:
        """The peer's address, of an RDMA request."""
        return self._remote[0]

    @property
    def rdma_rkey(self) -> int:
        """The peer's key, of an RDMA request."""
        return self._remote[1]

    @property
    def remote_addr(self) -> int:
        """The address an atomic or RDMA request names."""
        return self._remote[0]

    def set_wr_ud(self, ah: AH, rqpn: IntLike, rqkey: IntLike) -> None:
        """Say where a datagram goes."""
        handle, queue, key = require("ah", ah, AH), to_u32(rqpn), to_u32(rqkey)
        attr = handle.attr
        route = attr.route
        known = attr.is_global != 0
        self._clear()
        self.ah = handle
        self._datagram = queue, key
        self._vector = ADDRESS_VECTOR.pack(
            attr.port_num,
            attr.sl,
            attr.src_path_bits,
            attr.static_rate,
            attr.dlid,
            known,
            route.sgid_index if known else 0,
            route.flow_label if known else 0,
            route.hop_limit if known else 0,
            route.traffic_class if known else 0,
            route.dgid.raw if known else b"",
            handle.pdn,
        )

    def set_wr_rdma(self, rkey: IntLike, addr: IntLike) -> None:
        """Say which of the peer's memory is written or read."""
        key, address = to_u32(rkey), to_u64(addr)
        self._clear()
        self._remote = address, key

    def set_wr_atomic(
        self, rkey: IntLike, addr: IntLike, compare_add: IntLike, swap: IntLike = 0
    ) -> None:
        """Say which of the peer's words is changed, and how."""
        key, address = to_u32(rkey), to_u64(addr)
        operands = to_u64(compare_add), to_u64(swap)
        self._clear()
        self._remote = address, key
        self._operands = operands

    def set_bind_wr(self, mw: MW, bind_info: MWBindInfo) -> None:
        """Say which window is bound to what; `rkey` is the window's key once that is done."""
        window = require("mw", mw, MW)
        info = require("bind_info", bind_info, MWBindInfo)
        self.set_bind(window, info, inc_rkey(window.rkey))

    def set_bind(
        self, mw: MW, info: MWBindInfo, new_rkey: int, *, by_bind_mw: bool = False
    ) -> None:
        """Bind a window with a key that is chosen, of which the low 8 bits count."""
        key = mw.key_with(new_rkey)
        segment = info.segment(key)
        self._clear()
        self._vector = segment
        self._window = key, mw.type, by_bind_mw

    @property
    def rkey(self) -> int:
        """The key a bind gives to its window; 0 of other requests."""
        return 0 if self._window is None else self._window[0]

    @property
    def window_type(self) -> int:
        """The ibv_mw_type of the window a bind is about; 0 without one."""
        return 0 if self._window is None else self._window[1]

    @property
    def is_by_bind_mw(self) -> bool:
        """Tell whether it is `QP.bind_mw` that posts it, which type 1 windows need."""
        return self._window is not None and self._window[2]

    def set_qp_type_xrc(self, remote_srqn: IntLike) -> None:
        """Say which shared receive queue of the peer takes the message."""
        self._srqn = to_u32(remote_srqn)
        self._packed = None

    @property
    def is_inline(self) -> bool:
        """Tell whether the data itself is copied by the post."""
        return self.send_flags & _INLINE != 0

    def entry(self) -> bytes:
        """Give the request as it lies in a send ring."""
        packed = self._packed
        if packed is None:
            if self.is_inline:  # the data may be another one each time
                data = b"".join(
                    ctypes.string_at(piece[0], piece[1])
                    for piece in self._sg[: self._num_sge]
                    if piece[1]
                )
                return self._head(0, len(data)) + data
            packed = self._packed = self._head(self._num_sge, 0) + self._elements()
        return packed

    def is_known_to_fit(self, kind: int, max_sge: int, max_inline: int) -> bool:
        """Tell whether a queue of such limits took it before, and it has not changed since."""
        return self.known_entry((kind, max_sge, max_inline)) is not None

    def known_entry(self, limits: Limits) -> bytes | None:
        """Give the entry, if a queue of such limits took it before and it has not changed since."""
        entry, known = self._fit
        return entry if entry is self._packed and known == limits else None

    def note_fit(self, kind: int, max_sge: int, max_inline: int) -> None:
        """Note that it fits such a queue, as long as it stays as it is: if it is packed."""
        if self._packed is not None:
            self._fit = self._packed, (kind, max_sge, max_inline)

    def take_over(self, other: "SendWR") -> None:
        """Become a copy of another request."""
        self.__dict__.update(other.__dict__)

    def _clear(self) -> None:
        """Undo the other setters: they share one place in C."""
        self.ah = None
        self._remote = self._operands = self._datagram = 0, 0
        self._vector = _NO_VECTOR
        self._window = None
        self._packed = None

    def _head(self, elements: int, inline_length: int) -> bytes:
        return SEND_HEAD.pack(
            self.opcode & _U32,
            self.send_flags,
            elements,
            self.imm_data,
            *self._remote,
            self._srqn,
            *self._operands,
            self._vector,
            *self._datagram,
            inline_length,
        )

    def __str__(self) -> str:
        return lines(
            22,
            [
                ("WR ID", self.wr_id),
                ("Num SGE", self.num_sge),
                ("Opcode", opcode_to_str(self.opcode)),
                ("Send flags", names_of_send_flags(self.send_flags)),
                ("Imm Data", self.imm_data),
            ],
        )
