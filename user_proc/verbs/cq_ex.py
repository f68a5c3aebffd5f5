"""Extended completion queues: one completion at a time, of which only the fields asked for.

    if cq.start_poll(None) == 0:
        while True:
            use(cq.wr_id, cq.status, cq.read_byte_len())
            if cq.poll_next():
                break
        cq.end_poll()

From a `start_poll` that found something until `end_poll` the queue is the calling thread's; others
that start wait for it, unless the queue was made SINGLE_THREADED.

The device stamps every completion with its clock, nanoseconds counted on from some beginning. The
wall clock of a completion is that stamp and the distance between both clocks at the creation of
the queue: a wall clock that is set later does not change it.

Rules: any thread.
Spec: rdma-core, pyverbs/cq.pyx; ibv_create_cq_ex(3).
"""

import errno
import threading
from typing import Any, ClassVar, Final

from shared.cqe_layout import Cqe
from shared.verb_codes import IOCTL_QUERY_CLOCK
from shared.verb_messages import DeviceClock
from shared.verbs_enums import ibv_create_cq_attr_flags as create_flags
from user_proc.verbs.argument_types import optional
from user_proc.verbs.c_integers import CField, to_int, to_u64
from user_proc.verbs.completion import create_wc_flags_to_str
from user_proc.verbs.completion_queue import CompletionQueue
from user_proc.verbs.cq_ex_attributes import CqInitAttrEx, PollCqAttr, WcTmInfo
from user_proc.verbs.device import Context
from user_proc.verbs.libibverbs_enums import ibv_cq_init_attr_mask
from user_proc.verbs.libibverbs_enums import ibv_create_cq_wc_flags as wc_flags
from user_proc.verbs.parent_domain import RESOURCE_CQ, ParentDomain
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.verb_session import VerbRefusal

_FLAGS: Final = int(ibv_cq_init_attr_mask.IBV_CQ_INIT_ATTR_MASK_FLAGS)
_PD: Final = int(ibv_cq_init_attr_mask.IBV_CQ_INIT_ATTR_MASK_PD)
_SINGLE_THREADED: Final = int(create_flags.IBV_CREATE_CQ_ATTR_SINGLE_THREADED)

