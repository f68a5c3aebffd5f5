"""Two runs compared: verdicts follow the figures, and unequal runs are told apart."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.user_proc.bench.synthetic import BLOCKS_PER_ROUND, row
from user_proc.bench.comparison import NO_CHANGE, compare, judge, unequal
from user_proc.bench.full_plan import BASE, kernel_row


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "irp",
        "settings": {
            "tool": "softhca bench", "loop": "closed", "rate_per_s": None, "transport": "ipc",
            "wait_mode": "blocking", "spin_ns": 0, "payload_touched": True, "kernel_cpu": None,
            "user_cpu": None, "blocks_per_round": BLOCKS_PER_ROUND,
        },
        "provenance": {
            "python": {"implementation": "CPython", "version": "3.11.7", "gil": True},
            "machine": {
                "processor": "x", "cores": 2, "architecture": "x86_64", "governor": None,
            },
            "marks": ["unpinned"],
        },
        "rows": list(rows),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("after", "spread", "verdict"),
    [
        (120.0, 1.0, "slower"),
        (80.0, 1.0, "faster"),
        (100.0, 1.0, NO_CHANGE),
        (103.0, 0.1, NO_CHANGE),  # shown, but less than a twentieth
        (120.0, 60.0, NO_CHANGE),  # large, but not shown
    ],
)
def test_verdicts(after: float, spread: float, verdict: str):
    (change,) = compare(document(row(BASE, 100.0, spread)), document(row(BASE, after, spread)))
    assert change.spec == BASE
    assert change.p50.verdict == verdict
    assert change.p50.difference.value == pytest.approx(after - 100.0)


def test_a_tenth_of_a_microsecond_is_the_least_change():
    (change,) = compare(
        document(row(kernel_row("direct"), 0.40, 0.001)),
        document(row(kernel_row("direct"), 0.48, 0.001)),
    )
    assert change.p50.difference.shown
    assert change.p50.verdict == NO_CHANGE


def test_the_tail_is_judged_by_its_rounds_when_they_have_one():
    before, after = row(BASE, 100.0, 0.5), row(BASE, 100.0, 0.5)
    after["round_p99_us"] = [900.0 + number for number in range(5)]
    (change,) = compare(document(before), document(after))
    assert change.p50.verdict == NO_CHANGE
    assert change.p99 is not None
    assert change.p99.verdict == "slower"
    after["round_p99_us"] = [None] * 5
    assert compare(document(before), document(after))[0].p99 is None


def test_only_rows_of_both_runs_are_compared():
    one = document(row(BASE, 1.0), row(kernel_row("irp"), 1.0))
    other = document(row(kernel_row("irp"), 1.0), row(replace(BASE, payload=0), 1.0))
    assert [change.spec for change in compare(one, other)] == [kernel_row("irp")]


def test_runs_of_one_kind_are_equal():
    assert unequal(document(), document()) == []


@pytest.mark.parametrize(
    ("part", "name", "value", "words"),
    [
        ("settings", "loop", "open", "loop: closed and open"),
        ("settings", "kernel_cpu", 1, "kernel_cpu: None and 1"),
        ("settings", "rate_per_s", 5.0, "rate_per_s"),
    ],
)
def test_other_settings_are_told(part: str, name: str, value: object, words: str):
    other = json.loads(json.dumps(document()))
    other[part][name] = value
    assert any(words in reason for reason in unequal(document(), other))


def test_another_machine_python_or_mark_is_told():
    other = json.loads(json.dumps(document()))
    other["provenance"]["python"]["version"] = "3.13.0"
    other["provenance"]["machine"]["processor"] = "y"
    other["provenance"]["marks"] = ["unpinned", "unsteady"]
    assert unequal(document(), other) == [
        "python version: 3.11.7 and 3.13.0",
        "machine processor: x and y",
        "only one run is marked 'unsteady'",
    ]
    assert unequal(document() | {"kind": "rc"}, document())[0] == "kind: rc and irp"


def test_one_build_against_itself_shows_no_change_in_at_least_nineteen_of_twenty():
    rng = random.Random(2005)
    shown = 0
    for _ in range(60):
        # Rounds differ among each other more than blocks in a round: nine per cent.
        before, after = ([rng.gauss(1.0, 0.09) for _ in range(5)] for _ in range(2))
        runs = [
            [100.0 * level * rng.gauss(1.0, 0.02) for level in levels for _ in range(3)]
            for levels in (before, after)
        ]
        shown += judge(*runs, (3, 3)).verdict != NO_CHANGE
    assert shown <= 60 // 20
