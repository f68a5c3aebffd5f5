"""Every msgpack message both sides know: on the lifeline, and inside IOCTL buffers.

Lifeline (SOCK_SEQPACKET, one message per packet, 64 KiB at most). The user speaks first:
    Hello + 2 descriptors      its own /proc/self/mem (O_RDWR) and /proc/self/maps (O_RDONLY)
      -> Welcome               the session is open, or
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

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

U16 = Annotated[int, 16]
U32 = Annotated[int, 32]
U64 = Annotated[int, 64]
Text = Annotated[str, 1024]  # at most so many characters
Program = Annotated[bytes, 16_384]  # at most so many bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """The user's first words on the lifeline."""

    tag: ClassVar[int] = 1
    version: ClassVar[int] = 1

    min_version: U16
    max_version: U16
    process_name: Text


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session the kernel issues, and its limits.

    protocol      envelope version agreed on; every header carries it.
    max_payload   largest inline payload in bytes.
    max_requests  requests in the kernel plus completions not yet taken by the listener.
    max_threads   user threads with a socket at one time.
    arena_quota   bytes of arenas this session may hold.
    """

    tag: ClassVar[int] = 2
    version: ClassVar[int] = 1

    session: U32
    epoch: U64
    kernel_pid: U32
    protocol: U16
    max_payload: U32
    max_requests: U32
    max_threads: U32
    arena_quota: U64


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no session; `reason` is one sentence for the user's eyes."""

    tag: ClassVar[int] = 3
    version: ClassVar[int] = 1

    status: U32
    reason: Text


@dataclass(frozen=True, slots=True)
class AllocateArena:
    """Ask for a new arena of at least `length` bytes."""

    tag: ClassVar[int] = 4
    version: ClassVar[int] = 1

    request: U32
    length: U64


@dataclass(frozen=True, slots=True)
class ArenaGranted:
    """An arena of exactly `length` bytes; its segment's descriptor comes along."""

    tag: ClassVar[int] = 5
    version: ClassVar[int] = 1

    request: U32
    arena: U32
    length: U64


@dataclass(frozen=True, slots=True)
class ArenaMapped:
    """The arena now lies at `base` in the user's address space."""

    tag: ClassVar[int] = 6
    version: ClassVar[int] = 1

    request: U32
    arena: U32
    base: U64


@dataclass(frozen=True, slots=True)
class FreeArena:
    """The user has unmapped the arena and wants no more of it."""

    tag: ClassVar[int] = 7
    version: ClassVar[int] = 1

    request: U32
    arena: U32


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a lifeline request; `reason` is empty on success."""

    tag: ClassVar[int] = 8
    version: ClassVar[int] = 1

    request: U32
    status: U32
    reason: Text


@dataclass(frozen=True, slots=True)
class OpenDoorbells:
    """Ask for the session's way to the HCA; asked again, the same is granted again."""

    tag: ClassVar[int] = 9
    version: ClassVar[int] = 1

    request: U32


@dataclass(frozen=True, slots=True)
class DoorbellsGranted:
    """The session's doorbell segment (UAR) `number` of `length` bytes; see doorbell_layout."""

    tag: ClassVar[int] = 10
    version: ClassVar[int] = 1

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


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """Input of IOCTL_BENCHMARK_RUN: `count` operations after `warmup` unmeasured ones.

    `path` is one of BENCHMARK_PATHS, `completion` one of ioctl_codes.COMPLETION_*, `depth` how
    many requests are given before they are waited for; the driver judges them.
    """

    tag: ClassVar[int] = 20
    version: ClassVar[int] = 1

    path: Text
    completion: U32
    payload: U32
    count: U32
    warmup: U32
    depth: U32 = 1


@dataclass(frozen=True, slots=True)
class Counters:
    """Output of IOCTL_QUERY_COUNTERS: running totals of the kernel process."""

    tag: ClassVar[int] = 21
    version: ClassVar[int] = 1

    copies: U64
    bytes_copied: U64
    wire_bytes: U64
    irps: U64
    dpcs: U64
    interrupts: U64
    cpu_user_ns: U64
    cpu_system_ns: U64


@dataclass(frozen=True, slots=True)
class VerbsRun:
    """Input of IOCTL_VERBS_RUN: a kernel client performs programs of verbs (verb_program).

    `setup` once, then `program` `warmup` times untimed and `passes` times timed. After `limit_ns`
    no further pass is begun, but one there is.
    """

    tag: ClassVar[int] = 22
    version: ClassVar[int] = 1

    setup: Program
    program: Program
    passes: U32
    warmup: U32
    limit_ns: U64


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
)

#: Room for any packed `Counters`, header and integers at their longest.
COUNTERS_MAX_LENGTH: Final = 128
