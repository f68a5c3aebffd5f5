"""The tools: what each one does, and the defaults that differ between them.

Spec: linux-rdma/perftest, perftest_parameters.c.
"""

from dataclasses import dataclass
from typing import Final

SEND: Final = "Send"
WRITE: Final = "RDMA_Write"
READ: Final = "RDMA_Read"
ATOMIC: Final = "Atomic"

LARGEST_MESSAGE: Final = 1 << 23
ATOMIC_BYTES: Final = 8

_LATENCY_INLINE: Final = {SEND: 236, WRITE: 220, READ: 0, ATOMIC: 0}
_UD_LATENCY_INLINE: Final = 188


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool."""

    name: str
    operation: str
    is_latency: bool

    @property
    def is_ping_pong(self) -> bool:
        """Tell whether both sides take turns, so that half a round trip is reported."""
        return self.is_latency and self.operation in (SEND, WRITE)

    @property
    def is_remote(self) -> bool:
        """Tell whether requests name memory of the other side."""
        return self.operation != SEND

    @property
    def fetches(self) -> bool:
        """Tell whether requests wait for an answer with data, so that few may be under way."""
        return self.operation in (READ, ATOMIC)

    @property
    def size(self) -> int:
        """Bytes of a message when nobody asks for another number."""
        if self.operation == ATOMIC:
            return ATOMIC_BYTES
        return 2 if self.is_latency else 65536

    @property
    def iterations(self) -> int:
        """Messages of a queue pair when nobody asks for another number."""
        return 5000 if self.operation == WRITE and not self.is_latency else 1000

    @property
    def tx_depth(self) -> int:
        """Requests under way on a queue pair when nobody asks for another number."""
        return 1 if self.is_latency else 128

    def inline(self, connection: str) -> int:
        """Give the largest message that is copied by the post, when nobody asks otherwise."""
        if not self.is_latency:
            return 0
        if self.operation == SEND and connection == "UD":
            return _UD_LATENCY_INLINE
        return _LATENCY_INLINE[self.operation]


TOOLS: Final = {
    tool.name: tool
    for tool in (
        Tool("ib_send_lat", SEND, True),
        Tool("ib_send_bw", SEND, False),
        Tool("ib_write_lat", WRITE, True),
        Tool("ib_write_bw", WRITE, False),
        Tool("ib_read_lat", READ, True),
        Tool("ib_read_bw", READ, False),
        Tool("ib_atomic_lat", ATOMIC, True),
    )
}
