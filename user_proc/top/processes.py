"""Processor time and memory of processes between two looks.

Rules: one thread. A process is known by its start time, too: another with its pid is another.
"""

import contextlib
from typing import Any, Final

import psutil

_UNKNOWN: Final[dict[str, Any]] = {"cpu_percent": None, "rss_bytes": None}


class ProcessTable:
    """The processes looked at so far; the first look at one has no processor time yet."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def look(self, pids: set[int]) -> dict[int, dict[str, Any]]:
        """Return percent of a core since the last look, and resident bytes; forget all others."""
        found = {pid: self._look(pid) for pid in pids}
        self._known = {pid: self._known[pid] for pid in pids if pid in self._known}
        return found

    def _look(self, pid: int) -> dict[str, Any]:
        with contextlib.suppress(psutil.Error):
            known = self._known.get(pid)
            is_new = known is None or not known.is_running()
            process = psutil.Process(pid) if known is None or is_new else known
            self._known[pid] = process
            with process.oneshot():
                percent = process.cpu_percent()
                memory = process.memory_info().rss
            return {"cpu_percent": None if is_new else percent, "rss_bytes": memory}
        self._known.pop(pid, None)
        return dict(_UNKNOWN)
