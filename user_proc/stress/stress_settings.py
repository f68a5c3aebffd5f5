"""What a stress run is asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.fault_messages import Fault


@dataclass(frozen=True, slots=True)
class StressSettings:
    """One run: `clients` one count after the other, each for `seconds`; `kills` a second.

    `faults` are set in the kernel before the clients come; none of them may be seen.
    """

    clients: tuple[int, ...] = (4,)
    seconds: float = 10.0
    seed: int = 1
    kills: float = 0.0
    verifier: bool = False
    reduce_seconds: float = 60.0
    faults: tuple[Fault, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return them as JSON values."""
        return {
            "tool": "softhca stress",
            "clients": list(self.clients),
            "seconds": self.seconds,
            "seed": self.seed,
            "kills": self.kills,
            "verifier": self.verifier,
            "faults": [one._asdict() for one in self.faults],
        }

    def kernel_options(self, count: int) -> Mapping[str, object]:
        """Return the settings of a kernel that has room for so many clients."""
        return {
            "verifier": self.verifier,
            "max_sessions": max(64, 2 * count + 16),
            "arena_bytes_total": max(1 << 30, count * (32 << 20)),
        }
