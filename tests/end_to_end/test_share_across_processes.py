"""How many generated cases of the engine are done across processes too: a third of all at least."""

import math
from types import ModuleType

import pytest

from tests.end_to_end import test_engine_kinds as kinds
from tests.end_to_end import test_send_states as states
from tests.end_to_end import test_window_tables as windows
from tests.kernel_proc.hca.engine import (
    test_engine_failures,
    test_engine_send_states,
    test_engine_unreliable,
    test_engine_xrc,
    test_window_access,
    test_window_binding,
    test_window_lives,
)

#: Of each kind: the tables of the engine, stepped in this process.
IN_PROCESS = {
    "UC": (test_engine_unreliable,),
    "XRC": (test_engine_xrc,),
    "memory windows": (test_window_access, test_window_binding, test_window_lives),
    "SQD and SQE": (test_engine_send_states,),
}
#: The tables whose every row is done by processes of their own, with a kernel and an HCA.
ACROSS = {
    "UC": len(kinds.OVER_UC) + len(kinds.MESSAGES) * len(kinds.MEMORY),
    "XRC": len(kinds.CASES) + len(test_engine_failures.PAIRS) + len(test_engine_xrc.NOT_TARGETS),
    "memory windows": sum(map(len, windows.CASES.values())),
    "SQD and SQE": states.CASES,
}


def generated(module: ModuleType) -> int:
    """Count the cases that a module makes of its tables."""
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    marks = [
        [mark.args[1] for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for test in tests
    ]
    return sum(math.prod(map(len, tables)) for tables in marks if tables)


@pytest.mark.parametrize("kind", IN_PROCESS)
def test_a_third_at_least_is_done_across_processes(kind: str):
    here, there = sum(map(generated, IN_PROCESS[kind])), ACROSS[kind]
    print(f"{kind}: {here} cases in process, {there} across processes")
    assert here > 30
    assert 3 * there >= here + there
