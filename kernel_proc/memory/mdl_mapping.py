"""The kernel's way to the pages of a locked MDL.

Rules: a mapping with a view (arena, pool) at any IRQL; one without waits, so <= APC_LEVEL.
Spec: WDK: MmMapLockedPagesSpecifyCache; docs/arenas-and-mdls.md.
"""

import contextlib

from kernel_proc.memory.access_violation import AccessViolation
from kernel_proc.memory.address_space import AddressSpace, Bytes


class SystemMapping:
    """`length` bytes; `view` is the memory itself, or None for private memory.

    `read` and `write` serve both. Ended by unlocking: its view then raises ValueError.
    """

    __slots__ = ("_address", "_space", "length", "view")

    def __init__(
        self,
        view: memoryview | None,
        space: AddressSpace | None = None,
        address: int = 0,
        length: int = 0,
    ) -> None:
        self.view = view
        self.length = len(view) if view is not None else length
        self._space = space
        self._address = address

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of `length` bytes; private memory its owner unmapped faults."""
        self._require_inside(offset, length, False)
        if self.view is not None:
            return bytes(self.view[offset : offset + length])
        return self._private().read_in_any_context(self._address + offset, length)

    def write(self, offset: int, data: Bytes) -> None:
        """Store `data`; private memory its owner unmapped or protected faults."""
        length = memoryview(data).nbytes
        self._require_inside(offset, length, True)
        if self.view is not None:
            self.view[offset : offset + length] = memoryview(data).cast("B")
        else:
            self._private().write_in_any_context(self._address + offset, data)

    def end(self) -> None:
        """Unmap; slices handed on keep the memory, but nothing new is reached."""
        if self.view is not None:
            with contextlib.suppress(BufferError):  # something still looks through this very view
                self.view.release()
        self._space = None

    def _private(self) -> AddressSpace:
        if self._space is None:
            raise ValueError("the mapping has ended")
        return self._space

    def _require_inside(self, offset: int, length: int, is_write: bool) -> None:
        if offset < 0 or length < 0 or offset + length > self.length:
            raise AccessViolation(self._address + offset, is_write, "outside the mapping")
