"""Experiment `one-path`: registering kernel and user memory by one path, or by one for each.

The shared path is the driver's own. The two separate ones are those of `separate_paths`. Counted
is the code of driver and memory that runs in the registering thread, the sending of commands left
out, which is the same for all; timed is one registration and its release.

Rules: a kernel thread at PASSIVE_LEVEL, for a user's memory in the context of its process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kernel_proc.driver.context import Context
from kernel_proc.driver.hca_driver import HcaDriver
from kernel_proc.driver.pinned_memory import LOCAL_WRITE
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.experiments.code_counter import CodeCounter
from kernel_proc.experiments.experiment import DONE, Progress, Row, run_cell
from kernel_proc.experiments.sample_figures import listed, spread
from kernel_proc.experiments.separate_paths import (
    register_common_buffer,
    register_locked,
    release_common_buffer,
    release_locked,
)
from kernel_proc.experiments.user_program import UserProgram
from kernel_proc.hca_abi.command_opcodes import COMMANDS
from kernel_proc.machine import Machine
from kernel_proc.memory.dma_adapter import DmaAdapter
from kernel_proc.settings import KernelSettings
from shared.clock import now_ns
from shared.verb_codes import HCA_DEVICE

LENGTHS: Final = (4096, 65536)
RUNS: Final = (0, 1)


class Path(NamedTuple):
    """One way to register one kind of memory: `register` gives what `release` takes."""

    register: Callable[[], Any]
    release: Callable[[Any], None]


class Memory(NamedTuple):
    """What a cell registers from: the machine's parts, and a user's memory of that length."""

    driver: HcaDriver
    adapter: DmaAdapter
    length: int
    address: int
    context: Context


MakePath = Callable[[Memory], Path]


def shared_kernel(memory: Memory) -> Path:
    """Kernel memory by the driver's path."""
    driver = memory.driver
    buffer = driver.buffers.allocate(memory.length)
    return Path(
        lambda: driver.regions.register_kernel(buffer, driver.pdn, LOCAL_WRITE),
        driver.regions.release,
    )


def shared_user(memory: Memory) -> Path:
    """A user's memory by the driver's path."""
    driver = memory.driver

    def register() -> Any:
        return driver.regions.register_user(
            memory.context,
            memory.address,
            memory.length,
            access=LOCAL_WRITE,
            iova=memory.address,
            pdn=driver.pdn,
        )

    return Path(register, driver.regions.release)


def separate_kernel(memory: Memory) -> Path:
    """A common buffer, whose bus address is known."""
    driver = memory.driver
    buffer = memory.adapter.allocate_common_buffer(memory.length)
    if buffer is None:
        raise NoCommonBuffer
    return Path(
        lambda: register_common_buffer(driver, buffer),
        lambda region: release_common_buffer(driver, region),
    )


def separate_user(memory: Memory) -> Path:
    """A user's pages, listed and described one by one."""
    driver, adapter = memory.driver, memory.adapter
    return Path(
        lambda: register_locked(driver, adapter, memory.address, memory.length),
        lambda region: release_locked(driver, adapter, region),
    )


PATHS: Final[dict[tuple[str, str], MakePath]] = {
    ("shared", "kernel"): shared_kernel,
    ("shared", "user"): shared_user,
    ("separate", "kernel"): separate_kernel,
    ("separate", "user"): separate_user,
}


class NoCommonBuffer(Exception):
    """AllocateCommonBuffer has found no memory in a row."""


def _measure(driver: HcaDriver, path: Path, count: int) -> dict[str, Any]:
    for _ in range(3):  # the first maps tables of the HCA
        path.release(path.register())
    driver.channel.journal.clear()
    counter = CodeCounter(driver.processor)
    region = counter.count(path.register)
    commands = [COMMANDS[one.opcode].name for one in driver.channel.journal]
    path.release(region)
    samples = []
    for _ in range(count):
        begin = now_ns()
        path.release(path.register())
        samples.append(now_ns() - begin)
    return {
        "steps": len(counter.steps()),
        "step_names": counter.steps(),
        "commands": len(commands),
        "command_names": commands,
        "calls": counter.calls,
        "functions": len(counter.codes),
        "lines": sum(counter.lines().values()),
        "function_lines": counter.lines(),
        **spread("time", samples),
    }


