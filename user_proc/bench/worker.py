"""A user process of the benchmark: `python -P -m user_proc.bench.worker NAME [CPU]`.

Rules: nothing is printed or parsed while something is timed; the collector is frozen and off.
"""

import gc
import resource
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from shared.messages import Counters
from user_proc.bench.row_plan import FloorSpec, RowSpec
from user_proc.bench.stage_times import stages_of_all
from user_proc.bench.timed_loops import Take, Window, sample_store, take, take_moments
from user_proc.bench.user_rows import SingleRow, UserRow, make_user_row
from user_proc.bench.worker_operations import EchoSocket, KernelBench
from user_proc.bench.worker_service import serve_worker
from user_proc.process import UserProcess

_READINGS: Final = 20
_FIRST_ECHOES: Final = 500  # until both processes and the road between them are warm
_FIRST_LIMIT_NS: Final = 200_000_000


class Worker:
    """One session with the kernel, and the rows being measured."""

    def __init__(self, name: str) -> None:
        self._process = UserProcess.connect(name)
        self._bench = KernelBench(self._process)
        self._echo = EchoSocket(self._process)
        self._rows: list[UserRow] = []
        self._takes: list[dict[str, Take]] = []
        self._echo.take(FloorSpec("echo", 64), Window(_FIRST_ECHOES, 0, _FIRST_LIMIT_NS))
        self._user_cost = self._reading_costs(_nothing)
        self._kernel_cost = self._reading_costs(
            partial(self._bench.run, "floor_clock", 0, 0, Window(1))
        )
        self._cost = self._user_cost

    def _reading_costs(self, call: Callable[[], object]) -> dict[str, int]:
        """Return the processor time one reading of the counters takes, with `call` in between."""
        before, own = _usage(self._bench.counters()), _own_cpu()
        for _ in range(_READINGS):
            call()
            self._bench.counters()
        own = _difference(_own_cpu(), own)
        spent = {**_difference(_usage(self._bench.counters()), before), **own}
        return {name: value // _READINGS for name, value in spent.items() if "cpu" in name}

    # Commands

    def commands(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """Return the commands by name."""
        return {
            "prepare": self.prepare,
            "prepare_floor": self.prepare_floor,
            "block": self.block,
            "traced": self.traced,
            "counters": self.counters,
            "release": self.release,
        }

    def prepare(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Get ready for the rows of a family and their floors; all have the same client."""
        self.release()
        for values in rows:
            spec = RowSpec(**values)
            if spec.client == "kernel":
                self._cost = self._kernel_cost
                row_take: Take = partial(self._bench.take_row, spec)
            else:
                self._cost = self._user_cost
                row = make_user_row(self._process, spec)
                self._rows.append(row)
                row_take = row.take
            self._takes.append({"row": row_take, "floor": self._floor_take(spec.floor)})
        self._settle()
        return {}

    def prepare_floor(self, floor: dict[str, Any]) -> dict[str, Any]:
        """Get ready for a floor alone."""
        self.release()
        self._takes.append({"floor": self._floor_take(FloorSpec(**floor))})
        self._settle()
        return {}

    def block(
        self, index: int, which: str, counted: bool, window: dict[str, int]
    ) -> dict[str, Any]:
        """Take a block of one of the rows, or of its floor; say what it used beside time.

        If `counted`, that includes the kernel's counters; several processes at a time would each
        see the others' operations in them.
        """
        before = _usage(self._bench.counters()) if counted else {}
        own = _own_cpu()
        taken = self._takes[index][which](Window(**window))
        used = _difference(_own_cpu(), own)
        if counted:
            used.update(_difference(_usage(self._bench.counters()), before))
            for name, cost in self._cost.items():
                used[name] -= cost
        return {
            "samples": taken.samples.tolist(),
            "elapsed_ns": taken.elapsed_ns,
            "late_ns": taken.late_ns,
            "last_late_ns": taken.last_late_ns,
            "used": {"operations": len(taken.samples) + window["warmup"], **used},
        }

    def traced(self, count: int) -> dict[str, Any]:
        """Take a block with tracing on; return each request's time and its stages."""
        (row,) = self._rows
        assert isinstance(row, SingleRow)
        self._bench.trace_on()
        moments = take_moments(row.operation, count)
        requests = self._bench.trace_off()
        return {
            "samples": [end - begin for begin, end in moments],
            "stages": stages_of_all(requests.values(), moments),
        }

    def counters(self) -> dict[str, Any]:
        """Read the kernel's counters; say what a reading costs."""
        return {"totals": _usage(self._bench.counters()), "cost": self._user_cost}

    def release(self) -> dict[str, Any]:
        """Let go of what the last rows needed."""
        self._takes.clear()
        while self._rows:
            self._rows.pop().close()
        return {}

    def close(self) -> None:
        """Leave the kernel, which closes what is still open; it need not be alive."""
        self._echo.close()
        self._process.close()

    def _floor_take(self, floor: FloorSpec) -> Take:
        if floor.name == "echo":
            return partial(self._echo.take, floor)
        if floor.name == "user_clock":
            return partial(take, _nothing)
        if floor.name == "sample_store":
            return sample_store
        return partial(self._bench.take_floor, floor)

    @staticmethod
    def _settle() -> None:
        gc.collect()
        gc.freeze()
        gc.disable()


def _nothing() -> None:
    """Be the empty operation."""


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: value - before[name] for name, value in after.items()}


def _usage(counters: Counters) -> dict[str, int]:
    return {
        "copies": counters.copies,
        "bytes_copied": counters.bytes_copied,
        "wire_bytes": counters.wire_bytes,
        "cpu_kernel_ns": counters.cpu_user_ns + counters.cpu_system_ns,
        "cpu_kernel_system_ns": counters.cpu_system_ns,
    }


def _own_cpu() -> dict[str, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_user_ns": round((used.ru_utime + used.ru_stime) * 1e9),
        "cpu_user_system_ns": round(used.ru_stime * 1e9),
    }


def main(arguments: list[str]) -> int:
    """Serve a benchmark at the kernel of that name."""
    return serve_worker(Worker, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
