"""The six notification requests: each is pended until its event comes, or has come already.

Input is a handle; 0 asks for the event of any object of the kind. The request ends with
STATUS_CANCELLED when its object is destroyed, its file closed, its thread ended, or by CancelIo,
and with errno EIO when the HCA dies before an event comes.

Rules: PASSIVE_LEVEL, in the caller's thread; waits for nothing. The dispatch routine has seen to it
that the output has room for an event.
Spec: "[RFC v2] Kernel Async Verbs" (the requests); NetworkDirect, IND2CompletionQueue::Notify.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.cq_verbs import Cq
from kernel_proc.driver.event_latch import KIND_OF_REQUEST, OF_DEVICE, EventKind, EventLatch
from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.qp_resource import Qp
from kernel_proc.driver.queue_resource import QueueResource, refuse
from kernel_proc.driver.srq_verbs import Srq
from kernel_proc.driver.verb import PENDED, Verb
from shared.verb_messages import Object
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp

_CLASSES: Final[dict[EventKind, type[QueueResource]]] = {
    EventKind.CQ_COMPLETION: Cq,
    EventKind.CQ_ASYNC: Cq,
    EventKind.QP_ASYNC: Qp,
    EventKind.SRQ_ASYNC: Srq,
}


def _latch_of(context: "Context", kind: EventKind, handle: int) -> EventLatch | None:
    if not handle:
        return None
    if kind in OF_DEVICE:
        refuse(VerbReason.NOT_PER_OBJECT, handle)
    resource = context.find(_CLASSES[kind], handle)
    if kind is EventKind.CQ_COMPLETION and isinstance(resource, Cq) and not resource.has_channel:
        refuse(VerbReason.CQ_WITHOUT_CHANNEL, handle)
    return resource.latch


def _get_event(
    kind: EventKind, driver: "HcaDriver", context: "Context", request: Object, irp: "Irp"
) -> Any:
    """Pend a request for an event of one kind."""
    latch = _latch_of(context, kind, request.handle)
    notification = notification_of(driver)
    notification.pend(irp, kind, notification.events_of(context), latch)
    return PENDED


VERBS: Final = {
    code: Verb(partial(_get_event, kind), Object, when_dead=True)
    for code, kind in KIND_OF_REQUEST.items()
}
