"""A round's kernel and user process: pinned, private, and gone afterwards however it ends."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from shared.connection_file import runtime_root
from user_proc.bench.bench_settings import tiny_run
from user_proc.bench.full_plan import BASE
from user_proc.bench.own_kernel import KernelFailed, open_round, pin_process
from user_proc.bench.timed_loops import Window
from user_proc.bench.worker_group import WorkerGroup
from user_proc.transport.kernel_control import list_kernels

pytestmark = pytest.mark.processes


def leftovers() -> list[Path]:
    return sorted(runtime_root().glob("bench-*"))


def kernel_pids() -> dict[str, int]:
    """The kernels of rounds, by name."""
    own = [kernel for kernel in list_kernels() if kernel.name.startswith("bench-")]
    return {kernel.name: kernel.pid for kernel in own if kernel.pid is not None}


def kernel_pid() -> int:
    (pid,) = kernel_pids().values()
    return pid


def children() -> set[int]:
    """The processes this one has started and not yet seen the end of."""
    return {
        int(number)
        for task in Path("/proc/self/task").iterdir()
        for number in (task / "children").read_text().split()
    }


def is_verifier(pid: int) -> bool:
    return b"--verifier" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def test_a_round_starts_what_is_asked_for_and_leaves_nothing():
    before = children()
    with open_round(tiny_run()) as round_:
        assert kernel_pids() == {}
        round_.group(False, 1)
        assert not is_verifier(kernel_pid())
        assert len(children() - before) == 2
        round_.group(False, 3)
        round_.group(False, 2)
        assert len(children() - before) == 4
        plain = kernel_pid()
        round_.group(True, 1)
        assert len(children() - before) == 6
        (added,) = set(kernel_pids().values()) - {plain}
        assert is_verifier(added)
    assert leftovers() == []
    assert children() == before


def interrupt_a_round(error: type[BaseException], *, stuck: bool) -> tuple[int, float]:
    """Leave a round by an exception; the pid of one of its processes, and how long it took."""
    pid, begin = 0, 0.0
    before = children()
    try:
        with open_round(tiny_run()) as round_:
            round_.group(False, 2)
            pid = max(children() - before)
            if stuck:
                os.kill(kernel_pid(), signal.SIGSTOP)
            begin = time.monotonic()
            raise error
    except error:
        return pid, time.monotonic() - begin


@pytest.mark.parametrize(("error", "stuck"), [(KeyboardInterrupt, True), (RuntimeError, False)])
def test_an_interrupted_round_leaves_nothing(error: type[BaseException], stuck: bool):
    pid, seconds = interrupt_a_round(error, stuck=stuck)
    assert leftovers() == []
    assert not os.path.exists(f"/proc/{pid}")
    assert seconds < 3.0  # an orderly end may take longer


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
    with open_round(tiny_run()) as round_:
        group = round_.group(False, 1)
        group.prepare(BASE)
        os.kill(kernel_pid(), signal.SIGKILL)
        _ask_until_it_fails(group)


def _ask_until_it_fails(group: WorkerGroup) -> None:
    for _ in range(1_000):
        group.take("row", Window(100))
    pytest.fail("the worker has not noticed that its kernel is gone")


def test_two_rounds_do_not_meet_and_every_thread_of_one_is_pinned():
    core = min(os.sched_getaffinity(0))
    before = children()
    with open_round(tiny_run().pinned(core, core)) as round_, open_round(tiny_run()) as other:
        round_.group(False, 2)
        found = children() - before
        assert kernel_pid() in found
        assert len(found) == 3
        other.group(False, 1)
        assert len(kernel_pids()) == 2
        assert len(children() - before) == 5
        for pid in found:
            threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
            assert len(threads) >= 2
            assert all(os.sched_getaffinity(thread) == {core} for thread in threads)


def test_pinning_ignores_threads_that_end_meanwhile(monkeypatch: pytest.MonkeyPatch):
    def gone(pid: int, cores: set[int]) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "sched_setaffinity", gone)
    pin_process(os.getpid(), 0)
