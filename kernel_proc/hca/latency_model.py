"""How long a command takes: a lognormal draw per group, clipped at the bound of its time class.

Models: `none`, `plausible`, `prm-ceiling`, or a TOML file with a table per group (`median_us`,
`p99_us`, `per_entry_us`) and optionally `base` = "none" or "plausible". Each opcode has a random
stream of its own, so that changing one group leaves the draws of the others alone.

Spec: docs/latency-models.md.
"""

import math
from typing import Any, Final, NamedTuple

from kernel_proc.hca_abi.command_opcodes import COMMANDS

CLASS_BOUND_NS: Final = {"A": 1_000_000, "B": 10_000_000, "C": 100_000_000, "D": 1_000_000_000}
EVENT_OVERHEAD: Final = "event_overhead"
_P99_DEVIATIONS: Final = 2.326  # of a normal distribution
_MOST_US: Final = 1e7


class LatencyModelError(ValueError):
    """A latency model does not exist or its file cannot be used; the text is one sentence."""


class Spread(NamedTuple):
    """Median and 99th percentile in microseconds, and what each entry adds."""

    median: float
    p99: float
    per_entry: float = 0.0


PLAUSIBLE: Final[dict[str, Spread]] = {
    "nop": Spread(10, 40),
    "query": Spread(25, 150),
    "queue_context": Spread(30, 200),
    "multicast": Spread(20, 100),
    "port": Spread(100, 800),
    "mtt": Spread(25, 150, 0.08),
    "mpt_in": Spread(40, 300),
    "mpt_out": Spread(60, 600),
    "icm": Spread(40, 300, 0.5),
    "other_b": Spread(40, 300),
    "qp_forward": Spread(150, 2_000),
    "qp_down": Spread(250, 5_000),
    "mad": Spread(150, 1_500),
    "firmware_start": Spread(300, 900),
    "attached_memory": Spread(1_000, 50_000),
    "close": Spread(10_000, 90_000),
    "init_hca": Spread(50_000, 500_000),
    EVENT_OVERHEAD: Spread(8, 40),
}


class _Draw:
    """One stream: lognormal, then entries, then the bound."""

    __slots__ = ("_bound", "_mu", "_per_entry", "_random", "_sigma")

    def __init__(self, spread: Spread, bound_ns: int | None, stream: str) -> None:
        from random import Random  # with the model "none" nothing is drawn

        self._mu = math.log(spread.median * 1000)
        self._sigma = math.log(spread.p99 / spread.median) / _P99_DEVIATIONS
        self._per_entry = spread.per_entry * 1000
        self._bound = bound_ns
        self._random = Random(stream)

    def __call__(self, entries: int) -> int:
        time = self._random.lognormvariate(self._mu, self._sigma) + self._per_entry * entries
        return int(time if self._bound is None else min(time, self._bound))


class LatencyModel:
    """Draws the service time of each command in nanoseconds."""

    def __init__(self, name: str, factor: float = 1.0, seed: int = 1) -> None:
        self.name: Final = name
        self._constant: dict[int, int] = {}
        self._draws: Final[dict[int, _Draw]] = {}
        self._event: _Draw | None = None
        if name == "prm-ceiling":
            self._constant = {
                opcode: CLASS_BOUND_NS[kind.time_class] for opcode, kind in COMMANDS.items()
            }
        elif name != "none":
            spreads = PLAUSIBLE if name == "plausible" else _read_file(name)
            self._make_draws(_scaled(spreads, factor), seed)

    def service_ns(self, opcode: int, entries: int = 0) -> int:
        """Draw how long a command executes; `entries` is what its mailbox holds."""
        draw = self._draws.get(opcode)
        return draw(entries) if draw is not None else self._constant.get(opcode, 0)

    def event_overhead_ns(self) -> int:
        """Draw what a completion event takes beyond the command."""
        return self._event(0) if self._event is not None else 0

    def _make_draws(self, spreads: dict[str, Spread], seed: int) -> None:
        for opcode, kind in COMMANDS.items():
            spread = spreads.get(kind.group)
            if spread is not None:
                bound = CLASS_BOUND_NS[kind.time_class]
                self._draws[opcode] = _Draw(spread, bound, f"{seed}:{opcode}")
        if EVENT_OVERHEAD in spreads:
            self._event = _Draw(spreads[EVENT_OVERHEAD], None, f"{seed}:{EVENT_OVERHEAD}")


def _scaled(spreads: dict[str, Spread], factor: float) -> dict[str, Spread]:
    # A group whose median is 0 takes no time and needs no draw.
    return {
        group: Spread(*(part * factor for part in spread))
        for group, spread in spreads.items()
        if spread.median * factor > 0
    }


def _read_file(path: str) -> dict[str, Spread]:
    import tomllib  # takes long to import, and few starts have such a file

    try:
        with open(path, encoding="utf-8") as file:
            tables = tomllib.loads(file.read())
    except OSError as error:
        if "/" not in path and not path.endswith(".toml"):
            raise LatencyModelError(
                f"there is no latency model {path!r}: it is none, plausible, prm-ceiling or the "
                "path of a TOML file"
            ) from error
        raise LatencyModelError(
            f"the latency model {path!r} cannot be read: {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise LatencyModelError(f"the latency model {path!r} cannot be read: {error}") from error
    base = tables.pop("base", "none")
    if base not in ("none", "plausible"):
        raise LatencyModelError(f"{path}: the base is none or plausible, not {base!r}")
    spreads = dict(PLAUSIBLE) if base == "plausible" else {}
    for group, table in tables.items():
        if group not in PLAUSIBLE:
            raise LatencyModelError(f"{path}: there is no group {group!r}")
        spreads[group] = _spread_of(path, group, table)
    return spreads


def _spread_of(path: str, group: str, table: object) -> Spread:
    if not isinstance(table, dict):
        raise LatencyModelError(f"{path}: {group} is not a table")
    unknown = set(table) - {"median_us", "p99_us", "per_entry_us"}
    if unknown:
        raise LatencyModelError(f"{path}: {group} has no {sorted(unknown)[0]}")
    median: Any = table.get("median_us", 0)
    values: tuple[Any, ...] = (median, table.get("p99_us", median), table.get("per_entry_us", 0))
    if not all(type(value) in (int, float) and 0 <= value <= _MOST_US for value in values):
        raise LatencyModelError(f"{path}: {group} has a value that is no time")
    if values[1] < values[0]:
        raise LatencyModelError(f"{path}: {group} has a p99 below its median")
    return Spread(*map(float, values))
