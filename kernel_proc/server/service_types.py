"""What the handlers of system services have in common.

A handler runs on the caller's KTHREAD at PASSIVE_LEVEL and may wait. It answers exactly once,
with the two exceptions the protocol knows: THREAD_EXIT is not answered, and a request whose
result is a completion is answered twice.
"""

from collections.abc import Callable
from typing import NamedTuple

from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.server.answers import Answers
from kernel_proc.server.session import UserThread
from shared.nt_status import STATUS_CANCELLED


class Door(NamedTuple):
    """What a service needs beside its caller."""

    io: IoManager
    answers: Answers
    forget_thread: Callable[[UserThread], None]


#: A request's fields in the order of `session_server.REQUEST`, and its payload frame.
Request = tuple[int, ...]
Service = Callable[[Door, UserThread, Request, bytes], None]


def unless_abandoned(service: Service) -> Service:
    """Have a request given up while it stood in the queue answered, and not done."""

    def serve(door: Door, caller: UserThread, request: Request, payload: bytes) -> None:
        if request[3] in caller.abandoned:
            door.answers.reply(caller, request[3], STATUS_CANCELLED)
        else:
            service(door, caller, request, payload)

    return serve
