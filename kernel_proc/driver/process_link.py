"""The HCA as a process of its own: started, told of memory, watched, reset and stopped.

Between the two there are bytes only: the register page, what the control socket hands over, one
eventfd each way. The process is watched by its pidfd; its end is the death of the device, never
the kernel's, and the end of the kernel is the end of the socket, at which the process ends.

Rules: dispatcher's OS thread; see `device_link` for who may wait.
Spec: kernel_proc/hca_abi/registers.py and device_packets.py; docs/hca-process.md.
"""

import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import Any, Final

from kernel_proc.driver.device_inspection import DeviceInspector
from kernel_proc.driver.hca_child import HcaChild, spawn_hca
from kernel_proc.driver.packet_sender import PacketSender
from kernel_proc.driver.status_page import StatusPage
from kernel_proc.hca_abi.device_packets import (
    ADD_DOORBELLS,
    ADD_SEGMENT,
    CLEAR_FAULT,
    PRIVATE,
    REMOVE_DOORBELLS,
    REMOVE_SEGMENT,
    SET_FAULT,
    SHARED,
    START,
    STOP,
    DevicePacket,
)
from kernel_proc.hca_abi.registers import (
    CATASTROPHIC_OFFSET,
    HCA_SLEEPS_OFFSET,
    KERNEL_MOVED_OFFSET,
    KERNEL_SLEEPS_OFFSET,
    LINE_OFFSET,
    REGISTER_PAGE_SIZE,
    SENT_OFFSET,
    SERVED_OFFSET,
)
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.interrupt_line import InterruptLine
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from kernel_proc.scheduling.processor import Processor
from shared.doorbell_layout import SEGMENT_LENGTH
from shared.live_words import full_fence, words64
from shared.nt_status import STATUS_SUCCESS
from shared.segment import create_segment, map_segment

_WORD: Final = 8
_DEAD: Final = 1
_LONGEST_WORDS: Final = 4096
_KILL_NS: Final = 5_000_000_000  # a killed process has gone long before
_CLOSE_MS: Final = 500
_GIVES_UP: Final = "the HCA cannot go on: "  # and why, in a sentence

Log = Callable[[str], object]


