"""Every msgpack message both sides know: on the lifeline, and inside IOCTL buffers.

Lifeline (SOCK_SEQPACKET, one message per packet, 64 KiB at most). The user speaks first:
    Hello + 2 descriptors      its own /proc/self/mem (O_RDWR) and /proc/self/maps (O_RDONLY)
      -> Welcome + 1 descriptor  the session is open; the socket its completions come by, or
      -> Refused               and the kernel closes the connection.
Then any number of requests, each answered once, in order; `request` is chosen by the user and
repeated in the answer, so that the answer to an abandoned request is recognised:
    AllocateArena -> ArenaGranted + 1 descriptor (the segment), or Done with an error status
    ArenaMapped   -> Done      the user mapped that arena at `base` (its own address)
    FreeArena     -> Done      the user has unmapped it
    OpenDoorbells -> DoorbellsGranted + 3 descriptors: the session's doorbell segment, the HCA's
                     status page (read-only), the eventfd that wakes the HCA; or Done
The kernel never speaks unasked on the lifeline; it ends the session by closing it.

A message is the msgpack array `[tag, version, fields...]`, encoded by `message_codec`.
Tags are never reused; a field may be added at the end within a version; any other change is a
new version.
"""

from typing import Annotated, Any, Final, NamedTuple

U16 = Annotated[int, 16]
U32 = Annotated[int, 32]
U64 = Annotated[int, 64]
Text = Annotated[str, 1024]  # at most so many characters
Program = Annotated[bytes, 16_384]  # at most so many bytes


class Hello(NamedTuple):
    """The user's first words on the lifeline."""

    min_version: U16
    max_version: U16
    process_name: Text


class Welcome(NamedTuple):
    """The session the kernel issues, and its limits.

    protocol      envelope version agreed on; every header carries it.
    max_payload   largest inline payload in bytes.
    max_requests  requests in the kernel plus completions not yet taken.
    max_threads   user threads with a socket at one time.
    arena_quota   bytes of arenas this session may hold.
    """

    session: U32
    epoch: U64
    kernel_pid: U32
    protocol: U16
    max_payload: U32
    max_requests: U32
    max_threads: U32
    arena_quota: U64


class Refused(NamedTuple):
    """Why there is no session; `reason` is one sentence for the user's eyes."""

    status: U32
    reason: Text


class AllocateArena(NamedTuple):
    """Ask for a new arena of at least `length` bytes."""

    request: U32
    length: U64


class ArenaGranted(NamedTuple):
    """An arena of exactly `length` bytes; its segment's descriptor comes along."""

    request: U32
    arena: U32
    length: U64


class ArenaMapped(NamedTuple):
    """The arena now lies at `base` in the user's address space."""

    request: U32
    arena: U32
    base: U64


class FreeArena(NamedTuple):
    """The user has unmapped the arena and wants no more of it."""

    request: U32
    arena: U32


class Done(NamedTuple):
    """The end of a lifeline request; `reason` is empty on success."""

    request: U32
    status: U32
    reason: Text


class OpenDoorbells(NamedTuple):
    """Ask for the session's way to the HCA; asked again, the same is granted again."""

    request: U32


class DoorbellsGranted(NamedTuple):
    """The session's doorbell segment (UAR) `number` of `length` bytes; see doorbell_layout."""

    request: U32
    number: U32
    length: U64
    status_length: U64


BENCHMARK_PATHS: Final = (
    "irp",
    "irp_built",
    "irp_reused",
    "direct",
    "floor_thread_switch",
    "floor_clock",
    "floor_memory_copy",
    "floor_private_copy",
)


class BenchmarkRun(NamedTuple):
    """Input of IOCTL_BENCHMARK_RUN: `count` operations after `warmup` unmeasured ones.

    `path` is one of BENCHMARK_PATHS, `completion` one of ioctl_codes.COMPLETION_*, `depth` how
    many requests are given before they are waited for; the driver judges them.
    """

    path: Text
    completion: U32
    payload: U32
    count: U32  # type: ignore[assignment]  # hides a method of tuples that nobody calls
    warmup: U32
    depth: U32 = 1


class Counters(NamedTuple):
    """Output of IOCTL_QUERY_COUNTERS: running totals of the kernel process."""

    copies: U64
    bytes_copied: U64
    wire_bytes: U64
    irps: U64
    dpcs: U64
    interrupts: U64
    cpu_user_ns: U64
    cpu_system_ns: U64


class VerbsRun(NamedTuple):
    """Input of IOCTL_VERBS_RUN: a kernel client performs programs of verbs (verb_program).

    `setup` once, then `program` `warmup` times untimed and `passes` times timed. After `limit_ns`
    no further pass is begun, but one there is. A verb that is refused ends the run: the output
    begins with RUN_RESULT.
    """

    setup: Program
    program: Program
    passes: U32
    warmup: U32
    limit_ns: U64


class TransferRun(NamedTuple):
    """Input of IOCTL_TRANSFER_RUN: a kernel client moves `messages` between two of its QPs.

    `op` is post_to_poll, an RDMA write from post until polled, whose times are answered one by
    one before the time of all; or msg_rate, a stream of sends with `depth` under way, of which
    `chain` share a doorbell, and the time of all alone. `raised` has it done at DISPATCH_LEVEL.
    After `spin` empty looks the poller yields the processor.
    """

    op: Text
    payload: U32
    messages: U32
    warmup: U32
    depth: U32
    chain: U32
    raised: U32
    spin: U32


Message = (
    Hello
    | Welcome
    | Refused
    | AllocateArena
    | ArenaGranted
    | ArenaMapped
    | FreeArena
    | Done
    | OpenDoorbells
    | DoorbellsGranted
    | BenchmarkRun
    | Counters
    | VerbsRun
    | TransferRun
)

#: Room for any packed `Counters`, header and integers at their longest.
COUNTERS_MAX_LENGTH: Final = 128

#: Tag and version of each message.
SYSTEM_MESSAGES: Final[dict[type[Any], tuple[int, int]]] = {
    Hello: (1, 1),
    Welcome: (2, 1),
    Refused: (3, 1),
    AllocateArena: (4, 1),
    ArenaGranted: (5, 1),
    ArenaMapped: (6, 1),
    FreeArena: (7, 1),
    Done: (8, 1),
    OpenDoorbells: (9, 1),
    DoorbellsGranted: (10, 1),
    BenchmarkRun: (20, 1),
    Counters: (21, 1),
    VerbsRun: (22, 1),
    TransferRun: (23, 1),
}
