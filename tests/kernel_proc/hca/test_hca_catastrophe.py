"""What no rule foresees: it is told everywhere, and the device answers nothing any more."""

import os
from pathlib import Path

import pytest

from kernel_proc.hca.hca_device import CATASTROPHIC_INTERNAL, HcaDevice
from kernel_proc.hca.latency_model import LatencyModelError
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.device_settings import HcaSettings
from shared import doorbell_layout as bells
from tests.kernel_proc.hca.hca_bench import Bench


def break_down(bench: Bench) -> None:
    def fail() -> None:
        raise RuntimeError("a rule that nobody foresaw")

    bench.device.commands.before_command = fail
    bench.post(op.NOP)
    assert not bench.device.run_once()


def test_it_is_told_in_the_buffer_the_status_page_an_event_and_the_line(bench: Bench):
    bench.words[reg.KERNEL_SLEEPS_OFFSET // 8] = 1
    line = bench.words[reg.LINE_OFFSET // 8]
    break_down(bench)
    assert bench.words[reg.CATASTROPHIC_OFFSET // 8] == CATASTROPHIC_INTERNAL
    assert bench.status[bells.STATUS_FATAL_WORD] == 1
    assert bench.words[reg.LINE_OFFSET // 8] == line + 1
    assert bench.interrupts == 1
    assert [entry[1] for entry in bench.events(reg.ASYNC_EQ)] == [eqe.EVENT_LOCAL_CATASTROPHIC]
    assert "nobody foresaw" in bench.device.failure
    assert bench.device.inspect()["dead"]


def test_a_dead_device_answers_nothing(bench: Bench):
    break_down(bench)
    qp_line = bench.words[reg.LINE_OFFSET // 8]
    bench.device.commands.before_command = None
    for _ in range(5):
        assert not bench.device.run_once()
    assert bench.control & reg.HCR_GO_BIT
    assert bench.device.next_deadline_ns() is None
    assert bench.words[reg.LINE_OFFSET // 8] == qp_line


def test_even_without_event_queues_the_line_is_raised(bare: Bench):
    break_down(bare)
    assert bare.words[reg.LINE_OFFSET // 8] == 1
    assert bare.status[bells.STATUS_FATAL_WORD] == 1


def test_a_device_that_is_stepped_says_that_it_sleeps(bare: Bench):
    assert bare.words[reg.HCA_SLEEPS_OFFSET // 8] == bare.status[bells.STATUS_SLEEPS_WORD] == 1
    bare.device.set_sleeping(False)
    assert bare.words[reg.HCA_SLEEPS_OFFSET // 8] == bare.status[bells.STATUS_SLEEPS_WORD] == 0


def test_what_it_is_made_of_is_checked():
    page, status = memoryview(bytearray(4096)), memoryview(bytearray(4096))

    def make(registers: memoryview, status_page: memoryview, model: str = "none") -> None:
        settings = HcaSettings(latency_model=model, spin_hint=17)
        HcaDevice(registers, status_page, settings, lambda: 0, lambda: None)

    make(page, status)
    assert status.cast("Q")[bells.STATUS_SPIN_HINT_WORD] == 17
    for registers, status_page in ((page[:4088], status), (page, status[:4088])):
        with pytest.raises(ValueError, match="too short"):
            make(registers, status_page)
    with pytest.raises(LatencyModelError):
        make(page, status, "/nowhere")


def test_closing_gives_every_view_and_descriptor_back(bench: Bench, tmp_path: Path):
    bench.make_qp()
    path = tmp_path / "private"
    path.write_bytes(bytes(10))
    descriptor = os.open(path, os.O_RDWR)
    bench.device.add_segment(7, None, descriptor)
    bench.device.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)
    bench.slots.release()
    bench.doorbells.release()
    bench.memory.release()  # BufferError if anybody had a view of it
