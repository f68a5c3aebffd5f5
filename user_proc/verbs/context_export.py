"""The descriptor by which another process imports a context: a file that says where it is.

Whoever has the descriptor may use the context's protection domains; the kernel knows the context
by the file's inode, the file itself tells a library which kernel and device to open.

Spec: ibv_import_device(3).
"""

import json
import os
from typing import Any, Final

_MOST_BYTES: Final = 4096


def write_export(kernel: str, device: str) -> int:
    """Make the file; the caller owns its descriptor."""
    descriptor = os.memfd_create("softhca-context", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, json.dumps({"kernel": kernel, "device": device}).encode())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_export(descriptor: int) -> tuple[str, str]:
    """Give kernel and device; OSError or ValueError if it is no such file."""
    found: Any = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
    names = (
        (found["kernel"], found["device"])
        if isinstance(found, dict) and (set(found) == {"kernel", "device"})
        else ()
    )
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise ValueError("the descriptor names no context")
    return names
