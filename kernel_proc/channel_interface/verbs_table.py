"""The verbs for kernel clients: what the HCA driver hands out, called directly, without IRPs.

A client opens the device, sends IOCTL_INTERNAL_QUERY_VERBS on that file, and finds the table. Its
queues lie in kernel memory, which the creations return. Completion events call a routine of the
CQ, asynchronous events a routine of the table; nothing is pended. The queues themselves are used
as users use theirs, by the layouts in `shared`.

Rules: verbs at PASSIVE_LEVEL, as they wait; above it they are refused with EAGAIN. A completion
routine is called at DISPATCH_LEVEL from a DPC, the event routine at PASSIVE_LEVEL by a system
worker thread, one event at a time. Destroying an object waits for a call about it that is under
way, but in that call itself. The table is void when its file is closed.
Spec: "[RFC v2] Kernel Async Verbs"; WinOF inc/iba/ib_ci.h; WDK, Creating Device Interfaces That
Export Functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from shared.ioctl_codes import FILE_ANY_ACCESS, METHOD_NEITHER, ctl_code
from shared.verb_codes import HCA_DEVICE_TYPE
from shared.verb_messages import Event

# Sent as IRP_MJ_INTERNAL_DEVICE_CONTROL, so no user program can ask: the driver appends the
# table to the list it finds as UserBuffer.
IOCTL_INTERNAL_QUERY_VERBS: Final = ctl_code(
    HCA_DEVICE_TYPE, 0xF00, METHOD_NEITHER, FILE_ANY_ACCESS
)

CompletionRoutine = Callable[[], object]
EventRoutine = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class VerbAnswer:
    """What a verb did: errno 0 and its reply, or why not, in the terms of VERB_RESULT.

    `memory` are the pieces of the memory that was made for the object, in order.
    """

    errno: int = 0
    reason: int = 0
    object: int = 0
    detail: int = 0
    reply: Any = None
    memory: tuple[memoryview, ...] = ()


class CallVerb(Protocol):
    """Carry out a verb by its control code; buffers in the request are not looked at."""

    def __call__(
        self, code: int, request: Any = None, on_completion: CompletionRoutine | None = None
    ) -> VerbAnswer:
        """Return the answer; `on_completion` goes with create_cq and makes a channel of it."""


class RegisterMemory(Protocol):
    """Make and register kernel memory."""

    def __call__(self, pd: int, length: int, access: int) -> VerbAnswer:
        """Return the answer of reg_mr and the memory; its addresses count from 0."""


@dataclass(frozen=True, slots=True)
class VerbsTable:
    """The routines the driver exports to one kernel client.

    `doorbells` is the kernel's doorbell segment; who rings in it calls `poke`. Asynchronous events
    wait until `set_event_routine` was called.
    """

    call: CallVerb
    register_memory: RegisterMemory
    set_event_routine: Callable[[EventRoutine], None]
    doorbells: memoryview
    poke: Callable[[], None]
