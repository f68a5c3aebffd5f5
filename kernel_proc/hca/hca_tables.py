"""Everything a command can reach: the tables of one HCA, and how far its firmware has come."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

from kernel_proc.hca.command import bad_parameter, bad_resource_state
from kernel_proc.hca.cq_table import CompletionQueue
from kernel_proc.hca.device_memory import DeviceMemory
from kernel_proc.hca.doorbell_pages import DoorbellPage, DoorbellPages
from kernel_proc.hca.engine.engine import Engine
from kernel_proc.hca.engine.rounds import Rounds
from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.icm import Icm
from kernel_proc.hca.management import Management
from kernel_proc.hca.memory_window import MemoryWindow
from kernel_proc.hca.multicast_table import MulticastTable
from kernel_proc.hca.number_table import NumberTable
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_counters import QpCounters
from kernel_proc.hca.qp_table import QpTable
from kernel_proc.hca.queue_buffer import QueueBuffer, map_queue
from kernel_proc.hca.srq_table import SharedReceiveQueue
from kernel_proc.hca.translation import Translation
from kernel_proc.hca_abi import qp_transitions as states
from kernel_proc.hca_abi.contexts import InitHca
from kernel_proc.hca_abi.device_settings import (
    RESERVED_CQS,
    RESERVED_SRQS,
    HcaSettings,
    device_limits,
)
from kernel_proc.hca_abi.inspection_text import Part

_NOWHERE: Final = InitHca(*[0] * len(InitHca._fields))


class FirmwareState(IntEnum):
    """How far bring-up has come."""

    STOPPED = 0
    RUNNING = 1  # RUN_FW was given
    INITIALISED = 2  # and INIT_HCA


class HcaTables:
    """The state of one HCA but for its command interface."""

    def __init__(
        self,
        settings: HcaSettings,
        register_words: memoryview,
        clock_ns: Callable[[], int],
    ) -> None:
        self.settings: Final = settings
        self.limits: Final = device_limits(settings)
        self.clock_ns: Final = clock_ns
        self.memory: Final = DeviceMemory()
        self.doorbells: Final = DoorbellPages()
        self.rounds: Final = Rounds(self.doorbells)
        self.icm: Final = Icm(self.memory)
        self.events: Final = EventTable(register_words)
        self.translation: Final = Translation(self.memory)
        self.windows: Final[dict[int, MemoryWindow]] = {}  # by MPT index
        self.cqs: Final = NumberTable[CompletionQueue](RESERVED_CQS)
        self.srqs: Final = NumberTable[SharedReceiveQueue](RESERVED_SRQS)
        self.qps: Final = QpTable(self.doorbells, self.events, self.rounds)
        self.multicast: Final = MulticastTable()
        self.ports: Final = [
            Port(number, settings.node_guid + number, settings.max_mtu, self.events)
            for number in range(1, settings.ports + 1)
        ]
        self.engine: Final = Engine(
            self.qps, self.srqs, self.rounds, self.translation, self.events, self.multicast,
            self.ports, clock_ns,
        )  # fmt: skip
        self.management: Final = Management(settings, self.ports)
        self.special_qps: dict[int, int] = {}
        self.firmware = FirmwareState.STOPPED
        self.bases = _NOWHERE

    def require_icm(self, base: int, index: int, size: int) -> None:
        """Refuse a context that has no page of the ICM under it."""
        if not self.icm.is_mapped(base + index * size, size):
            raise bad_resource_state()

    def page(self, uar: int) -> DoorbellPage:
        """Return a session's doorbell segment, or refuse a UAR that has none."""
        page = self.doorbells.pages.get(uar)
        if page is None:
            raise bad_parameter()
        return page

    def queue(
        self,
        lkey: int,
        pd: int,
        rights: int,
        length: int,
        *,
        address: int | None = None,
        alignment: int,
    ) -> QueueBuffer:
        """Map a queue's memory, or refuse what its key does not grant."""
        buffer = map_queue(
            self.memory, self.translation,
            lkey=lkey, pd=pd, rights=rights, address=address, length=length, alignment=alignment,
        )  # fmt: skip
        if buffer is None:
            raise bad_parameter()
        return buffer

    def stop(self) -> None:
        """Drop every object: CLOSE_HCA, or the end."""
        for qp in self.qps.all():
            self.qps.reset(qp)
        for srq in self.srqs.all():
            srq.close()
        for cq in self.cqs.all():
            cq.buffer.close()
        for page in self.doorbells.pages.values():
            page.queues.clear()
            page.waiting.clear()
        self.rounds.clear()
        self.engine.clear()
        self.events.clear()
        self.qps.configure(0)
        self.cqs.configure(0)
        self.srqs.configure(0)
        self.multicast.configure(0)
        self.translation.configure(0, 0)
        self.windows.clear()
        self.special_qps.clear()
        self.bases = _NOWHERE

    def parts(self) -> Iterator[Part]:
        """Give every table's state as plain values, in parts that take no time each.

        There may be rounds between two of them: what is gone by then is not told.
        """
        yield ("firmware",), self.firmware.name.lower()
        yield ("memory",), self.memory.inspect()
        yield ("icm",), self.icm.inspect()
        yield ("translation",), self.translation.inspect()
        yield ("events",), self.events.inspect()
        yield ("multicast",), self.multicast.inspect()
        yield ("doorbells",), self.doorbells.inspect()
        yield ("rounds",), self.rounds.inspect()
        yield ("flushed",), self.engine.flusher.flushed
        yield ("private_copies",), self.engine.copier.inspect()
        yield ("windows",), {}
        for index, window in list(self.windows.items()):
            if self.windows.get(index) is window:
                yield ("windows", str(index)), window.inspect()
        yield ("cqs",), {}
        for cq in self.cqs.all():
            if self.cqs.find(cq.number) is cq:
                yield ("cqs", str(cq.number)), cq.inspect()
        yield ("srqs",), {}
        for srq in self.srqs.all():
            if self.srqs.find(srq.number) is srq:
                yield ("srqs", str(srq.number)), srq.inspect()
        yield from self._queue_pairs_and_ports()

    def _queue_pairs_and_ports(self) -> Iterator[Part]:
        # Of a QP that goes meanwhile the figures are still its own, so each is counted once.
        figures = {port.number: QpCounters() for port in self.ports}
        for number, retired in self.qps.retired.items():
            if number in figures:
                figures[number].add(retired)
        yield ("qps",), {}
        for qp in self.qps.all():
            counters = figures.get(qp.context.port)
            if counters is not None:
                counters.add(qp.counters)
            if qp.state != states.RESET:
                yield ("qps", str(qp.number)), qp.inspect()
        for port in self.ports:
            told = {**port.inspect(), "counters": figures[port.number].inspect()}
            yield ("ports", str(port.number)), told
