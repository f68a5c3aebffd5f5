"""The kernel of a round, the ends of transfers at it, and the clients that load it.

Rules: whatever ends a round, all it started is ended and nothing of it is left.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from shared.verb_program import pack_program
from user_proc.bench.own_kernel import kernel_with
from user_proc.bench.row_plan import FloorSpec
from user_proc.bench.speed.shared_places import WORD_STOP, make_words, map_words
from user_proc.bench.speed.speed_settings import SpeedSettings
from user_proc.bench.verbs.verb_programs import control_mix
from user_proc.bench.worker_group import Worker, WorkerGroup
from user_proc.bench.worker_link import WorkerCrowd

WORKER: Final = "user_proc.bench.speed.speed_worker"
LOAD_WORKER: Final = "user_proc.bench.speed.load_worker"
_REGION_BYTES: Final = 4 << 20  # beside the largest message, both ways


class SpeedRound(Protocol):
    """User processes of one kernel, the last of them the relay; and its load."""

    @property
    def workers(self) -> Sequence[Worker]:
        """Return the ends of transfers and the relay."""

    def load(self) -> None:
        """Have the clients do control verbs, starting them if there are none yet."""

    def unload(self) -> int:
        """Have them stop; return the verbs a second of all together."""


class OpenRound(Protocol):
    """Gives a round of a run."""

    def __call__(self, settings: SpeedSettings) -> contextlib.AbstractContextManager[SpeedRound]:
        """Start it; the context ends it."""


class OwnRound:
    """A round with a kernel of its own."""

    def __init__(self, settings: SpeedSettings, stack: contextlib.ExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._name = stack.enter_context(kernel_with(kernel_options(settings))).name
        crowd = self._crowd(settings.processes, WORKER)
        self.workers: Final[Sequence[Worker]] = crowd.members
        self._clients: Sequence[Worker] = ()
        descriptor, self._path = make_words()
        stack.callback(os.close, descriptor)
        self._words = map_words(self._path)

    def _crowd(self, count: int, module: str) -> WorkerCrowd:
        crowd = WorkerCrowd(self._name, count, module)
        self._stack.callback(crowd.close)
        crowd.wait_until_ready()
        return crowd

    def load(self) -> None:
        """Have the clients do control verbs, starting them if there are none yet."""
        if not self._clients:
            self._clients = self._crowd(self._settings.load_clients, LOAD_WORKER).members
            mix = control_mix()
            WorkerGroup(self._clients).ask_all(
                "prepare_program",
                setup=pack_program(mix.setup).hex(),
                program=pack_program(one.step for one in mix.steps).hex(),
                client="user",
                floor=FloorSpec("echo", 64).as_dict(),
            )
        self._words[WORD_STOP] = 0
        for client in self._clients:
            client.send("saturate", path=self._path)

    def unload(self) -> int:
        """Have them stop; return the verbs a second of all together."""
        self._words[WORD_STOP] = 1
        rate = 0.0
        for client in self._clients:
            told = client.receive()
            rate += told["verbs"] * 1e9 / told["elapsed_ns"]
        return round(rate)


@contextlib.contextmanager
def open_round(settings: SpeedSettings) -> Iterator[SpeedRound]:
    """Start a kernel and the user processes."""
    with contextlib.ExitStack() as stack:
        yield OwnRound(settings, stack)


def kernel_options(settings: SpeedSettings) -> dict[str, Any]:
    """Return the settings of a kernel that has room for every region."""
    each = 4 * settings.largest + _REGION_BYTES
    clients = settings.processes + settings.load_clients
    return {
        "latency_model": "none",
        "arena_bytes_per_process": max(256 << 20, 2 * each),
        "arena_bytes_total": max(1 << 30, 2 * each * clients),
    }
