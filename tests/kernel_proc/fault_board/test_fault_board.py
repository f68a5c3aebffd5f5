"""Setting, clearing and listing faults by device controls; what is left in no path afterwards."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_proc.driver import page_locks
from kernel_proc.machine import Machine
from kernel_proc.memory.map_registers import MapRegisters
from kernel_proc.memory.mdl import probe_and_lock_pages
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.process import KProcess
from kernel_proc.server.in_process import InProcessSession
from kernel_proc.server.session_server import SessionServer
from kernel_proc.settings import KernelSettings
from shared.fault_messages import Fault
from shared.fault_points import (
    DEVICE,
    FAULT_DEVICE,
    FAULT_OUTPUT_LENGTH,
    FAULT_POINTS,
    IOCTL_CLEAR_FAULTS,
    IOCTL_LIST_FAULTS,
    IOCTL_SET_FAULT,
    MOST_FAULTS,
)
from shared.message_codec import encode
from shared.nt_status import STATUS_BUFFER_TOO_SMALL, STATUS_INVALID_DEVICE_REQUEST
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess

#: What each field is set to where a point needs or may have it.
VALUES: dict[str, Any] = {
    "nth": 3, "times": 2, "session": 99, "queue_pair": 1029, "port": 1, "command": "MAD_IFC",
    "status": "BAD_PARAM", "part": "header", "process": "", "time_ns": 1000, "lasts_ns": 50 * 10**9,
    "every": 0, "probability": 0, "seed": 0,
}  # fmt: skip
OF_THE_HCA = ("hca-killed", "hca-memory-fails", "map-registers-used-up")
DONE_AT_ONCE = ("hca-failed", "hca-killed")


class Asker:
    """A client of the device."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.door: InProcessSession = machine.connect_in_process("asker")
        assert self.door.session.number == 1
        self.process = UserProcess.in_process(self.door)

    def ask(self, code: int, given: bytes = b"", room: int = FAULT_OUTPUT_LENGTH) -> dict[str, Any]:
        output = bytearray(room)
        with self.process.open_device(FAULT_DEVICE) as device:
            length = device.device_io_control(code, given or None, output)
        answer: dict[str, Any] = json.loads(output[:length])
        return answer

    def set(self, fault: Fault) -> dict[str, Any]:
        return self.ask(IOCTL_SET_FAULT, encode(fault))

    def points(self) -> list[str]:
        return [one["point"] for one in self.ask(IOCTL_LIST_FAULTS)["faults"]]


@pytest.fixture(scope="module")
def asker() -> Iterator[Asker]:
    machine = Machine(KernelSettings(verifier=True, seed=3), in_process=True)
    machine.start_hca()
    made = Asker(machine)
    yield made
    made.process.close()
    machine.close()


@pytest.fixture(autouse=True)
def cleared(asker: Asker) -> Iterator[None]:
    yield
    asker.ask(IOCTL_CLEAR_FAULTS)


def full(name: str) -> Fault:
    """A fault of a point with every field it may have."""
    point = FAULT_POINTS[name]
    if name == "kernel-paused":
        return Fault(name, lasts_ns=1)
    fields = {*point.needs, *point.takes, *(("nth", "times") if point.counts else ())}
    return Fault(name, **{field: VALUES[field] for field in fields})


def devices_paths(machine: Machine) -> list[object]:
    """Every routine a fault may replace, as it is found now."""
    assert machine.hca is not None
    device: Any = machine.hca.link.device  # type: ignore[union-attr]  # it lives in this process
    tables = device.tables
    owners = [
        device, device.commands, tables.events, tables.engine.requester, tables.ports[0],
        machine.server, machine.hca.memory, machine.io.pool, machine.sessions,
    ]  # fmt: skip
    classes = [*map(type, owners), MapRegisters, KProcess, MemoryQuota]
    return [
        *(vars(one)[name] for one in classes for name in sorted(vars(one))),
        tables.engine.requester._steps, vars(page_locks)["probe_and_lock_pages"],
    ]  # fmt: skip


def test_every_point_leaves_no_trace_when_it_is_cleared(asker: Asker):
    before = devices_paths(asker.machine)
    count = 0
    for name in FAULT_POINTS:
        if name in DONE_AT_ONCE:
            continue
        assert "number" in asker.set(full(name)), name
        if name != "kernel-paused":
            count += 1
            assert devices_paths(asker.machine) != before, name
    assert len(asker.points()) == count == len(FAULT_POINTS) - 3
    assert asker.ask(IOCTL_CLEAR_FAULTS, b"ack-lost") == {"cleared": 1}
    assert asker.ask(IOCTL_CLEAR_FAULTS) == {"cleared": count - 1}
    assert devices_paths(asker.machine) == before
    assert type(asker.machine.server) is SessionServer
    assert vars(page_locks)["probe_and_lock_pages"] is probe_and_lock_pages


