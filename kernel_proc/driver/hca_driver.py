"""The driver's state for one life of the HCA, from one reset to the next.

A reset makes another of these. Contexts keep the one they were opened on: when that is dead, so
are they, and their numbers and keys never reach the HCA that came after it.

Rules: made and filled by the bring-up thread; afterwards used by verbs at PASSIVE_LEVEL.
Spec: docs/hca-driver.md; Linux drivers/infiniband/hw/mthca/mthca_dev.h.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.buffer_allocator import BufferAllocator
from kernel_proc.driver.command_channel import CommandChannel
from kernel_proc.driver.context_memory import Icm
from kernel_proc.driver.dm_pool import DmPool
from kernel_proc.driver.doorbell_slots import DoorbellSlots
from kernel_proc.driver.limits import DRIVER_DOMAINS, DRIVER_KEYS
from kernel_proc.driver.number_allocator import NumberAllocator

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.device_link import DeviceLink
    from kernel_proc.driver.event_queue import EventQueue
    from kernel_proc.driver.event_sinks import EventSinks
    from kernel_proc.driver.interrupt_dpc import InterruptDpc
    from kernel_proc.driver.limits import Limits, Profile
    from kernel_proc.driver.pinned_memory import Regions
    from kernel_proc.hca_abi.contexts import Adapter, Firmware
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.memory.dma_adapter import DmaAdapter
    from kernel_proc.memory.kernel_memory import KernelMemory
    from kernel_proc.scheduling.process import KProcess

_NUMBER_BITS: Final = 24
_KEY_BITS: Final = 32


class Numbers:
    """The allocators of one life; XRC domains are the driver's own, the device has no table."""

    __slots__ = ("cq", "mgm", "mpt", "pd", "qp", "srq", "xrcd")

    def __init__(self, limits: "Limits", share_percent: int = 100) -> None:
        device = limits.device
        make = partial(NumberAllocator, share_percent=share_percent)
        self.pd = make(
            limits.log_pds, max(1, device.reserved_pds), _NUMBER_BITS, own=DRIVER_DOMAINS
        )
        self.cq = make(limits.log_cqs, device.reserved_cqs, _NUMBER_BITS)
        self.qp = make(limits.log_qps, device.reserved_qps, _NUMBER_BITS)
        self.srq = make(limits.log_srqs, device.reserved_srqs)
        self.mpt = make(limits.log_mpts, device.reserved_mpts, _KEY_BITS, own=DRIVER_KEYS)
        self.xrcd = make(_NUMBER_BITS, 1)
        # The overflow half of the multicast table; the hash half is found by hashing.
        self.mgm = make(limits.log_mgms, 1 << (limits.log_mgms - 1))

    def inspect(self) -> dict[str, Any]:
        """Return how many of each kind are used."""
        return {name: getattr(self, name).inspect() for name in self.__slots__}


class HcaDriver:
    """What verbs work with.

    The attributes without a value here are set by the bring-up; no context exists before all are.
    `dead` is set once and for good.
    """

    __slots__ = (
        "_slots",
        "adapter",
        "buffers",
        "channel",
        "contexts",
        "dead",
        "device_memory",
        "dma_key",
        "event_queues",
        "event_sinks",
        "exports",
        "firmware",
        "icm",
        "interrupts",
        "io",
        "life",
        "limits",
        "link",
        "log",
        "memberships",
        "memory",
        "numbers",
        "objects",
        "pdn",
        "polls_commands",
        "processor",
        "profile",
        "regions",
        "verbs",
    )

    limits: "Limits"
    numbers: Numbers
    regions: "Regions"
    firmware: "Firmware"
    adapter: "Adapter"
    pdn: int  # the driver's own protection domain
    dma_key: int  # of all memory on the bus, in that domain

    def __init__(
        self,
        io: "IoManager",
        link: "DeviceLink",
        memory: "KernelMemory",
        log: Callable[[str], object],
        life: int,
        profile: "Profile",
        make_sinks: "Callable[[HcaDriver], EventSinks]",
        *,
        adapter: "DmaAdapter",
        allocation: str,
        polls_commands: bool = False,
    ) -> None:
        self.io = io
        self.processor = io.processor
        self.link = link
        self.memory = memory
        self.log = log
        self.life = life
        self.profile = profile
        self.polls_commands = polls_commands
        self.dead = False
        self.verbs = 0  # verbs begun, which is also the number of the latest
        self.contexts: dict[int, Context] = {}
        self.objects: Counter[KProcess | None] = Counter()  # how many each process has
        self.memberships: Counter[KProcess | None] = Counter()  # of QPs in multicast groups
        self.exports: dict[tuple[int, int], Context] = {}  # by the inode that names them
        self._slots: dict[KProcess | None, DoorbellSlots] = {}
        self.channel = CommandChannel(io.processor, link, memory)
        self.icm = Icm(io.processor, self.channel, memory)
        self.buffers = BufferAllocator(io.processor, memory, adapter, allocation)
        self.device_memory = DmPool(self.buffers)
        self.event_queues: list[EventQueue] = []
        self.interrupts: InterruptDpc | None = None
        self.event_sinks = make_sinks(self)

    def share_slots(self, process: "KProcess | None") -> DoorbellSlots:
        """Return the index words of a process's doorbell segment (None: the kernel's own)."""
        slots = self._slots.setdefault(process, DoorbellSlots())
        slots.contexts += 1
        return slots

    def leave_slots(self, process: "KProcess | None") -> None:
        """Undo one `share_slots`."""
        slots = self._slots[process]
        slots.contexts -= 1
        if not slots.contexts:
            del self._slots[process]

    def stop_interrupts(self) -> None:
        """Take no more interrupts of this life."""
        if self.interrupts is not None:
            self.interrupts.disconnect()

    def release_memory(self) -> None:
        """Free what the driver kept for the HCA, which has stopped; contexts keep their own."""
        self.stop_interrupts()
        while self.event_queues:
            self.buffers.free(self.event_queues.pop().buffer)
        self.buffers.free_lost()
        self.icm.release()
        self.channel.mailboxes.release()

    def inspect(self) -> dict[str, Any]:
        """Return every table as plain values; the bring-up is complete."""
        return {
            "life": self.life,
            "dead": self.dead,
            "verbs": self.verbs,
            "firmware": firmware_version(self.firmware),
            "limits": self.limits.inspect(),
            "commands": self.channel.inspect(),
            "interrupts": self.interrupts.inspect() if self.interrupts is not None else {},
            "numbers": self.numbers.inspect(),
            "icm": self.icm.inspect(),
            "regions": self.regions.inspect(),
            "buffers": self.buffers.inspect(),
            "allocations": self.buffers.inspect_past(),
            "device_memory": self.device_memory.inspect(),
            "contexts": [context.inspect() for context in list(self.contexts.values())],
        }


def firmware_version(firmware: "Firmware") -> str:
    """Return the version as people write it."""
    version = firmware.version
    return f"{version >> 32}.{version >> 16 & 0xFFFF}.{version & 0xFFFF}"
