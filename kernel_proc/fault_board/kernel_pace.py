"""A kernel that stands still for a while, and the death of its HCA."""

from kernel_proc.fault_board.kernel_injection import KernelInjection, living_hca


class KernelPaused(KernelInjection):
    """The processor does nothing until its time is over; who asked has the answer before."""

    def begin(self) -> None:
        """Stand still as soon as the present thread has left."""
        self.active.strikes()
        self.parts.processor.post(lambda: self.parts.hold(self.active.fault.lasts_ns))


class HcaKilled(KernelInjection):
    """The HCA's process is killed."""

    def begin(self) -> None:
        """Kill it; the kernel notices as it would any death of it."""
        link = living_hca(self.parts)
        self.active.strikes()
        link.kill("a fault was set")
