"""Floors inside the kernel: what its own parts take without any request.

Rules: PASSIVE_LEVEL; an instance is one operation, called again and again, then closed.
"""

from typing import TYPE_CHECKING

from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.kthread import create_system_thread

if TYPE_CHECKING:
    from kernel_proc.memory.address_space import AddressSpace
    from kernel_proc.scheduling.processor import Processor


class ThreadSwitch:
    """Hand an event to another system thread and wait for it to be handed back."""

    __slots__ = ("_closing", "_ping", "_pong")

    def __init__(self, processor: "Processor") -> None:
        self._ping = Event(processor, notification=False)
        self._pong = Event(processor, notification=False)
        self._closing = False
        create_system_thread(processor, self._partner, name="thread-switch floor")

    def __call__(self) -> None:
        """Switch there and back."""
        self._ping.set()
        self._pong.wait()

    def _partner(self) -> None:
        ping, pong = self._ping, self._pong
        ping.wait()
        while not self._closing:
            pong.set()
            ping.wait()

    def close(self) -> None:
        """Let the partner end."""
        self._closing = True
        self._ping.set()


class ClockReading:
    """Nothing at all: what two readings of the clock around nothing take."""

    def __call__(self) -> None:
        """Do nothing; the call itself is part of every timed operation."""

    def close(self) -> None:
        """Nothing is held."""


class MemoryCopy:
    """Copy so many bytes from one place of the kernel's memory to another."""

    __slots__ = ("_source", "_target")

    def __init__(self, payload: int) -> None:
        self._source = memoryview(bytes(payload))
        self._target = memoryview(bytearray(payload))

    def __call__(self) -> None:
        """Copy once."""
        self._target[:] = self._source

    def close(self) -> None:
        """Nothing is held."""


class PrivateCopy:
    """Copy so many bytes of a user's private memory into the kernel, by the private road."""

    __slots__ = ("_address", "_length", "_space")

    def __init__(self, space: "AddressSpace", address: int, payload: int) -> None:
        self._space = space
        self._address = address
        self._length = payload

    def __call__(self) -> None:
        """Copy once; raise AccessViolation if the user cannot read it himself."""
        self._space.read(self._address, self._length)

    def close(self) -> None:
        """Nothing is held."""
