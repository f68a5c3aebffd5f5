"""The device extension: the HCA's present life, its death and its reset, and the open contexts.

The bring-up runs in a system thread; opens wait until it is settled. When the HCA dies every
command that is waited for ends, every context is told, and all later verbs are refused; only a
reset begins another life. Contexts of an earlier life stay dead, and keep what the driver holds
for them until they are closed.

Rules: `fail` at <= DISPATCH_LEVEL; the rest at PASSIVE_LEVEL in a thread that may wait.
Spec: docs/hca-driver.md; Linux mthca_catas.c, mthca_main.c (__mthca_restart_one).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.bring_up import bring_up, take_down
from kernel_proc.driver.context import Context
from kernel_proc.driver.hca_driver import HcaDriver
from kernel_proc.driver.limits import Profile
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from shared.nt_status import (
    STATUS_DEVICE_NOT_READY,
    STATUS_IO_DEVICE_ERROR,
    STATUS_SUCCESS,
)

if TYPE_CHECKING:
    from kernel_proc.driver.device_link import DeviceLink
    from kernel_proc.driver.event_sinks import EventSinks
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.io_manager.namespace import IoManager
    from kernel_proc.memory.dma_adapter import DmaAdapter
    from kernel_proc.memory.kernel_memory import KernelMemory

STOP_LIMIT_NS: Final = 2_000_000_000


class HcaExtension:
    """What the driver keeps for its device; `settled` is signalled when the bring-up is over."""

    def __init__(
        self,
        io: "IoManager",
        link: "DeviceLink",
        memory: "KernelMemory",
        log: Callable[[str], object],
        make_sinks: Callable[[HcaDriver], "EventSinks"],
        profile: Profile,
        *,
        adapter: "DmaAdapter",
        allocation: str,
        polls_commands: bool,
    ) -> None:
        self._io = io
        self._link = link
        self._memory = memory
        self._log = log
        self._make_sinks = make_sinks
        self._profile = profile
        self._adapter = adapter
        self._allocation = allocation
        self._polls_commands = polls_commands
        self._changing = Mutex(io.processor)  # one bring-up, reset or unload at a time
        self._contexts: dict[int, Context] = {}
        self._next_context = 1
        self._up = False
        self._failure = ""
        self.resets = 0
        self.settled = Event(io.processor, notification=True)
        self.life = self._new_life()
        link.on_death = self._link_died

    def start(self) -> None:
        """Begin the bring-up; opens wait for it."""
        create_system_thread(self._io.processor, self._first_bring_up, name="bring-up of the HCA")

    def _first_bring_up(self) -> None:
        self._changing.wait()
        try:
            self._bring_up()
        finally:
            self._changing.release()

    def _new_life(self) -> HcaDriver:
        life = HcaDriver(
            self._io,
            self._link,
            self._memory,
            self._log,
            self._link.generation,
            self._profile,
            self._make_sinks,
            adapter=self._adapter,
            allocation=self._allocation,
            polls_commands=self._polls_commands,
        )
        life.channel.on_fatal = self.fail
        return life

    def _bring_up(self) -> None:
        life = self.life
        clock = self._io.processor.clock
        started_ns = clock.now_ns()
        if self._link.dead:
            self.fail("it ended before it was asked anything")
        try:
            bring_up(life, self.fail)
        except VerbRefused as refusal:
            # Of an HCA that has died it is known already what it died of.
            self._failure = self._failure if life.dead else str(refusal)
            life.dead = True
            life.stop_interrupts()
            self._log(f"the HCA did not come up, the device cannot be opened: {self._failure}")
        else:
            self._up = True
            self._failure = ""
            took_us = (clock.now_ns() - started_ns) // 1000
            count = sum(life.channel.executed.values())
            self._log(f"the HCA is up after {count} commands in {took_us} us")
        self.settled.set()

    # Death and reset

    def _link_died(self, reason: str) -> None:
        self.fail(reason)

    def fail(self, reason: str) -> None:
        """Declare the HCA dead: nothing more is asked of it before a reset."""
        life = self.life
        if life.dead:
            return
        life.dead = True
        self._failure = reason
        self._log(f"the HCA is dead, {len(life.contexts)} contexts with it: {reason}")
        life.channel.fail()
        if self._up:
            life.event_sinks.device_fatal()
        life.stop_interrupts()

    def reset(self) -> bool:
        """End this life of the HCA and begin another; True if it came up."""
        self._changing.wait()
        try:
            self.settled.clear()
            self.fail("it is reset")
            try:
                self._link.restart()
            except OSError as error:
                self._failure = f"another cannot be started: {error.strerror}"
                self._log(f"the HCA stays dead: {self._failure}")
                self.settled.set()
                return False
            self.life.release_memory()
            self._up = False
            self.resets += 1
            verbs = self.life.verbs
            self.life = self._new_life()
            self.life.verbs = verbs
            self._bring_up()
            return self._up
        finally:
            self._changing.release()

    def stop(self) -> None:
        """Take the HCA down in order; no file of the device is open any more."""
        self.settled.wait()
        self._changing.wait()
        try:
            if self._up:
                take_down(self.life)
        except VerbRefused as refusal:
            self._log(f"the HCA was not taken down in order: {refusal}")
        finally:
            self.life.stop_interrupts()
            self.life.dead = True
            if not self._link.stop(STOP_LIMIT_NS):
                self._log("the HCA did not stop in time and was ended by force")
            self.life.release_memory()
            self._changing.release()

    # Contexts

    def refusal_to_open(self) -> int:
        """Return why the device cannot be opened, or STATUS_SUCCESS."""
        if not self._up:
            return STATUS_DEVICE_NOT_READY
        return STATUS_IO_DEVICE_ERROR if self.life.dead else STATUS_SUCCESS

    def open(self, file: "FileObject") -> Context:
        """Make the context of a file."""
        life, process = self.life, file.process
        context = Context(life, self._next_context, file, process)
        self._next_context += 1
        self._contexts[context.number] = life.contexts[context.number] = context
        return context

    def close(self, context: Context) -> None:
        """Free everything a context has; its file is closed."""
        clock = self._io.processor.clock
        started_ns = clock.now_ns()
        count = context.run_down()
        del self._contexts[context.number]
        life = context.driver
        del life.contexts[context.number]
        took_us = (clock.now_ns() - started_ns) // 1000
        if count:
            self._log(f"{context} closed: {count} objects freed in {took_us} us")

    def inspect_queue_pair(self, number: int, limit_ns: int) -> dict[str, Any]:
        """Have the HCA tell what a QP was last asked to do, as `inspect_device` of its link."""
        return self._link.inspect_device(limit_ns, number)

    def inspect(self) -> dict[str, Any]:
        """Return the present life, and the contexts of earlier ones."""
        life = self.life
        return {
            "up": self._up and not life.dead,
            "failure": self._failure,
            "resets": self.resets,
            "link": self._link.inspect(),
            "hca": life.inspect() if self._up else {},
            "dead_contexts": [
                context.inspect()
                for context in list(self._contexts.values())
                if context.driver is not life
            ],
        }
