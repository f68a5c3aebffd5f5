"""The listener: one thread that takes the completions of overlapped requests.

It stores the output into the caller's buffer and ends the Overlapped. However it ends, everyone
who waits for it is told: nobody waits for a thread that is gone.

Rules: completions are handled in the listener's thread, one at a time, in the order the kernel
sent them.
Spec: `shared/envelope.py`, KIND_LISTEN and KIND_COMPLETION.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import zmq

from shared.clock import now_ns
from user_proc.errors import ConnectionClosed, KernelNotResponding, SofthcaError
from user_proc.transport.completion_table import CompletionTable

if TYPE_CHECKING:
    from user_proc.transport.kernel_channel import KernelChannel

_HANDSHAKE_NS: Final = 10_000_000_000
_JOIN_SECONDS: Final = 5.0

_R = TypeVar("_R")


class CompletionListener(CompletionTable):
    """A bound listener socket and its thread, running from the constructor's end."""

    def __init__(self, channel: "KernelChannel", socket: "zmq.Socket[bytes]") -> None:
        super().__init__(channel)
        self._socket: Final = socket
        try:
            self._bind()
            self._thread = threading.Thread(
                target=self._run, name=f"softhca-listener-{channel.name}", daemon=True
            )
            self._thread.start()
        except BaseException:
            socket.close(linger=0)
            raise

    def close(self) -> None:
        """Wait for the thread's end, which the end of the context has brought about."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _bind(self) -> None:
        """Make this socket the session's listener."""
        hello = self._hello()
        try:
            self._patiently(lambda: self._socket.send(hello))
            frames = self._patiently(self._socket.recv_multipart)
        except zmq.ContextTerminated:
            raise ConnectionClosed(self._channel.name) from None
        self._check_welcome(frames)

    def _patiently(self, action: Callable[[], _R]) -> _R:
        """Repeat what timed out while the kernel lives, for a while."""
        deadline = now_ns() + _HANDSHAKE_NS
        while True:
            try:
                return action()
            except zmq.Again:
                self._channel.watch.look()
                if now_ns() > deadline:
                    raise KernelNotResponding(self._channel.name, _HANDSHAKE_NS / 1e9) from None

    def _run(self) -> None:
        """Take completions until the connection ends one way or another."""
        try:
            while True:
                try:
                    frames = self._socket.recv_multipart()
                except zmq.Again:
                    self._channel.watch.look()
                    continue
                self.take(frames)
        except zmq.ContextTerminated:
            self.end(ConnectionClosed(self._channel.name))
        except SofthcaError as error:
            self.end(error)
        except BaseException as error:
            self.end(SofthcaError(f"the listener failed: {error!r}"))
            raise
        finally:
            self._socket.close(linger=0)
