"""I/O completion ports: one queue for the ends of many requests, read by any number of threads.

A file reports to at most one port, for its life, and only those requests of it that were given an
ApcContext other than 0. Whoever takes a packet finds the request it tells of done: its output is
stored, its Overlapped complete. Packets that came for a thread which had just been interrupted go
to the next that asks.

Rules: any thread.
Spec: WDK: NtCreateIoCompletion, NtSetInformationFile (FileCompletionInformation),
NtRemoveIoCompletionEx, NtSetIoCompletion; Win32: CreateIoCompletionPort.
"""

import struct
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

from shared.envelope import (
    FLAG_INPUT_INLINE,
    KIND_ASSOCIATE,
    KIND_CREATE_PORT,
    KIND_DEQUEUE,
    KIND_POST,
    PACKET,
)
from shared.nt_status import STATUS_SUCCESS
from user_proc.io.device_handle import DeviceHandle
from user_proc.io.kernel_object import KernelObject, checked
from user_proc.io.waiting import wait_in_kernel
from user_proc.transport.field_limits import packet_error
from user_proc.transport.kernel_channel import KernelChannel
from user_proc.transport.thread_port import LateTaker


class CompletionPacket(NamedTuple):
    """The end of one request, or what somebody posted."""

    key: int
    apc_context: int
    status: int
    information: int


class CompletionPort(KernelObject, LateTaker):
    """A port of this process; it cannot itself be waited for, only emptied."""

    __slots__ = ("_left",)

    def __init__(self, channel: KernelChannel, handle: int) -> None:
        super().__init__(channel, handle)
        self._left: Final[deque[CompletionPacket]] = deque()

    def associate(self, device: DeviceHandle, key: int = 0) -> None:
        """Have an overlapped file report here; `key` comes with each of its packets."""
        answer, _ = self._channel.port().call(
            KIND_ASSOCIATE, 0, device.handle, event_handle=self._handle, apc_context=key
        )
        checked(answer)

    def post(
        self, key: int = 0, apc_context: int = 0, status: int = STATUS_SUCCESS, information: int = 0
    ) -> None:
        """Queue a packet of one's own (PostQueuedCompletionStatus)."""
        try:
            payload = PACKET.pack(key, apc_context, information, status)
        except struct.error as error:
            raise packet_error(error, key, apc_context, information, status) from None
        answer, _ = self._channel.port().call(
            KIND_POST, FLAG_INPUT_INLINE, self._handle, input_length=len(payload), payload=payload
        )
        checked(answer)

    def get(self, timeout: float | None = None) -> CompletionPacket | None:
        """Wait for a packet and take it; None when `timeout` seconds ran out."""
        _, packets = self.remove(1, timeout)
        return packets[0] if packets else None

    def remove(
        self, limit: int = 1, timeout: float | None = None, *, alertable: bool = False
    ) -> tuple[int, list[CompletionPacket]]:
        """Wait for a packet, and take `limit` at most of those that are there.

        Gives STATUS_SUCCESS and packets, or STATUS_TIMEOUT or STATUS_USER_APC and none
        (GetQueuedCompletionStatusEx).
        """
        if limit < 1:
            raise ValueError(f"at least one packet must be wanted, not {limit}")
        if self._left:
            return STATUS_SUCCESS, self._take_left(limit)
        status, body = wait_in_kernel(
            self._channel,
            KIND_DEQUEUE,
            self._handle,
            timeout,
            alertable=alertable,
            output_length=min(limit * PACKET.size, 0xFFFF_FFFF),
            keep=self,
        )
        return status, _packets(body)

    def take_late(self, body: bytes) -> None:
        """Keep what was taken for a caller who did not wait for it."""
        self._left.extend(_packets(body))

    def _take_left(self, limit: int) -> list[CompletionPacket]:
        taken: list[CompletionPacket] = []
        with suppress(IndexError):  # another thread may be at it
            while len(taken) < limit:
                taken.append(self._left.popleft())
        return taken


def _packets(body: bytes) -> list[CompletionPacket]:
    return [
        CompletionPacket(key, apc_context, iosb_status, information)
        for key, apc_context, information, iosb_status in PACKET.iter_unpack(body)
    ]


def create_completion_port(channel: KernelChannel) -> CompletionPort:
    """Make a port."""
    answer, _ = channel.port().call(KIND_CREATE_PORT)
    return CompletionPort(channel, checked(answer)[3])
