"""Kernel pool: buffers with kernel addresses, tags, quota charges and use checking.

A block is a bytearray, so whoever has it reads and writes it directly. Addresses only name
blocks: they are never reused, so a stale one never names another's memory.

Rules: nonpaged pool <= DISPATCH_LEVEL, paged pool <= APC_LEVEL.
Spec: WDK: ExAllocatePoolWithTag, ExAllocatePoolWithQuotaTag, ExFreePoolWithTag; bug checks 0xC2,
0xC4 (0x00 to 0x14, 0x60, 0x62).
"""

import sys
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.bugcheck import BAD_POOL_CALLER, DRIVER_VERIFIER_DETECTED_VIOLATION
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES, STATUS_QUOTA_EXCEEDED

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

NON_PAGED_POOL: Final = 0
PAGED_POOL: Final = 1
DEFAULT_POOL_LIMIT: Final = 512 << 20

_BAD_ADDRESS: Final = 0x46  # 0xC2: free of an address that is no pool block
_ALREADY_FREED: Final = 0x07  # 0xC2

_ZERO_BYTES: Final = 0x00  # this and the following: verifier 0xC4
_ALLOCATED_TOO_HIGH: Final = (0x02, 0x01)  # nonpaged, paged
_FREED_TOO_HIGH: Final = (0x12, 0x11)
_NEVER_ALLOCATED: Final = 0x10
_FREED_TWICE: Final = 0x13
_NOT_FREED_AT_UNLOAD: Final = 0x62

_POOL_BASE: Final = 0xFFFF_9000_0000_0000
_GRANULE: Final = 16
_GUARD_AND_ROUNDING: Final = 31  # no block begins where another ends


class PoolBlock(bytearray):
    """One allocation: its bytes, the kernel address it goes by, and who is charged.

    `module` is the code that asked for it, which only the verifier notes.
    """

    __slots__ = ("address", "charged", "module", "pool_type", "size", "tag")

    address: int
    size: int
    tag: str
    pool_type: int
    charged: KProcess | None
    module: str

    def __repr__(self) -> str:
        return f"<pool block {self.address:#x} of {self.size} bytes, tag {self.tag!r}>"


class PoolAllocator:
    """The kernel's pool; `blocks` holds every live block by address."""

    __slots__ = ("_levels", "_next_address", "_processor", "blocks", "limit", "used")

    def __init__(self, processor: "Processor", limit: int = DEFAULT_POOL_LIMIT) -> None:
        self._processor = processor
        self._next_address = _POOL_BASE
        self._levels = (DISPATCH_LEVEL, APC_LEVEL)
        self.limit = limit
        self.used = 0
        self.blocks: dict[int, PoolBlock] = {}

    def allocate(self, size: int, tag: str, pool_type: int = NON_PAGED_POOL) -> PoolBlock | None:
        """Return a zeroed block, or None when the pool is exhausted."""
        processor = self._processor
        if processor.irql > self._levels[pool_type] or (not size and processor.verifier):
            self._refuse_allocation(size, pool_type)
        used = self.used + size
        if used > self.limit:
            return None
        try:
            block = PoolBlock(size)
        except MemoryError:
            return None
        self.used = used
        block.address = address = self._next_address
        self._next_address = (address + size + _GUARD_AND_ROUNDING) & -_GRANULE
        block.size = size
        block.tag = tag
        block.pool_type = pool_type
        block.charged = None
        block.module = _calling_module() if processor.verifier else ""
        self.blocks[address] = block
        return block

    def allocate_with_quota(
        self, size: int, tag: str, process: KProcess, pool_type: int = NON_PAGED_POOL
    ) -> PoolBlock:
        """Charge `process` and return a block; raise STATUS_QUOTA_EXCEEDED or ..._RESOURCES."""
        if not process.charge_pool(size):
            raise RaisedStatus(STATUS_QUOTA_EXCEEDED, f"{size} bytes of pool for {process}")
        block = self.allocate(size, tag, pool_type)
        if block is None:
            process.return_pool(size)
            raise RaisedStatus(STATUS_INSUFFICIENT_RESOURCES, f"{size} bytes of pool")
        block.charged = process
        return block

    def free(self, block: PoolBlock) -> None:
        """Take a block back; its process is no longer charged."""
        if self._processor.irql > self._levels[block.pool_type]:
            self._refuse_level(_FREED_TOO_HIGH, block.pool_type, block.size, "ExFreePool")
        if self.blocks.pop(block.address, None) is not block:
            self._refuse_free(block)
        self.used -= block.size
        if block.charged is not None:
            block.charged.return_pool(block.size)
            block.charged = None

    def usage(self) -> dict[str, tuple[int, int]]:
        """Return blocks and bytes in use by tag, as poolmon does."""
        usage: dict[str, tuple[int, int]] = {}
        for block in self.blocks.values():
            count, size = usage.get(block.tag, (0, 0))
            usage[block.tag] = (count + 1, size + block.size)
        return usage

    def require_freed(self, module: str, owner: str) -> None:
        """Verifier: stop the machine if `owner`, whose code is `module`, unloads and leaves blocks.

        As the verifier's calls are told from a driver's by their return addresses, so are blocks
        here by the module that asked for them; those of a package are its modules'.
        """
        left = [
            block
            for block in self.blocks.values()
            if block.module == module or block.module.startswith(f"{module}.")
        ]
        if left and self._processor.verifier:
            size = sum(block.size for block in left)
            tags = ", ".join(sorted({repr(block.tag) for block in left}))
            self._processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION,
                _NOT_FREED_AT_UNLOAD,
                p4=len(left),
                detail=f"{owner} leaves {len(left)} blocks of pool, {size} bytes, tags {tags}",
            )

    def inspect(self) -> dict[str, Any]:
        """Return limit, use and the tags."""
        return {
            "limit": self.limit,
            "used": self.used,
            "tags": self.usage(),
        }

    def _refuse_allocation(self, size: int, pool_type: int) -> None:
        if self._processor.irql > self._levels[pool_type]:
            self._refuse_level(_ALLOCATED_TOO_HIGH, pool_type, size, "ExAllocatePoolWithTag")
        self._processor.bug_check(
            DRIVER_VERIFIER_DETECTED_VIOLATION,
            _ZERO_BYTES,
            self._processor.irql,
            pool_type,
            size,
            detail="allocation of zero bytes of pool",
        )

    def _refuse_level(self, codes: tuple[int, int], pool_type: int, size: int, what: str) -> None:
        processor = self._processor
        if processor.verifier:
            processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION,
                codes[pool_type],
                processor.irql,
                pool_type,
                size,
                detail=f"{what} at too high an IRQL",
            )
        processor.irql_violation(self._levels[pool_type], what)

    def _refuse_free(self, block: PoolBlock) -> None:
        processor = self._processor
        freed = _POOL_BASE <= block.address < self._next_address
        detail = f"second free of {block!r}" if freed else f"free of unknown {block!r}"
        if processor.verifier:
            code = _FREED_TWICE if freed else _NEVER_ALLOCATED
            processor.bug_check(
                DRIVER_VERIFIER_DETECTED_VIOLATION, code, block.address, detail=detail
            )
        code = _ALREADY_FREED if freed else _BAD_ADDRESS
        processor.bug_check(BAD_POOL_CALLER, code, p4=block.address, detail=detail)


def _calling_module() -> str:
    """Return the name of the module that called this one."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""
