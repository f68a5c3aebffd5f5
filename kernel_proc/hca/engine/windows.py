"""Memory windows in the engine: bind, rebind, unbind, and invalidation from either side.

A bind or an invalidation is an entry like others: what was posted before it is complete, what is
posted after it finds it done. While a thread still copies for an access the window granted, it
waits, so that nothing is touched by the window once its completion is there.

A type 1 window is rebound at will, and unbound by a length of 0. One of type 2 must be free,
belongs to the queue pair it is bound by (2B), and is freed by LOCAL_INV or a peer's SEND WITH INV.

Spec: IBA vol. 1, 10.6.7 (C10-72 to C10-75); libibverbs ibv_bind_mw(3); docs/memory-windows.md.
"""

from typing import Final

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.completer import STOP, Completer
from kernel_proc.hca.engine.rounds import Rounds
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.memory_key import MemoryKey
from kernel_proc.hca.memory_window import MemoryWindow
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.translation import Translation
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi import contexts as abi
from shared.verbs_enums import ibv_access_flags
from shared.wqe_layout import BIND_SEGMENT, BindSegment

_VARIANT: Final = 0xFF  # the bits of a key that a consumer chooses
_ZERO_BASED: Final = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)
_NEEDS_LOCAL_WRITE: Final = int(
    ibv_access_flags.IBV_ACCESS_REMOTE_WRITE | ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC
)
_RIGHTS: Final = (
    (int(ibv_access_flags.IBV_ACCESS_REMOTE_WRITE), abi.MPT_FLAG_REMOTE_WRITE),
    (int(ibv_access_flags.IBV_ACCESS_REMOTE_READ), abi.MPT_FLAG_REMOTE_READ),
    (int(ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC), abi.MPT_FLAG_ATOMIC),
)
_OPTIONAL: Final = ((1 << 30) - 1) & ~((1 << 20) - 1)
_KNOWN_ACCESS: Final = 0x3FF | _OPTIONAL


class Windows:
    """Binds and invalidates; the steps are the requester's, so its rules are theirs."""

    def __init__(self, translation: Translation, completer: Completer, rounds: Rounds) -> None:
        self._translation: Final = translation
        self._completer: Final = completer
        self._rounds: Final = rounds
        self._waiting: list[QueuePair] = []

    # Steps of the requester

    def bind(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Do BIND_MW; a window it cannot be done to stays as it was."""
        segment = BindSegment(*BIND_SEGMENT.unpack(out.vector))
        window = self._with_index_of(segment.new_rkey)
        if window is None or window.domain != qp.context.pd:
            return self._refuse(qp, ops.MW_BIND_ERR)
        region = self._translation.named(segment.lkey)
        if not _may_bind(window, segment) or (
            segment.length and not (region and _grants(region, qp.context.pd, segment))
        ):
            return self._refuse(qp, ops.MW_BIND_ERR)
        if window.copies:
            return self._wait(qp, out)
        window.key = window.key & ~_VARIANT | segment.new_rkey & _VARIANT
        if segment.length and region is not None:
            rights = sum(flag for right, flag in _RIGHTS if segment.access & right)
            zero_based = bool(segment.access & _ZERO_BASED)
            window.bind(region, segment.address, segment.length, rights, zero_based=zero_based)
            if window.is_type_2:
                window.restrict(qp.number, qp.windows)
        else:
            window.unbind()
        self._completer.succeeded(qp, queue, out, 0)
        return 0

    def invalidate(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Do LOCAL_INV."""
        window = _to_invalidate(self._translation, qp, out.imm_data, qp.context.pd)
        if window is None:
            return self._refuse(qp, ops.LOC_QP_OP_ERR)
        if window.copies:
            return self._wait(qp, out)
        window.unbind()
        self._completer.succeeded(qp, queue, out, 0)
        return 0

    def _refuse(self, qp: QueuePair, status: int) -> int:
        self._completer.failed(qp, status)
        return STOP

    def _wait(self, qp: QueuePair, out: Outgoing) -> int:
        out.waiting = True
        self._waiting.append(qp)
        return STOP

    def go_on(self) -> None:
        """Have those look again that wait for the end of copies: some have ended."""
        waiting, self._waiting = self._waiting, []
        for qp in waiting:
            out = qp.outgoing
            if out.busy and out.waiting and qp.send is not None:
                out.waiting = False
                self._rounds.ready(qp.send)

    def _with_index_of(self, key: int) -> MemoryWindow | None:
        """Return the window that a key names by all but its low bits."""
        if not self._translation.key_count:
            return None
        window = self._translation.entry(self._translation.index_of(key))
        if isinstance(window, MemoryWindow) and not (window.key ^ key) & ~_VARIANT:
            return window
        return None


def invalidate_for_peer(translation: Translation, qp: QueuePair, key: int, pd: int) -> bool:
    """Do what SEND WITH INV asks for; False if it cannot be done.

    The queue pair's own earlier requests are complete, and no other reaches the window.
    """
    window = _to_invalidate(translation, qp, key, pd)
    if window is None or window.copies:
        return False
    window.unbind()
    return True


def _to_invalidate(
    translation: Translation, qp: QueuePair, key: int, pd: int
) -> MemoryWindow | None:
    """Return a type 2 window of this very key that a queue pair may take away."""
    window = translation.named(key)
    if not isinstance(window, MemoryWindow) or not window.is_type_2:
        return None
    if window.region is None:
        return window if window.domain == pd else None
    return window if window.queue_pair == qp.number else None


def _may_bind(window: MemoryWindow, segment: BindSegment) -> bool:
    """Say whether a window is in a state to be bound so, whatever it is bound to."""
    if segment.access & ~_KNOWN_ACCESS:
        return False
    if window.is_type_2:
        return window.region is None and segment.length != 0
    return not segment.access & _ZERO_BASED


def _grants(region: MemoryKey, pd: int, segment: BindSegment) -> bool:
    """Say whether a region lets itself be bound so."""
    flags = region.flags
    if not flags & abi.MPT_FLAG_REGION or region.pd != pd:
        return False
    if not flags & abi.MPT_FLAG_BIND or flags & abi.MPT_FLAG_ZERO_BASED:
        return False
    if segment.access & _NEEDS_LOCAL_WRITE and not flags & abi.MPT_FLAG_LOCAL_WRITE:
        return False
    return region.base <= segment.address and segment.address + segment.length <= region.end
