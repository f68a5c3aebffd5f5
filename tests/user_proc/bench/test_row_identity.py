"""Rows of every kind of run are told apart, compared, and named."""

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.user_proc.bench.synthetic import row
from tests.user_proc.bench.test_comparison import document
from user_proc.bench.comparison import compare, unequal
from user_proc.bench.full_plan import BASE, plan_rows
from user_proc.bench.row_identity import SPECS, AnySpec, spec_of
from user_proc.bench.speed.speed_rows import SpeedSpec
from user_proc.bench.speed.speed_settings import full_run
from user_proc.bench.verbs.verb_results import VerbSpec

REGISTRATION = VerbSpec("reg_mr", "user", "none", 1, 4096, "contiguous", "arena")
EACH: list[tuple[str, AnySpec]] = [
    ("irp", BASE),
    ("verbs", VerbSpec("alloc_pd", "kernel", "plausible")),
    ("verbs", REGISTRATION),
    ("speed", SpeedSpec("write_bw", bytes=1 << 20, depth=8, qps=4, processes=4)),
]


def run(kind: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return {**document(*rows), "kind": kind}


@pytest.mark.parametrize(("kind", "spec"), EACH)
def test_a_row_is_found_again_and_compared(kind: str, spec: AnySpec):
    assert spec_of(kind, {**spec.as_dict(), "p50_us": 1.0}) == spec
    before, after = run(kind, row(spec, 100.0)), run(kind, row(spec, 150.0))
    (change,) = compare(before, after)
    assert (change.spec, change.p50.verdict) == (spec, "slower")
    assert unequal(before, after) == []


def test_every_factor_tells_rows_apart():
    other: dict[type, Any] = {int: 4242, str: "another", bool: True}
    for _, spec in EACH:
        for field in fields(spec):
            value = getattr(spec, field.name)
            changed = replace(spec, **{field.name: other[type(value)] if value else 77})
            assert changed != spec


@pytest.mark.parametrize("rows", [plan_rows(), full_run().rows], ids=["irp", "speed"])
def test_no_two_rows_of_a_run_have_the_same_name(rows: tuple[AnySpec, ...]):
    names = [spec.label() for spec in rows]
    assert len(set(names)) == len(names)


def test_a_row_of_one_verb_has_the_words_that_matter():
    assert REGISTRATION.label() == "user reg_mr 4096 B arena contiguous model none"
    mix = VerbSpec("control_mix", "user", "none", 8)
    assert mix.label() == "user control_mix 8 processes model none"


def test_runs_of_two_kinds_are_unequal():
    assert unequal(run("verbs"), run("speed")) == ["kind: verbs and speed"]
    assert set(SPECS) == {"irp", "verbs", "speed"}


def test_a_document_without_a_factor_has_its_default():
    values = SpeedSpec("send_lat").as_dict()
    del values["load"]
    assert spec_of("speed", values) == SpeedSpec("send_lat")


def test_a_row_without_tails_of_rounds_is_compared_by_its_median():
    first, second = row(REGISTRATION, 10.0), row(REGISTRATION, 10.0)
    del first["round_p99_us"], second["round_p99_us"]
    (change,) = compare(run("verbs", first), run("verbs", second))
    assert change.p99 is None
