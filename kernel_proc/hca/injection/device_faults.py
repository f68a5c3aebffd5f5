"""The faults of one HCA: set and cleared by number, over by themselves, told with the state.

While none is set nothing of this is in any path: `HcaDevice.run_once`, `Port.send` and the rest are
the methods of their classes.

Rules: between two rounds.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from kernel_proc.faults.active_fault import ActiveFault
from kernel_proc.faults.overrides import Overrides
from kernel_proc.hca.injection.command_faults import CommandFails, CommandLate, CompletionLost
from kernel_proc.hca.injection.device_pace import HcaFailed, HcaPaused, HcaSlow
from kernel_proc.hca.injection.event_faults import (
    EventQueueFull,
    InterruptDoubled,
    InterruptLost,
    PortDown,
)
from kernel_proc.hca.injection.injection import Injection
from kernel_proc.hca.injection.link_faults import (
    AckLost,
    LinkDown,
    LocalKeyCorrupt,
    RemoteKeyCorrupt,
    RequestDoubled,
    RequestLost,
)
from kernel_proc.hca_abi.inspection_text import Part
from shared.fault_messages import Fault

if TYPE_CHECKING:
    from kernel_proc.hca.hca_device import HcaDevice

INJECTIONS: Final[dict[str, type[Injection]]] = {
    "command-fails": CommandFails,
    "command-late": CommandLate,
    "completion-lost": CompletionLost,
    "interrupt-lost": InterruptLost,
    "interrupt-doubled": InterruptDoubled,
    "event-queue-full": EventQueueFull,
    "port-down": PortDown,
    "link-down": LinkDown,
    "request-lost": RequestLost,
    "request-doubled": RequestDoubled,
    "ack-lost": AckLost,
    "remote-key-corrupt": RemoteKeyCorrupt,
    "local-key-corrupt": LocalKeyCorrupt,
    "hca-slow": HcaSlow,
    "hca-paused": HcaPaused,
    "hca-failed": HcaFailed,
}


class DeviceFaults:
    """What is set in a device."""

    def __init__(self, device: "HcaDevice", clock_ns: Callable[[], int]) -> None:
        self._device: Final = device
        self._clock_ns: Final = clock_ns
        self._overrides: Final = Overrides()
        self._set: Final[dict[int, Injection]] = {}
        self._still_until_ns = 0

    def set(self, number: int, fault: Fault) -> None:
        """Put a fault to work under a number that is free; it has been judged."""
        active = ActiveFault(number, fault, self._clock_ns())
        injection = INJECTIONS[fault.point](self._device, active)
        self._set[number] = injection
        injection.begin()
        self._install()

    def clear(self, number: int) -> None:
        """Take a fault back, 0: every one; unknown ones are over already."""
        gone = [n for n in self._set if number in (0, n)]
        for one in gone:
            self._set.pop(one).end()
        self._install()

    def _install(self) -> None:
        """Replace what the faults of now replace, and nothing else."""
        self._overrides.undo()
        if not self._set:
            self._still_until_ns = 0
            return
        overrides, device = self._overrides, self._device
        for injection in self._set.values():
            injection.install(overrides)
        overrides.replace(device, "run_once", lambda run_once: lambda: self._run_once(run_once))
        overrides.replace(device, "next_deadline_ns", lambda ask: lambda: self._deadline_ns(ask))
        overrides.replace(device, "parts", lambda parts: lambda: self._parts(parts))

    def _run_once(self, run_once: Callable[[], bool]) -> bool:
        now = self._clock_ns()
        over = [n for n, one in self._set.items() if one.active.is_over(now)]
        for number in over:
            self._set.pop(number).end()
        if over:
            self._install()
            run_once()  # which raises the line for what was told
            return True
        if self._is_still(now):
            return False
        busy = run_once()
        pause = max((one.pause_ns(busy) for one in self._set.values()), default=0)
        if pause:
            self._still_until_ns = self._clock_ns() + pause
        return busy

    def _is_still(self, now: int) -> bool:
        return now < self._still_until_ns or any(
            isinstance(one, HcaPaused) for one in self._set.values()
        )

    def _deadline_ns(self, ask: Callable[[], int | None]) -> int | None:
        now = self._clock_ns()
        times = [one.active.until_ns for one in self._set.values()]
        if now < self._still_until_ns:
            times.append(self._still_until_ns)
        elif not self._is_still(now):
            times.append(ask())
        return min((time for time in times if time is not None), default=None)

    def _parts(self, parts: Callable[[], Iterator[Part]]) -> Iterator[Part]:
        yield from parts()
        yield ("faults",), {}
        for number, one in list(self._set.items()):
            yield ("faults", str(number)), one.active.inspect()