def test_a_list_says_what_was_asked_for(asker: Asker):
    asker.set(full("ack-lost"))
    asker.set(full("command-late"))
    asker.set(Fault("hca-memory-fails", probability=250_000, seed=4))
    one, other, third = asker.ask(IOCTL_LIST_FAULTS)["faults"]
    numbers = [one.pop("number"), other.pop("number"), third.pop("number")]
    assert numbers == sorted(set(numbers))
    assert one == {
        "point": "ack-lost", "nth": 3, "times": 2, "queue-pair": 1029, "port": 1, "calls": 0,
        "hits": 0,
    }  # fmt: skip
    assert other == {
        "point": "command-late", "nth": 3, "times": 2, "command": "MAD_IFC", "time_ns": 1000,
        "calls": 0, "hits": 0,
    }  # fmt: skip
    assert third == {
        "point": "hca-memory-fails", "seed": 4, "probability": 0.25, "calls": 0, "hits": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("nonsense"), "there is no fault 'nonsense': 'softhca fault points' lists them"),
        (Fault("ack-lost", part="header"), "ack-lost has no part"),
        (Fault("command-fails"), "command-fails needs status"),
        (Fault("command-fails", status="SAD"), "no command ends with 'SAD'"),
        (Fault("command-late", command="FIRE", time_ns=1), "the HCA has no command 'FIRE'"),
        (Fault("message-lost"), "message-lost needs session or process"),
        (Fault("message-lost", process="asker"), "it would strike who sets it"),
        (Fault("pool-fails", session=1), "it would strike who sets it"),
        (Fault("message-cut", part="tail", session=1), "part is payload or header"),
        (Fault("ack-lost", nth=1, every=2), "exclude each other"),
        (Fault("ack-lost", seed=1), "seed goes with probability"),
        (Fault("ack-lost", probability=1_000_001), "at most 1"),
        (Fault("ack-lost", port=3), "the HCA has no port 3: it has 1 to 2"),
        (Fault("port-down", port=1, lasts_ns=601 * 10**9), "lasts is at most 600 s"),
        (Fault("hca-slow", time_ns=10**9, lasts_ns=1), "time is at most 0.1 s"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(asker: Asker, fault: Fault, words: str):
    assert words in asker.set(fault)["error"]
    assert asker.points() == []


def test_only_so_many_at_a_time(asker: Asker):
    for _ in range(MOST_FAULTS):
        assert "number" in asker.set(Fault("hca-memory-fails", nth=1 << 30))
    assert "are set already" in asker.set(Fault("ack-lost"))["error"]
    assert "there is no fault 'all'" in asker.ask(IOCTL_CLEAR_FAULTS, b"all")["error"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=300), st.sampled_from([IOCTL_SET_FAULT, IOCTL_CLEAR_FAULTS]))
def test_any_bytes_are_answered(asker: Asker, given_: bytes, code: int):
    assert "error" in asker.ask(code, given_)


def test_other_codes_and_too_little_room(asker: Asker):
    for code, room, status in (
        (IOCTL_SET_FAULT + 0x100, 64, STATUS_INVALID_DEVICE_REQUEST),
        (IOCTL_LIST_FAULTS, 3, STATUS_BUFFER_TOO_SMALL),
    ):
        with pytest.raises(NtStatusError) as caught:
            asker.ask(code, room=room)
        assert caught.value.status == status


def test_without_an_hca_there_are_faults_of_kernel_and_door():
    machine = Machine(KernelSettings(verifier=True, hca=False), in_process=True)
    try:
        asker = Asker(machine)
        for name, point in FAULT_POINTS.items():
            answer = asker.set(full(name))
            of_hca = point.place == DEVICE or name in OF_THE_HCA
            assert (answer.get("error") == "this kernel runs without an HCA") is of_hca, name
            asker.ask(IOCTL_CLEAR_FAULTS)
        asker.process.close()
    finally:
        machine.close()


@pytest.mark.processes
def test_nothing_of_it_is_imported_before_a_fault_is_set():
    code = (
        "import sys, kernel_proc.machine, kernel_proc.hca.process_loop, kernel_proc.hca.__main__;"
        "print(sorted(n for n in sys.modules if 'fault' in n or 'injection' in n))"
    )
    found = subprocess.check_output([sys.executable, "-P", "-c", code], text=True)
    names = ["kernel_proc.devices.fault_control", "shared.fault_messages", "shared.fault_points"]
    assert found.strip() == str(names)
