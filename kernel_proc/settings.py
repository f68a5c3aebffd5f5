"""What a kernel process can be told when it starts.

A value out of range is refused with a sentence.
"""

from typing import Final, NamedTuple

from kernel_proc.judged_values import judged
from shared.runtime_folder import DEFAULT_INSTANCE, InstanceNameError, check_name

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


COMMAND_MODES: Final = ("event", "polling")
ALLOCATIONS: Final = ("direct", "common-buffer", "smaller", "pages", "pool")
LATENCY_MODELS: Final = ("none", "plausible", "prm-ceiling")


class SettingsError(ValueError):
    """A setting is unknown or its value cannot be used; one sentence that names the option."""


def option_of(setting: str) -> str:
    """Return the option of the command line that a setting is given by."""
    return "--" + setting.replace("_", "-")


@judged
class KernelSettings(NamedTuple):
    """The settings of one kernel, with the defaults a workstation can carry.

    SettingsError if they cannot be used.
    """

    name: str = DEFAULT_INSTANCE
    verifier: bool = False
    guarded_mutexes_at_apc_level: bool = False
    threaded_dpcs: bool = True
    seed: int | None = None
    log: str | None = None
    driver: tuple[str, ...] = ()

    hca: bool = True
    latency_model: str = "none"
    latency_factor: float = 1.0
    hca_profile: str | None = None
    command_mode: str = "event"
    fragmentation: int = 0
    allocation: str = "direct"
    max_qp_rd_atom: int = 4
    spin_us: int = 60
    hca_spin_us: int = 200

    arena_bytes_per_process: int = 256 * MIB
    arena_bytes_total: int = 1 * GIB
    pool_bytes_per_process: int = 16 * MIB
    locked_bytes_per_process: int = 2 * GIB
    kernel_memory_bytes: int = 512 * MIB
    hca_percent_per_process: int = 50
    hca_objects_per_process: int = 131_072

    max_sessions: int = 256
    max_threads_per_session: int = 64
    max_requests_per_session: int = 256
    max_handles_per_session: int = 16_384
    max_silent_connections: int = 32

    hello_timeout_ms: int = 2_000
    stop_timeout_ms: int = 5_000

    def judge(self) -> None:
        """Raise SettingsError for a value out of range."""
        try:
            check_name(self.name)
        except InstanceNameError as error:
            raise SettingsError(str(error)) from error
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise SettingsError(
                    f"{option_of(name)} must lie between {least} and {most}, not {value}"
                )
        if self.command_mode not in COMMAND_MODES:
            modes = " or ".join(COMMAND_MODES)
            raise SettingsError(f"--command-mode must be {modes}, not {self.command_mode!r}")
        if self.latency_model not in LATENCY_MODELS and not _is_file_name(self.latency_model):
            raise SettingsError(
                f"--latency-model must be {', '.join(LATENCY_MODELS)} or the path of a TOML file, "
                f"not {self.latency_model!r}"
            )
        if self.allocation not in ALLOCATIONS:
            ways = f"{', '.join(ALLOCATIONS[:-1])} or {ALLOCATIONS[-1]}"
            raise SettingsError(f"--allocation must be {ways}, not {self.allocation!r}")
        if self.max_qp_rd_atom & (self.max_qp_rd_atom - 1):
            raise SettingsError(f"--max-qp-rd-atom is a power of two, not {self.max_qp_rd_atom}")


def _is_file_name(text: str) -> bool:
    return "/" in text or text.endswith(".toml")


_RANGES: Final[dict[str, tuple[float, float]]] = {
    "latency_factor": (0.0, 1000.0),
    "fragmentation": (0, 1 << 28),
    "max_qp_rd_atom": (1, 128),
    "spin_us": (0, 1_000_000),
    "hca_spin_us": (0, 1_000_000),
    "kernel_memory_bytes": (64 * MIB, 1 << 40),
    "hca_percent_per_process": (1, 100),
    "hca_objects_per_process": (1, 1 << 30),
    "arena_bytes_per_process": (0, 1 << 40),
    "arena_bytes_total": (0, 1 << 42),
    "pool_bytes_per_process": (64 * KIB, 1 << 40),
    "locked_bytes_per_process": (64 * KIB, 1 << 40),
    "max_sessions": (1, 10_000),
    "max_threads_per_session": (1, 10_000),
    "max_requests_per_session": (1, 100_000),
    "max_handles_per_session": (1, 1_000_000),
    "max_silent_connections": (1, 1_000),
    "hello_timeout_ms": (10, 600_000),
    "stop_timeout_ms": (10, 600_000),
}
