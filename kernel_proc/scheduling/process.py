"""Process objects: what a user process is to the kernel.

Spec: WDK, Windows Kernel-Mode Process and Thread Manager; pool quota.
"""

from typing import TYPE_CHECKING, Any, Final

from kernel_proc.scheduling.wait import DispatcherObject

if TYPE_CHECKING:
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

DEFAULT_POOL_QUOTA: Final = 64 * 1024 * 1024
DEFAULT_LOCKED_PAGES: Final = (2 << 30) // 4096


class KProcess(DispatcherObject):
    """A process; signalled when it has ended.

    `address_space`, `handle_table` and `doorbells` belong to the rooms above (memory, io_manager,
    driver), which fill and type them; `doorbells` is the process's way to the HCA, made when first
    asked for. `locked_pages` of its own are locked now, `most_locked_pages` at most.
    """

    __slots__ = (
        "address_space",
        "doorbells",
        "exiting",
        "handle_table",
        "locked_pages",
        "most_locked_pages",
        "name",
        "number",
        "pool_charged",
        "pool_quota",
        "process_id",
        "threads",
    )

    def __init__(
        self,
        processor: "Processor",
        name: str,
        process_id: int = 0,
        pool_quota: int = DEFAULT_POOL_QUOTA,
        most_locked_pages: int = DEFAULT_LOCKED_PAGES,
    ) -> None:
        super().__init__(processor)
        self.name = name
        self.number = processor.next_number()
        self.process_id = process_id
        self.threads: set[KThread] = set()
        self.address_space: Any = None
        self.handle_table: Any = None
        self.doorbells: Any = None
        self.exiting = False
        self.locked_pages = 0
        self.most_locked_pages = most_locked_pages
        self.pool_quota = pool_quota
        self.pool_charged = 0

    def __str__(self) -> str:
        return f"process {self.number} {self.name!r} (pid {self.process_id})"

    def charge_pool(self, length: int) -> bool:
        """Charge nonpaged pool to the process; False if that passes its quota."""
        charged = self.pool_charged + length
        if charged > self.pool_quota:
            return False
        self.pool_charged = charged
        return True

    def return_pool(self, length: int) -> None:
        """Give back what was charged."""
        self.pool_charged -= length

    def end(self) -> None:
        """Signal the process object; its threads have ended."""
        self.exiting = True
        self.signal_state = 1
        self.wake_waiters()
