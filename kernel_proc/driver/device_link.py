"""What joins the kernel to its HCA: registers, memory told, the interrupt line, and its death.

Rules: dispatcher's OS thread. The memory calls may wait when the HCA is behind: <= APC_LEVEL in a
kernel thread, else what cannot be sent at once is queued. `restart` and `stop` wait: PASSIVE_LEVEL
in a kernel thread.
Spec: kernel_proc/hca_abi/registers.py; kernel_proc/hca_abi/device_packets.py.
"""

from collections.abc import Callable
from typing import Any, Protocol

from kernel_proc.scheduling.interrupt_line import InterruptLine


class DeviceLink(Protocol):
    """One HCA as the driver and the bus see it.

    `registers` is the register page; it stays the same memory over restarts, zeroed by each.
    `line` is the interrupt line: the driver connects its Interrupt to it. `dead` is True from the
    device's death until `restart`; then `on_death` is called once, in the dispatcher, with the
    reason. `generation` counts restarts.
    """

    registers: memoryview
    line: InterruptLine
    dead: bool
    generation: int
    on_death: Callable[[str], object] | None

    @property
    def status_page(self) -> memoryview:
        """The status page of the present generation."""

    def poke(self) -> None:
        """Have the HCA look at its registers, after a store that it must see; any IRQL."""

    def add_segment(self, number: int, view: memoryview | None, descriptor: int) -> None:
        """Tell of memory: shared (with a view) or, without, private by its descriptor.

        The descriptor stays the caller's, and open until `remove_segment`.
        """

    def remove_segment(self, number: int) -> None:
        """Take memory back; the HCA uses none of it after the next command."""

    def add_doorbells(self, number: int, segment: int, poke: int) -> None:
        """Tell of a doorbell segment (UAR): its descriptor and its users' eventfd.

        Both stay the caller's.
        """

    def remove_doorbells(self, number: int) -> None:
        """Take a doorbell segment back."""

    def status_descriptor(self) -> int:
        """Return a descriptor of the status page that can only be read; the caller closes it."""

    def restart(self) -> None:
        """End this HCA, whatever state it is in, and begin another: a hardware reset.

        Registers are zero; every segment is known again; doorbell segments are not.
        """

    def set_fault(self, number: int, fault: bytes) -> None:
        """Have the HCA put a fault to work, a message of shared/fault_messages.py."""

    def clear_fault(self, number: int) -> None:
        """Have the HCA take a fault back, 0: every one."""

    def kill(self, reason: str) -> None:
        """End the HCA as by its own death: it is told to nobody beforehand."""

    def stop(self, limit_ns: int) -> bool:
        """End the HCA in order; by force after the limit, and then return False."""

    def close(self) -> None:
        """Give everything back at once, in any state; the machine has stopped."""

    def inspect(self) -> dict[str, Any]:
        """Return the state as plain values."""

    def inspect_device(self, limit_ns: int, queue_pair: int = 0) -> dict[str, Any]:
        """Return what the HCA tells of itself, or of what a QP was last asked to do.

        Waits for it, at most so long: PASSIVE_LEVEL in a kernel thread. An HCA that tells nothing
        is a dictionary with "error" alone, why in words; no such QP an empty one.
        """
