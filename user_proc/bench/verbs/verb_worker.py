"""A user process of the verbs' benchmark: `python -P -m user_proc.bench.verbs.verb_worker NAME`.

It is the benchmark's user process with programs of verbs as its rows.

Rules: the collector is frozen and off while something is timed.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shared.clock import now_ns
from shared.verb_codes import HCA_DEVICE
from shared.verb_program import VerbStep, unpack_program
from user_proc.bench.row_plan import FloorSpec
from user_proc.bench.timed_loops import Taken, Window, take
from user_proc.bench.verbs.verb_operations import Passes, Region, UserVerbs, VerbsBench
from user_proc.bench.verbs.verb_programs import (
    MEMORY_REGISTERS,
    QUEUE_BYTES,
    REGION,
    REGION_BYTES,
)
from user_proc.bench.worker import Worker
from user_proc.bench.worker_service import serve_worker


class VerbWorker(Worker):
    """One session with the kernel, and the program being measured."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._verbs_bench = VerbsBench(self._process)
        self._verbs: UserVerbs | None = None
        self._region: Region | None = None
        self._queues = self._process.allocate(
            QUEUE_BYTES * len(MEMORY_REGISTERS), page_aligned=True
        )
        self._setup: list[VerbStep] = []
        self._steps: list[VerbStep] = []

    def commands(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """Return the commands by name."""
        return {
            **super().commands(),
            "prepare_program": self.prepare_program,
            "steps": self.steps,
            "opens": self.opens,
        }

    def prepare_program(
        self,
        setup: str,
        program: str,
        client: str,
        floor: dict[str, Any],
        memory: str = "arena",
        length: int = REGION_BYTES,
    ) -> dict[str, Any]:
        """Get ready to perform a program as a user, or to have the kernel client perform it.

        As a row of blocks, an operation is a whole pass.
        """
        self.release()
        self._setup = unpack_program(bytes.fromhex(setup))
        self._steps = unpack_program(bytes.fromhex(program))
        if client == "user":
            self._verbs = verbs = UserVerbs(self._process)
            self._region = Region(self._process, memory, length)
            verbs.registers[REGION] = self._region.address
            for place, register in enumerate(MEMORY_REGISTERS):
                verbs.registers[register] = self._queues.address + place * QUEUE_BYTES
            verbs.run(self._setup)
        self._takes.append(
            {"row": self._take_passes, "floor": self._floor_take(FloorSpec(**floor))}
        )
        self._settle()
        return {}

    def _take_passes(self, window: Window) -> Taken:
        if self._verbs is not None:
            return take(partial(self._verbs.run, self._steps), window)
        taken = self._verbs_bench.take(self._setup, self._steps, window)
        steps = taken.steps
        samples = taken.samples
        each = [sum(samples[first : first + steps]) for first in range(0, len(samples), steps)]
        return Taken(type(samples)("Q", each), sum(each))

    def steps(self, window: dict[str, int]) -> dict[str, Any]:
        """Take a block of passes; return the times of each step and its commands."""
        wanted = Window(**window)
        bench, steps = self._verbs_bench, len(self._steps)
        before = bench.verbs()
        untimed = wanted.warmup * steps
        if self._verbs is not None:
            taken = self._verbs.take(self._steps, wanted)
        else:
            taken = bench.take(self._setup, self._steps, wanted)
            untimed += len(self._setup)
        commands = bench.commands_after(before, untimed, taken, steps)
        return {
            "samples": _columns(taken),
            "commands": None if commands is None else [one._asdict() for one in commands],
        }

    def opens(self, count: int) -> dict[str, Any]:
        """Open the HCA's device and close it so many times; return the times of the opens."""
        times = []
        for _ in range(count):
            begin = now_ns()
            device = self._process.open_device(HCA_DEVICE)
            times.append(now_ns() - begin)
            device.close()
        return {"open_ns": times}

    def release(self) -> dict[str, Any]:
        """Let go of what the last program needed; the driver frees what it made."""
        if self._verbs is not None:
            self._verbs.close()
            self._verbs = None
        if self._region is not None:
            self._region.close()
            self._region = None
        return super().release()


def _columns(taken: Passes) -> list[list[int]]:
    """Return the samples of each step."""
    return [taken.samples[step :: taken.steps].tolist() for step in range(taken.steps)]


def main(arguments: list[str]) -> int:
    """Serve the verbs' benchmark at the kernel of that name."""
    return serve_worker(VerbWorker, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
