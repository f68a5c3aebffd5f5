"""Many processes connect at once: each gets in, or is told in a sentence why not."""

import os
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import READY_USER

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 50.0
Start = Callable[..., Any]


@contextmanager
def crowd(kernel: str, count: int) -> Iterator[list[str]]:
    """Let so many come in at once; what each says. They leave at the end."""
    process = READY_USER.start(
        "from tests.end_to_end.crowd import main; main()", kernel, str(count), stderr=None
    )
    assert process.stdout is not None
    said = b""
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while said.count(b"\n") < count:
            left = deadline - time.monotonic()
            assert left > 0, said
            assert select.select([process.stdout], [], [], left)[0], said
            piece = os.read(process.stdout.fileno(), 1 << 16)
            assert piece, said
            said += piece
        yield said.decode().splitlines()
        process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def come(start: Start, count: int, admitted: int) -> None:
    kernel = start(f"--max-sessions={admitted}")
    admitted = kernel.state()["descriptor_plan"]["sessions"]  # fewer, where descriptors are few
    with crowd(kernel.name, count) as said:
        ends = Counter(line.split()[0] for line in said)
        assert ends == Counter({"in": min(count, admitted), "refused": max(0, count - admitted)})
        refusals = {line for line in said if line.startswith("refused")}
        assert all(f"serves {admitted} processes already" in line for line in refusals), refusals
        assert len(kernel.state()["server"]["sessions"]) == min(count, admitted)
        longest = max(int(line.split()[1]) for line in said if line.startswith("in"))
        print(f"{count} at once: the last one was in after {longest} ms")
    kernel.wait_for_sessions(0)
    assert kernel.stop() == 0


def test_of_sixty_processes_at_once_all_get_in_that_are_admitted(start: Start):
    come(start, 60, 52)


@pytest.mark.stress
@pytest.mark.parametrize("admitted", [200, 180])
def test_of_two_hundred_processes_at_once_all_get_in_that_are_admitted(start: Start, admitted: int):
    come(start, 200, admitted)
