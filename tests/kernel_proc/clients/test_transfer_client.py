"""Runs of the data path by a kernel client, on a machine in this process."""

from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_proc.clients.transfer_client import LARGEST_PAYLOAD, MOST_DEPTH, MOST_MESSAGES
from kernel_proc.driver import entry
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.ioctl_codes import BENCHMARK_DEVICE, IOCTL_TRANSFER_RUN
from shared.message_codec import encode
from shared.messages import TransferRun
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_CANCELLED,
    STATUS_INVALID_PARAMETER,
    STATUS_OBJECT_NAME_NOT_FOUND,
)
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess

LATENCY = TransferRun("post_to_poll", 64, 20, 3, 1, 1, 0, 4)
STREAM = TransferRun("msg_rate", 64, 320, 32, 64, 16, 0, 4)


@pytest.fixture
def process(machine: Machine) -> Iterator[UserProcess]:
    with UserProcess.in_process(machine.connect_in_process("transfers")) as connected:
        yield connected


def run(process: UserProcess, plan: TransferRun, room: int = 1 << 16) -> "array[int]":
    with process.open_device(BENCHMARK_DEVICE) as device:
        answer = bytearray(room)
        length = device.device_io_control(IOCTL_TRANSFER_RUN, encode(plan), answer)
    return array("Q", bytes(answer[:length]))


@pytest.mark.parametrize("raised", [0, 1])
@pytest.mark.parametrize("payload", [1, 64, 64 << 10])
def test_writes_are_timed_one_by_one(
    machine: Machine, process: UserProcess, payload: int, raised: int
):
    times = run(process, LATENCY._replace(payload=payload, raised=raised))
    assert len(times) == LATENCY.messages + 1
    assert times[-1] == sum(times[:-1])
    assert min(times) > 0
    assert nothing_is_left(machine)


@pytest.mark.parametrize("raised", [0, 1])
@pytest.mark.parametrize(("depth", "chain"), [(1, 1), (4, 2), (64, 16)])
def test_streams_have_one_time(
    machine: Machine, process: UserProcess, depth: int, chain: int, raised: int
):
    times = run(process, STREAM._replace(depth=depth, chain=chain, raised=raised))
    assert len(times) == 1
    assert times[0] > 0
    assert nothing_is_left(machine)


def nothing_is_left(machine: Machine) -> bool:
    assert machine.hca is not None
    assert machine.hca.driver is not None
    return not entry.extension_of(machine.hca.driver).life.contexts


@pytest.mark.parametrize(
    "wrong",
    [
        {"op": "send_lat"},
        {"payload": 0},
        {"payload": LARGEST_PAYLOAD + 1},
        {"messages": 0},
        {"messages": MOST_MESSAGES + 16},
        {"messages": 321},
        {"warmup": MOST_MESSAGES + 16},
        {"warmup": 1},
        {"depth": 0},
        {"depth": MOST_DEPTH + 16},
        {"depth": 24},
        {"chain": 0},
        {"chain": 128},
    ],
)
def test_a_run_that_cannot_be_performed_is_refused(process: UserProcess, wrong: dict[str, Any]):
    with pytest.raises(NtStatusError) as caught:
        run(process, STREAM._replace(**wrong))
    assert caught.value.status == STATUS_INVALID_PARAMETER


def test_garbage_and_short_buffers_are_refused(process: UserProcess):
    with pytest.raises(NtStatusError) as caught:
        run(process, LATENCY, room=20 * 8)
    assert caught.value.status == STATUS_BUFFER_TOO_SMALL
    with process.open_device(BENCHMARK_DEVICE) as device:
        for data in (b"", b"\xc1" * 40, encode(STREAM)[:-1]):
            with pytest.raises(NtStatusError) as caught:
                device.device_io_control(IOCTL_TRANSFER_RUN, data or None, bytearray(64))
            assert caught.value.status == STATUS_INVALID_PARAMETER


def test_a_long_run_ends_when_it_is_cancelled(machine: Machine, process: UserProcess):
    plan = encode(STREAM._replace(messages=MOST_MESSAGES // 16 * 16))
    with process.open_device(BENCHMARK_DEVICE, overlapped=True) as device:
        running = device.start(IOCTL_TRANSFER_RUN, plan, bytearray(64))
        device.cancel()
        with pytest.raises(NtStatusError) as caught:
            running.wait()
        assert caught.value.status == STATUS_CANCELLED
    assert nothing_is_left(machine)


def test_without_an_hca_there_is_no_run():
    machine = Machine(KernelSettings(hca=False), in_process=True)
    with UserProcess.in_process(machine.connect_in_process("transfers")) as process:
        with pytest.raises(NtStatusError) as caught:
            run(process, LATENCY)
        assert caught.value.status == STATUS_OBJECT_NAME_NOT_FOUND
    machine.close()
