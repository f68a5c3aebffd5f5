"""The host side of the HCA: bus, kernel memory, the link to the device, and its driver.

Across processes the device is a process of its own; in process it is an object that is stepped by
the dispatcher.

Rules: dispatcher's OS thread; `start` runs the processor, `stop` waits in a system thread.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.device_link import DeviceLink
from kernel_proc.driver.doorbell_segments import DoorbellTable
from kernel_proc.driver.hca_child import HcaChild
from kernel_proc.driver.limits import Profile
from kernel_proc.hca_abi.device_settings import HcaSettings, encode_settings
from kernel_proc.hca_profile import read_profile
from kernel_proc.io_manager.driver_object import DriverObject
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.memory.bus import Bus
from kernel_proc.memory.dma_adapter import DmaAdapter
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.page_frames import DEFAULT_FRAMES, PageFrameAllocator
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.settings import KernelSettings
from shared.nt_status import STATUS_SUCCESS

if TYPE_CHECKING:
    from kernel_proc.driver.local_link import Device

Log = Callable[[str], object]

#: After so long an event is found whose interrupt was lost (Linux mthca_catas.c looks as often). On
#: a virtual clock nothing is looked for: there, who waits for what cannot come is to be noticed.
LOOK_EVERY_NS: Final = 5_000_000_000
_DEFAULT_SEED: Final = 1
_TELLING_NS: Final = 5_000_000_000  # for a device that has begun to tell its state
_SEED_MASK: Final = (1 << 63) - 1


class HcaNotStarted(Exception):
    """There is no HCA to work with; the text is one sentence."""


class HcaHost:
    """All that the kernel has of its HCA; `link` is None before `start`.

    `child` is the HCA's process if it was started beforehand. HcaSettingsError is raised for
    settings the device would refuse.
    """

    def __init__(
        self,
        io: IoManager,
        settings: KernelSettings,
        lane: Lane,
        child: HcaChild | None = None,
    ) -> None:
        self._io = io
        self._settings = settings
        self._lane = lane
        self._child = child
        self.device_settings = HcaSettings(
            latency_model=settings.latency_model,
            latency_factor=settings.latency_factor,
            seed=_DEFAULT_SEED if settings.seed is None else settings.seed & _SEED_MASK,
            max_qp_rd_atom=settings.max_qp_rd_atom,
            idle_spin_us=settings.hca_spin_us,
            **({} if settings.hca_profile is None else read_profile(settings.hca_profile)),
        )
        frames = PageFrameAllocator(DEFAULT_FRAMES, settings.fragmentation or None)
        self.bus = Bus(frames)
        self.memory = KernelMemory(self.bus, lane, settings.kernel_memory_bytes)
        self.adapter = DmaAdapter(io.processor, self.bus, self.memory)
        self.link: DeviceLink | None = None
        self.doorbells: DoorbellTable | None = None
        self.driver: DriverObject | None = None

    def start(self, log: Log, trouble: Log, limit_ns: int, *, in_process: bool) -> None:
        """Begin the device and bring it up; runs the processor until that is settled.

        HcaNotStarted says why there is none.
        """
        from kernel_proc.driver import entry

        try:
            self.link = link = self._make_local_link() if in_process else self._make_link(trouble)
        except ValueError as error:  # as the device's process would say it
            raise HcaNotStarted(f"the HCA did not come up: {error}") from error
        self.bus.attach(link)
        self.doorbells = DoorbellTable(link)
        processor = self._io.processor
        polls = self._settings.command_mode == "polling"
        device = self.device_settings  # its driver wants the tables as large as they can be
        profile = Profile(
            log_qps=device.log_max_qps,
            log_cqs=device.log_max_cqs,
            log_srqs=device.log_max_srqs,
            log_mpts=device.log_max_mpts,
            log_mtt_segments=device.log_max_mtt_segments,
            log_pds=device.log_max_pds,
            log_mgms=device.log_max_mgms,
            share_percent=self._settings.hca_percent_per_process,
            most_objects=self._settings.hca_objects_per_process,
            look_every_ns=0 if in_process else LOOK_EVERY_NS,
        )
        self.driver = processor.run_thread(
            lambda: entry.load(
                self._io,
                link,
                self.memory,
                log,
                profile,
                adapter=self.adapter,
                allocation=self._settings.allocation,
                polls_commands=polls,
            )
        )
        settled = entry.extension_of(self.driver).settled
        if processor.run_thread(settled.wait, limit_ns) != STATUS_SUCCESS:
            raise HcaNotStarted(f"the HCA is not up after {limit_ns // 1_000_000} ms")
        state = entry.extension_of(self.driver).inspect()
        if not state["up"]:
            raise HcaNotStarted(f"the HCA did not come up: {state['failure']}")

    def stop(self, limit_ns: int) -> bool:
        """Unload the driver, which stops the device; False if that was not done in time.

        PASSIVE_LEVEL in a system thread; no file of the device is open any more.
        """
        driver, self.driver = self.driver, None
        if driver is None or driver.driver_unload is None:
            return True
        thread = create_system_thread(
            self._io.processor, driver.driver_unload, driver, name=f"unload of {driver}"
        )
        return thread.wait(limit_ns) == STATUS_SUCCESS

    def close(self) -> None:
        """Give everything back at once, whatever happened; no process is left."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
        if self.link is not None:
            self.bus.detach(self.link)
            self.link.close()
            self.link = None
        self.memory.close()
        self._lane.close()

    def inspect_device(self) -> dict[str, Any]:
        """Ask the device for its state; with "error" why it tells nothing. Waits: PASSIVE_LEVEL."""
        return self.link.inspect_device(_TELLING_NS) if self.link is not None else {}

    def inspect(self) -> dict[str, Any]:
        """Return the state of every part as plain values, but for the device's own."""
        state: dict[str, Any] = {"bus": self.bus.inspect(), "kernel_memory": self.memory.inspect()}
        if self.link is not None:
            state["link"] = self.link.inspect()
        if self.doorbells is not None:
            state["doorbells"] = self.doorbells.inspect()
        if self.driver is not None:
            from kernel_proc.driver import entry

            state["driver"] = entry.extension_of(self.driver).inspect()
        return state

    def _make_link(self, trouble: Log) -> DeviceLink:
        from kernel_proc.driver.process_link import ProcessLink

        child, self._child = self._child, None
        settings = encode_settings(self.device_settings)
        return ProcessLink(self._io.processor, settings, trouble, child)

    def _make_local_link(self) -> DeviceLink:
        from kernel_proc.driver.local_link import LocalLink
        from kernel_proc.hca.hca_device import HcaDevice

        processor = self._io.processor

        def make_device(
            registers: memoryview, status_page: memoryview, raise_interrupt: Callable[[], None]
        ) -> "Device":
            return HcaDevice(
                registers,
                status_page,
                self.device_settings,
                processor.clock.now_ns,
                raise_interrupt,
            )

        return LocalLink(processor, make_device)
