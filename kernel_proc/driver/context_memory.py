"""The HCA's context memory: host memory, mapped into its address space chunk by chunk.

A chunk of 256 KiB is mapped for the first object that lies in it and unmapped with the last;
those with objects the firmware reserves stay. A chunk is one block of memory, or, where there is
none so long, several shorter ones. One whose mapping or unmapping was not answered keeps its
memory, and is unmapped and mapped once more before it is used.

Rules: PASSIVE_LEVEL; both wait for commands. Chunks of one table are serialised by a KMUTEX.
Spec: Linux mthca_memfree.c (mthca_table_get, mthca_table_put, mthca_alloc_icm).
"""

import errno
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.contexts import (
    ICM_CHUNK_SIZE,
    ICM_MAP_ENTRY,
    ICM_PAGE_SIZE,
    MAP_ICM_MOST_ENTRIES,
)
from kernel_proc.scheduling.mutex import Mutex
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.command_channel import CommandChannel
    from kernel_proc.memory.kernel_memory import KernelBuffer, KernelMemory
    from kernel_proc.scheduling.processor import Processor

_PAGES_IN_CHUNK: Final = ICM_CHUNK_SIZE // ICM_PAGE_SIZE


class _Chunk:
    """Mapped memory of one table; `users` may be 0 where an unmapping failed.

    `uncertain` while a command that was not answered may have mapped it or not.
    """

    __slots__ = ("blocks", "uncertain", "users")

    def __init__(self, blocks: "list[KernelBuffer]") -> None:
        self.blocks = blocks
        self.users = 0
        self.uncertain = False


class _Table:
    """One table: where it lies, what an entry takes, and the chunks that are mapped."""

    __slots__ = ("base", "chunks", "lock", "object_size")

    def __init__(self, processor: "Processor", base: int, object_size: int) -> None:
        self.base = base
        self.object_size = object_size
        self.chunks: dict[int, _Chunk] = {}
        self.lock = Mutex(processor)


