"""Programs as files; a run in words."""

import json
from pathlib import Path
from typing import Any

import pytest

from user_proc.run_document import HEADING
from user_proc.stress.findings import LOST
from user_proc.stress.step_table import UnknownStep
from user_proc.stress.stress_programs import program_text, read_program
from user_proc.stress.stress_result import Failure, Figures, StressResult
from user_proc.stress.stress_view import stress_lines

STEPS: list[Any] = [["pd", "a"], ["query", 1]]


@pytest.mark.parametrize(
    "value",
    [
        STEPS,
        {"steps": STEPS},
        {"kind": "stress", "reduced": {"steps": STEPS}, "failures": [{"steps": []}]},
        {"kind": "stress", "reduced": None, "failures": [{"steps": STEPS}]},
    ],
)
def test_what_a_program_is_read_from(value: Any, tmp_path: Path):
    file = tmp_path / "program.json"
    file.write_text(json.dumps(value))
    assert read_program(file) == STEPS
    file.write_text(program_text(STEPS))
    assert read_program(file) == STEPS


@pytest.mark.parametrize("text", ["", "{}", "3", '[["no such step"]]', "[[]]", "[7]"])
def test_what_is_no_program(text: str, tmp_path: Path):
    file = tmp_path / "program.json"
    file.write_text(text)
    with pytest.raises(UnknownStep):
        read_program(file)


def test_a_failing_run_in_words():
    result = StressResult(9, [Figures(4, 2.0, 4000, 2000, control=[2000] * 2000,
                                      floor=[1000] * 2000)])  # fmt: skip
    result.failures.append(Failure(4, 2, 0, 77, 1, LOST, "nothing came back", STEPS))
    result.leaks.append("irps: 0 before, 1 now")
    result.reduced = {"reproduced": True, "tried": 8, "steps": STEPS}
    assert not result.good
    lines = list(stress_lines(result.parts()))
    assert lines[0] == HEADING
    assert max(map(len, lines[:2])) <= 100
    text = "\n".join(lines)
    for words in (
        "4000 operations, 2000 completions, 0 kills: 1 lost, 0 doubled",
        "p99 is 2.00 times the echo's",
        "seed 9",
        "LEFT: irps: 0 before, 1 now",
        "FOUND lost by client 2, life 0, at step 1 of seed 77: nothing came back",
        '["pd", "a"],\n["query", 1]\n]',
    ):
        assert words in text
