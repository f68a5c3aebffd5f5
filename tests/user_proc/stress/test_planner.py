"""Programs from seeds: repeatable, data, and of every kind of step."""

import json
from collections import Counter

from user_proc.stress.planner import Planner, seed_of
from user_proc.stress.refused_work import REFUSALS
from user_proc.stress.shapes import KINDS
from user_proc.stress.step_table import STEPS, check_steps
from user_proc.stress.wrong_steps import ABOUT_ENDS, CALLS

SEEDS = range(300)


def test_a_seed_makes_the_same_program_always():
    assert [Planner(5).steps() for _ in range(2)] == [Planner(5).steps()] * 2
    assert Planner(5).steps() != Planner(6).steps()
    assert len({seed_of(1, place, life) for place in range(20) for life in range(20)}) == 400


def test_a_program_is_data():
    for seed in range(20):
        steps = [list(step) for step in Planner(seed).steps()]
        assert check_steps(json.loads(json.dumps(steps))) == steps


def test_every_step_and_everything_in_the_tables_is_planned():
    seen: Counter[str] = Counter()
    kinds, refusals, calls, uses = set(), set(), set(), set()
    for seed in SEEDS:
        for step in Planner(seed).steps():
            seen[step[0]] += 1
            if step[0] == "connect":
                kinds.add(step[2]["kind"])
            elif step[0] == "refuse":
                refusals.add(step[3])
            elif step[0] == "wrong call":
                calls.add(step[1])
            elif step[0] == "wrong use":
                uses.add(step[3])
    print(f"{sum(seen.values())} steps: {dict(seen)}")
    assert set(seen) == set(STEPS)
    assert (kinds, refusals) == (set(KINDS), set(REFUSALS))
    assert (calls, uses) == (set(CALLS), set(ABOUT_ENDS))
