"""Kernels of the verbs' benchmark and the user processes at them.

Rules: whatever ends a part of the run, all it started is ended and nothing of it is left.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from user_proc.bench.own_kernel import kernel_with
from user_proc.bench.verbs.verb_settings import VerbsSettings
from user_proc.bench.worker_group import Worker
from user_proc.bench.worker_link import WorkerCrowd
from user_proc.transport.kernels_used import note_kernel

WORKER: Final = "user_proc.bench.verbs.verb_worker"
_SPARE_BYTES: Final = 64 << 20


class OpenPart(Protocol):
    """Gives user processes of a kernel started for a part of the run."""

    def __call__(
        self, settings: VerbsSettings, model: str, layout: str, processes: int
    ) -> contextlib.AbstractContextManager[Sequence[Worker]]:
        """Start them; the context ends them."""


@contextlib.contextmanager
def open_part(
    settings: VerbsSettings, model: str, layout: str, processes: int
) -> Iterator[Sequence[Worker]]:
    """Start a kernel and user processes, or these alone at the kernel that was named."""
    with contextlib.ExitStack() as stack:
        name = settings.name
        if name is None:
            options = kernel_options(settings, model, layout, processes)
            name = stack.enter_context(kernel_with(options)).name
        else:
            note_kernel(name)
        crowd = WorkerCrowd(name, processes, WORKER)
        stack.callback(crowd.close)
        crowd.wait_until_ready()
        yield crowd.members


def kernel_options(
    settings: VerbsSettings, model: str, layout: str, processes: int
) -> dict[str, object]:
    """Return the settings of a kernel that has room for what it will be asked."""
    largest = max(settings.sizes, default=0) + _SPARE_BYTES
    return {
        "latency_model": model,
        "fragmentation": settings.fragmentation if layout == "scattered" else 0,
        "arena_bytes_per_process": 2 * largest,
        "arena_bytes_total": 2 * largest + processes * (8 << 20),
        "kernel_memory_bytes": (512 << 20) + min(largest, 256 << 20) * 2,
    }
