"""Messages of a client that are lost, cut or doubled before the door has seen them; a slow door.

Spec: docs/the-door.md (What a message may be).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from kernel_proc.fault_board.kernel_injection import KernelInjection
from kernel_proc.fault_board.kernel_parts import Receive, names
from kernel_proc.faults.overrides import Overrides
from shared.fault_points import HEADER_PART

_DROPPED: Final = "a fault"


class DoorInjection(KernelInjection, ABC):
    """Stands before `SessionServer.receive`, wherever messages come from."""

    def install(self, overrides: Overrides) -> None:
        """Put itself before the door, and have the socket hand its messages to it."""
        server = self.parts.server
        overrides.replace(server, "receive", lambda receive: self._around(receive))
        if self.parts.requests is not None:
            overrides.replace(self.parts.requests, "receive", lambda former: server.receive)

    def _around(self, receive: Receive) -> Receive:
        def receive_or_not(identity: bytes, frames: Sequence[bytes]) -> None:
            if self.fits(frames) and self.active.strikes():
                self.strikes(receive, identity, frames)
            else:
                receive(identity, frames)

        return receive_or_not

    def fits(self, frames: Sequence[bytes]) -> bool:
        """Tell whether a message is of a session the fault is about."""
        session = self.parts.sender_of(frames)
        return session is not None and names(self.active.fault, session)

    @abstractmethod
    def strikes(self, receive: Receive, identity: bytes, frames: Sequence[bytes]) -> None:
        """Do to a message what the fault is."""


class MessageLost(DoorInjection):
    """It never arrives."""

    def strikes(self, receive: Receive, identity: bytes, frames: Sequence[bytes]) -> None:
        """Drop it, and count it with the others that are dropped."""
        self.parts.server.dropped[_DROPPED] += 1


class MessageCut(DoorInjection):
    """The second half of its header, or of its payload, is missing."""

    def fits(self, frames: Sequence[bytes]) -> bool:
        """Take messages that have the part."""
        return super().fits(frames) and (self._place() < len(frames))

    def strikes(self, receive: Receive, identity: bytes, frames: Sequence[bytes]) -> None:
        """Hand over what is left."""
        place = self._place()
        part = frames[place]
        receive(identity, [*frames[:place], part[: len(part) // 2], *frames[place + 1 :]])

    def _place(self) -> int:
        return 0 if self.active.fault.part == HEADER_PART else 1


class MessageDoubled(DoorInjection):
    """It arrives twice."""

    def strikes(self, receive: Receive, identity: bytes, frames: Sequence[bytes]) -> None:
        """Hand it over twice."""
        receive(identity, frames)
        receive(identity, frames)


class KernelSlow(DoorInjection):
    """The kernel is busy with something else for a time before each message."""

    def fits(self, frames: Sequence[bytes]) -> bool:
        """Take every message if nobody is named, as long as the fault is there."""
        fault = self.active.fault
        return self.is_there and (not (fault.session or fault.process) or super().fits(frames))

    def strikes(self, receive: Receive, identity: bytes, frames: Sequence[bytes]) -> None:
        """Be busy, then take it."""
        self.parts.hold(self.active.fault.time_ns)
        receive(identity, frames)
