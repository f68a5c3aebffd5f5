"""The doorbell segments (UARs) of processes: made when first asked for, told to the HCA.

A segment belongs to one life of the HCA: after a reset its process is given another, with the
status page of the new HCA. `process.doorbells` is the process's `Doorbells`; its number is the
UAR of the process's queues.

Rules: PASSIVE_LEVEL in a kernel thread; waits.
Spec: shared/doorbell_layout.py; kernel_proc/hca_abi/device_packets.py.
"""

import errno
import os
from collections import deque
from typing import Any, Final

from kernel_proc.channel_interface.doorbell_grant import DoorbellGrant
from kernel_proc.driver.device_link import DeviceLink
from kernel_proc.scheduling.os_lane import Lane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.doorbell_layout import SEGMENT_LENGTH, STATUS_PAGE_LENGTH
from shared.nt_status import (
    STATUS_CONNECTION_DISCONNECTED,
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_NOT_SUPPORTED,
    STATUS_PROCESS_IS_TERMINATING,
    STATUS_SUCCESS,
)
from shared.segment import create_segment

MOST_UARS: Final = 2048  # number 0 is the kernel's own

_ENDED: Final = object()  # stands in a process whose segment was taken back for good


class Doorbells:
    """One segment: `segment` and `poke` are its descriptors here."""

    __slots__ = ("generation", "number", "poke", "segment")

    def __init__(self, number: int, segment: int, poke: int, generation: int) -> None:
        self.number = number
        self.segment = segment
        self.poke = poke
        self.generation = generation

    def duplicate(self, status: int) -> tuple[int, ...]:
        """Return descriptors to hand over; `status` is the receiver's already."""
        taken = [status]
        try:
            taken.insert(0, os.dup(self.segment))
            taken.append(os.dup(self.poke))
        except OSError:
            for descriptor in taken:
                os.close(descriptor)
            raise
        return tuple(taken)


class DoorbellTable:
    """Gives processes their segments; numbers are used again oldest first."""

    def __init__(self, link: DeviceLink) -> None:
        self._link = link
        self._next = 1
        self._freed: deque[int] = deque()
        self._open: dict[int, Doorbells] = {}

    def open(self, process: KProcess, lane: Lane) -> DoorbellGrant:
        """Give a process its segment, the same one again while the HCA lives."""
        if self._link.dead:
            return DoorbellGrant(STATUS_CONNECTION_DISCONNECTED, reason="the HCA is dead")
        try:
            self._ensure(process, lane)
            if process.doorbells is _ENDED:
                return DoorbellGrant(STATUS_PROCESS_IS_TERMINATING, reason="the process is ending")
            own: Doorbells = process.doorbells
            descriptors = own.duplicate(self._link.status_descriptor())
        except RaisedStatus as refusal:
            return DoorbellGrant(refusal.status, reason=str(refusal))
        except OSError as error:
            if error.errno == errno.EINVAL:
                reason = "this system cannot keep users from writing the status page"
                return DoorbellGrant(STATUS_NOT_SUPPORTED, reason=reason)
            reason = f"no doorbell segment: {error.strerror}"
            return DoorbellGrant(STATUS_INSUFFICIENT_RESOURCES, reason=reason)
        return DoorbellGrant(
            STATUS_SUCCESS, own.number, SEGMENT_LENGTH, STATUS_PAGE_LENGTH, descriptors
        )

    def close(self, process: KProcess) -> None:
        """Take a process's segment back for good."""
        own, process.doorbells = process.doorbells, _ENDED
        if isinstance(own, Doorbells):
            self._remove(own)

    def inspect(self) -> dict[str, Any]:
        """Return the numbers in use."""
        return {"segments": sorted(self._open)}

    def _ensure(self, process: KProcess, lane: Lane) -> None:
        own = process.doorbells
        if isinstance(own, Doorbells) and own.generation != self._link.generation:
            process.doorbells = None
            self._remove(own)
        if _is_settled(process):
            return
        name = f"softhca-doorbells-{process.number}"
        segment = lane.run(create_segment, name, SEGMENT_LENGTH, discard=os.close)
        if _is_settled(process):  # another thread, or the end, came while this one waited
            os.close(segment)
            return
        own = process.doorbells = self._make(segment)
        self._open[own.number] = own
        self._link.add_doorbells(own.number, own.segment, own.poke)  # may wait

    def _make(self, segment: int) -> Doorbells:
        try:
            poke = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            os.close(segment)
            raise
        try:
            return Doorbells(self._take_number(), segment, poke, self._link.generation)
        except OSError:
            os.close(segment)
            os.close(poke)
            raise

    def _remove(self, own: Doorbells) -> None:
        del self._open[own.number]
        if own.generation == self._link.generation:
            self._link.remove_doorbells(own.number)
        self._freed.append(own.number)
        os.close(own.segment)
        os.close(own.poke)

    def _take_number(self) -> int:
        if self._next < MOST_UARS:
            self._next += 1
            return self._next - 1
        if not self._freed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._freed.popleft()


def _is_settled(process: KProcess) -> bool:
    """Tell whether the process has its segment, or will never have one again."""
    return process.doorbells is not None
