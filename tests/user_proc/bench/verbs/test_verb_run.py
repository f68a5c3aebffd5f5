"""The run of the verbs' benchmark with workers that answer by arithmetic: rows, figures, views."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from shared.verb_program import VerbStep, unpack_program
from user_proc.bench.csv_view import rows_as_csv
from user_proc.bench.progress_view import NoProgress
from user_proc.bench.table_view import HEADING
from user_proc.bench.verbs.verb_answers import answers_of
from user_proc.bench.verbs.verb_kernels import kernel_options
from user_proc.bench.verbs.verb_programs import control_mix, every_verb
from user_proc.bench.verbs.verb_results import CONTROL_MIX
from user_proc.bench.verbs.verb_run import VerbsRun
from user_proc.bench.verbs.verb_settings import (
    VerbsSettings,
    full_run,
    quick_run,
    tiny_run,
)
from user_proc.bench.verbs.verb_table import CSV_COLUMNS, commands_text, render
from user_proc.bench.worker_link import WorkerFailed, WorkerRefused
from user_proc.run_document import load_strict

FIELDS = {
    "verb", "client", "latency_model", "processes", "count", "p50_us", "p99_us", "ops_per_s",
    "commands", "asked_us", "floor", "ratio", "bytes", "layout", "memory",
}  # fmt: skip
STEP_NS, ECHO_NS, COMMAND_NS, ASKED_NS, DEVICE_NS = 50_000, 20_000, 30_000, 9_000, 10_000
PAGE_NS = 100  # what a page adds to a registration
ROOM = 1 << 40


class ArithmeticWorker:
    """A step takes 50 us, 30 of them waiting for its one command, 10 of these in the device."""

    def __init__(self, log: list[Any], trouble: int) -> None:
        self._log = log
        self._trouble = trouble
        self._steps: list[VerbStep] = []
        self._pages = 1
        self._answer: Mapping[str, Any] | WorkerFailed = {}

    def ask(self, do: str, **values: Any) -> Mapping[str, Any]:
        self.send(do, **values)
        return self.receive()

    def send(self, do: str, **values: Any) -> None:
        try:
            self._answer = getattr(self, f"_{do}")(**values)
        except WorkerFailed as failed:
            self._answer = failed

    def receive(self) -> Mapping[str, Any]:
        if isinstance(self._answer, WorkerFailed):
            raise self._answer
        return self._answer

    def _prepare_program(self, **values: Any) -> Mapping[str, Any]:
        if values.get("length", 0) == self._trouble:
            raise WorkerRefused("reg_mr was refused: errno 12")
        self._steps = unpack_program(bytes.fromhex(values["program"]))
        request = self._steps[0].request([0] * 64)
        self._pages = getattr(request, "length", 4096) // 4096
        self._log.append((values["client"], len(self._steps)))
        return {}

    def _step_ns(self) -> int:
        return STEP_NS + PAGE_NS * (self._pages - 1)

    def _steps_taken(self, window: dict[str, int]) -> int:
        return window["count"]

    def _steps_block(self, window: dict[str, int]) -> Mapping[str, Any]:
        count = window["count"]
        times = {"took_ns": COMMAND_NS, "asked_ns": ASKED_NS, "device_ns": DEVICE_NS}
        commands = [
            {"names": ["NOP"], **{name: [time] * count for name, time in times.items()}}
            for _ in self._steps
        ]
        return {"samples": [[self._step_ns()] * count for _ in self._steps], "commands": commands}

    def _block(
        self, index: int, which: str, counted: bool, window: dict[str, int]
    ) -> Mapping[str, Any]:
        self._log.append(which)
        sample = ECHO_NS if which == "floor" else STEP_NS * len(self._steps)
        count = window["count"]
        used = {"operations": count, "cpu_user_ns": 1_000 * count, "cpu_kernel_ns": 2_000 * count}
        return {
            "samples": [sample] * count,
            "elapsed_ns": sample * count,
            "late_ns": 0,
            "last_late_ns": 0,
            "used": used,
        }

    def _counters(self) -> Mapping[str, Any]:
        return {"totals": {}, "cost": {}}

    def _opens(self, count: int) -> Mapping[str, Any]:
        return {"open_ns": [2_000_000] * count}

    def _release(self) -> Mapping[str, Any]:
        return {}


ArithmeticWorker._steps = property(  # type: ignore[assignment]  # a name for a command and a list
    lambda self: self.__dict__.setdefault("steps", []),
    lambda self, value: self.__dict__.__setitem__("steps", value),
)


class Kernels:
    """Opens parts of a run, and remembers which."""

    def __init__(self, trouble: int = -1) -> None:
        self.parts: list[tuple[str, str, int]] = []
        self.log: list[Any] = []
        self.closed = 0
        self._trouble = trouble

    @contextmanager
    def __call__(
        self, settings: VerbsSettings, model: str, layout: str, processes: int
    ) -> Iterator[Sequence[ArithmeticWorker]]:
        self.parts.append((model, layout, processes))
        yield [ArithmeticWorker(self.log, self._trouble) for _ in range(processes)]
        self.closed += 1


def run(settings: VerbsSettings, kernels: Kernels, room: int = ROOM) -> dict[str, Any]:
    return load_strict(VerbsRun(settings, NoProgress(), room, kernels).run().as_json())
