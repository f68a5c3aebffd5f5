"""The run itself, with a worker that answers by arithmetic: order, counts, figures, marks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from user_proc.bench.bench_run import BenchRun
from user_proc.bench.bench_settings import BenchSettings, full_run, tiny_run
from user_proc.bench.progress_view import NoProgress
from user_proc.bench.row_plan import FloorSpec, RowSpec
from user_proc.bench.worker_link import WorkerFailed, WorkerLink
from user_proc.run_document import load_strict

ROW_NS = 3_000
FLOOR_NS = 2_000


class ArithmeticWorker:
    """Answers as a worker does; every operation of a row takes 3 us, of a floor 2 us."""

    def __init__(self, log: list[Any], drift: float = 0.0) -> None:
        self._log = log
        self._drift = drift
        self._blocks = 0

    def ask(self, do: str, **values: Any) -> Mapping[str, Any]:
        if do != "block":
            what = values.get("row") or values.get("floor")
            assert what is not None
            self._log.append((do, what["payload"]))
            return {}
        self._log.append((values["which"], values["count"]))
        self._blocks += 1
        base = ROW_NS if values["which"] == "row" else FLOOR_NS
        sample = round(base * (1 + self._drift * self._blocks))
        operations = values["count"] + values["warmup"]
        return {
            "samples": [sample] * values["count"],
            "used": {
                "operations": operations,
                "copies": 2 * operations,
                "bytes_copied": 128 * operations,
                "wire_bytes": 336 * operations,
                "cpu_user_ns": 1_000 * operations,
                "cpu_user_system_ns": 250 * operations,
                "cpu_kernel_ns": 2_000 * operations,
                "cpu_kernel_system_ns": 500 * operations,
            },
        }


class Rounds:
    """Opens rounds, and remembers what was asked in each."""

    def __init__(self, drift: float = 0.0) -> None:
        self.logs: list[list[Any]] = []
        self.closed = 0
        self._drift = drift

    @contextmanager
    def __call__(self, settings: BenchSettings) -> Iterator[WorkerLink]:
        self.logs.append([])
        worker: Any = ArithmeticWorker(self.logs[-1], self._drift)
        yield worker
        self.closed += 1


def run(settings: BenchSettings, rounds: Rounds) -> dict[str, Any]:
    return load_strict(BenchRun(settings, rounds, NoProgress()).run().as_json())


def test_every_row_has_all_the_fields_and_right_figures():
    settings = replace(full_run(), operations_per_block=70)
    document = run(settings, Rounds())
    assert document["kind"] == "irp"
    assert len(document["rows"]) == 75
    for row, spec in zip(document["rows"], settings.rows, strict=True):
        assert RowSpec(**{name: row[name] for name in spec.as_dict()}) == spec
        assert row["count"] == row["counts"]["measured"] == 15 * 70
        assert row["blocks"] == 15
        assert (row["p50_us"], row["p90_us"], row["p99_us"]) == (3.0, 3.0, 3.0)
        assert row["p999_us"] is None  # fewer than 10,000 samples
        assert (row["max_us"], row["min_us"], row["mean_us"]) == (3.0, 3.0, 3.0)
        assert row["sum_us"] == 3.0 * row["count"]
        assert row["ops_per_s"] == pytest.approx(1e6 / 3.0, rel=1e-5)
        assert (row["copies"], row["bytes_copied"], row["wire_bytes"]) == (2, 128, 336)
        assert (row["cpu_user_us"], row["cpu_kernel_us"]) == (1.0, 2.0)
        assert (row["cpu_user_system_us"], row["cpu_kernel_system_us"]) == (0.25, 0.5)
        assert row["floor"] == spec.floor.name
        assert (row["floor_p50_us"], row["ratio"]) == (2.0, 1.5)
        assert row["convention"] == "round_trip"
        assert row["p50_interval_us"] == [3.0, 3.0]
        assert row["marks"] == []


def test_the_999th_appears_with_ten_thousand_samples():
    document = run(replace(full_run(), rows=full_run().rows[:1], floors=()), Rounds())
    assert document["rows"][0]["count"] >= 10_000
    assert document["rows"][0]["p999_us"] == 3.0
    assert document["rows"][0]["p9999_us"] is None


def test_floors_are_the_rows_own_and_the_extra_ones():
    settings = tiny_run()
    document = run(settings, Rounds())
    expected = {row.floor for row in settings.rows} | set(settings.floors)
    assert {FloorSpec(f["name"], f["payload"]) for f in document["floors"]} == expected
    thread_switch = next(f for f in document["floors"] if f["name"] == "thread_switch")
    assert thread_switch["blocks"] == 2 * settings.blocks  # two kernel rows stand beside it
    assert all(floor["p50_us"] == 2.0 for floor in document["floors"])


def test_rounds_take_the_rows_to_and_fro_and_blocks_in_turn():
    settings = replace(tiny_run(), floors=(), blocks_per_round=3)
    rounds = Rounds()
    run(settings, rounds)
    assert len(rounds.logs) == rounds.closed == 2
    payloads = [[entry[1] for entry in log if entry[0] == "prepare"] for log in rounds.logs]
    assert payloads[0] == [row.payload for row in settings.rows]
    assert payloads[1] == payloads[0][::-1]
    for number, log in enumerate(rounds.logs):
        blocks = [entry[0] for entry in log[: 1 + 2 + 6] if entry[0] in ("row", "floor")][2:]
        pairs = [blocks[index : index + 2] for index in (0, 2, 4)]
        first = ["floor", "row"] if number % 2 == 0 else ["row", "floor"]
        assert pairs == [first, first[::-1], first]


def test_a_drifting_floor_marks_row_and_run():
    document = run(replace(tiny_run(), blocks_per_round=8, rounds=1), Rounds(drift=0.05))
    assert "unsteady" in document["provenance"]["marks"]
    assert document["rows"][0]["marks"] == ["unsteady"]
    calm = run(tiny_run(), Rounds())
    assert "unsteady" not in calm["provenance"]["marks"]


def test_unpinned_runs_say_so():
    assert "unpinned" in run(tiny_run(), Rounds())["provenance"]["marks"]
    assert "unpinned" not in run(tiny_run().pinned(0, 0), Rounds())["provenance"]["marks"]


def test_a_run_without_time_takes_five_operations_a_block():
    document = run(replace(tiny_run(), time_limit_ns=0, operations_per_block=10**6), Rounds())
    # A block may always take a millisecond: 3 us fit 333 times into it.
    assert all(row["count"] == 4 * 333 for row in document["rows"])


def test_a_failing_round_is_closed_and_told():
    @contextmanager
    def failing(settings: BenchSettings) -> Iterator[WorkerLink]:
        worker: Any = ArithmeticWorker([])
        worker.ask = refuse
        yield worker

    def refuse(do: str, **values: Any) -> Mapping[str, Any]:
        raise WorkerFailed("no")

    with pytest.raises(WorkerFailed):
        BenchRun(tiny_run(), failing, NoProgress()).run()
