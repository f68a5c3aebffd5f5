"""A process's handles: small numbers for the kernel objects it has open.

Rules: PASSIVE_LEVEL, in a thread of the process or at its rundown.
Spec: WDK, Object Handles.
"""

from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.ddi_rules import IRQL_OB_PASSIVE
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from shared.nt_status import (
    STATUS_ACCESS_DENIED,
    STATUS_INVALID_HANDLE,
    STATUS_OBJECT_TYPE_MISMATCH,
    STATUS_SUCCESS,
)

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread

DEFAULT_HANDLE_LIMIT: Final = 16_384
_STEP: Final = 4  # handles are multiples of four, as in NT
_LAST: Final = 0xFFFF_FFFC


class HandleTable:
    """Handles and what each one grants.

    `entries` maps a handle to (object, granted access). Numbers are given out in turn, so that a
    stale handle stays invalid for as long as possible.
    """

    __slots__ = ("_next", "closing", "entries", "limit")

    def __init__(self, limit: int = DEFAULT_HANDLE_LIMIT) -> None:
        self.entries: dict[int, tuple[Any, int]] = {}
        self.limit = limit
        self.closing = 0  # files of the process whose IRP_MJ_CLOSE is under way
        self._next = _STEP

    def insert(self, target: Any, granted: int) -> int:
        """Return a new handle, or 0 if the process has as many as it may."""
        if len(self.entries) >= self.limit:
            return 0
        handle = self._next
        while handle in self.entries:
            handle = handle + _STEP if handle < _LAST else _STEP
        self._next = handle + _STEP if handle < _LAST else _STEP
        self.entries[handle] = (target, granted)
        return handle

    def remove(self, handle: int) -> Any:
        """Take a handle out and return its object; None if it is not there."""
        entry = self.entries.pop(handle, None)
        return entry[0] if entry is not None else None

    def inspect(self) -> dict[str, Any]:
        """Return each handle with its object and access."""
        return {f"{h:#x}": f"{target}, access {a:#x}" for h, (target, a) in self.entries.items()}


def reference_object(
    thread: "KThread", handle: int, kind: type | tuple[type, ...], access: int
) -> tuple[int, Any]:
    """Return the object a thread's handle names, if it is of that kind and grants that access.

    Otherwise the status says why not (WDK: ObReferenceObjectByHandle).
    """
    thread.processor.require_irql(PASSIVE_LEVEL, "ObReferenceObjectByHandle", IRQL_OB_PASSIVE)
    process = thread.process
    entry = process.handle_table.entries.get(handle) if process is not None else None
    if entry is None:
        return STATUS_INVALID_HANDLE, None
    target, granted = entry
    if not isinstance(target, kind):
        return STATUS_OBJECT_TYPE_MISMATCH, None
    if access & ~granted:
        return STATUS_ACCESS_DENIED, None
    return STATUS_SUCCESS, target
