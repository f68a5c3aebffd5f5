"""The rows of the IRP benchmark and the floor each one is shown beside.

Rules: a row differs from its neighbours in one factor, so that two rows can be subtracted.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Client = Literal["user", "kernel"]
Path = Literal["irp", "irp_built", "irp_reused", "direct"]
Method = Literal["buffered", "in_direct", "out_direct", "neither", "none"]
Memory = Literal["arena", "private", "none"]
Completion = Literal["inline", "dpc", "device"]
FloorName = Literal[
    "echo", "thread_switch", "memory_copy", "private_copy", "clock", "sample_store", "user_clock"
]

PAYLOADS: Final = (0, 64, 4096, 65536)
COMPLETIONS: Final[tuple[Completion, ...]] = ("inline", "dpc", "device")
KERNEL_PATHS: Final[tuple[Path, ...]] = ("irp", "irp_built", "irp_reused", "direct")

# Hand-built requests carry references; only IoBuildDeviceIoControlRequest makes a system buffer.
_KERNEL_METHODS: Final[dict[Path, Method]] = {
    "irp": "neither",
    "irp_built": "buffered",
    "irp_reused": "neither",
    "direct": "none",
}


@dataclass(frozen=True, slots=True)
class FloorSpec:
    """A floor: what the machine itself takes, without the part being measured.

    `payload` is the size asked for; the echo of size N carries N bytes both ways.
    """

    name: FloorName
    payload: int

    def as_dict(self) -> dict[str, Any]:
        """Return the floor as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row: who asks, by which path and method, where the bytes lie, who completes."""

    client: Client
    path: Path
    method: Method
    memory: Memory
    completion: Completion
    payload: int
    depth: int = 1
    processes: int = 1

    @property
    def floor(self) -> FloorSpec:
        """Return the floor this row is shown beside.

        A user's request is compared with an echo of the same frames: only a buffered request
        has a payload frame, the others send the header alone and the kernel reaches the bytes.
        A kernel client's request is compared with one hand-over to another thread and back,
        the price of any wait in this kernel that must truly block.
        """
        if self.client == "kernel":
            return FloorSpec("thread_switch", 0)
        return FloorSpec("echo", self.payload if self.method == "buffered" else 0)

    def as_dict(self) -> dict[str, Any]:
        """Return the row's factors as JSON values, in the documented order."""
        return asdict(self)

    def label(self) -> str:
        """Return the row in words, for progress and messages."""
        where = "" if self.memory == "none" else f" {self.memory}"
        return f"{self.client} {self.path} {self.method}{where} {self.completion} {self.payload} B"


def user_rows() -> Iterator[RowSpec]:
    """Yield the rows of user programs: buffered, neither in an arena, neither in private memory.

    The private rows leave out payload 0, which touches no memory, and vary with the payload
    alone: how a request is completed does not depend on where its bytes lie.
    """
    for method in ("buffered", "neither"):
        for completion in COMPLETIONS:
            for payload in PAYLOADS:
                yield RowSpec("user", "irp", method, "arena", completion, payload)
    for payload in PAYLOADS[1:]:
        yield RowSpec("user", "irp", "neither", "private", "inline", payload)


def kernel_rows() -> Iterator[RowSpec]:
    """Yield the rows of kernel clients: IRP by hand, built, reused, and the direct call."""
    for path in KERNEL_PATHS:
        for completion in COMPLETIONS:
            for payload in PAYLOADS:
                method = _KERNEL_METHODS[path]
                yield RowSpec("kernel", path, method, "none", completion, payload)


def plan_rows() -> tuple[RowSpec, ...]:
    """Return every row of the first benchmark, in the order of the table."""
    return (*user_rows(), *kernel_rows())


def extra_floors() -> tuple[FloorSpec, ...]:
    """Return the floors that stand beside the table without being any row's own."""
    sized: tuple[FloorName, ...] = ("memory_copy", "private_copy")
    return (
        FloorSpec("clock", 0),
        FloorSpec("user_clock", 0),
        FloorSpec("sample_store", 0),
        *(FloorSpec(name, payload) for name in sized for payload in PAYLOADS[1:]),
    )