_BYTE_LEN: Final = int(wc_flags.IBV_WC_EX_WITH_BYTE_LEN)
_IMM: Final = int(wc_flags.IBV_WC_EX_WITH_IMM)
_QP_NUM: Final = int(wc_flags.IBV_WC_EX_WITH_QP_NUM)
_SRC_QP: Final = int(wc_flags.IBV_WC_EX_WITH_SRC_QP)
_SLID: Final = int(wc_flags.IBV_WC_EX_WITH_SLID)
_SL: Final = int(wc_flags.IBV_WC_EX_WITH_SL)
_DLID_PATH_BITS: Final = int(wc_flags.IBV_WC_EX_WITH_DLID_PATH_BITS)
_TIMESTAMP: Final = int(wc_flags.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
_WALLCLOCK: Final = int(wc_flags.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

#: What a completion of this device can be asked to have: no VLAN, flow tag or tag matching.
SUPPORTED_WC_FLAGS: Final = (
    _BYTE_LEN | _IMM | _QP_NUM | _SRC_QP | _SLID | _SL | _DLID_PATH_BITS | _TIMESTAMP | _WALLCLOCK
)

_FIELD: Final = {name: place for place, name in enumerate(Cqe._fields)}
_U64: Final = (1 << 64) - 1


class CQEX(CompletionQueue):
    """An extended completion queue; `wr_id` and `status` are the current completion's."""

    KIND: ClassVar[str] = "CQEX"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("SRQ", "QP")
    CREATE_TEXT: ClassVar[str] = "Failed to create extended CQ"
    DESTROY_TEXT: ClassVar[str] = "Failed to destroy CQEX"

    wr_id = CField(to_u64)
    status = CField(to_int)

    def __init__(self, context: Context, init_attr: CqInitAttrEx | None = None) -> None:
        self._resource = None
        attr = optional("init_attr", init_attr, CqInitAttrEx) or CqInitAttrEx()
        flags, domain = self._judged(attr)
        if domain is not None and domain.context is not context:
            raise PyverbsRDMAError(
                CQEX.CREATE_TEXT, errno.EINVAL, reason="the ParentDomain is another context's"
            )
        self.wr_id = self.status = 0
        self._wc_flags: Final = attr.wc_flags
        self._entry: tuple[Any, ...] | None = None
        self._poller: Final = threading.Lock()
        self._polling = 0  # the thread between start_poll and end_poll
        self._alone: Final = flags & _SINGLE_THREADED != 0
        self._wall_offset = 0
        allocator = domain.queue_allocator(RESOURCE_CQ) if domain is not None else None
        super().__init__(
            context, attr.cqe, None, attr.comp_channel, attr.comp_vector, flags, allocator
        )
        if domain is not None:
            self.parent_domain = domain  # keeps it
            domain.adopt(self)
        if self._wc_flags & _WALLCLOCK:
            self._wall_offset = self._clock_distance()

    @staticmethod
    def _judged(attr: CqInitAttrEx) -> tuple[int, ParentDomain | None]:
        """Give flags and domain as far as they count; refuse what the device does not have."""
        unknown = attr.wc_flags & ~SUPPORTED_WC_FLAGS
        if unknown:
            names = create_wc_flags_to_str(unknown).strip() or f"{unknown:#x}"
            raise _unsupported(f"completions have nothing for {names}")
        if attr.comp_mask & ~(_FLAGS | _PD):
            raise _unsupported("comp_mask has unknown bits")
        flags = attr.flags if attr.comp_mask & _FLAGS else 0
        if not attr.comp_mask & _PD:
            return flags, None
        domain = attr.parent_domain
        if not isinstance(domain, ParentDomain):
            raise PyverbsRDMAError(
                CQEX.CREATE_TEXT, errno.EINVAL, reason="comp_mask asks for a parent domain"
            )
        return flags, domain

    def _clock_distance(self) -> int:
        """Ask how far the wall clock is ahead of the device's."""
        try:
            clock = self._session.call(DeviceClock, IOCTL_QUERY_CLOCK)
        except VerbRefusal as refusal:
            self.close()
            raise refusal.error(self.CREATE_TEXT) from refusal
        return clock.wall_ns - clock.raw_ns

    # Polling

    def start_poll(self, attr: PollCqAttr | None) -> int:
        """Go to the oldest completion: 0, ENOENT if there is none, another errno if it failed."""
        wanted = optional("attr", attr, PollCqAttr)
        self._check_usable()
        if wanted is not None and wanted.comp_mask:
            return errno.EINVAL
        me = threading.get_ident()
        if self._polling == me:
            raise PyverbsUserError("start_poll before the end_poll of the last one")
        if not self._alone:
            self._poller.acquire()
        self._polling = me
        result = errno.EIO
        try:
            result = self._take_next()
        finally:
            if result:
                self._let_go()
        return result

    def poll_next(self) -> int:
        """Go to the next completion: 0, or ENOENT if there is none (end_poll is due then, too)."""
        self._require_polling()
        self._check_usable()
        return self._take_next()

    def end_poll(self) -> None:
        """Be done with the completions polled since start_poll."""
        self._require_polling()
        self._let_go()

    def _take_next(self) -> int:
        self._entry = None
        try:
            found = self._take(1)
        except PyverbsRDMAError as error:
            self.logger.debug("%s", error)
            return error.error_code
        if not found:
            return errno.ENOENT
        self.wr_id, self._entry = found[0]
        self.status = self._entry[_FIELD["status"]]
        return 0

    def _let_go(self) -> None:
        self._entry = None
        self._polling = 0
        if not self._alone:
            self._poller.release()

    def _require_polling(self) -> None:
        if self._polling != threading.get_ident():
            raise PyverbsUserError("start_poll has found nothing, or not in this thread")

    def _check_usable(self) -> None:
        session = self._session
        if self._resource is None or (session.trouble and not session.dead):
            self._refuse("Failed to poll CQ")

    # The current completion

    def _read(self, name: str, needed: int = 0) -> int:
        entry = self._entry
        if needed and not self._wc_flags & needed:
            raise PyverbsUserError(
                f"the queue was not made with {create_wc_flags_to_str(needed).strip()}"
            )
        if entry is None:
            raise PyverbsUserError("there is no current completion: call start_poll")
        value: int = entry[_FIELD[name]]
        return value

    def read_opcode(self) -> int:
        """Give its ibv_wc_opcode."""
        return self._read("opcode")

    def read_vendor_err(self) -> int:
        """Give the device's own error code."""
        return self._read("vendor_err")

    def read_wc_flags(self) -> int:
        """Give its ibv_wc_flags."""
        return self._read("wc_flags")

    def read_byte_len(self) -> int:
        """Give the bytes received, or read."""
        return self._read("byte_len", _BYTE_LEN)

    def read_imm_data(self) -> int:
        """Give the immediate data in network order, or the key that was invalidated."""
        return self._read("imm_data", _IMM)

    def read_qp_num(self) -> int:
        """Give the number of the queue pair."""
        return self._read("qpn", _QP_NUM)

    def read_src_qp(self) -> int:
        """Give the sender's queue pair, of a datagram."""
        return self._read("src_qp", _SRC_QP)

    def read_slid(self) -> int:
        """Give the sender's LID, of a datagram."""
        return self._read("slid", _SLID)

    def read_sl(self) -> int:
        """Give the service level, of a datagram."""
        return self._read("sl", _SL)

    def read_dlid_path_bits(self) -> int:
        """Give the path bits it was sent to, of a datagram."""
        return self._read("dlid_path_bits", _DLID_PATH_BITS)

    def read_timestamp(self) -> int:
        """Give when the device wrote it, in ticks of its clock."""
        return self._read("timestamp_ns", _TIMESTAMP)

    def read_completion_wallclock_ns(self) -> int:
        """Give when the device wrote it, in nanoseconds since the epoch."""
        return self._read("timestamp_ns", _WALLCLOCK) + self._wall_offset & _U64

    def read_cvlan(self) -> int:
        """Refuse: an InfiniBand packet has no VLAN."""
        raise _lacking("VLAN tags")

    def read_flow_tag(self) -> int:
        """Refuse: the device steers no flows."""
        raise _lacking("flow tags")

    def read_tm_info(self) -> WcTmInfo:
        """Refuse: the device has no tag matching."""
        raise _lacking("tag matching")


def _unsupported(reason: str) -> PyverbsRDMAError:
    return PyverbsRDMAError(CQEX.CREATE_TEXT, errno.EOPNOTSUPP, reason=reason)


def _lacking(what: str) -> PyverbsRDMAError:
    return PyverbsRDMAError(
        "Failed to read completion", errno.EOPNOTSUPP, reason=f"the device has no {what}"
    )
