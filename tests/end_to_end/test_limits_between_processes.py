"""The limits of one process as real processes meet them: set at the start, with their errno."""

import errno
import json
import select
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernel_proc.settings import KernelSettings
from tests.end_to_end.conftest import READY_USER
from tests.ready_python import Program
from user_proc.errors import KernelRefused
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB = 1 << 10, 1 << 20
PATIENCE_SECONDS = 40.0


class Limit(NamedTuple):
    """A setting, how often what is asked for fits in it, and the errno beyond."""

    value: int
    least: int
    most: int
    errno: int


LIMITS = {
    "arena_bytes_per_process": Limit(8 * MIB, 3, 4, errno.EDQUOT),
    "pool_bytes_per_process": Limit(200 * KIB, 4, 4, errno.EDQUOT),  # of 0, 64, 128, 192 KiB
    "locked_bytes_per_process": Limit(256 * KIB, 4, 4, errno.ENOMEM),
    "hca_percent_per_process": Limit(1, 327, 327, errno.ENOMEM),  # of 32,768 domains
    "hca_objects_per_process": Limit(400, 399, 399, errno.ENOMEM),
    "max_threads_per_session": Limit(4, 2, 3, errno.EUSERS),  # the first calls, too
    "max_requests_per_session": Limit(16, 16, 16, errno.EAGAIN),
    "max_handles_per_session": Limit(12, 11, 12, errno.EMFILE),
}
SESSIONS = 3


@pytest.fixture(scope="module")
def kernel(private_run: object) -> Iterator[StartedKernel]:
    settings: dict[str, object] = {name: limit.value for name, limit in LIMITS.items()}
    settings |= {"max_sessions": SESSIONS, "arena_bytes_total": 32 * MIB}
    with start_kernel(f"limits-{uuid.uuid4().hex[:8]}", settings=settings) as started:
        yield started
        assert started.running, started.log.read_text()


@contextmanager
def user(kernel: str) -> Iterator[Program]:
    code = "import sys; from tests.end_to_end.limits_user import main; main(sys.argv[1])"
    process = READY_USER.start(code, kernel, stderr=None)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def reached(process: Program) -> dict[str, list[list[int]]]:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0]
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def test_every_limit_of_a_process_is_here():
    settings = set(KernelSettings._fields)
    of_one = {name for name in settings if name.endswith(("_per_process", "_per_session"))}
    assert set(LIMITS) == of_one


def test_each_of_two_processes_reaches_its_limits_and_is_told_so(kernel: StartedKernel):
    with user(kernel.name) as first, user(kernel.name) as second:
        for process in (first, second):
            found = reached(process)
            assert set(found) == set(LIMITS)
            for name, limit in LIMITS.items():
                for count, code in found[name]:
                    assert limit.least <= count <= limit.most, (name, found[name])
                    assert code == limit.errno, (name, found[name])
        with UserProcess.connect(kernel.name), pytest.raises(KernelRefused) as refused:
            UserProcess.connect(kernel.name)
        assert refused.value.errno == errno.EUSERS
        assert f"serves {SESSIONS} processes already" in str(refused.value)
        for process in (first, second):
            process.communicate()
            assert process.returncode == 0