class OnePath:
    """The experiment; `paths` are the four ways, `runs` the longest runs of page frames."""

    name = "one-path"
    question = "Does registering kernel and user memory by one path cost more than by two?"

    def __init__(
        self,
        paths: Mapping[tuple[str, str], MakePath] = PATHS,
        lengths: Sequence[int] = LENGTHS,
        runs: Sequence[int] = RUNS,
    ) -> None:
        self._paths = paths
        self._lengths = lengths
        self._runs = runs

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Measure each way with memory in a row and scattered."""
        count = 300 if quick else 2_000  # so that a short disturbance moves no median
        cells = [
            (way, client, length, longest)
            for length in self._lengths
            for longest in self._runs
            for way, client in self._paths
        ]
        rows = []
        for done, cell in enumerate(cells):
            progress(done, len(cells), f"{cell[0]} path, {cell[1]} memory, {cell[2]} B")
            rows.append(self._cell(*cell, count))
        return rows

    def _cell(self, way: str, client: str, length: int, longest: int, count: int) -> Row:
        make = self._paths[way, client]

        labels = {
            "path": way,
            "memory": client,
            "length": length,
            "frames": "scattered" if longest else "in a row",
        }

        def body(machine: Machine) -> Mapping[str, Any]:
            program = UserProgram(machine, length, "registration")
            return dict(program.call(self._run_path, program, make, count))

        settings = KernelSettings(seed=1, fragmentation=longest)
        return run_cell(labels, body, settings)

    @staticmethod
    def _run_path(program: UserProgram, make: MakePath, count: int) -> Row:
        host = program.machine.hca
        assert host is not None
        context = program.context(program.open(HCA_DEVICE))
        memory = Memory(context.driver, host.adapter, program.length, program.address, context)
        try:
            return _measure(context.driver, make(memory), count)
        except NoCommonBuffer:
            return {"outcome": "AllocateCommonBuffer found no memory in a row"}
        except VerbRefused as refusal:
            return {"outcome": f"refused: {refusal.reason.name}"}

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say what the ways have in common, what each costs, and where one of them fails."""
        done = [row for row in rows if row["outcome"] == DONE]
        parts = [text for text in (_common(done), _steps(done), _cost(done)) if text]
        failed = [
            f"{row['memory']} {row['length']} B {row['frames']} by the {row['path']} path "
            f"({row['outcome']})"
            for row in rows
            if row["outcome"] != DONE
        ]
        end = f"Not registered: {listed(failed)}." if failed else "Every registration succeeded."
        return " ".join([*parts, end])


def _common(rows: Sequence[Row]) -> str:
    """Say how much of each way's code both kinds of memory run."""
    sentences = []
    for way in dict.fromkeys(row["path"] for row in rows):
        lines: dict[str, int] = {}
        called: dict[str, set[str]] = {}
        for row in rows:
            if row["path"] == way:
                lines.update(row["function_lines"])
                called.setdefault(row["memory"], set()).update(row["function_lines"])
        both = sum(lines[name] for name in set.intersection(*called.values()))
        part = 100 * both / sum(lines.values())
        sentences.append(f"{part:.0f} % of {sum(lines.values())} lines by the {way} path")
    return f"Both kinds of memory run {listed(sentences)}." if sentences else ""


def _steps(rows: Sequence[Row]) -> str:
    """Say which steps a user's memory takes by the shared path and a kernel's does not."""
    taken: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["path"] == "shared":
            taken.setdefault(row["memory"], {}).update(dict.fromkeys(row["step_names"]))
    if set(taken) != {"kernel", "user"}:
        return ""
    more = [step for step in taken["user"] if step not in taken["kernel"]]
    return f"What a user's memory takes more by the shared path: {listed(more)}."


def _cost(rows: Sequence[Row]) -> str:
    """Say where the shared path is slower or faster beyond the jitter, and what more it calls."""
    found = {(row["memory"], row["length"], row["frames"], row["path"]): row for row in rows}
    shown, calls = [], []
    for (memory, length, frames, way), row in found.items():
        other = found.get((memory, length, frames, "separate"))
        if way != "shared" or other is None:
            continue
        calls.append(row["calls"] - other["calls"])
        gap = row["time_us"] - other["time_us"]
        if abs(gap) > max(row["time_jitter_us"], other["time_jitter_us"]):
            shown.append(f"{gap:+.0f} us for {row['memory']} {row['length']} B {row['frames']}")
    if not calls:
        return ""
    rest = "no difference beyond the jitter"
    times = listed([*shown, f"{rest} elsewhere"]) if shown else rest
    return (
        f"Shared against separate: {min(calls):+d} to {max(calls):+d} calls, and in time {times}."
    )


ONE_PATH: Final = OnePath()
