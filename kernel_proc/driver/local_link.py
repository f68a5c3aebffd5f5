"""The HCA as an object of this very process: stepped by the dispatcher, no process, no sockets.

A poke has it stepped as hardware after the present thread has left or waits; an idle processor
steps it until it has nothing to do, and then up to its next deadline on the virtual clock. So a
run can be repeated exactly.

Rules: dispatcher's OS thread; nothing here waits.
Spec: kernel_proc/hca_abi/registers.py.
"""

import fcntl
from collections.abc import Callable
from typing import Any, Final, Protocol

from kernel_proc.driver.device_inspection import NO_ANSWER
from kernel_proc.driver.status_page import StatusPage
from kernel_proc.hca_abi.registers import (
    CATASTROPHIC_OFFSET,
    KERNEL_SLEEPS_OFFSET,
    LINE_OFFSET,
    REGISTER_PAGE_SIZE,
)
from kernel_proc.scheduling.interrupt_line import InterruptLine
from kernel_proc.scheduling.processor import Processor
from shared.doorbell_layout import SEGMENT_LENGTH
from shared.segment import map_segment


class Device(Protocol):
    """What an HCA offers to whoever runs it."""

    def add_segment(self, number: int, view: memoryview | None, memory_fd: int = -1) -> None:
        """Learn of memory; a descriptor is the device's from now on."""

    def remove_segment(self, number: int) -> None:
        """Forget memory."""

    def add_doorbells(self, number: int, view: memoryview) -> None:
        """Learn of a doorbell segment."""

    def remove_doorbells(self, number: int) -> None:
        """Forget a doorbell segment."""

    def run_once(self) -> bool:
        """Do one round; False if there was nothing to do."""

    def next_deadline_ns(self) -> int | None:
        """Return when there will be something to do although nobody rings."""

    def set_fault(self, number: int, fault: bytes) -> None:
        """Put a fault to work."""

    def clear_fault(self, number: int) -> None:
        """Take a fault back, 0: every one."""

    def inspect(self) -> dict[str, Any]:
        """Return the state as plain values."""

    def inspect_queue_pair(self, number: int) -> dict[str, Any]:
        """Return what a queue pair was last asked to do; empty if there is none."""


#: registers, status page, what raises the interrupt line of a sleeping processor
MakeDevice = Callable[[memoryview, memoryview, Callable[[], None]], Device]

_DEAD: Final = 1


class LocalLink:
    """A DeviceLink around the device that `make_device` makes, again at each restart."""

    def __init__(self, processor: Processor, make_device: MakeDevice) -> None:
        self._processor = processor
        self._make_device = make_device
        self.registers = memoryview(bytearray(REGISTER_PAGE_SIZE))
        self.line = InterruptLine(processor, self.registers, LINE_OFFSET, KERNEL_SLEEPS_OFFSET)
        self.generation = 0
        self.on_death: Callable[[str], object] | None = None
        self.dead = False
        self._scheduled = False
        self._segments: dict[int, tuple[memoryview | None, int]] = {}
        self._page = StatusPage()
        self._device: Device | None = self._begin()
        processor.dispatcher.device = self
        self.line.attach()

    @property
    def device(self) -> Device | None:
        """The device itself, None while dead or stopped; for tests and looking inside."""
        return self._device

    def poke(self) -> None:
        """Have the device stepped as soon as the present thread has left or waits."""
        if not self._scheduled and self._device is not None:
            self._scheduled = True
            self._processor.schedule_hardware(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self.step():
            self.poke()

    def step(self) -> bool:
        """Do one round of the device."""
        return self._device is not None and self._device.run_once()

    def next_deadline_ns(self) -> int | None:
        """Return the device's next deadline."""
        return self._device.next_deadline_ns() if self._device is not None else None

    @property
    def status_page(self) -> memoryview:
        """The page of the present generation."""
        return self._page.view

    def add_segment(self, number: int, view: memoryview | None, descriptor: int) -> None:
        """Tell of memory; the device gets a descriptor of its own."""
        self._segments[number] = (view, descriptor)
        if self._device is not None:
            self._announce(self._device, number)

    def remove_segment(self, number: int) -> None:
        """Take memory back."""
        del self._segments[number]
        if self._device is not None:
            self._device.remove_segment(number)

    def add_doorbells(self, number: int, segment: int, poke: int) -> None:
        """Tell of a doorbell segment; its eventfd wakes nobody here, as an idle processor looks."""
        if self._device is not None:
            view = memoryview(map_segment(segment, SEGMENT_LENGTH))
            self._device.add_doorbells(number, view)

    def remove_doorbells(self, number: int) -> None:
        """Take a doorbell segment back."""
        if self._device is not None:
            self._device.remove_doorbells(number)

    def status_descriptor(self) -> int:
        """Return a read-only descriptor of the status page."""
        return self._page.descriptor_for_users()

    def set_fault(self, number: int, fault: bytes) -> None:
        """Put a fault to work in the device."""
        if self._device is not None:
            self._device.set_fault(number, fault)
            self.poke()

    def clear_fault(self, number: int) -> None:
        """Take a fault of the device back."""
        if self._device is not None:
            self._device.clear_fault(number)
            self.poke()

    def kill(self, reason: str) -> None:
        """End the device as the death of its process would."""
        if self._device is None:
            return
        self._device = None
        self.dead = True
        self._page.set_fatal(_DEAD)
        if self.on_death is not None:
            self.on_death(reason)

    def restart(self) -> None:
        """Begin another device on zeroed registers."""
        self._device = None
        self.registers[:] = bytes(REGISTER_PAGE_SIZE)
        self._page.set_fatal(_DEAD)
        self._page.close()
        self._page = StatusPage()
        self.line.reset()
        self.generation += 1
        self._device = device = self._begin()
        self.dead = False
        for number in self._segments:
            self._announce(device, number)

    def stop(self, limit_ns: int) -> bool:
        """End the device, at once."""
        self.close()
        return True

    def close(self) -> None:
        """End the device and step it no more."""
        self._device = None
        if self._processor.dispatcher.device is self:
            self._processor.dispatcher.device = None
            self.line.detach()
        self._page.close()

    def inspect(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {
            "process": 0,
            "dead": self.dead,
            "generation": self.generation,
            "line_raised": self.line.raises,
            "segments": len(self._segments),
            "catastrophic": any(self.registers[CATASTROPHIC_OFFSET : CATASTROPHIC_OFFSET + 64]),
        }

    def inspect_device(self, limit_ns: int, queue_pair: int = 0) -> dict[str, Any]:
        """Have the device tell, at once and at any IRQL."""
        if self._device is None:
            return {"error": NO_ANSWER}
        if queue_pair:
            return self._device.inspect_queue_pair(queue_pair)
        return self._device.inspect()

    def _begin(self) -> Device:
        # The processor of this machine never sleeps, so there is nobody to wake.
        return self._make_device(self.registers, self.status_page, lambda: None)

    def _announce(self, device: Device, number: int) -> None:
        view, descriptor = self._segments[number]
        if view is not None:
            device.add_segment(number, view)
        else:
            device.add_segment(number, None, fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3))
