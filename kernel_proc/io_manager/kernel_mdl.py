"""MDLs over kernel-mode callers' own buffers, which are resident and need no locking.

Spec: WDK, MmBuildMdlForNonPagedPool.
"""

from typing import TYPE_CHECKING, Any

from kernel_proc.memory.mdl import MDL_SOURCE_IS_NONPAGED_POOL, Mdl, build_for_nonpaged_pool
from kernel_proc.memory.mdl_mapping import SystemMapping
from kernel_proc.memory.pool import PoolBlock

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor


def describe_kernel_buffer(processor: "Processor", buffer: Any, length: int) -> Mdl | None:
    """Return an MDL for `length` bytes of a buffer; None for no bytes.

    A pool block keeps its address; another object is reached through its mapping alone.
    """
    if not length:
        return None
    if isinstance(buffer, PoolBlock):
        mdl = Mdl(processor, buffer.address, length, buffer)
        build_for_nonpaged_pool(mdl)
        return mdl
    mdl = Mdl(processor, 0, length, None)
    mdl.mapped_system_va = SystemMapping(memoryview(buffer).cast("B")[:length])
    mdl.mdl_flags |= MDL_SOURCE_IS_NONPAGED_POOL
    return mdl
