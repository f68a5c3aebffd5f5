"""What the event types of the HCA are called in verbs: one table for each kind of object.

Spec: Linux drivers/infiniband/hw/mthca/mthca_eq.c; IBA vol. 1, 11.6.3.
"""

from typing import Final

from kernel_proc.hca_abi import event_entries as entries
from shared.verbs_enums import ibv_event_type as event

QP_EVENTS: Final[dict[int, int]] = {
    entries.EVENT_PATH_MIGRATED: int(event.IBV_EVENT_PATH_MIG),
    entries.EVENT_COMMUNICATION_ESTABLISHED: int(event.IBV_EVENT_COMM_EST),
    entries.EVENT_SQ_DRAINED: int(event.IBV_EVENT_SQ_DRAINED),
    entries.EVENT_WQ_CATASTROPHIC: int(event.IBV_EVENT_QP_FATAL),
    entries.EVENT_MIGRATION_FAILED: int(event.IBV_EVENT_PATH_MIG_ERR),
    entries.EVENT_INVALID_REQUEST: int(event.IBV_EVENT_QP_REQ_ERR),
    entries.EVENT_ACCESS_ERROR: int(event.IBV_EVENT_QP_ACCESS_ERR),
    entries.EVENT_LAST_WQE_REACHED: int(event.IBV_EVENT_QP_LAST_WQE_REACHED),
}

#: Those that come with a move to ERR which the driver did not ask for, or may not have.
QP_MOVED: Final = frozenset(
    QP_EVENTS[kind]
    for kind in (
        entries.EVENT_WQ_CATASTROPHIC,
        entries.EVENT_INVALID_REQUEST,
        entries.EVENT_ACCESS_ERROR,
        entries.EVENT_LAST_WQE_REACHED,
    )
)

SRQ_EVENTS: Final[dict[int, int]] = {
    entries.EVENT_SRQ_CATASTROPHIC: int(event.IBV_EVENT_SRQ_ERR),
    entries.EVENT_SRQ_LIMIT: int(event.IBV_EVENT_SRQ_LIMIT_REACHED),
}

PORT_EVENTS: Final[dict[int, int]] = {
    entries.PORT_DOWN: int(event.IBV_EVENT_PORT_ERR),
    entries.PORT_UP: int(event.IBV_EVENT_PORT_ACTIVE),
    entries.PORT_LID_CHANGE: int(event.IBV_EVENT_LID_CHANGE),
    entries.PORT_PKEY_CHANGE: int(event.IBV_EVENT_PKEY_CHANGE),
    entries.PORT_GID_CHANGE: int(event.IBV_EVENT_GID_CHANGE),
    entries.PORT_SM_CHANGE: int(event.IBV_EVENT_SM_CHANGE),
    entries.PORT_CLIENT_REREGISTER: int(event.IBV_EVENT_CLIENT_REREGISTER),
}