class Icm:
    """The tables of the ICM by name: qpc, eqpc, rdb, cqc, srqc, eqc, mpt, mtt, mgm.

    `mtt` is indexed by segments, `rdb` by QPs.
    """

    def __init__(
        self, processor: "Processor", channel: "CommandChannel", memory: "KernelMemory"
    ) -> None:
        self._processor = processor
        self._channel = channel
        self._memory = memory
        self._tables: dict[str, _Table] = {}
        self._fixed: list[KernelBuffer] = []
        self.maps = 0
        self.unmaps = 0

    def add_table(self, name: str, base: int, object_size: int) -> None:
        """Tell where a table lies in the HCA's virtual ICM."""
        self._tables[name] = _Table(self._processor, base, object_size)

    # Entries

    def get(self, table: str, index: int) -> None:
        """Have an entry's memory mapped; refuse with nothing changed if that fails."""
        self.get_range(table, index, 1)

    def get_range(self, table: str, first: int, count: int) -> None:
        """Have the memory of several entries mapped: all, or after a refusal none more."""
        place = self._tables[table]
        done = []
        try:
            for number in _chunks_of(place, first, count):
                self._get_chunk(place, number)
                done.append(number)
        except VerbRefused:
            for number in done:
                self._put_chunk(place, number)
            raise

    def put(self, table: str, index: int) -> None:
        """Undo one `get`; never refuses: a chunk that cannot be unmapped stays mapped."""
        self.put_range(table, index, 1)

    def put_range(self, table: str, first: int, count: int) -> None:
        """Undo one `get_range`."""
        place = self._tables[table]
        for number in _chunks_of(place, first, count):
            self._put_chunk(place, number)

    def _get_chunk(self, table: _Table, number: int) -> None:
        chunk = table.chunks.get(number)
        if chunk is not None and chunk.users:  # whoever unmaps waits for the last user
            chunk.users += 1
            return
        table.lock.wait()
        try:
            chunk = table.chunks.get(number)
            if chunk is None:
                chunk = _Chunk(self.allocate(_PAGES_IN_CHUNK))
                self._map_chunk(table, number, chunk)
            elif chunk.uncertain:
                self._unmap_command(table, number)
                self._map_chunk(table, number, chunk)
            chunk.users += 1
        finally:
            table.lock.release()

    def _map_chunk(self, table: _Table, number: int, chunk: _Chunk) -> None:
        """Have a chunk mapped; one that is refused is forgotten, one without an answer is kept."""
        try:
            self.map_blocks(op.MAP_ICM, chunk.blocks, table.base + number * ICM_CHUNK_SIZE)
        except VerbRefused as refusal:
            chunk.uncertain = refusal.unanswered
            if chunk.uncertain:
                table.chunks[number] = chunk
            else:
                table.chunks.pop(number, None)
                self._free(chunk.blocks)
            raise
        self.maps += 1
        chunk.uncertain = False
        table.chunks[number] = chunk

    def _unmap_command(self, table: _Table, number: int) -> bool:
        """Have a chunk unmapped if it is mapped; False if the HCA says that it is not.

        Refuses when the HCA does not answer.
        """
        address = table.base + number * ICM_CHUNK_SIZE
        try:
            self._channel.run(op.UNMAP_ICM, modifier=_PAGES_IN_CHUNK, in_param=address)
        except VerbRefused as refusal:
            if not refusal.is_status(op.UNMAP_ICM, op.CMD_STAT_BAD_PARAM):
                raise
            return False
        return True

    def _put_chunk(self, table: _Table, number: int) -> None:
        chunk = table.chunks.get(number)
        if chunk is not None and chunk.users > 1:
            chunk.users -= 1
            return
        table.lock.wait()
        try:
            chunk = table.chunks.get(number)
            if chunk is None:  # the life of the HCA is over
                return
            chunk.users -= 1
            if not chunk.users:
                self._unmap_chunk(table, number, chunk)
        finally:
            table.lock.release()

    def _unmap_chunk(self, table: _Table, number: int, chunk: _Chunk) -> None:
        try:
            if not self._unmap_command(table, number) and not chunk.uncertain:
                chunk.uncertain = True  # the HCA has no such chunk, which nobody foresaw
                return
        except VerbRefused as refusal:
            chunk.uncertain |= refusal.unanswered
            return  # still the HCA's: the next user finds it mapped, or has it mapped
        del table.chunks[number]
        self._free(chunk.blocks)
        self.unmaps += 1

    # Memory

    def allocate(self, pages: int) -> "list[KernelBuffer]":
        """Return zeroed memory of so many pages in blocks as long as can be had, or ENOMEM."""
        blocks: list[KernelBuffer] = []
        longest = _PAGES_IN_CHUNK
        left = pages
        while left:
            while longest > left:
                longest >>= 1
            size = longest * ICM_PAGE_SIZE
            block = self._memory.allocate_contiguous(size, size)
            if block is not None:
                blocks.append(block)
                left -= longest
            elif longest > 1:
                longest >>= 1
            else:
                self._free(blocks)
                raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_MEMORY, 0, pages * ICM_PAGE_SIZE)
        return blocks

    def map_blocks(self, opcode: int, blocks: "list[KernelBuffer]", address: int) -> None:
        """Give blocks to the HCA by MAP_ICM, from `address` on; by MAP_ICM_AUX or MAP_FA."""
        entries = []
        for block in blocks:
            log_pages = (block.length // ICM_PAGE_SIZE).bit_length() - 1
            virtual = address if opcode == op.MAP_ICM else 0  # the others have no addresses
            entries.append(ICM_MAP_ENTRY.pack(virtual, block.bus_address | log_pages))
            address += block.length
        for start in range(0, len(entries), MAP_ICM_MOST_ENTRIES):
            part = entries[start : start + MAP_ICM_MOST_ENTRIES]
            self._channel.run(opcode, modifier=len(part), inbox=b"".join(part))

    def give_for_good(self, opcode: int, pages: int) -> None:
        """Allocate memory the HCA keeps until it stops: firmware area, auxiliary pages."""
        blocks = self.allocate(pages)
        self._fixed += blocks
        self.map_blocks(opcode, blocks, 0)

    def unmap_all(self) -> None:
        """Take every chunk back from an HCA that is closed."""
        for table in self._tables.values():
            for number, chunk in list(table.chunks.items()):
                self._unmap_chunk(table, number, chunk)

    def release(self) -> None:
        """Free everything; the HCA has stopped."""
        for table in self._tables.values():
            while table.chunks:
                _, chunk = table.chunks.popitem()
                self._free(chunk.blocks)
        self._free(self._fixed)

    def _free(self, blocks: "list[KernelBuffer]") -> None:
        while blocks:
            self._memory.free(blocks.pop())

    def inspect(self) -> dict[str, Any]:
        """Return the mapped chunks of each table and their users."""
        return {
            "tables": {
                name: {number: chunk.users for number, chunk in sorted(table.chunks.items())}
                for name, table in self._tables.items()
            },
            "chunks": sum(len(table.chunks) for table in self._tables.values()),
            "maps": self.maps,
            "unmaps": self.unmaps,
        }


def _chunks_of(table: _Table, first: int, count: int) -> range:
    start = first * table.object_size // ICM_CHUNK_SIZE
    end = ((first + count) * table.object_size - 1) // ICM_CHUNK_SIZE
    return range(start, end + 1)
