"""The plan of rows: which there are, none twice, each beside the right floor."""

from collections import Counter
from dataclasses import replace

import pytest

from shared.envelope import MAX_PAYLOAD
from shared.ioctl_codes import COMPLETION_NAMES
from shared.messages import BENCHMARK_PATHS
from user_proc.bench.bench_settings import full_run, quick_run, tiny_run
from user_proc.bench.full_plan import (
    BASE,
    LARGEST,
    PAYLOADS,
    extra_floors,
    families,
    kernel_row,
    kernel_rows,
    open_loop_rows,
    plan_rows,
    stage_rows,
    user_rows,
)
from user_proc.bench.row_plan import COMPLETIONS, DEPTH, FloorSpec, RowSpec, row_of

FACTORS = RowSpec.__slots__


def varied(row: RowSpec, base: RowSpec) -> set[str]:
    """The factors in which a row differs from another."""
    return {name for name in FACTORS if getattr(row, name) != getattr(base, name)}


def test_the_plan_has_at_most_eighty_rows_each_once():
    rows = plan_rows()
    assert len(set(rows)) == len(rows) == 79
    assert BASE in rows


@pytest.mark.parametrize(
    ("factor", "values"),
    [
        ("client", {"user", "kernel"}),
        ("path", {"irp", "irp_built", "irp_reused", "direct", "fast_io", "blocking"}),
        ("method", {"buffered", "in_direct", "out_direct", "neither", "none"}),
        ("memory", {"arena", "private", "none"}),
        ("completion", {"inline", "dpc", "device"}),
        ("payload", {0, 64, 4096, 65536, 1 << 20}),
        ("depth", {1, 16}),
        ("processes", {1, 2, 4, 8}),
        ("verifier", {False, True}),
    ],
)
def test_every_factor_takes_every_value(factor: str, values: set[object]):
    assert {getattr(row, factor) for row in plan_rows()} == values


def test_the_rows_of_the_first_plan_are_kept():
    rows = set(plan_rows())
    for method in ("buffered", "neither"):
        for completion in COMPLETIONS:
            for payload in PAYLOADS:
                spec = replace(BASE, method=method, completion=completion, payload=payload)
                assert spec in rows
    for path in ("irp", "irp_built", "irp_reused", "direct"):
        for completion in COMPLETIONS:
            assert replace(kernel_row(path), completion=completion) in rows


def test_other_user_rows_vary_one_factor_or_two():
    crossed = {("buffered", "arena"), ("neither", "arena"), ("neither", "private")}
    for row in user_rows():
        if (row.method, row.memory) in crossed and row.path == "irp" and row.depth == 1:
            continue
        if row.path == "fast_io":  # fixes method and completion by itself
            fast = replace(BASE, path="fast_io", method="neither", completion="inline")
            assert len(varied(row, fast)) <= 1
            continue
        # The 64 KiB of the private direct rows are theirs: small ones are told by others.
        assert len(varied(row, BASE)) <= 2 + (row.memory == "private")


def test_kernel_rows_vary_one_factor_from_the_path_s_own_row_or_two():
    for row in kernel_rows():
        assert len(varied(row, kernel_row(row.path))) <= 2
    batches = Counter((row.path, row.completion) for row in kernel_rows() if row.depth == DEPTH)
    assert batches == {
        ("irp", "dpc"): 1, ("irp", "device"): 1, ("direct", "dpc"): 1, ("direct", "device"): 1,
    }  # fmt: skip


def test_rows_that_are_subtracted_differ_in_one_factor():
    rows = set(plan_rows())
    for payload in (*PAYLOADS, LARGEST):
        assert replace(BASE, payload=payload) in rows
        assert replace(BASE, payload=payload, method="neither") in rows
    for payload in PAYLOADS:
        irp = replace(BASE, method="neither", completion="inline", payload=payload)
        assert {irp, replace(irp, path="fast_io")} <= rows
    assert {replace(BASE, path="blocking"), replace(BASE, verifier=True)} <= rows


def test_rows_that_are_subtracted_are_of_one_family():
    found = families(plan_rows())
    assert sorted((row for family in found for row in family), key=repr) == sorted(
        plan_rows(), key=repr
    )
    homes = {row: family for family in found for row in family}
    for payload in (*PAYLOADS, LARGEST):
        row = replace(BASE, payload=payload)
        assert replace(row, method="neither") in homes[row]
    neither = replace(BASE, method="neither", completion="inline")
    assert replace(neither, path="fast_io") in homes[neither]
    assert replace(BASE, path="blocking") in homes[BASE]
    assert homes[kernel_row("irp")] == tuple(
        kernel_row(path) for path in ("irp", "irp_built", "irp_reused", "direct")
    )
    for family in found:
        assert len({(row.client, row.verifier, row.processes, row.depth) for row in family}) == 1
        assert len({(row.completion, row.payload) for row in family}) == 1


