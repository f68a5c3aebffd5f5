"""What a row of the data path's benchmark is, and beside which floor it is shown.

Rules: a row differs from a neighbour in one factor, so that two rows can be compared.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from shared.envelope import MAX_PAYLOAD

LATENCY_OPS: Final = ("post_to_poll", "send_lat", "write_lat", "read_lat", "atomic_lat")
BANDWIDTH_OPS: Final = ("send_bw", "write_bw", "read_bw")
MESSAGE_RATE: Final = "msg_rate"
OPS: Final = (*LATENCY_OPS, *BANDWIDTH_OPS, MESSAGE_RATE)
DATAGRAM_OPS: Final = ("send_lat", "send_bw", MESSAGE_RATE)

KERNEL_OPS: Final = ("post_to_poll", MESSAGE_RATE)
EVENT_OPS: Final = ("send_lat", "read_lat", "atomic_lat")

POLLING: Final = "polling"
EVENT: Final = "event"
USER: Final = "user"
KERNEL: Final = "kernel"
PASSIVE: Final = "PASSIVE_LEVEL"
DISPATCH: Final = "DISPATCH_LEVEL"
UNLOADED: Final = "unloaded"
LOADED: Final = "loaded"

RELAY: Final = "relay"
RELAY_RETURN: Final = "relay_return"
COPY: Final = "copy"
ECHO: Final = "echo"

ATOMIC_BYTES: Final = 8
LARGEST_DATAGRAM: Final = 4096
LARGEST_ECHO: Final = MAX_PAYLOAD
CHAIN: Final = 16  # requests told to the device by one doorbell, the last of them signaled
_CHAINED_DEPTH: Final = 32
_CHAINED_BYTES: Final = 4096

_HALF: Final = ("send_lat", "write_lat")


@dataclass(frozen=True, slots=True)
class SpeedSpec:
    """A row.

    `processes` take part: one alone, or pairs. Each queue pair of `qps` has at most `depth`
    messages under way. `mode` says how an end of a transfer learns of a completion, `load`
    whether other processes keep the kernel busy with control verbs. With `client` kernel both ends
    are a kernel client's, which posts and polls at the IRQL `irql`, and no process takes part.
    """

    op: str
    transport: str = "RC"
    bytes: int = 64
    qps: int = 1
    depth: int = 1
    processes: int = 2
    mode: str = POLLING
    load: str = UNLOADED
    client: str = USER
    irql: str | None = None

    @property
    def is_latency(self) -> bool:
        """Tell whether single messages are timed, one at a time."""
        return self.op in LATENCY_OPS

    @property
    def is_held(self) -> bool:
        """Tell whether the passive end keeps each message for a while, until all are asleep."""
        return self.mode == EVENT and self.op == "send_lat"

    @property
    def pairs(self) -> int:
        """Return how many active ends there are."""
        return max(1, self.processes // 2)

    @property
    def convention(self) -> str:
        """Return what one of the row's times is."""
        if not self.is_latency:
            return "time_per_message"
        return "half_round_trip" if self.op in _HALF else "round_trip"

    @property
    def chain(self) -> int:
        """Return how many messages are posted at once."""
        chained = self.depth >= _CHAINED_DEPTH and self.bytes <= _CHAINED_BYTES
        return CHAIN if chained and not self.is_latency else 1

    @property
    def by_bandwidth(self) -> bool:
        """Tell whether the row and its floor are compared by bytes a second."""
        return self.op in BANDWIDTH_OPS

    @property
    def floor(self) -> "SpeedFloor":
        """Return the floor of this row."""
        if self.by_bandwidth:
            return SpeedFloor(COPY, self.bytes, self.load, self.pairs)
        if self.mode == EVENT:
            return SpeedFloor(ECHO, min(self.bytes, LARGEST_ECHO), self.load)
        one_way = self.op in _HALF or self.op == MESSAGE_RATE
        return SpeedFloor(RELAY if one_way else RELAY_RETURN, 8, self.load)

    def as_dict(self) -> dict[str, Any]:
        """Return the row's factors as JSON values."""
        return asdict(self)

    def label(self) -> str:
        """Return the row in words, for progress and messages."""
        words = [self.op, self.transport, f"{self.bytes} B"]
        if self.qps > 1:
            words.append(f"{self.qps} QPs")
        if self.depth > 1:
            words.append(f"depth {self.depth}")
        if self.processes > 2:
            words.append(f"{self.processes} processes")
        if self.client == KERNEL:
            words.append(f"kernel client at {self.irql}")
        return " ".join((*words, self.mode, self.load))


@dataclass(frozen=True, slots=True)
class SpeedFloor:
    """A floor: what the machine takes without queue pairs, under the same load.

    `relay` is one way through a third process by bare words in shared memory, `relay_return` to it
    and back; `copy` copies between the very regions of the row; `echo` is half a round trip of the
    same bytes to the kernel's loop and back, all asleep when it begins as with a row by events.
    """

    name: str
    payload: int
    load: str = UNLOADED
    pairs: int = 1


def allowed(specs: Iterable[SpeedSpec]) -> tuple[SpeedSpec, ...]:
    """Return rows, each once, without those that cannot be."""
    return tuple(dict.fromkeys(spec for spec in specs if _is_possible(spec)))


def _is_possible(spec: SpeedSpec) -> bool:
    if spec.client == KERNEL:
        return spec.transport == "RC" and spec.op in KERNEL_OPS
    if spec.mode == EVENT and spec.op not in EVENT_OPS:
        return False
    if spec.transport == "UD":
        return spec.op in DATAGRAM_OPS and spec.bytes <= LARGEST_DATAGRAM
    return True
