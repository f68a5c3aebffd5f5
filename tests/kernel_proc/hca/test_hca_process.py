"""The HCA's process: started as the kernel starts it, asked, and ended."""

import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import device_packets as packets
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.device_packets import DevicePacket
from kernel_proc.hca_abi.device_settings import HcaSettings, encode_settings
from shared import doorbell_layout as bells
from shared.live_words import full_fence, words64
from shared.segment import create_segment, map_segment

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[3]
MEMORY = 1 << 20
LIMIT_S = 5.0


class Child:
    """One process, and the kernel's end of what joins it."""

    def __init__(self, settings: bytes) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        with theirs:
            descriptor = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kernel_proc.hca", "--control-fd", str(descriptor)],
                pass_fds=[descriptor],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=subprocess.PIPE,
            )
        self.registers, registers = self.segment(reg.REGISTER_PAGE_SIZE)
        self.status_page, status = self.segment(bells.STATUS_PAGE_LENGTH)
        self.memory, memory = self.segment(MEMORY)
        self.words = words64(memoryview(self.registers))
        self.poke = os.eventfd(0, os.EFD_NONBLOCK)
        self.line = os.eventfd(0, os.EFD_NONBLOCK)
        self.sent = 0
        start = DevicePacket(packets.START, body=settings)
        self.send(start, [registers, status, self.poke, self.line])
        self.send(DevicePacket(packets.ADD_SEGMENT, 1, MEMORY, packets.SHARED), [memory])
        for descriptor in (registers, status, memory):
            os.close(descriptor)

    @staticmethod
    def segment(length: int) -> tuple[mmap.mmap, int]:
        descriptor = create_segment("test", length)
        return map_segment(descriptor, length), descriptor

    def send(self, packet: DevicePacket, descriptors: list[int]) -> None:
        socket.send_fds(self.control, [packet.encode()], descriptors)
        self.sent += 1
        self.words[reg.SENT_OFFSET // 8] = self.sent
        self.wake()

    def wake(self) -> None:
        full_fence()
        if self.words[reg.HCA_SLEEPS_OFFSET // 8]:
            os.eventfd_write(self.poke, 1)

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, "the HCA does not answer"
            os.sched_yield()

    def run(self, opcode: int, modifier: int = 0, in_param: int = 0, out_param: int = 0) -> int:
        reg.HCR_PARAMETERS.pack_into(
            self.registers, reg.HCR_OFFSET, in_param, modifier, out_param, 0xFFFF << 16
        )
        control = memoryview(self.registers).cast("I")
        place = reg.HCR_CONTROL_OFFSET // 4

        def value() -> int:
            return int.from_bytes(control[place].to_bytes(4, sys.byteorder), "big")

        go = (opcode | reg.HCR_GO_BIT).to_bytes(4, "big")
        control[place] = int.from_bytes(go, sys.byteorder)
        self.wake()
        self.until(lambda: not value() & reg.HCR_GO_BIT)
        return value() >> reg.HCR_STATUS_SHIFT

    def mailbox(self, data: bytes) -> int:
        self.memory[:4096] = data.ljust(4096, b"\0")
        return 1 << 48

    def end(self) -> int:
        self.control.close()
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.control.close()
        if self.process.stderr is not None:
            self.process.stderr.close()
        os.close(self.poke)
        os.close(self.line)


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child(encode_settings(HcaSettings()))
    yield made
    made.close()


def test_a_command_is_answered_and_the_line_wakes_the_kernel(child: Child):
    assert child.run(op.NOP) == op.CMD_STAT_OK
    assert child.words[reg.SERVED_OFFSET // 8] == child.sent == 2
    assert child.run(op.QUERY_FW, out_param=(1 << 48) + 8192) == op.CMD_STAT_OK
    assert abi.Firmware(*abi.FIRMWARE.unpack_from(child.memory, 8192)).log_outstanding == 6
    bring_up(child)
    child.words[reg.KERNEL_SLEEPS_OFFSET // 8] = 1
    assert child.run(op.CLOSE_IB, 1) == op.CMD_STAT_OK
    line = select.poll()
    line.register(child.line, select.POLLIN)
    assert line.poll(LIMIT_S * 1000)
    assert child.words[reg.LINE_OFFSET // 8] == 1
    assert child.memory[0x20000 + 1] == 9
    assert child.memory[0x20000 + 31] == 0
    assert child.end() == 0


def bring_up(child: Child) -> None:
    """Bring the device as far as an event queue for ports: one page of ICM for each table."""
    bus = (1 << 48) + 0x40000

    def mapped(opcode: int, virtual: int, log2: int) -> int:
        return child.run(opcode, 1, child.mailbox(abi.ICM_MAP_ENTRY.pack(virtual, bus | log2)))

    layout = abi.InitHca(*(n * 0x100000 for n in range(9)), 11, 8, 7, 5, 5, 5, 1, 8)
    assert mapped(op.MAP_FA, 0, 4) == 0
    assert child.run(op.RUN_FW) == 0
    assert child.run(op.SET_ICM_SIZE, in_param=10 << 20) == 0
    assert mapped(op.MAP_ICM_AUX, 0, 4) == 0
    for base in (layout.eqc_base, layout.mpt_base, layout.mtt_base):
        assert mapped(op.MAP_ICM, base, 0) == 0
    assert child.run(op.INIT_HCA, 0, child.mailbox(abi.INIT_HCA_MAILBOX.pack(*layout))) == 0
    entry = abi.WRITE_MTT_HEADER.pack(0, 0) + ((1 << 48) + 0x20000 | 1).to_bytes(8, "big")
    assert child.run(op.WRITE_MTT, 1, child.mailbox(entry)) == 0
    flags = abi.MPT_FLAG_REGION | abi.MPT_FLAG_LOCAL_WRITE
    key = abi.MptEntry(flags, 0, 20 << 8, 1, 0, 4096)
    assert child.run(op.SW2HW_MPT, 20, child.mailbox(abi.MPT_ENTRY.pack(*key))) == 0
    child.memory[0x20000:0x21000] = b"\x80" * 4096
    queue = abi.EqContext(0, 0, 5 << 24, 0, 0, 1, 20 << 8)
    assert child.run(op.SW2HW_EQ, 1, child.mailbox(abi.EQ_CONTEXT.pack(*queue))) == 0
    assert child.run(op.MAP_EQ, 1, 1 << 9) == 0


def test_memory_that_was_sent_before_a_command_is_there_for_it(child: Child):
    for number in range(2, 60):
        _, descriptor = child.segment(8192)
        child.send(DevicePacket(packets.ADD_SEGMENT, number, 8192, packets.SHARED), [descriptor])
        os.close(descriptor)
        assert child.run(op.QUERY_FW, out_param=number << 48) == op.CMD_STAT_OK
        child.send(DevicePacket(packets.REMOVE_SEGMENT, number), [])
        assert child.run(op.QUERY_FW, out_param=number << 48) == op.CMD_STAT_BAD_PARAM


def test_doorbells_come_and_go(child: Child):
    view, descriptor = child.segment(bells.SEGMENT_LENGTH)
    poke = os.eventfd(0, os.EFD_NONBLOCK)
    packet = DevicePacket(packets.ADD_DOORBELLS, 5, bells.SEGMENT_LENGTH)
    child.send(packet, [descriptor, poke])
    child.until(lambda: child.words[reg.HCA_SLEEPS_OFFSET // 8])
    words = memoryview(view).cast("Q")
    words[bells.RUNG_WORD] = 3
    os.eventfd_write(poke, 1)
    child.send(DevicePacket(packets.REMOVE_DOORBELLS, 5), [])
    assert child.run(op.NOP) == op.CMD_STAT_OK
    child.send(packet, [descriptor, poke])
    assert child.run(op.NOP) == op.CMD_STAT_OK
    child.send(DevicePacket(packets.STOP), [])
    assert child.process.wait(LIMIT_S) == 0
    os.close(descriptor)
    os.close(poke)


def test_an_idle_process_sleeps(child: Child):
    assert child.run(op.NOP) == op.CMD_STAT_OK
    child.until(lambda: child.words[reg.HCA_SLEEPS_OFFSET // 8])
    assert words64(memoryview(child.status_page))[bells.STATUS_SLEEPS_WORD] == 1
    place = words64(memoryview(child.status_page))[bells.STATUS_PROCESSOR_WORD] - 1
    assert place in os.sched_getaffinity(0)
    stat = Path(f"/proc/{child.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert stat[0] == "S" or child.words[reg.HCA_SLEEPS_OFFSET // 8]


@pytest.mark.parametrize("bad", ["settings", "packet", "latency model"])
def test_what_cannot_be_used_ends_it_with_a_sentence(bad: str):
    settings = {
        "settings": b'{"seed": -1}',
        "packet": encode_settings(HcaSettings()),
        "latency model": encode_settings(HcaSettings(latency_model="/nowhere/at all")),
    }[bad]
    child = Child(settings)
    try:
        if bad == "packet":
            child.control.send(b"\xff" * 30)
        assert child.process.wait(LIMIT_S) == 1
        assert child.process.stderr is not None
        said = child.process.stderr.read().decode()
        assert said.startswith("the HCA cannot go on: ")
        assert "Traceback" not in said
    finally:
        child.close()


@pytest.mark.parametrize(
    "words", [[], ["--control-fd"], ["--control-fd", "x"], ["--control-fd", "0", "--nonsense", "1"]]
)
def test_a_wrong_command_line_is_answered_with_the_right_one(words: list[str]):
    command = [sys.executable, "-P", "-m", "kernel_proc.hca", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2
    assert done.stderr == "usage: python -P -m kernel_proc.hca --control-fd N [--kernel PID]\n"


def test_a_killed_process_is_seen_at_the_socket(child: Child):
    assert child.run(op.NOP) == op.CMD_STAT_OK
    child.process.send_signal(signal.SIGKILL)
    assert child.control.recv(100) == b""
    assert child.process.wait(LIMIT_S) == -signal.SIGKILL