def test_the_words_are_those_of_the_kernel():
    assert COMPLETIONS == COMPLETION_NAMES
    assert {row.path for row in kernel_rows()} <= set(BENCHMARK_PATHS)
    kernel_floors = {floor.name for floor in extra_floors()} - {"user_clock", "sample_store"}
    assert {f"floor_{name}" for name in kernel_floors} <= set(BENCHMARK_PATHS)


@pytest.mark.parametrize("row", list(user_rows()), ids=RowSpec.label)
def test_a_user_row_is_beside_an_echo_of_the_same_frames(row: RowSpec):
    inline = row.method == "buffered" and row.payload <= MAX_PAYLOAD
    carried = row.payload if inline else 0
    assert row.floor == FloorSpec("echo", carried, row.depth, row.processes)


def test_kernel_rows_are_beside_a_thread_switch():
    assert {row.floor for row in kernel_rows()} == {FloorSpec("thread_switch", 0)}


@pytest.mark.parametrize(
    ("row", "copies"),
    [
        (BASE, 2),
        (replace(BASE, payload=0), 0),
        (replace(BASE, memory="private"), 2),
        (replace(BASE, memory="private", payload=MAX_PAYLOAD), 2),
        (replace(BASE, memory="private", payload=MAX_PAYLOAD + 1), 3),
        (replace(BASE, payload=MAX_PAYLOAD + 1), 2),
        (replace(BASE, method="neither"), 0),
        (replace(BASE, method="neither", memory="private"), 2),
        (replace(BASE, method="in_direct"), 0),
        (replace(BASE, method="out_direct"), 0),
        (replace(BASE, method="out_direct", memory="private"), 1),
        (replace(BASE, method="neither", path="fast_io", completion="inline"), 0),
        (kernel_row("irp"), 0),
        (kernel_row("irp_built"), 2),
        (kernel_row("direct"), 0),
    ],
)
def test_a_method_has_its_copies(row: RowSpec, copies: int):
    assert row.copies == copies


def test_every_payload_has_its_copies_as_floors():
    for name in ("memory_copy", "private_copy"):
        assert [f.payload for f in extra_floors() if f.name == name] == list(PAYLOADS[1:])


def test_a_row_survives_its_way_to_the_worker_and_into_the_document():
    for row in plan_rows():
        assert RowSpec(**row.as_dict()) == row
        assert row_of({**row.as_dict(), "p50_us": 1.0}) == row


def test_every_row_has_a_name_of_its_own():
    assert len({row.label() for row in plan_rows()}) == len(plan_rows())


def test_open_loop_and_stage_rows_are_rows_of_the_plan():
    rows = set(plan_rows())
    assert set(open_loop_rows()) <= rows
    assert set(stage_rows()) <= rows
    assert {row.completion for row in open_loop_rows()} == set(COMPLETIONS)
    for row in (*open_loop_rows(), *stage_rows()):
        assert (row.client, row.depth, row.processes) == ("user", 1, 1)


def test_runs_have_enough_blocks_and_samples():
    for settings in (quick_run(), full_run()):
        assert settings.blocks >= 15
        assert settings.rows == plan_rows()
    assert full_run().rounds >= 5
    assert full_run().blocks * full_run().operations_per_block >= 10_000
    assert quick_run().blocks * quick_run().operations_per_block >= 1_000
    assert quick_run().time_limit_ns < 20_000_000_000
    assert full_run().time_limit_ns < 280_000_000_000
    assert len(tiny_run().rows) == 7


def test_settings_say_what_they_are():
    values = full_run().pinned(0, 1).as_dict()
    assert (values["kernel_cpu"], values["user_cpu"]) == (0, 1)
    assert values["blocks"] == 15
    assert "rows" not in values
    assert (values["loop"], values["rate_per_s"], values["stages"]) == ("closed", None, False)
    scheduled = quick_run().scheduled(500.0).with_stages().as_dict()
    assert (scheduled["loop"], scheduled["rate_per_s"]) == ("open", 500.0)
    assert scheduled["stages"] is True
