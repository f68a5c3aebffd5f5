"""Users to whom the system gives no descriptor or thread, at each step that takes one.

Each step ends in a refusal with its reason: the program is not ended by a library, hears no other
kind of error, keeps nothing, and is served when it can be.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import END_SECONDS, Kernel

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).resolve().parent / "user_limits.py"
WORDS = {"descriptors": "Too many open files", "threads": "can't start new thread"}


def test_what_a_user_cannot_get_is_a_refusal_at_each_step(shared_kernel: Kernel):
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), shared_kernel.name],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * END_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split(" ", 3) for line in done.stdout.splitlines()]
    for name, word in WORDS.items():
        ways = [(int(kept), said) for what, _, kept, said in lines if what == name]
        assert [kept for kept, _ in ways] == [0] * len(ways)
        *refused, last = [said for _, said in ways]
        assert last == "done"
        assert refused
        assert all(word.lower() in said.lower() for said in refused), refused
