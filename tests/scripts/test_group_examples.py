"""The launches in scripts/groups run to a good end, on one kernel."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from user_proc.groups.group_plan import KernelPlan
from user_proc.groups.launch import launch
from user_proc.groups.plan_file import read_plan
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "groups"
FILES = sorted(FOLDER.glob("*.toml"))
LONGEST = 60


@pytest.fixture(scope="module")
def kernel(private_run: Path) -> Iterator[StartedKernel]:
    with start_kernel("group-examples") as started:
        yield started


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_an_example_ends_well(file: Path, kernel: StartedKernel, tmp_path: Path):
    plan = replace(read_plan(file), kernel=KernelPlan(running=kernel.name))
    outcome = launch(plan, logs=tmp_path)
    assert outcome.result == "success", outcome.reason
    assert all(rank.state == "done" for rank in outcome.ranks)
    assert any(rank.figures for rank in outcome.ranks)
    assert list(tmp_path.iterdir()) == []


def test_every_program_has_its_launch_and_is_short():
    programs = {path.stem for path in FOLDER.glob("*.py")} - {"queue_pairs"}
    assert {file.stem.replace("-", "_") for file in FILES} == programs
    for program in programs:
        assert len((FOLDER / f"{program}.py").read_text().splitlines()) <= LONGEST
