"""Registration by one path or two: what is counted, what is left, what the verdict rests on."""

from collections.abc import Mapping
from typing import Any

import pytest

from kernel_proc.experiments import one_path
from kernel_proc.experiments.experiment import DONE, Row, run_cell
from kernel_proc.experiments.one_path import PATHS, Memory, OnePath
from kernel_proc.experiments.user_program import UserProgram
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.verb_codes import HCA_DEVICE
from tests.experiment_pages import unexplained

LENGTH = 65536


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total


@pytest.fixture(scope="module")
def scattered() -> list[Row]:
    return OnePath(lengths=(LENGTH,), runs=(1,)).run(True, silent)


def found(rows: list[Row], path: str, memory: str) -> Row:
    return next(row for row in rows if (row["path"], row["memory"]) == (path, memory))


def test_both_paths_send_the_same_commands(scattered: list[Row]):
    done = [row for row in scattered if row["outcome"] == DONE]
    assert len(done) == 3
    assert {tuple(row["command_names"]) for row in done} == {("WRITE_MTT", "SW2HW_MPT")}


def test_steps_are_those_that_ran(scattered: list[Row]):
    assert found(scattered, "shared", "user")["step_names"][:2] == ["MDL", "lock"]
    assert "lock" not in found(scattered, "shared", "kernel")["step_names"]
    separate = found(scattered, "separate", "user")["step_names"]
    assert "scatter/gather list" in separate
    assert "page size" not in separate


def test_lines_and_calls_are_of_driver_and_memory(scattered: list[Row]):
    row = found(scattered, "shared", "user")
    assert row["calls"] >= row["functions"] == len(row["function_lines"]) > 20
    rooms = {name.split("/")[0] for name in row["function_lines"]}
    assert rooms == {"driver", "memory"}
    assert not [name for name in row["function_lines"] if "command_channel" in name]


def test_a_common_buffer_needs_memory_in_a_row(scattered: list[Row]):
    outcome = found(scattered, "separate", "kernel")["outcome"]
    assert outcome == "AllocateCommonBuffer found no memory in a row"
    verdict = OnePath().verdict(scattered)
    assert "What a user's memory takes more by the shared path: MDL and lock." in verdict
    assert f"Not registered: kernel {LENGTH} B scattered by the separate path" in verdict


def test_with_memory_in_a_row_the_verdict_is_another():
    kernels = {which: make for which, make in PATHS.items() if which[1] == "kernel"}
    experiment = OnePath(kernels, lengths=(LENGTH,), runs=(0,))
    verdict = experiment.verdict(experiment.run(True, silent))
    assert verdict.endswith("Every registration succeeded.")
    assert "Both kinds of memory run" in verdict


def test_one_path_under_both_names_shows_no_second_body_of_code():
    paths = {
        ("shared", "kernel"): PATHS["shared", "user"],
        ("shared", "user"): PATHS["shared", "user"],
    }
    experiment = OnePath(paths, lengths=(4096,), runs=(0,))
    verdict = experiment.verdict(experiment.run(True, silent))
    assert "run 100 % of" in verdict
    assert "takes more by the shared path: none." in verdict


@pytest.mark.parametrize("which", PATHS)
def test_a_release_leaves_the_tables_as_they_were(which: tuple[str, str]):
    def body(machine: Machine) -> Mapping[str, Any]:
        program = UserProgram(machine, LENGTH)
        return dict(program.call(register_and_release, program))

    def register_and_release(program: UserProgram) -> Mapping[str, Any]:
        host = program.machine.hca
        assert host is not None
        context = program.context(program.open(HCA_DEVICE))
        driver = context.driver
        path = PATHS[which](Memory(driver, host.adapter, LENGTH, program.address, context))
        path.release(path.register())  # the first maps a chunk of the tables

        def tables() -> Any:
            state = driver.inspect()
            return state["numbers"]["mpt"], state["regions"], program.process.locked_pages

        before = tables()
        region = path.register()
        during = tables()
        path.release(region)
        return {"same": tables() == before, "differs": during != before}

    row = run_cell({}, body, KernelSettings(seed=1, verifier=True))
    assert row == {"outcome": DONE, "same": True, "differs": True}


def test_the_experiment_knows_its_four_paths():
    assert set(one_path.PATHS) == {
        (way, memory) for way in ("shared", "separate") for memory in ("kernel", "user")
    }


def test_its_page_explains_every_column(scattered: list[Row]):
    assert unexplained("one-path", scattered) == set()
