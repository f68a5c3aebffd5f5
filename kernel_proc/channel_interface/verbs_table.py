"""The verbs for kernel clients: what the HCA driver hands out, called directly, without IRPs.

A client opens the device, sends IOCTL_INTERNAL_QUERY_VERBS on that file, and finds the table. Its
queues lie in kernel memory, and are worked by `post_send` and its like. Completion events call a
routine of the CQ, asynchronous events a routine of the table; nothing is pended.

Rules: control verbs and registrations at <= APC_LEVEL, as they wait; above it they are refused with
EAGAIN. At APC_LEVEL, where a fast mutex puts its holder, those that call what is for PASSIVE_LEVEL
alone end with bug check 0x0A: what allocates or frees common buffers, and what destroys a queue, as
it flushes DPCs. Posting, polling, peeking and arming at <= DISPATCH_LEVEL, else bug check 0x0A;
they never wait and call nobody, so that no lock is needed around them. A completion routine is
called at DISPATCH_LEVEL from a DPC. The event routine is called one event at a time, at
PASSIVE_LEVEL by a system worker thread, or at DISPATCH_LEVEL if that was asked for. Destroying an
object waits for a call about it that is under way, but in that call itself. The table is void when
its file is closed.
Spec: "[RFC v2] Kernel Async Verbs"; WinOF inc/iba/ib_ci.h; WDK, Creating Device Interfaces That
Export Functions.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kernel_proc.channel_interface.ib_status import IbStatus
from kernel_proc.channel_interface.work_requests import (
    PollAnswer,
    PostAnswer,
    ReceiveRequest,
    SendRequest,
)
from shared.ioctl_codes import FILE_ANY_ACCESS, METHOD_NEITHER, ctl_code
from shared.verb_codes import HCA_DEVICE_TYPE
from shared.verb_messages import Event

if TYPE_CHECKING:
    from kernel_proc.memory.mdl import Mdl

# Sent as IRP_MJ_INTERNAL_DEVICE_CONTROL, so no user program can ask: the driver appends the
# table to the list it finds as UserBuffer.
IOCTL_INTERNAL_QUERY_VERBS: Final = ctl_code(
    HCA_DEVICE_TYPE, 0xF00, METHOD_NEITHER, FILE_ANY_ACCESS
)

CompletionRoutine = Callable[[], object]
EventRoutine = Callable[[Event], object]


class VerbAnswer(NamedTuple):
    """What a verb did: SUCCESS and its reply, or why not, also in the terms of VERB_RESULT.

    `memory` are the pieces of the memory that was made for the object, in order.
    """

    errno: int = 0
    reason: int = 0
    object: int = 0
    detail: int = 0
    reply: Any = None
    memory: tuple[memoryview, ...] = ()
    status: IbStatus = IbStatus.SUCCESS


class CallVerb(Protocol):
    """Carry out a verb by its control code; buffers in the request are not looked at."""

    def __call__(
        self, code: int, request: Any = None, on_completion: CompletionRoutine | None = None
    ) -> VerbAnswer:
        """Return the answer; `on_completion` goes with create_cq and makes a channel of it."""


class RegisterMemory(Protocol):
    """Make and register kernel memory (register_pmr)."""

    def __call__(self, pd: int, length: int, access: int) -> VerbAnswer:
        """Return the answer of reg_mr and the memory; its addresses count from 0."""


class RegisterMdl(Protocol):
    """Register what an MDL describes (register_mdl).

    That is contiguous kernel memory, or a user's pages that are locked. Pool is refused with
    EFAULT, as no device reaches it, and pages locked for reading alone if the access writes. The
    client keeps the MDL as it is until the region is deregistered.
    """

    def __call__(self, pd: int, mdl: "Mdl", access: int) -> VerbAnswer:
        """Return the answer of reg_mr; the region's addresses count from 0."""


class SetEventRoutine(Protocol):
    """Have asynchronous events told from now on, those that wait already too."""

    def __call__(self, routine: EventRoutine, *, at_dispatch_level: bool = False) -> None:
        """At PASSIVE_LEVEL by a worker thread, or at DISPATCH_LEVEL by the DPC that found them."""


class VerbsTable(NamedTuple):
    """The routines the driver exports to one kernel client; queues are named by their handles.

    `peek_cq` tells how many completions could be polled; `req_notify_cq` arms a CQ for the next
    completion, or the next solicited one. Asynchronous events wait until `set_event_routine` was
    called. `doorbells` is the kernel's doorbell segment; who rings in it himself calls `poke`.
    """

    call: CallVerb
    register_memory: RegisterMemory
    register_mdl: RegisterMdl
    set_event_routine: SetEventRoutine
    post_send: Callable[[int, Sequence[SendRequest]], PostAnswer]
    post_recv: Callable[[int, Sequence[ReceiveRequest]], PostAnswer]
    post_srq_recv: Callable[[int, Sequence[ReceiveRequest]], PostAnswer]
    poll_cq: Callable[[int, int], PollAnswer]
    peek_cq: Callable[[int], tuple[IbStatus, int]]
    req_notify_cq: Callable[[int, bool], IbStatus]
    doorbells: memoryview
    poke: Callable[[], None]
