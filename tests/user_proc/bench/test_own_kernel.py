"""A round's kernel and user process: pinned, private, and gone afterwards however it ends."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from shared.connection_file import runtime_root
from user_proc.bench.bench_settings import tiny_run
from user_proc.bench.own_kernel import KernelFailed, open_round, pin_process
from user_proc.bench.row_plan import plan_rows
from user_proc.bench.worker_link import WorkerLink
from user_proc.transport.kernel_starter import list_kernels

pytestmark = pytest.mark.processes


def own_kernels() -> list[str]:
    return [kernel.name for kernel in list_kernels() if kernel.name.startswith("bench-")]


def leftovers() -> list[Path]:
    return sorted(runtime_root().glob("bench-*"))


def kernel_pid() -> int:
    (name,) = own_kernels()
    pid = next(kernel.pid for kernel in list_kernels() if kernel.name == name)
    assert pid is not None
    return pid


def test_a_round_leaves_nothing():
    with open_round(tiny_run()):
        assert len(own_kernels()) == 1
    assert leftovers() == []


def interrupt_a_round(error: type[BaseException], *, stuck: bool) -> int:
    """Leave a round by an exception; return the pid of its user process."""
    pid = 0
    try:
        with open_round(tiny_run()) as worker:
            pid = worker.pid
            if stuck:
                os.kill(kernel_pid(), signal.SIGSTOP)
            raise error
    except error:
        return pid


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_round_leaves_nothing(error: type[BaseException], stuck: bool):
    begin = time.monotonic()
    pid = interrupt_a_round(error, stuck=stuck)
    assert leftovers() == []
    assert not os.path.exists(f"/proc/{pid}")
    assert time.monotonic() - begin < 3.0


def test_two_rounds_at_a_time_do_not_meet():
    with open_round(tiny_run()), open_round(tiny_run()):
        assert len(own_kernels()) == 2


def test_a_kernel_that_ends_by_itself_is_told_with_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KernelFailed, match=r"ended by itself .*: its log is (.*)") as failed:
        _kill_kernel_in_a_round()
    (log,) = tmp_path.iterdir()
    assert str(failed.value).endswith(f": its log is {log}")
    assert "is ready" in log.read_text()
    assert leftovers() == []


def _kill_kernel_in_a_round() -> None:
    with open_round(tiny_run()) as worker:
        worker.ask("prepare", row=plan_rows()[0].as_dict())
        os.kill(kernel_pid(), signal.SIGKILL)
        _ask_until_it_fails(worker)


def _ask_until_it_fails(worker: WorkerLink) -> None:
    for _ in range(1_000):
        worker.ask("block", which="row", count=100, warmup=0, limit_ns=10**9)
    pytest.fail("the worker has not noticed that its kernel is gone")


def test_every_thread_of_kernel_and_user_is_pinned():
    core = min(os.sched_getaffinity(0))
    with open_round(tiny_run().pinned(core, core)) as worker:
        for pid in (kernel_pid(), worker.pid):
            threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
            assert len(threads) >= 2
            assert all(os.sched_getaffinity(thread) == {core} for thread in threads)


def test_pinning_ignores_threads_that_end_meanwhile(monkeypatch: pytest.MonkeyPatch):
    def gone(pid: int, cores: set[int]) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "sched_setaffinity", gone)
    pin_process(os.getpid(), 0)
