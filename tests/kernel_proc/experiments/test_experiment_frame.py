"""Cells on machines of their own, and the catalogue."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from kernel_proc.experiments.catalogue import EXPERIMENTS
from kernel_proc.experiments.experiment import DONE, run_cell
from kernel_proc.experiments.sample_figures import listed, rank, spread
from kernel_proc.io_manager import wdm
from kernel_proc.machine import Machine
from kernel_proc.scheduling.bugcheck import IRQL_NOT_LESS_OR_EQUAL
from kernel_proc.settings import KernelSettings


def test_a_cell_has_its_labels_and_what_its_body_found():
    row = run_cell({"way": "a"}, lambda machine: {"threads": len(machine.sessions)})
    assert row == {"way": "a", "outcome": DONE, "threads": 0}


def test_no_cell_finds_what_another_left():
    def make_device(machine: Machine) -> Mapping[str, Any]:
        found = "left" in machine.io.devices
        wdm.create_device(wdm.DriverObject(machine.processor, "left"), "left", 0x8000)
        return {"found": found, "now_ns": machine.processor.clock.now_ns()}

    assert [run_cell({}, make_device)["found"] for _ in range(2)] == [False, False]


def test_a_bug_check_is_a_row():
    def wait_too_high(machine: Machine) -> Mapping[str, Any]:
        def body() -> None:
            machine.processor.raise_irql(wdm.DISPATCH_LEVEL)
            wdm.delay_execution(machine.processor, 1)

        machine.processor.run_thread(body)
        return {"reached": True}

    row = run_cell({"cell": 1}, wait_too_high, KernelSettings(hca=False, verifier=True))
    assert row["cell"] == 1
    assert "reached" not in row
    assert row["outcome"].startswith("bug check 0x")
    assert row["bug_check"]["code"] in (IRQL_NOT_LESS_OR_EQUAL, 0xC4)
    assert len(row["bug_check"]["parameters"]) == 4


def test_an_error_of_the_experiment_is_no_row():
    def wrong(machine: Machine) -> Mapping[str, Any]:
        raise LookupError("the experiment's own")

    with pytest.raises(LookupError):
        run_cell({}, wrong)


def test_the_machine_of_a_cell_has_its_hca_up():
    def look(machine: Machine) -> Mapping[str, Any]:
        assert machine.hca is not None
        return {"up": machine.hca.driver is not None}

    assert run_cell({}, look, KernelSettings(seed=1))["up"]


def test_every_experiment_has_a_name_and_a_question():
    for name, one in EXPERIMENTS.items():
        assert one.name == name
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert one.question.endswith("?")


def test_figures_of_samples():
    assert rank([1, 2, 3, 4], 50) == 2
    assert rank([5], 10) == 5
    found = spread("time", [9_000, 1_000, 5_000])
    assert found == {"time_us": 5.0, "time_jitter_us": 8.0}
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["none", "a", "a, b and c"]
