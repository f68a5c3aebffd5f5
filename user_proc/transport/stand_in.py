"""What takes the place of a port's send when its socket must not be used as it is.

Rules: a stand-in keeps no port alive: a port has to end with its thread, not with a collection.
"""

import weakref
from typing import TYPE_CHECKING, NoReturn

from user_proc.errors import ConnectionClosed, KernelDied

if TYPE_CHECKING:
    from user_proc.transport.kernel_channel import KernelChannel
    from user_proc.transport.thread_port import ThreadPort

Frame = bytes | bytearray | memoryview


class Refusal:
    """The send of a port whose kernel is dead or whose connection is closed."""

    __slots__ = ("_channel",)

    def __init__(self, channel: "KernelChannel") -> None:
        self._channel = channel

    def __call__(self, frame: Frame, flags: int = 0) -> NoReturn:
        """Say which of the two it is."""
        if self._channel.closed:
            raise ConnectionClosed(self._channel.name)
        raise KernelDied(self._channel.name)


class SendAnew:
    """The first send after a call that broke off badly: it replaces the socket before."""

    __slots__ = ("_port",)

    def __init__(self, port: "ThreadPort") -> None:
        self._port = weakref.ref(port)

    def __call__(self, frame: Frame, flags: int = 0) -> None:
        """Send on a new socket."""
        port = self._port()
        if port is not None:
            port.send_anew(frame, flags)