class ProcessLink:
    """A DeviceLink to a process; `child` may have been started beforehand.

    `settings` is what the HCA is told, encoded. What the process says on its standard error goes
    to `trouble`.
    """

    def __init__(
        self,
        processor: Processor,
        settings: bytes,
        trouble: Log,
        child: HcaChild | None = None,
    ) -> None:
        self._processor = processor
        self._settings = settings
        self._trouble = trouble
        self._register_descriptor = create_segment("softhca-registers", REGISTER_PAGE_SIZE)
        self.registers = memoryview(map_segment(self._register_descriptor, REGISTER_PAGE_SIZE))
        words = words64(self.registers)
        self._sleeps = words[HCA_SLEEPS_OFFSET // _WORD :]
        self._sent = words[SENT_OFFSET // _WORD :]
        self._moved = words[KERNEL_MOVED_OFFSET // _WORD :]
        self._served = words[SERVED_OFFSET // _WORD :]
        self._processors: set[int] = set()  # that the kernel may run on
        self.line = InterruptLine(processor, self.registers, LINE_OFFSET, KERNEL_SLEEPS_OFFSET)
        self._poke = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._line_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.generation = 0
        self._on_death: Callable[[str], object] | None = None
        self._untold = ""  # the reason of a death that nobody has been told of
        self.dead = False
        self.pid = 0
        self._expected = False  # the end of the process
        self._last_words = ""
        self._segments: dict[int, tuple[memoryview | None, int]] = {}
        self._gone = Event(processor, notification=True)
        self._child: HcaChild | None = None
        self._page = StatusPage()
        self._inspector = DeviceInspector(processor, self._living_sender, self._served, self.poke)
        self._closed = False
        processor.add_source(self._line_event, self._line_woke)
        self.line.attach()
        self._sender = self._begin(child if child is not None else spawn_hca())

    # Registers and memory

    def poke(self) -> None:
        """Wake the HCA if it sleeps; it looks at its registers by itself otherwise."""
        full_fence()
        if self._sleeps[0]:
            with contextlib.suppress(BlockingIOError):  # so often unread: it will wake
                os.eventfd_write(self._poke, 1)

    @property
    def status_page(self) -> memoryview:
        """The page of the present generation."""
        return self._page.view

    def add_segment(self, number: int, view: memoryview | None, descriptor: int) -> None:
        """Tell of memory; once known here it is told again after every restart."""
        self._segments[number] = (view, descriptor)
        self._announce(number)

    def remove_segment(self, number: int) -> None:
        """Take memory back."""
        del self._segments[number]
        self._send(DevicePacket(REMOVE_SEGMENT, number))

    def add_doorbells(self, number: int, segment: int, poke: int) -> None:
        """Tell of a doorbell segment."""
        self._send(DevicePacket(ADD_DOORBELLS, number, SEGMENT_LENGTH), segment, poke)

    def remove_doorbells(self, number: int) -> None:
        """Take a doorbell segment back."""
        self._send(DevicePacket(REMOVE_DOORBELLS, number))

    def set_fault(self, number: int, fault: bytes) -> None:
        """Hand a fault over."""
        self._send(DevicePacket(SET_FAULT, number, body=fault))
        self.poke()

    def clear_fault(self, number: int) -> None:
        """Take a fault back."""
        self._send(DevicePacket(CLEAR_FAULT, number))
        self.poke()

    def status_descriptor(self) -> int:
        """Return a read-only descriptor of the status page.

        OSError until the HCA has mapped it, which the seal would forbid afterwards.
        """
        if not self._served[0]:
            raise BlockingIOError("the HCA has not begun")
        return self._page.descriptor_for_users()

    # Life and death

    @property
    def on_death(self) -> Callable[[str], object] | None:
        """Who is told when the process has ended unasked; at once, if it has already."""
        return self._on_death

    @on_death.setter
    def on_death(self, callback: Callable[[str], object] | None) -> None:
        self._on_death = callback
        if callback is not None and self._untold:
            reason, self._untold = self._untold, ""
            callback(reason)

    def restart(self) -> None:
        """Kill what is there and begin another; PASSIVE_LEVEL, waits for the process's end."""
        self._processor.require_irql(PASSIVE_LEVEL, "restart of the HCA")
        self._kill()
        self.registers[:] = bytes(REGISTER_PAGE_SIZE)
        self.line.reset()
        self._page.close()
        self._page = StatusPage()
        self.generation += 1
        self._sender = self._begin(spawn_hca())
        self.dead = False
        for number in list(self._segments):
            if number in self._segments:  # sending may wait
                self._announce(number)

    def kill(self, reason: str) -> None:
        """Have the process killed, which is then noticed as any death of it."""
        if self._child is not None:
            self._trouble(f"the HCA is killed: {reason}")
            signal.pidfd_send_signal(self._child.pidfd, signal.SIGKILL)

    def stop(self, limit_ns: int) -> bool:
        """Ask the HCA to end; kill it after the limit. PASSIVE_LEVEL, waits."""
        self._processor.require_irql(PASSIVE_LEVEL, "stop of the HCA")
        self._expected = True
        self._send(DevicePacket(STOP))
        self.poke()
        if self._gone.wait(limit_ns) == STATUS_SUCCESS:
            return True
        self._kill()
        return False

    def close(self) -> None:
        """Give everything back, and leave no process, whatever the machine's state."""
        if self._closed:
            return
        self._closed = True
        self._expected = True
        self._inspector.drop()
        self.line.detach()
        self._processor.remove_source(self._line_event)
        child = self._child
        if child is not None:
            self._sender.close()
            _end_now(child)
            self._forget(child)
        self._page.close()
        for descriptor in (self._register_descriptor, self._poke, self._line_event):
            os.close(descriptor)

    def inspect(self) -> dict[str, Any]:
        """Return the state as plain values."""
        catastrophic = self.registers[CATASTROPHIC_OFFSET : CATASTROPHIC_OFFSET + _WORD * 8]
        return {
            "process": self.pid,
            "dead": self.dead,
            "generation": self.generation,
            "line_raised": self.line.raises,
            "packets_sent": self._sent[0],
            "packets_served": self._served[0],
            "segments": len(self._segments),
            "sleeps": not self.dead and bool(self._sleeps[0]),
            "catastrophic": any(catastrophic),
        }

    def inspect_device(self, limit_ns: int, queue_pair: int = 0) -> dict[str, Any]:
        """Ask the HCA and wait; one that owes an answer is not asked again before it has come."""
        self._processor.require_irql(PASSIVE_LEVEL, "inspection of the HCA")
        return self._inspector.ask(queue_pair, limit_ns)

    def _living_sender(self) -> PacketSender | None:
        return self._sender if self._child is not None and not self.dead else None

    def _begin(self, child: HcaChild) -> PacketSender:
        self._child = child
        self.pid = child.pid
        self._expected = False
        self._last_words = ""
        self._untold = ""
        self._gone.clear()
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            self._processors = os.sched_getaffinity(0)
        processor = self._processor
        processor.add_source(child.pidfd, self._ended)
        processor.add_source(child.output, self._hear)
        sender = PacketSender(processor, child.control, self._sent)
        sender.send(
            DevicePacket(START, body=self._settings),
            (self._register_descriptor, self._page.descriptor, self._poke, self._line_event),
        )
        return sender

    def _announce(self, number: int) -> None:
        view, descriptor = self._segments[number]
        if view is None:
            packet = DevicePacket(ADD_SEGMENT, number, 0, PRIVATE)
        else:
            packet = DevicePacket(ADD_SEGMENT, number, len(view), SHARED)
        self._send(packet, descriptor)

    def _send(self, packet: DevicePacket, *descriptors: int) -> None:
        child = self._child
        if child is None:  # it will be told when there is one again
            return
        if not self._sender.send(packet, descriptors) and child is self._child:
            self._trouble("the HCA does not take its mail and is ended")
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)

    def _kill(self) -> None:
        self._expected = True
        if self._child is not None:
            self.dead = True
            signal.pidfd_send_signal(self._child.pidfd, signal.SIGKILL)
            self._gone.wait(_KILL_NS)

    def _ended(self) -> None:
        # Called by the dispatcher when the pidfd is readable.
        child = self._child
        if child is None:
            return
        self._hear()
        reason = _describe_end(os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED), self._last_words)
        self._sender.close()
        self._forget(child)
        if self._moved[0]:  # it ended while it woke this thread on another processor
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._processors)
        self.dead = True
        self._inspector.drop()
        self._page.set_fatal(_DEAD)
        self._gone.set()
        if not self._expected:
            self._trouble(f"the HCA's process {child.pid} has ended: {reason}")
            if self._on_death is not None:
                self._on_death(reason)
            else:
                self._untold = reason

    def _forget(self, child: HcaChild) -> None:
        self._child = None
        self._processor.remove_source(child.pidfd)
        self._processor.remove_source(child.output)
        os.close(child.pidfd)
        os.close(child.output)

    def _hear(self) -> None:
        # What the process says; at the end of the pipe there is no more to hear.
        child = self._child
        if child is None:
            return
        try:
            said = os.read(child.output, _LONGEST_WORDS)
        except BlockingIOError:
            return
        if not said:
            self._processor.remove_source(child.output)
            return
        for line in said.decode("utf-8", "replace").splitlines():
            self._last_words = line
            self._trouble(f"HCA: {line}")

    def _line_woke(self) -> None:
        # The dispatcher compares the line's word at each pass; here it only was woken.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._line_event)


def _describe_end(end: Any, last_words: str) -> str:
    if last_words.startswith(_GIVES_UP):
        return last_words.removeprefix(_GIVES_UP)
    if end.si_code == os.CLD_EXITED:
        how = f"exit code {end.si_status}"
    else:
        how = f"signal {end.si_status}"
    return f"{how}; its last words: {last_words}" if last_words else how


def _end_now(child: HcaChild) -> None:
    """Wait a moment for a process whose socket has ended, then kill it; reap it."""
    poll = select.poll()
    poll.register(child.pidfd, select.POLLIN)
    if not poll.poll(_CLOSE_MS):
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED)
