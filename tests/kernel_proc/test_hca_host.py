"""The host side of the HCA in a machine in process: up, used, run down, dead, reset, stopped."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.driver.local_link import LocalLink
from kernel_proc.hca_host import HcaHost, HcaNotStarted
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.doorbell_layout import STATUS_FATAL_WORD
from shared.live_words import words64
from shared.nt_status import STATUS_NO_SUCH_DEVICE
from user_proc.errors import KernelRefused
from user_proc.process import UserProcess

SECOND = 1_000_000_000
NewMachine = Callable[..., tuple[Machine, HcaHost]]


@pytest.fixture
def new_machine() -> Iterator[NewMachine]:
    machines: list[Machine] = []

    def make(**settings: Any) -> tuple[Machine, HcaHost]:
        machine = Machine(KernelSettings(**settings), in_process=True)
        machines.append(machine)
        assert machine.hca is not None
        return machine, machine.hca

    yield make
    for machine in machines:
        machine.close()


@pytest.mark.parametrize("verifier", [False, True])
@pytest.mark.parametrize("fragmentation", [0, 1])
@pytest.mark.parametrize("command_mode", ["event", "polling"])
def test_it_comes_up_and_goes_in_order_and_leaves_nothing(
    new_machine: NewMachine, verifier: bool, fragmentation: int, command_mode: str
):
    machine, host = new_machine(
        verifier=verifier, fragmentation=fragmentation, command_mode=command_mode
    )
    machine.start_hca()
    state = machine.inspect()["hca"]
    assert state["driver"]["up"] is True
    assert "mthca0" in machine.io.inspect()["devices"]
    assert state["kernel_memory"]["used"] > 0
    assert machine.processor.run_thread(host.stop, 10 * SECOND)
    assert host.memory.used == 0
    assert "mthca0" not in machine.io.inspect()["devices"]
    machine.close()
    assert host.bus.segments == {}
    assert host.bus.frames.used == 0


def test_a_latency_model_that_cannot_be_is_a_sentence(new_machine: NewMachine):
    machine, _ = new_machine(latency_model="/nonesuch.toml")
    with pytest.raises(HcaNotStarted, match=r"did not come up: the latency model '/nones.*cannot"):
        machine.start_hca()


def test_a_program_in_process_gets_its_doorbells(new_machine: NewMachine):
    machine, host = new_machine()
    machine.start_hca()
    with UserProcess.in_process(machine.connect_in_process("inside")) as process:
        doorbells = process.open_doorbells()
        assert host.inspect()["doorbells"] == {"segments": [doorbells.number]}
        status = words64(doorbells.status_page)
        assert isinstance(host.link, LocalLink)
        host.link.kill("a test")
        assert status[STATUS_FATAL_WORD] != 0
        with pytest.raises(KernelRefused, match="the HCA is dead"):
            process.open_doorbells()
        doorbells.close()
    assert host.inspect()["doorbells"] == {"segments": []}


def test_without_an_hca_there_are_no_doorbells():
    machine = Machine(KernelSettings(hca=False), in_process=True)
    machine.start_hca()
    assert machine.inspect()["hca"] == {}
    with UserProcess.in_process(machine.connect_in_process("inside")) as process:
        with pytest.raises(KernelRefused, match="without an HCA") as caught:
            process.open_doorbells()
        assert caught.value.status == STATUS_NO_SUCH_DEVICE
    machine.close()


def test_commands_can_be_polled(new_machine: NewMachine):
    machine, _ = new_machine(command_mode="polling")
    machine.start_hca()
    state = machine.inspect()["hca"]["driver"]["hca"]
    assert state["commands"]["mode"] == "polling"
    assert state["commands"]["executed"]["NOP"] == 1
    assert state["commands"]["executed"]["MAP_EQ"] == 1, "no event tells of commands"
