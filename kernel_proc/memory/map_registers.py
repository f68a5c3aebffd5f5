"""Map registers: pages every device reaches, through which it gets at memory it does not reach.

A register holds a copy of one page of a buffer. Those of an adapter are numbered; neighbours in a
block lie in a row for the device. Who finds too few left waits in a queue, first come first
served, and is called when some are given back.

Rules: <= DISPATCH_LEVEL; memory is taken at <= APC_LEVEL, or is what the kernel holds already.
Who is called from the queue is called by the thread that gives registers back.
Spec: WDK, Map Registers; AllocateAdapterChannel; GetScatterGatherList; docs/dma.md.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from kernel_proc.memory.extents import Extents
from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
from shared.segment import PAGE_SIZE

DEFAULT_MAP_REGISTERS: Final = 256  # pages that may be double-buffered at a time


class MapRegister:
    """One register: a page at `bus_address`, whose bytes are `view`."""

    __slots__ = ("bus_address", "number", "view")

    def __init__(self, number: int, block: KernelBuffer, page: int) -> None:
        self.number = number
        self.bus_address = block.bus_address + page * PAGE_SIZE
        self.view = block.view[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]

    def put(self, start: int, data: bytes | memoryview) -> None:
        """Lay bytes into the page for the device."""
        self.view[start : start + len(data)] = data

    def take(self, start: int, length: int) -> memoryview:
        """Return what is in the page now."""
        return self.view[start : start + length]

    def close(self) -> None:
        """End a mapping; what is in the page stays."""


Grant = Callable[[list[MapRegister]], object]


class MapRegisters:
    """The registers of one adapter; `frames` are those its device reaches, None: all."""

    def __init__(self, memory: KernelMemory, count: int, frames: range | None) -> None:
        self.maximum = count
        self._memory = memory
        self._frames = frames
        self._blocks: list[KernelBuffer] = []
        self._registers: list[MapRegister] = []
        self._free = Extents(0)
        self._waiting: deque[tuple[int, Grant]] = deque()
        self._serving = False

    @property
    def left(self) -> int:
        """How many can be taken."""
        return self._free.free if self._registers else self.maximum

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def reserve(self, may_wait: bool) -> bool:
        """Take the memory, in a row if it can be; False if there is none."""
        if self._registers or not self.maximum:
            return True
        memory, count, frames = self._memory, self.maximum, self._frames
        block = memory.allocate_contiguous(count * PAGE_SIZE, frames=frames, may_wait=may_wait)
        blocks: list[KernelBuffer] | None = [block] if block is not None else None
        if blocks is None:
            blocks = memory.allocate_pages(count, frames=frames, may_wait=may_wait)
        if blocks is None or self._registers:  # another thread may have been here meanwhile
            memory.free_all(blocks or [])
            return bool(self._registers)
        self._blocks = blocks
        borders = []
        for block in blocks:
            first = len(self._registers)
            pages = range(len(block) // PAGE_SIZE)
            self._registers += [MapRegister(first + page, block, page) for page in pages]
            borders.append(len(self._registers))
        self._free = Extents(count, frozenset(borders))
        return True

    def request(self, count: int, may_wait: bool, grant: Grant) -> bool:
        """Call `grant` with so many, now or later; False, and never, if there are not so many."""
        if count > self.maximum or (count and not self.reserve(may_wait)):
            return False
        self._waiting.append((count, grant))
        self._serve()
        return True

    def take_in_a_row(self, count: int) -> list[MapRegister] | None:
        """Take neighbours now, or None; who waits comes first."""
        if self._waiting or not self._registers:
            return None
        first = self._free.take(count)
        return self._registers[first : first + count] if first is not None else None

    def give_back(self, registers: Sequence[MapRegister]) -> None:
        """Take registers back and call who waited for them."""
        for register in registers:
            self._free.give(register.number, 1)
        self._serve()

    def close(self) -> None:
        """Give the memory back; no register is taken."""
        for register in self._registers:
            register.view.release()
        self._registers = []
        self._memory.free_all(self._blocks)
        self._blocks = []

    def view_of(self, registers: Sequence[MapRegister]) -> memoryview:
        """Return the bytes of neighbours as one."""
        first, length = registers[0], len(registers) * PAGE_SIZE
        block = next(
            b for b in self._blocks if 0 <= first.bus_address - b.bus_address <= len(b) - length
        )
        start = first.bus_address - block.bus_address
        return block.view[start : start + length]

    def _serve(self) -> None:
        if self._serving:  # somebody that is being called gives some back, or asks for more
            return
        self._serving = True
        try:
            while self._waiting and self._waiting[0][0] <= self.left:
                count, grant = self._waiting.popleft()
                grant(self._take(count))
        finally:
            self._serving = False

    def _take(self, count: int) -> list[MapRegister]:
        if not count:
            return []
        first = self._free.take(count)
        if first is not None:
            return self._registers[first : first + count]
        taken: list[MapRegister] = []
        while len(taken) < count:
            some = self._free.take_some(count - len(taken))
            assert some is not None
            taken += self._registers[some[0] : some[0] + some[1]]
        return taken
