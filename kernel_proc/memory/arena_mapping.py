"""One arena at the address where its owner mapped it, and who still needs its memory.

Rules: dispatcher's OS thread only; any IRQL.
"""

from collections.abc import Callable

from kernel_proc.memory.bus import BusSegment


class ArenaMapping:
    """One arena at its owner's address; `end` comes from the registered length.

    While `locks` is above zero its memory outlives its removal from the address space, and stays
    in its bus segment, if it has one.
    """

    __slots__ = ("_on_unused", "arena_id", "base", "end", "locks", "segment", "view")

    def __init__(
        self,
        arena_id: int,
        base: int,
        length: int,
        view: memoryview,
        segment: BusSegment | None = None,
    ) -> None:
        self.segment = segment
        self.arena_id = arena_id
        self.base = base
        self.end = base + length
        self.view = view
        self.locks = 0
        self._on_unused: Callable[[], None] | None = None

    def slice(self, start: int, end: int) -> memoryview:
        """Return the view of two addresses inside."""
        return self.view[start - self.base : end - self.base]

    def lock(self) -> None:
        """Keep the memory for an MDL."""
        self.locks += 1

    def unlock(self) -> None:
        """Undo one `lock`; the last one after a removal lets the memory go."""
        self.locks -= 1
        if not self.locks and self._on_unused is not None:
            on_unused, self._on_unused = self._on_unused, None
            on_unused()

    def retire(self, on_unused: Callable[[], None]) -> None:
        """Call back now, or when the last lock is gone."""
        if self.locks:
            self._on_unused = on_unused
        else:
            on_unused()
