"""Completion queues made by raw verbs, each with a queue pair in ERR whose receives are flushed.

Nothing else of the process asks for events, so that every request is the test's own.
"""

from shared import verb_codes as codes
from shared.cqe_layout import CQE_SIZE
from shared.verb_messages import CreateCq, CreateQp, Object
from shared.wqe_layout import RECEIVE_HEAD
from tests.end_to_end.verbs_raw import Pended, RawVerbs
from tests.kernel_proc.driver.queue_user import ERR, INIT, RC, attributes
from user_proc.process import UserProcess
from user_proc.provider.cq_ring import CqRing
from user_proc.provider.doorbell_writer import DoorbellWriter
from user_proc.provider.queue_table import QueueTable
from user_proc.provider.receive_ring import ReceiveRing

STATE, TO_INIT = 0x1, 0x39
ENTRY = RECEIVE_HEAD.pack(0)


class RawUser:
    """A session with the device open and its doorbells mapped."""

    def __init__(self, process: UserProcess) -> None:
        self.process = process
        self.doorbells = process.open_doorbells()
        self.writer = DoorbellWriter(
            self.doorbells.segment, self.doorbells.status_page, self.doorbells.poke_fd
        )
        self.raw = RawVerbs(process)
        self.pd: int = self.raw.good(codes.IOCTL_ALLOC_PD).handle

    def close(self) -> None:
        self.raw.device.close()
        self.doorbells.close()


class FlushingCq:
    """A completion queue; `flush` has the HCA store so many entries."""

    def __init__(self, user: RawUser, cqe: int = 15, receives: int = 8) -> None:
        self.user = user
        raw = user.raw
        entries = 1 << cqe.bit_length()
        self._cq_memory = user.process.allocate(max(entries * CQE_SIZE, 4096), page_aligned=True)
        self._qp_memory = user.process.allocate(8192, page_aligned=True)
        for memory in (self._cq_memory, self._qp_memory):
            memory.view[:] = bytes(len(memory.view))
        made = raw.good(
            codes.IOCTL_CREATE_CQ,
            CreateCq(cqe, 0, 1, 0, self._cq_memory.address, entries * CQE_SIZE),
        )
        self.handle: int = made.handle
        self._table = QueueTable()
        view = self._cq_memory.view[: entries * CQE_SIZE]
        self.ring = CqRing(user.writer, self._table, view, made.consumer_slot, made.arm_slot)
        qp = raw.good(
            codes.IOCTL_CREATE_QP,
            CreateQp(
                RC, user.pd, made.handle, made.handle, 0, 0, 1, receives, 1, 1, 0, 0, 0, 0,
                self._qp_memory.address, 8192,
            ),
        )  # fmt: skip
        self.qp: int = qp.handle
        self.receive = ReceiveRing(
            user.writer, qp.receive_slot,
            self._qp_memory.view[: qp.max_recv_wr * qp.receive_stride], qp.receive_stride,
            qp.max_recv_wr,
        )  # fmt: skip
        self._table.receive[qp.qpn] = self.receive
        self.to_err()

    def to_err(self) -> None:
        raw = self.user.raw
        raw.good(codes.IOCTL_MODIFY_QP, attributes(self.qp, TO_INIT, qp_state=INIT))
        raw.good(codes.IOCTL_MODIFY_QP, attributes(self.qp, STATE, qp_state=ERR))

    def flush(self, count: int = 1) -> None:
        """Post receives, which the HCA completes at once."""
        with self.receive.lock:
            for number in range(count):
                self.receive.put(number, ENTRY)
            self.receive.publish()

    def notify(self, code: int = codes.IOCTL_GET_CQ_COMP_EVENT) -> Pended:
        """Send a request for this queue."""
        return self.user.raw.pend(code, Object(self.handle))

    def poll_until(self, count: int) -> None:
        """Poll until so many entries were found; a queue that stays empty is the test's timeout."""
        found = 0
        while found < count:
            found += len(self.ring.poll(count - found))

    def settle(self) -> None:
        """Return when HCA and driver have done what was rung before: a command is behind it."""
        for _ in range(2):
            self.user.raw.good(codes.IOCTL_QUERY_QP, Object(self.qp))

    def events_delivered(self) -> int:
        """Destroy it; how many completion events ended a request in its life."""
        self.user.raw.good(codes.IOCTL_DESTROY_QP, Object(self.qp))
        events: int = self.user.raw.good(
            codes.IOCTL_DESTROY_CQ, Object(self.handle)
        ).completion_events
        return events
