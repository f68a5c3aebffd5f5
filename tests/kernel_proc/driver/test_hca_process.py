"""The driver and an HCA that is a process of its own."""

import os
import signal
from collections.abc import Iterator

import pytest

from kernel_proc.driver import entry
from kernel_proc.driver.doorbell_segments import DoorbellTable
from kernel_proc.driver.process_link import ProcessLink
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.device_settings import HcaSettings, encode_settings
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.memory.bus import Bus
from kernel_proc.memory.dma_adapter import DmaAdapter
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.scheduling.kernel_clock import RealClock
from kernel_proc.scheduling.processor import Processor
from shared.nt_status import STATUS_SUCCESS
from shared.verb_codes import (
    IOCTL_ALLOC_PD,
    IOCTL_DEREG_MR,
    IOCTL_QUERY_PORT,
    IOCTL_REG_MR,
)
from shared.verb_messages import Object, PortQuery, RegMr
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox, good, verb

pytestmark = pytest.mark.processes


class ProcessBox(HcaBox):
    """The same machine on the real clock, its HCA a child process."""

    def __init__(self, settings: HcaSettings) -> None:
        self.lines = []
        self.settings = settings
        self.processor = processor = Processor(RealClock())
        self.io = IoManager(processor)
        self.bus = Bus(PageFrameAllocator())
        self.memory = KernelMemory(self.bus)
        self.link = ProcessLink(  # type: ignore[assignment] # of another kind here
            processor, encode_settings(settings), self.lines.append
        )
        self.bus.attach(self.link)
        self.adapter = DmaAdapter(processor, self.bus, self.memory)
        self.driver = entry.load(
            self.io, self.link, self.memory, self.lines.append, adapter=self.adapter
        )
        self.extension = entry.extension_of(self.driver)
        self.doorbells = DoorbellTable(self.link)
        self.sessions = []
        status = processor.run_thread(self.extension.settled.wait, 20_000_000_000)
        assert status == STATUS_SUCCESS

    @property
    def child(self) -> int:
        """The pid of the HCA."""
        assert isinstance(self.link, ProcessLink)
        return self.link.pid


@pytest.fixture
def far() -> Iterator[ProcessBox]:
    box = ProcessBox(HcaSettings())
    yield box
    box.close()
    box.link.close()
    box.processor.dispatcher.idle.close()


def test_verbs_reach_the_process_and_its_death_is_survived(far: ProcessBox):
    assert far.extension.inspect()["up"], far.lines
    session = far.session()
    pd = good(session, IOCTL_ALLOC_PD).handle
    address = session.arena(1 << 16)
    request = RegMr(pd, address, 1 << 16, address, 1)
    for _ in range(20):
        good(session, IOCTL_DEREG_MR, Object(good(session, IOCTL_REG_MR, request).handle))
    good(session, IOCTL_REG_MR, request)
    os.kill(far.child, signal.SIGKILL)
    answer = verb(session, IOCTL_QUERY_PORT, PortQuery(1))
    assert answer.reason == VerbReason.DEVICE_FATAL
    assert far.processor.run_thread(far.extension.reset)
    session.close()
    session.open()
    assert good(session, IOCTL_QUERY_PORT, PortQuery(1)).lid


def test_modelled_time_is_reported_beside_the_time_it_took():
    box = ProcessBox(HcaSettings(latency_model="plausible"))
    session = box.session()
    journal = box.life.channel.journal
    journal.clear()
    for port in (1, 2, 1, 2):
        good(session, IOCTL_QUERY_PORT, PortQuery(port))
    assert [record.opcode for record in journal] == [op.MAD_IFC] * 4
    for record in journal:
        assert 0 < record.asked_ns <= record.device_ns <= record.took_ns
    assert [record.verb for record in journal] == sorted({record.verb for record in journal})
    box.close()
    box.link.close()
    box.processor.dispatcher.idle.close()
