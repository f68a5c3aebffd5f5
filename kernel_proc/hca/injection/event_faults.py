"""Interrupts that are lost or come twice, event queues without room, a port that goes down.

Spec: docs/hca-process.md; docs/notification.md.
"""

from collections.abc import Callable

from kernel_proc.faults.overrides import Overrides
from kernel_proc.hca.event_table import EventQueue
from kernel_proc.hca.injection.injection import Injection
from kernel_proc.hca.port import ACTIVE, DOWN

RaiseLine = Callable[[], None]


class InterruptLost(Injection):
    """The line is not raised: entries that were written are found at the next interrupt."""

    def install(self, overrides: Overrides) -> None:
        """Raise the line of a device that is dead in any case."""

        def make(raise_line: RaiseLine) -> RaiseLine:
            def raise_or_not() -> None:
                if self.device.dead or not self.active.strikes():
                    raise_line()

            return raise_or_not

        overrides.replace(self.device, "_raise_line", make)


class InterruptDoubled(Injection):
    """The line is raised once more a round later, when there is nothing new."""

    def install(self, overrides: Overrides) -> None:
        """Have the next round raise it again; that time it is not counted."""
        again: list[bool] = []

        def make(raise_line: RaiseLine) -> RaiseLine:
            def raise_twice() -> None:
                raise_line()
                if again:
                    again.clear()
                elif self.active.strikes():
                    again.append(True)
                    self.device.tables.events.raised = True

            return raise_twice

        overrides.replace(self.device, "_raise_line", make)


class EventQueueFull(Injection):
    """No event queue has room: events wait in the device, each once, and are told afterwards."""

    def install(self, overrides: Overrides) -> None:
        """Find room nowhere."""

        def make(has_room: Callable[[EventQueue], bool]) -> Callable[[EventQueue], bool]:
            def has_none(queue: EventQueue) -> bool:
                self.active.strikes()
                return False

            return has_none

        overrides.replace(self.device.tables.events, "_has_room", make)


class PortDown(Injection):
    """A port is down, with the events of that, and comes up again."""

    def begin(self) -> None:
        """Take it down, unless it is."""
        ports = self.device.tables.ports
        number = self.active.fault.port
        self._port = ports[number - 1] if number <= len(ports) else None
        if self._port is not None and self._port.state == ACTIVE:
            self.active.strikes()
            self._port.set_state(DOWN)
        else:
            self._port = None

    def end(self) -> None:
        """Bring it up, if it was taken down here and nobody else did since."""
        if self._port is not None and self._port.state == DOWN:
            self._port.set_state(ACTIVE)
