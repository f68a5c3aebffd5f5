"""The HCAs this process has worked with, for the provenance of its runs.

Those of kernels it started are noted by the starter; who runs at one that was there notes it.

Rules: any thread; entries are only ever added.
"""

from typing import Any

from user_proc.transport.kernel_control import kernel_status

_used: list[dict[str, Any]] = []


def note_kernel(name: str) -> None:
    """Note the HCA of a running kernel, if it has one."""
    hca = kernel_status(name).hca
    if hca is not None:
        _used.append(hca)


def hcas_noted() -> int:
    """Return how many notes there are."""
    return len(_used)


def hcas_since(count: int) -> list[dict[str, Any]]:
    """Return those after the first `count` notes, each different one once, in their order."""
    different: list[dict[str, Any]] = []
    for hca in _used[count:]:
        if hca not in different:
            different.append(hca)
    return different
