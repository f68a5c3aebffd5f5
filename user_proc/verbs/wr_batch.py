"""A batch of send requests under construction: whose it is, what is wrong with it, its posting.

The first thing that is wrong is kept until the end, and then nothing is posted. What is posted is
what `post_send` would post: each request is a `SendWR`, judged and packed as any other.

Rules: any thread; between `wr_start` and its end the batch is one thread's.
Spec: ibv_wr_post(3).
"""

import ctypes
import errno
import threading
from typing import Any, Final

from shared.verbs_enums import ibv_qp_create_send_ops_flags as ops
from shared.verbs_enums import ibv_qp_type, ibv_send_flags, ibv_wr_opcode
from user_proc.provider.send_ring import SendRing
from user_proc.verbs.c_integers import CField, IntLike, to_u32, to_u64
from user_proc.verbs.posting import Unfit, require_send
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp_attributes import QPAttr
from user_proc.verbs.qp_creation import send_operations
from user_proc.verbs.qp_init_attr import QPInitAttr
from user_proc.verbs.qp_init_attr_ex import QPInitAttrEx
from user_proc.verbs.queue_pair import QP
from user_proc.verbs.wr import SGE, SendWR

_UD: Final = int(ibv_qp_type.IBV_QPT_UD)
_INLINE: Final = int(ibv_send_flags.IBV_SEND_INLINE)
_ANY: Final = int(ibv_wr_opcode.IBV_WR_SEND_WITH_INV)  # one that can be made without elements
_WITHOUT_DATA: Final = (
    int(ibv_wr_opcode.IBV_WR_LOCAL_INV),
    int(ibv_wr_opcode.IBV_WR_BIND_MW),
)
_COMPLETE_TEXT: Final = "ibv_wr_complete failed."


class Draft:
    """A request under construction; `data` keeps what was copied for it."""

    __slots__ = ("data", "has_data", "wr")

    def __init__(self, wr: SendWR) -> None:
        self.wr: Final = wr
        self.has_data = wr.opcode in _WITHOUT_DATA
        self.data: ctypes.Array[Any] | None = None


class BatchingQP(QP):
    """A queue pair with a batch; its builders are QPEx's."""

    wr_id = CField(to_u64)
    wr_flags = CField(to_u32)

    def __init__(
        self,
        creator: Any,
        init_attr: QPInitAttr | QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        super().__init__(creator, init_attr, qp_attr)
        self._operations: Final = send_operations(init_attr)
        self.wr_id = self.wr_flags = 0
        self._builder: Final = threading.Lock()
        self._builds = 0  # the thread between wr_start and its end
        self._batch: list[Draft] = []
        self._failure: Unfit | None = None

    # The batch

    def wr_start(self) -> None:
        """Begin a batch, waiting while another thread builds one."""
        self._check_usable("wr_start")
        me = threading.get_ident()
        if self._builds == me:
            raise PyverbsUserError("wr_start before the wr_complete or wr_abort of the last one")
        self._builder.acquire()
        self._builds = me

    def wr_complete(self) -> None:
        """Post the batch; if anything was wrong with it, post nothing and say what was first."""
        self._require_batch()
        try:
            self._finish_draft()
            if self._failure is None:
                self._post(self._send_ring(_COMPLETE_TEXT))
            if self._failure is not None:
                failure = self._failure
                raise PyverbsRDMAError(_COMPLETE_TEXT, failure.errno, reason=failure.reason)
        finally:
            self._drop_batch()

    def wr_abort(self) -> None:
        """Forget the batch."""
        self._require_batch()
        self._drop_batch()

    def _post(self, ring: SendRing) -> None:
        batch = self._batch
        with ring.lock:
            if ring.released:
                self._note(errno.EINVAL, "the queue has just been closed")
            elif ring.limit - ring.outstanding < len(batch):
                self._note(
                    errno.ENOMEM,
                    f"the batch has {len(batch)} requests, the queue room for "
                    f"{ring.limit - ring.outstanding} of {ring.limit}",
                )
            elif batch:
                for draft in batch:
                    ring.put(draft.wr.wr_id, draft.wr.entry())
                ring.publish()

    def _drop_batch(self) -> None:
        self._batch = []
        self._failure = None
        self._builds = 0
        self._builder.release()

    def _require_batch(self) -> None:
        if self._builds != threading.get_ident():
            raise PyverbsUserError("wr_start has not been called by this thread")

    # Building

    def _note(self, number: int, reason: str) -> None:
        """Keep what is wrong, if it is the first thing."""
        if self._failure is None:
            self._failure = Unfit(number, reason)

    def _begin(self, operation: ops, opcode: ibv_wr_opcode, imm_data: IntLike = 0) -> SendWR:
        """Begin a request; EOPNOTSUPP for an operation the queue pair was not made with."""
        if not self._operations & operation:
            raise PyverbsRDMAError(
                f"Failed to build {opcode.name}",
                errno.EOPNOTSUPP,
                reason=f"the queue pair was made without {operation.name} in send_ops_flags",
            )
        self._require_batch()
        wr = SendWR(self.wr_id, _ANY, 0, imm_data, None, self.wr_flags & ~_INLINE)
        wr.opcode = int(opcode)
        self._finish_draft()
        self._batch.append(Draft(wr))
        return wr

    def _finish_draft(self) -> None:
        """Judge the request that was built last."""
        if not self._batch:
            return
        draft, kind, made = self._batch[-1], self._qp_type, self._made
        if not draft.has_data:
            self._note(errno.EINVAL, "a request needs wr_set_sge or another builder of its data")
        elif kind == _UD and draft.wr.ah is None:
            self._note(errno.EINVAL, "a datagram needs an address handle: call wr_set_ud_addr")
        else:
            try:
                require_send(draft.wr, kind, made.max_send_sge, made.max_inline_data)
            except Unfit as unfit:
                self._note(unfit.errno, unfit.reason)

    def _draft(self, setter: str) -> Draft | None:
        self._require_batch()
        if not self._batch:
            self._note(errno.EINVAL, f"{setter} before any operation")
            return None
        return self._batch[-1]

    def _draft_for_data(self, setter: str) -> Draft | None:
        draft = self._draft(setter)
        if draft is not None and draft.has_data:
            self._note(errno.EINVAL, f"{setter} for a request that takes no data, or has it")
            return None
        return draft

    def _set_elements(self, setter: str, number: int, chosen: list[SGE]) -> None:
        draft = self._draft_for_data(setter)
        if draft is None:
            return
        most = self._made.max_send_sge
        draft.has_data = True
        if number > most:
            self._note(errno.ENOSPC, f"num_sge {number} is more than max_send_sge {most}")
            return
        draft.wr.sg_list = chosen
        draft.wr.num_sge = len(chosen)

    def _set_inline(self, setter: str, pieces: list[tuple[int, int]]) -> None:
        draft = self._draft_for_data(setter)
        if draft is None:
            return
        draft.has_data = True
        length, most = sum(piece[1] for piece in pieces), self._made.max_inline_data
        if length > most:
            self._note(errno.ENOSPC, f"{length} bytes are more than max_inline_data {most}")
            return
        data = b"".join(ctypes.string_at(*piece) for piece in pieces if piece[1])
        draft.data = ctypes.create_string_buffer(data, max(1, length))
        draft.wr.sg_list = [SGE(ctypes.addressof(draft.data), length, 0)]
        draft.wr.num_sge = 1
        draft.wr.send_flags |= _INLINE
