"""What a start finds of a kernel of its name that was killed, and how it tells of it.

Memory needs no clearing: memfds and mappings go with the last process that has them.

Rules: the holder of the instance's lock only.
Spec: docs/recovery.md.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path


def remove_half_written(folder: Path, state: Path) -> list[str]:
    """Remove a former state file, and files that were to be renamed; return their names.

    Whatever else lies in the folder is not the kernel's, and stays.
    """
    removed = []
    for path in (state, state.with_suffix(".tmp"), *sorted(folder.glob("connection.*.tmp"))):
        with contextlib.suppress(OSError):  # not there, or somebody's folder of that name
            path.unlink()
            removed.append(path.name)
    return removed


def cleared_sentence(former: str, files: Sequence[str], strays: Sequence[int]) -> str:
    """Say what was cleared away; empty if there was nothing.

    `former` is the pid in the lock file, as text, and can be anything; an orderly stop leaves none.
    """
    parts = []
    if files:
        parts.append(f"removed {', '.join(files)}")
    if strays:
        each = "HCA process" if len(strays) == 1 else "HCA processes"
        parts.append(f"ended the {each} {', '.join(map(str, strays))}, whose kernel has gone")
    if not parts and not former:
        return ""
    who = f"process {former}" if former.isdecimal() else "a former kernel of this name"
    return f"{who} had not stopped in order: {'; '.join(parts) or 'nothing was left to remove'}"
