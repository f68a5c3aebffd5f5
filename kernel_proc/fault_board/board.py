"""All faults that are set in a kernel and its HCA: judged, numbered, put to work, taken back.

A fault of the HCA is the HCA's of now: a reset begins one without faults. One whose time is over is
taken back by itself, at the latest when faults are set, cleared or listed.

Rules: PASSIVE_LEVEL in a thread, which may wait for the HCA; nothing is raised.
Spec: shared/fault_points.py; docs/faults.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.fault_board.door_faults import (
    KernelSlow,
    MessageCut,
    MessageDoubled,
    MessageLost,
)
from kernel_proc.fault_board.kernel_injection import KernelInjection, living_hca
from kernel_proc.fault_board.kernel_pace import HcaKilled, KernelPaused
from kernel_proc.fault_board.memory_faults import (
    ArenaFails,
    HcaMemoryFails,
    MapRegistersUsedUp,
    PageLockFails,
    PoolFails,
)
from kernel_proc.faults.active_fault import ActiveFault
from kernel_proc.faults.overrides import Overrides
from kernel_proc.hca_abi.fault_words import opcode_of, status_of
from shared.fault_messages import Fault
from shared.fault_points import DEVICE, FAULT_POINTS, MOST_FAULTS, FaultError, check_fault
from shared.message_codec import MessageError, decode_as

if TYPE_CHECKING:
    from kernel_proc.driver.device_link import DeviceLink
    from kernel_proc.fault_board.kernel_parts import KernelParts

INJECTIONS: Final[dict[str, type[KernelInjection]]] = {
    "hca-killed": HcaKilled,
    "kernel-slow": KernelSlow,
    "kernel-paused": KernelPaused,
    "hca-memory-fails": HcaMemoryFails,
    "map-registers-used-up": MapRegistersUsedUp,
    "page-lock-fails": PageLockFails,
    "pool-fails": PoolFails,
    "arena-fails": ArenaFails,
    "message-lost": MessageLost,
    "message-cut": MessageCut,
    "message-doubled": MessageDoubled,
}
_ASKING_NS: Final = 2_000_000_000
_NO_QUEUE_PAIR: Final = (1 << 24) - 1  # the multicast number: nobody has it


class DeviceFault:
    """A fault that is at work in the HCA; `life` is the one it was set in."""

    __slots__ = ("active", "life")

    def __init__(self, active: ActiveFault, life: int) -> None:
        self.active = active
        self.life = life


class FaultBoard:
    """Sets, clears and lists."""

    def __init__(self, parts: "KernelParts", log: Callable[[str], object]) -> None:
        self._parts: Final = parts
        self._log: Final = log
        self._overrides: Final = Overrides()
        self._kernel: Final[dict[int, KernelInjection]] = {}
        self._device: Final[dict[int, DeviceFault]] = {}
        self._last_number = 0

    def set(self, message: bytes) -> dict[str, Any]:
        """Set the fault that a message describes."""
        self._forget_what_is_over()
        try:
            fault = decode_as(Fault, message)
            point = check_fault(fault)
            if len(self._kernel) + len(self._device) >= MOST_FAULTS:
                raise FaultError(f"{MOST_FAULTS} faults are set already: clear some")
            number = self._last_number + 1
            active = ActiveFault(number, fault, self._now_ns())
            if point.place == DEVICE:
                self._set_in_device(active, message)
            else:
                self._set_in_kernel(active)
        except (FaultError, MessageError) as error:
            return {"error": str(error)}
        self._last_number = number
        self._log(f"fault {number} is set: {active}")
        return {"number": number}

    def clear(self, point: str) -> dict[str, Any]:
        """Take back the faults of a point, or all; those that are over do not count."""
        self._forget_what_is_over()
        if point and point not in FAULT_POINTS:
            return {"error": f"there is no fault {point!r}: it is one of {', '.join(FAULT_POINTS)}"}
        in_kernel = [n for n, one in self._kernel.items() if _is_of(one.active, point)]
        in_device = [n for n, one in self._device.items() if _is_of(one.active, point)]
        for number in in_kernel:
            del self._kernel[number]
        self._install()
        for number in in_device:
            del self._device[number]
            link = self._link()
            if link is not None:
                link.clear_fault(number)
        if in_device:
            self._wait_for_device()
        cleared = len(in_kernel) + len(in_device)
        self._log(f"{cleared} faults are cleared{f': {point}' if point else ''}")
        return {"cleared": cleared}

    def list_all(self) -> dict[str, Any]:
        """Tell of every fault that is set, with how many calls fitted and how many it took."""
        self._forget_what_is_over()
        faults = {number: one.active.inspect() for number, one in self._kernel.items()}
        answer: dict[str, Any] = {}
        if self._device:
            told = self._tell()
            if "error" in told:
                answer["error"] = told["error"]
            here = {str(n): one.active.inspect() for n, one in self._device.items()}
            faults |= {int(n): one | told.get("faults", {}).get(n, {}) for n, one in here.items()}
        return {"faults": [faults[number] for number in sorted(faults)], **answer}

    def _set_in_device(self, active: ActiveFault, message: bytes) -> None:
        link = living_hca(self._parts)
        fault = active.fault
        opcode_of(fault)
        if fault.status:
            status_of(fault)
        assert self._parts.hca is not None
        ports = self._parts.hca.device_settings.ports
        if fault.port > ports:
            raise FaultError(f"the HCA has no port {fault.port}: it has 1 to {ports}")
        self._device[active.number] = DeviceFault(active, link.generation)
        link.set_fault(active.number, message)
        self._wait_for_device()

    def _set_in_kernel(self, active: ActiveFault) -> None:
        point = FAULT_POINTS[active.fault.point]
        if point.of_somebody and self._parts.is_of_caller(active.fault):
            raise FaultError("it would strike who sets it, who could then not clear it")
        injection = INJECTIONS[active.fault.point](self._parts, active)
        injection.begin()
        if not active.fault.lasts_ns and not point.counts:
            return  # it has been done
        self._kernel[active.number] = injection
        self._install()

    def _install(self) -> None:
        """Replace what the faults of now replace, and nothing else."""
        self._overrides.undo()
        for injection in self._kernel.values():
            injection.install(self._overrides)

    def _forget_what_is_over(self) -> None:
        now = self._now_ns()
        over = [n for n, one in self._kernel.items() if one.active.is_over(now)]
        for number in over:
            del self._kernel[number]
        if over:
            self._install()
        link = self._link()
        life = link.generation if link is not None and not link.dead else -1
        for number, one in list(self._device.items()):
            if one.life != life or one.active.is_over(now):
                del self._device[number]

    def _wait_for_device(self) -> None:
        # Mail is served in order: when this answer is there, so is what was sent before it.
        link = self._link()
        if link is not None:
            link.inspect_device(_ASKING_NS, _NO_QUEUE_PAIR)

    def _tell(self) -> dict[str, Any]:
        link = self._link()
        return link.inspect_device(_ASKING_NS) if link is not None else {}

    def _link(self) -> "DeviceLink | None":
        return self._parts.hca.link if self._parts.hca is not None else None

    def _now_ns(self) -> int:
        return self._parts.processor.clock.now_ns()


def _is_of(active: ActiveFault, point: str) -> bool:
    return point in ("", active.fault.point)
