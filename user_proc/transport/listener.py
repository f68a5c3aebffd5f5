"""The listener: one thread that takes the completions of overlapped requests.

It stores the output into the caller's buffer and ends the Overlapped. However it ends, everyone
who waits for it is told: nobody waits for a thread that is gone. It sleeps in the read itself,
since the kernel's death and the end of the session are the end of the socket.

Rules: completions are handled in the listener's thread, one at a time, in the order the kernel
sent them.
Spec: `shared/envelope.py`, KIND_COMPLETION; recv(2); unix(7), SOCK_SEQPACKET.
"""

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Final

from shared.envelope import HEADER
from user_proc.errors import ConnectionClosed, ProtocolError, SofthcaError
from user_proc.transport.completion_table import CompletionTable
from user_proc.transport.own_limits import start_thread

if TYPE_CHECKING:
    from user_proc.transport.kernel_channel import KernelChannel

_JOIN_SECONDS: Final = 5.0
_HEADER: Final = HEADER.size


class CompletionListener(CompletionTable):
    """The reader of a completion socket, running from the constructor's end."""

    def __init__(self, channel: "KernelChannel", connection: socket.socket) -> None:
        super().__init__(channel)
        self._connection: Final = connection
        self._thread: Final = threading.Thread(
            target=self._run, name=f"softhca-listener-{channel.name}", daemon=True
        )
        start_thread(self._thread)

    def close(self) -> None:
        """End the thread, and wait for its end."""
        with contextlib.suppress(OSError):  # the socket may be closed already
            self._connection.shutdown(socket.SHUT_RD)
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        """Take completions until the connection ends one way or another."""
        try:
            self._take_all()
        except SofthcaError as error:
            self.end(error)
        except BaseException as error:
            self.end(SofthcaError(f"the listener failed: {error!r}"))
            raise

    def _take_all(self) -> None:
        largest = _HEADER + self._channel.max_payload
        buffer = memoryview(bytearray(largest + 1))  # one byte more shows what is too long
        header, receive = buffer[:_HEADER], self._connection.recv_into
        while True:
            try:
                length = receive(buffer)
            except OSError:  # reset, or closed here
                length = 0
            if length == _HEADER:
                self.take(header, None)
            elif _HEADER < length <= largest:
                self.take(header, bytes(buffer[_HEADER:length]))
            elif length:
                raise ProtocolError(f"a completion of {length} bytes")
            elif self._channel.closed:
                raise ConnectionClosed(self._channel.name)
            else:
                self._channel.watch.look_for_the_end()
