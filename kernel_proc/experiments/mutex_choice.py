"""Experiment `mutex`: what a component library's mutex may be made of, if verbs are called inside.

Each cell puts one lock under `cl_mutex` and does one thing while it is held: looks at the level,
calls a control verb, waits for a request of the thread's own, takes the mutex once more; or it
measures what taking and giving costs. The driver gets memory by AllocateCommonBuffer, as the
driver of the mail did.

Rules: levels, bug checks and hangs are the emulated machine's; costs are this emulator's.
Spec: "Using of fast mutexes in WinIb" (openib-windows, November 2005); docs/cl-mutex.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kernel_proc.driver.buffer_allocator import DEFAULT_ALLOCATION
from kernel_proc.experiments import mutex_cells as cells
from kernel_proc.experiments.control_verbs import CALL_BACK, VERBS
from kernel_proc.experiments.experiment import DONE, Progress, Row, run_cell
from kernel_proc.experiments.sample_figures import listed
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings

INSIDE: Final = "look inside"
OWN_REQUEST: Final = "wait for a request of its own"
ONCE_MORE: Final = "take it once more"
ALONE: Final = "cost, alone"
CONTENDED: Final = "cost, contended"
FROM_POOL: Final = f"{CALL_BACK}, memory from pool"

#: What `cl_mutex` is made of, and whether guarded mutexes are those since Windows 8.
LOCKS: Final[Mapping[str, tuple[str, bool]]] = {
    "fast mutex": ("fast mutex", False),
    "unsafe fast mutex": ("unsafe fast mutex", False),
    "guarded mutex of Server 2003": ("guarded mutex", False),
    "guarded mutex of Windows 8": ("guarded mutex", True),
    "KMUTEX": ("mutex", False),
    "semaphore": ("semaphore", False),
    "synchronization event": ("event", False),
}

Do = Callable[[Machine, str], cells.Found]


class MutexExperiment:
    """The experiment; `allocation` is how the driver gets its memory, `locks` what is tried."""

    name = "mutex"
    question = "What may a library's mutex be made of, if drivers call control verbs inside it?"

    def __init__(
        self,
        locks: Mapping[str, tuple[str, bool]] = LOCKS,
        allocation: str = "common-buffer",
        verbs: Sequence[str] = VERBS,
    ) -> None:
        self._locks = locks
        self._allocation = allocation
        self._verbs = verbs

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Try everything under every lock."""
        count = 300 if quick else 5_000
        rows: list[Row] = []
        for done, lock in enumerate(self._locks):
            progress(done, len(self._locks), f"cl_mutex over {lock}")
            rows += self._under(lock, count)
        return rows

    def _under(self, lock: str, count: int) -> list[Row]:
        inside = self._cell(lock, INSIDE, lambda m, kind: cells.under(m, kind, cells.look_inside))
        rows = [inside, *(self._verb(lock, verb) for verb in self._verbs), self._from_pool(lock)]
        for what, do in ((OWN_REQUEST, cells.own_request), (ONCE_MORE, cells.once_more)):
            rows += [self._cell(lock, what, do), self._cell(lock, what, do, verifier=True)]
        costs: Mapping[str, Do] = {
            ALONE: lambda m, kind: cells.under(m, kind, cells.alone(count)),
            CONTENDED: lambda m, kind: cells.contended(m, kind, count),
        }
        return rows + [self._cell(lock, what, do) for what, do in costs.items()]

    def _verb(self, lock: str, verb: str) -> Row:
        return self._cell(
            lock,
            verb,
            lambda m, kind: cells.under(m, kind, cells.call_verb(verb)),
            allocation=self._allocation,
        )

    def _from_pool(self, lock: str) -> Row:
        """Try the call-back with a driver that gets its memory from pool, by MDLs."""
        body = cells.call_verb(CALL_BACK)
        return self._cell(
            lock, FROM_POOL, lambda m, kind: cells.under(m, kind, body), allocation="pool"
        )

    def _cell(
        self, lock: str, what: str, do: Do, *, verifier: bool = False, allocation: str = ""
    ) -> Row:
        kind, at_apc_level = self._locks[lock]
        settings = KernelSettings(
            hca=bool(allocation),
            seed=1,
            verifier=verifier,
            guarded_mutexes_at_apc_level=at_apc_level,
            allocation=allocation or DEFAULT_ALLOCATION,
        )

        def body(machine: Machine) -> Mapping[str, Any]:
            return do(machine, kind)

        return run_cell({"lock": lock, "what": what, "verifier": verifier}, body, settings)

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say which locks let verbs and requests work inside, and what the others end with."""
        found = {(row["lock"], row["what"], row["verifier"]): row for row in rows}
        locks = list(dict.fromkeys(row["lock"] for row in rows))
        verbs = [what for what in self._verbs if (locks[0], what, False) in found]
        fine = [
            lock
            for lock in locks
            if all(found[lock, what, False]["outcome"] == DONE for what in [*verbs, OWN_REQUEST])
        ]
        told = [
            self._call_back(found, locks),
            _hangs(found, locks),
            f"Every verb and every wait works inside {listed(fine)}.",
            _recursion(found, locks),
            _costs(found, locks),
        ]
        return " ".join(text for text in told if text)

    def _call_back(self, found: Mapping[tuple[str, str, bool], Row], locks: list[str]) -> str:
        stopped = [
            (lock, row)
            for lock in locks
            if (row := found.get((lock, CALL_BACK, False))) and row["outcome"] != DONE
        ]
        if not stopped:
            return f"The {CALL_BACK} works under every lock ({self._allocation})."
        names = listed([f"a {lock}" for lock, _ in stopped])
        _, row = stopped[0]
        lock = stopped[0][0]
        others = [
            what
            for what in self._verbs
            if what != CALL_BACK and found[lock, what, False]["outcome"] != DONE
        ]
        detail = row.get("bug_check", {}).get("detail", "")
        saved = [lock for lock, _ in stopped if found[lock, FROM_POOL, False]["outcome"] == DONE]
        return (
            f"Under {names} the {CALL_BACK} ends with {row['outcome']} ({detail}); of the "
            f"single verbs so do {listed(others)}, the rest work. If the driver gets its memory "
            f"from pool the call-back works under {listed([f'a {lock}' for lock in saved])}."
        )


def _hangs(found: Mapping[tuple[str, str, bool], Row], locks: list[str]) -> str:
    hang = [lock for lock in locks if found[lock, OWN_REQUEST, False]["outcome"] == cells.HANGS]
    named = [
        lock
        for lock in hang
        if str(found[lock, OWN_REQUEST, True]["outcome"]).startswith("bug check")
    ]
    if not hang:
        return "A thread may wait for a request of its own inside every lock."
    return (
        f"A thread that waits for a request of its own never wakes inside {listed(hang)}; the "
        f"verifier stops it before it waits inside {listed(named)} alone."
    )


def _recursion(found: Mapping[tuple[str, str, bool], Row], locks: list[str]) -> str:
    fine = [lock for lock in locks if found[lock, ONCE_MORE, False]["outcome"] == DONE]
    return f"The holder may take once more: {listed(fine)}."


def _costs(found: Mapping[tuple[str, str, bool], Row], locks: list[str]) -> str:
    def span(what: str) -> str:
        costs = [found[lock, what, False]["emulator_ns"] for lock in locks]
        return f"{min(costs):,} to {max(costs):,} ns"

    switches = [found[lock, CONTENDED, False]["switches"] for lock in locks]
    few, many = f"{min(switches):.1f}", f"{max(switches):.1f}"
    turns = few if few == many else f"{few} to {many}"
    return (
        f"In this emulator's own time, which is no hardware's, an acquire and a release take "
        f"{span(ALONE)} alone; contended {span(CONTENDED)} and {turns} thread switches."
    )


MUTEX: Final = MutexExperiment()
