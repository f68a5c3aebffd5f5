"""The system services a user thread can ask for, by the kind of its message.

Rules: each runs on the caller's KTHREAD at PASSIVE_LEVEL.
Spec: shared/envelope.py.
"""

from typing import Final

from kernel_proc.io_manager.system_services import run_down_thread
from kernel_proc.server.device_services import cancel, device_control
from kernel_proc.server.object_services import (
    associate,
    change_event,
    close,
    create,
    duplicate,
    make_event,
    make_port,
    post,
)
from kernel_proc.server.service_types import Door, Request, Service
from kernel_proc.server.session import UserThread
from kernel_proc.server.wait_services import delay, dequeue, wait
from shared.envelope import (
    KIND_ASSOCIATE,
    KIND_CANCEL,
    KIND_CLOSE,
    KIND_CREATE,
    KIND_CREATE_EVENT,
    KIND_CREATE_PORT,
    KIND_DELAY,
    KIND_DEQUEUE,
    KIND_DEVICE_CONTROL,
    KIND_DUPLICATE,
    KIND_EVENT,
    KIND_POST,
    KIND_WAIT,
)


def thread_exit(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
    """The user thread has ended: its requests are cancelled and waited for. Not answered."""
    run_down_thread(door.io, caller.kthread)
    caller.session.in_flight -= 1
    caller.queued.popleft()
    door.forget_thread(caller)
    caller.kthread.end()


SERVICES: Final[dict[int, Service]] = {
    KIND_CREATE: create,
    KIND_CLOSE: close,
    KIND_DUPLICATE: duplicate,
    KIND_DEVICE_CONTROL: device_control,
    KIND_CANCEL: cancel,
    KIND_WAIT: wait,
    KIND_DELAY: delay,
    KIND_DEQUEUE: dequeue,
    KIND_CREATE_EVENT: make_event,
    KIND_EVENT: change_event,
    KIND_CREATE_PORT: make_port,
    KIND_ASSOCIATE: associate,
    KIND_POST: post,
}


#: What makes less outstanding, or lets somebody else go on, and is over when it is answered: it
#: is admitted over the limit, one for each thread.
RELIEVING: Final = frozenset(
    {KIND_CLOSE, KIND_CANCEL, KIND_WAIT, KIND_DELAY, KIND_DEQUEUE, KIND_EVENT}
)
