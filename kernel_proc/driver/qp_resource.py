"""A queue pair as the driver holds it: its attributes, and what it is attached to.

Rules: PASSIVE_LEVEL, under the lock of the object; `note_event` alone comes at DISPATCH_LEVEL.
Spec: IBA vol. 1, 10.3; Linux mthca_qp.c.
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver import qp_attributes
from kernel_proc.driver.event_types import QP_MOVED
from kernel_proc.driver.multicast_groups import detach_all
from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.qp_plan import BLOCK_SELF_MULTICAST, QueuePlan
from kernel_proc.driver.queue_resource import QueueMemory, QueueResource
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi.contexts import (
    QP_CONTEXT,
    QP_MAILBOX_HEAD,
    QPC_BLOCK_SELF_MULTICAST,
    QPC_SIGNAL_ALL,
    QpContext,
)
from kernel_proc.scheduling.dpc_flush import flush_queued_dpcs
from shared.verb_messages import CreateQp
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver

_RESET_MODIFIER: Final = op.ERR2RST_NO_OUTBOX | op.ERR2RST_WITHOUT_FLUSH
_MAILBOX_LENGTH: Final = QP_MAILBOX_HEAD.size + QP_CONTEXT.size


def is_bad_state(refusal: VerbRefused) -> bool:
    """Tell whether the HCA refused a transition because the QP is in another state."""
    return (
        refusal.reason is VerbReason.COMMAND_FAILED
        and refusal.detail & 0xFF == op.CMD_STAT_BAD_QPEE_STATE
    )


class Qp(QueueResource):
    """A QP; `base` is what it was created with, `hca` its attributes as last known.

    `doubtful` when the HCA may have moved it: an event says so, or a command was not answered;
    `unconfirmed` are the attributes that command may have given it. `groups` are the GIDs of the
    multicast groups it is attached to, False for one it may or may not be in.
    """

    kind = "QP"
    tables = ("qpc", "eqpc", "rdb")
    reserved_number = 0xFF_FFFF  # which stands for a multicast group

    __slots__ = (
        "base",
        "doubtful",
        "groups",
        "hca",
        "plan",
        "qp_type",
        "signal_all",
        "unconfirmed",
    )

    def __init__(
        self, context: "Context", memory: QueueMemory, request: CreateQp, plan: QueuePlan
    ) -> None:
        super().__init__(context, context.driver.numbers.qp, memory)
        self.qp_type = request.qp_type
        self.signal_all = bool(request.sq_sig_all)
        self.plan = plan
        self.doubtful = False
        self.groups: dict[bytes, bool] = {}
        self.base = self.hca = QpContext()
        self.unconfirmed: QpContext | None = None

    @property
    def state(self) -> int:
        """Return the state as last known."""
        return self.hca.state

    def note_event(self, event_type: int) -> None:
        """Remember that the HCA may have moved the QP: which it was is asked when it matters."""
        if event_type in QP_MOVED:
            self.doubtful = True

    def flags(self, request: CreateQp) -> int:
        """Return the flags of its HCA context."""
        flags = QPC_SIGNAL_ALL if self.signal_all else 0
        if request.create_flags & BLOCK_SELF_MULTICAST:
            flags |= QPC_BLOCK_SELF_MULTICAST
        return flags

    def fetch(self, driver: "HcaDriver") -> QpContext:
        """Ask the HCA for the QP as it is now, and remember the state it is in.

        Of a QP in RESET the HCA knows nothing.
        """
        if self.state == table.RESET and not self.doubtful:
            return self.hca
        doubtful, self.doubtful = self.doubtful, False  # an event meanwhile is another doubt
        try:
            result = driver.channel.run(
                op.QUERY_QPEE, modifier=self.number, outbox_length=_MAILBOX_LENGTH
            )
        except VerbRefused as refusal:
            if is_bad_state(refusal):
                self.hca, self.unconfirmed = self.base, None
                return self.hca
            self.doubtful |= doubtful
            raise
        live = QpContext(*QP_CONTEXT.unpack_from(result.outbox, QP_MAILBOX_HEAD.size))
        if self.unconfirmed is not None:
            self.hca = qp_attributes.settled(self.hca, self.unconfirmed, live)
            self.unconfirmed = None
        self.hca = self.hca._replace(state=live.state)
        return live

    def reset(self, driver: "HcaDriver") -> None:
        """Have the HCA forget the QP, which then is as it was created."""
        try:
            driver.channel.run(op.ERR2RST_QPEE, modifier=self.number, opmod=_RESET_MODIFIER)
        except VerbRefused as refusal:
            if not is_bad_state(refusal):  # else it is in RESET already
                raise
        self.hca, self.unconfirmed = self.base, None
        self.doubtful = False

    def require_unused(self) -> None:
        """Refuse with EBUSY also while it is attached to a multicast group."""
        super().require_unused()
        attached = sum(self.groups.values())
        if attached:
            raise VerbRefused(errno.EBUSY, VerbReason.STILL_ATTACHED, self.handle, attached)

    def destroy(self, driver: "HcaDriver") -> None:
        """Reset the QP, whose completions leave its CQs, and give everything back."""
        detach_all(driver, self)
        if self.state != table.RESET or self.doubtful:
            self.reset(driver)
        notification = notification_of(driver)
        notification.qps.pop(self.number, None)
        flush_queued_dpcs(driver.processor)
        notification.close_latch(self.latch)
        self.give_back(driver)

    def attributes(self) -> dict[str, Any]:
        """Return number, type, state and events."""
        return {
            **super().attributes(),
            "type": self.qp_type,
            "state": self.state,
            "groups": [gid.hex() for gid in self.groups],
        }
