"""What a row and a floor of the IRP benchmark are, and what a row must cost in copies.

Rules: a row differs from its neighbours in one factor, so that two rows can be subtracted.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from shared.envelope import MAX_PAYLOAD

Client = Literal["user", "kernel"]
Path = Literal["irp", "irp_built", "irp_reused", "direct", "fast_io", "blocking"]
Method = Literal["buffered", "in_direct", "out_direct", "neither", "none"]
Memory = Literal["arena", "private", "none"]
Completion = Literal["inline", "dpc", "device"]
FloorName = Literal[
    "echo", "thread_switch", "memory_copy", "private_copy", "clock", "sample_store", "user_clock"
]

COMPLETIONS: Final[tuple[Completion, ...]] = ("inline", "dpc", "device")
DEPTH: Final = 16

_DIRECT: Final = ("in_direct", "out_direct")


@dataclass(frozen=True, slots=True)
class FloorSpec:
    """A floor: what the machine itself takes, without the part being measured.

    `payload` is the size asked for; the echo of size N carries N bytes both ways. `depth` echoes
    are under way at a time in each of `processes` processes.
    """

    name: FloorName
    payload: int
    depth: int = 1
    processes: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Return the floor as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row: who asks, by which path and method, where the bytes lie, who completes.

    `depth` requests are in flight at a time in each of `processes` processes. A kernel client
    gives its requests in batches of that many; when a DPC completes them the batch is raised at
    DISPATCH_LEVEL, so that one DPC drains it.
    """

    client: Client
    path: Path
    method: Method
    memory: Memory
    completion: Completion
    payload: int
    depth: int = 1
    processes: int = 1
    verifier: bool = False

    @property
    def floor(self) -> FloorSpec:
        """Return the floor this row is shown beside.

        A user's request is compared with an echo of the same frames: only a buffered request
        has a payload frame, if it is not too long for one; the others send the header alone and
        the kernel reaches the bytes.
        A kernel client's request is compared with one hand-over to another thread and back,
        the price of any wait in this kernel that must truly block.
        """
        if self.client == "kernel":
            return FloorSpec("thread_switch", 0)
        inline = self.method == "buffered" and self.payload <= MAX_PAYLOAD
        carried = self.payload if inline else 0
        return FloorSpec("echo", carried, self.depth, self.processes)

    @property
    def copies(self) -> int:
        """Return how many copies of the payload one operation makes in the kernel process.

        Buffered: one in and one back. What is too long for a message is told by its address, and
        private bytes are then fetched by the private road before they are copied in: one more.
        Otherwise none in an arena, which the kernel has mapped; by the private road one for each
        buffer, of which a direct method has one.
        """
        if not self.payload or self.path == "direct":
            return 0
        if self.method == "buffered":
            return 3 if self.memory == "private" and self.payload > MAX_PAYLOAD else 2
        if self.memory != "private":
            return 0
        return 1 if self.method in _DIRECT else 2

    def as_dict(self) -> dict[str, Any]:
        """Return the row's factors as JSON values, in the documented order."""
        return asdict(self)

    def label(self) -> str:
        """Return the row in words, for progress and messages."""
        words: list[str] = [self.client, self.path, self.method]
        if self.memory != "none":
            words.append(self.memory)
        words += [self.completion, f"{self.payload} B"]
        if self.depth > 1:
            words.append(f"depth {self.depth}")
        if self.processes > 1:
            words.append(f"{self.processes} processes")
        if self.verifier:
            words.append("verifier")
        return " ".join(words)


def row_of(values: dict[str, Any]) -> RowSpec:
    """Return the row whose factors stand among the values of a document's row."""
    return RowSpec(**{name: values[name] for name in RowSpec.__slots__})
