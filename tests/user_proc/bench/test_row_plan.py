"""The plan of rows: how many of each, none twice, each beside the right floor."""

from collections import Counter

import pytest

from shared.ioctl_codes import COMPLETION_NAMES
from shared.messages import BENCHMARK_PATHS
from user_proc.bench.bench_settings import full_run, quick_run, tiny_run
from user_proc.bench.row_plan import (
    COMPLETIONS,
    PAYLOADS,
    FloorSpec,
    RowSpec,
    extra_floors,
    kernel_rows,
    plan_rows,
    user_rows,
)


def test_every_combination_asked_for_is_there_once():
    rows = plan_rows()
    assert len(set(rows)) == len(rows) == 75
    counts = Counter((row.client, row.path, row.method, row.memory) for row in rows)
    assert counts == {
        ("user", "irp", "buffered", "arena"): 12,
        ("user", "irp", "neither", "arena"): 12,
        ("user", "irp", "neither", "private"): 3,
        ("kernel", "irp", "neither", "none"): 12,
        ("kernel", "irp_built", "buffered", "none"): 12,
        ("kernel", "irp_reused", "neither", "none"): 12,
        ("kernel", "direct", "none", "none"): 12,
    }
    assert {row.payload for row in rows} == {0, 64, 4096, 65536}


def test_the_words_are_those_of_the_kernel():
    assert COMPLETIONS == COMPLETION_NAMES
    assert {row.path for row in kernel_rows()} <= set(BENCHMARK_PATHS)
    kernel_floors = {floor.name for floor in extra_floors()} - {"user_clock", "sample_store"}
    assert {f"floor_{name}" for name in kernel_floors} <= set(BENCHMARK_PATHS)


@pytest.mark.parametrize("row", list(user_rows()), ids=RowSpec.label)
def test_a_user_row_is_beside_an_echo_of_the_same_frames(row: RowSpec):
    carried = row.payload if row.method == "buffered" else 0
    assert row.floor == FloorSpec("echo", carried)


def test_kernel_rows_are_beside_a_thread_switch():
    assert {row.floor for row in kernel_rows()} == {FloorSpec("thread_switch", 0)}


def test_every_payload_has_its_copies_as_floors():
    for name in ("memory_copy", "private_copy"):
        assert [f.payload for f in extra_floors() if f.name == name] == list(PAYLOADS[1:])


def test_a_row_survives_its_way_to_the_worker():
    for row in plan_rows():
        assert RowSpec(**row.as_dict()) == row


def test_runs_have_enough_blocks_and_samples():
    for settings in (quick_run(), full_run()):
        assert settings.blocks >= 15
        assert settings.rows == plan_rows()
    assert full_run().rounds >= 5
    assert full_run().blocks * full_run().operations_per_block >= 10_000
    assert quick_run().blocks * quick_run().operations_per_block >= 1_000
    assert quick_run().time_limit_ns < 20_000_000_000
    assert len(tiny_run().rows) == 4


def test_settings_say_what_they_are():
    values = full_run().pinned(0, 1).as_dict()
    assert (values["kernel_cpu"], values["user_cpu"]) == (0, 1)
    assert values["blocks"] == 15
    assert "rows" not in values
    assert values["loop"] == "closed"
