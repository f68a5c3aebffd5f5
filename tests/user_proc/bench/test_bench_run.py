"""The run itself, with workers that answer by arithmetic: order, counts, figures, marks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from user_proc.bench.bench_run import BenchRun
from user_proc.bench.bench_settings import BenchSettings, full_run, tiny_run
from user_proc.bench.full_plan import BASE, families, kernel_row, stage_rows
from user_proc.bench.progress_view import NoProgress
from user_proc.bench.row_plan import FloorSpec, RowSpec, row_of
from user_proc.bench.stage_times import STAGES
from user_proc.bench.worker_group import WorkerGroup
from user_proc.bench.worker_link import WorkerFailed
from user_proc.run_document import load_strict

ROW_NS = 3_000
FLOOR_NS = 2_000
TRACING_NS = 400


class ArithmeticWorker:
    """Answers as a worker does; every operation of a row takes 3 us, of a floor 2 us."""

    def __init__(self, log: list[Any], drift: float, extra_copies: int) -> None:
        self._log = log
        self._drift = drift
        self._extra_copies = extra_copies
        self._blocks = 0
        self._rows: list[RowSpec] = []
        self._answer: Mapping[str, Any] = {}
        self.kernel: dict[str, int] = {"copies": 0}

    def ask(self, do: str, **values: Any) -> Mapping[str, Any]:
        self.send(do, **values)
        return self.receive()

    def receive(self) -> Mapping[str, Any]:
        return self._answer

    def send(self, do: str, **values: Any) -> None:
        self._answer = getattr(self, f"_{do}")(**values)

    def _prepare(self, rows: list[dict[str, Any]]) -> Mapping[str, Any]:
        self._rows = [RowSpec(**row) for row in rows]
        self._log.append(("prepare", tuple(self._rows)))
        return {}

    def _prepare_floor(self, floor: dict[str, Any]) -> Mapping[str, Any]:
        self._log.append(("prepare_floor", floor["payload"]))
        return {}

    def _release(self) -> Mapping[str, Any]:
        return {}

    def _counters(self) -> Mapping[str, Any]:
        return {"totals": dict(self.kernel), "cost": {}}

    def _traced(self, count: int) -> Mapping[str, Any]:
        self._log.append(("traced", count))
        total = ROW_NS + TRACING_NS
        stages = {name: 0 for name in STAGES} | {"driver": total - 100, "dpc": 100}
        return {"samples": [total] * count, "stages": [*[stages] * (count - 1), None]}

    def _block(
        self, index: int, which: str, counted: bool, window: dict[str, int]
    ) -> Mapping[str, Any]:
        self._log.append((which, index))
        self._blocks += 1
        base = ROW_NS if which == "row" else FLOOR_NS
        sample = round(base * (1 + self._drift * self._blocks))
        count, operations = window["count"], window["count"] + window["warmup"]
        used = {
            "operations": operations,
            "cpu_user_ns": 1_000 * operations,
            "cpu_user_system_ns": 250 * operations,
        }
        copies = 0
        if which == "row":
            copies = (self._rows[index].copies + self._extra_copies) * operations
        self.kernel["copies"] += copies
        if counted:
            used |= {
                "copies": copies,
                "bytes_copied": 64 * copies,
                "wire_bytes": 336 * operations,
                "cpu_kernel_ns": 2_000 * operations,
                "cpu_kernel_system_ns": 500 * operations,
            }
        late = window["interval_ns"] * 3
        return {
            "samples": [sample] * count,
            "elapsed_ns": sample * count,
            "late_ns": late,
            "last_late_ns": late // 3 * (count // 10),
            "used": used,
        }


class Rounds:
    """Opens rounds, and remembers what was asked in each."""

    def __init__(self, drift: float = 0.0, extra_copies: int = 0) -> None:
        self.logs: list[list[Any]] = []
        self.groups: list[tuple[bool, int]] = []
        self.closed = 0
        self._drift = drift
        self._extra_copies = extra_copies

    @contextmanager
    def __call__(self, settings: BenchSettings) -> Iterator["Rounds"]:
        self.logs.append([])
        self._workers = [
            ArithmeticWorker(self.logs[-1], self._drift, self._extra_copies) for _ in range(8)
        ]
        for worker in self._workers:
            worker.kernel = self._workers[0].kernel
        yield self
        self.closed += 1

    def group(self, verifier: bool, processes: int) -> WorkerGroup:
        self.groups.append((verifier, processes))
        return WorkerGroup(self._workers[:processes])


def run(settings: BenchSettings, rounds: Rounds) -> dict[str, Any]:
    return load_strict(BenchRun(settings, rounds, NoProgress()).run().as_json())


def test_every_row_has_all_the_fields_and_right_figures():
    settings = replace(full_run(), operations_per_block=70)
    document = run(settings, Rounds())
    assert document["kind"] == "irp"
    assert len(document["rows"]) == len(settings.rows)
    for row, spec in zip(document["rows"], settings.rows, strict=True):
        assert row_of(row) == spec
        assert row["count"] == row["counts"]["measured"] == 15 * 70 * spec.processes
        assert row["blocks"] == 15
        assert (row["p50_us"], row["p90_us"], row["p99_us"]) == (3.0, 3.0, 3.0)
        assert (row["max_us"], row["min_us"], row["mean_us"]) == (3.0, 3.0, 3.0)
        assert row["sum_us"] == 3.0 * row["count"]
        assert row["elapsed_us"] == row["sum_us"] / spec.processes
        assert row["ops_per_s"] == pytest.approx(spec.processes * 1e6 / 3.0, rel=1e-5)
        assert row["copies"] == spec.copies
        assert (row["cpu_user_us"], row["cpu_user_system_us"]) == (1.0, 0.25)
        if spec.processes == 1:
            assert (row["bytes_copied"], row["wire_bytes"]) == (64 * spec.copies, 336)
            assert (row["cpu_kernel_us"], row["cpu_kernel_system_us"]) == (2.0, 0.5)
        assert row["floor"] == spec.floor.name
        assert (row["floor_p50_us"], row["ratio"]) == (2.0, 1.5)
        assert row["convention"] == "round_trip"
        assert row["p50_interval_us"] == [3.0, 3.0]
        assert row["block_p50_us"] == row["block_each_us"] or spec.processes > 1
        assert row["round_p99_us"] == [3.0 if spec.processes == 8 else None] * 5
        assert row["open_loop"] is None
        assert row["marks"] == []


def test_rows_ask_for_the_kernel_and_the_processes_they_need():
    rounds = Rounds()
    settings = replace(full_run(), rounds=1, operations_per_block=5, floors=())
    run(settings, rounds)
    wanted = [(rows[0].verifier, rows[0].processes) for rows in families(settings.rows)]
    assert rounds.groups == wanted


def test_the_999th_appears_with_ten_thousand_samples():
    document = run(replace(full_run(), rows=full_run().rows[:1], floors=()), Rounds())
    assert document["rows"][0]["count"] >= 10_000
    assert document["rows"][0]["p999_us"] == 3.0
    assert document["rows"][0]["p9999_us"] is None
    assert document["rows"][0]["round_p99_us"] == [3.0] * 5


def test_floors_are_the_rows_own_and_the_extra_ones():
    settings = tiny_run()
    document = run(settings, Rounds())
    expected = {row.floor for row in settings.rows} | set(settings.floors)
    found = {
        FloorSpec(f["name"], f["payload"], f["depth"], f["processes"]) for f in document["floors"]
    }
    assert found == expected
    thread_switch = next(f for f in document["floors"] if f["name"] == "thread_switch")
    assert thread_switch["blocks"] == 2 * settings.blocks  # two kernel rows stand beside it
    assert all(floor["p50_us"] == 2.0 for floor in document["floors"])


def test_rounds_take_the_families_to_and_fro_and_their_blocks_in_turn():
    settings = replace(tiny_run(), floors=(), rounds=2, blocks_per_round=3)
    rounds = Rounds()
    run(settings, rounds)
    assert len(rounds.logs) == rounds.closed == 2
    taken = [[entry[1] for entry in log if entry[0] == "prepare"] for log in rounds.logs]
    assert len(taken[0]) == len(families(settings.rows)) + 1  # two processes are asked one by one
    assert sorted(set(taken[0]), key=repr) == sorted(families(settings.rows), key=repr)
    assert taken[1] == taken[0][::-1]
    for number, log in enumerate(rounds.logs):
        family = (kernel_row("irp"), kernel_row("direct"))
        begin = log.index(("prepare", family)) + 1 + 4  # each floor and row is warmed up
        there = [("floor", 0), ("row", 0), ("floor", 1), ("row", 1)]
        turns = [there, there[::-1], there] if number == 0 else [there[::-1], there, there[::-1]]
        assert log[begin : begin + 12] == [block for turn in turns for block in turn]


def test_a_drifting_floor_marks_row_and_run():
    document = run(replace(tiny_run(), blocks_per_round=8, rounds=1), Rounds(drift=0.05))
    assert "unsteady" in document["provenance"]["marks"]
    assert ["unsteady"] in [row["marks"] for row in document["rows"]]
    calm = run(tiny_run(), Rounds())
    assert "unsteady" not in calm["provenance"]["marks"]


def test_an_extra_copy_marks_row_and_run():
    document = run(tiny_run(), Rounds(extra_copies=1))
    assert "copies" in document["provenance"]["marks"]
    assert all(row["marks"] == ["copies"] for row in document["rows"])
    assert "copies" not in run(tiny_run(), Rounds())["provenance"]["marks"]


def test_unpinned_runs_say_so():
    assert "unpinned" in run(tiny_run(), Rounds())["provenance"]["marks"]
    assert "unpinned" not in run(tiny_run().pinned(0, 0), Rounds())["provenance"]["marks"]


def test_a_run_without_time_takes_what_fits_into_a_millisecond():
    settings = replace(tiny_run(), time_limit_ns=0, operations_per_block=10**6)
    document = run(settings, Rounds())
    # 3 us fit 333 times into it, whoever of the processes does it.
    for row in document["rows"]:
        assert row["count"] == 4 * 333 * row["processes"]


def test_a_failing_round_is_closed_and_told():
    class Refusing:
        def group(self, verifier: bool, processes: int) -> WorkerGroup:
            raise WorkerFailed("no")

    @contextmanager
    def failing(settings: BenchSettings) -> Iterator[Refusing]:
        yield Refusing()

    with pytest.raises(WorkerFailed):
        BenchRun(tiny_run(), failing, NoProgress()).run()


# --- open loop --------------------------------------------------------------------------------


def test_an_open_loop_says_how_its_schedule_was_kept():
    settings = tiny_run().scheduled(1_000.0)
    document = run(settings, Rounds())
    assert (document["settings"]["loop"], document["settings"]["rate_per_s"]) == ("open", 1_000.0)
    assert all(row["client"] == "user" and row["depth"] == 1 for row in document["rows"])
    for row in document["rows"]:
        assert row["open_loop"]["rate_per_s"] == 1_000.0
        assert row["open_loop"]["backlog_max"] == 3
        assert row["open_loop"]["late_max_us"] == 3_000.0
        # The last start of each block of twelve was a whole interval late: a twelfth behind.
        assert row["open_loop"]["behind"] == pytest.approx(1 / 12, abs=1e-3)
        assert row["open_loop"]["overloaded"]
        assert row["marks"] == ["overloaded"]
    assert "overloaded" in document["provenance"]["marks"]
    assert document["answers"] == []  # figures of a growing queue are not compared


def test_an_open_loop_that_keeps_pace_is_not_overloaded():
    settings = replace(tiny_run().scheduled(1_000.0), operations_per_block=9, time_limit_ns=10**12)
    document = run(settings, Rounds())
    assert all(not row["open_loop"]["overloaded"] for row in document["rows"])
    assert [row["open_loop"]["started_per_s"] for row in document["rows"]] == [1_000.0] * len(
        document["rows"]
    )


# --- stages -----------------------------------------------------------------------------------


def test_stages_stand_beside_the_row_without_tracing():
    rounds = Rounds()
    settings = replace(tiny_run(), rows=(BASE,), floors=()).with_stages()
    document = run(settings, rounds)
    assert [row_of(stages) for stages in document["stages"]] == list(stage_rows())
    for stages in document["stages"]:
        assert (stages["untraced_p50_us"], stages["traced_p50_us"]) == (3.0, 3.4)
        assert stages["tracing_cost_us"]["value"] == pytest.approx(0.4)
        assert stages["sum_us"] == 3.4
        assert sum(stage["mean_us"] for stage in stages["stages"]) == pytest.approx(3.4)
        assert [stage["stage"] for stage in stages["stages"]] == list(STAGES)
        assert sum(stage["share"] for stage in stages["stages"]) == pytest.approx(1.0, abs=1e-3)
        assert stages["requests"] + stages["incomplete"] == 4 * 12
        assert stages["incomplete"] == 4
        assert stages["within_tracing_cost"]
        assert stages["marks"] == ["traced"]
    kinds = [entry[0] for entry in rounds.logs[0] if entry[0] in ("row", "traced")]
    assert kinds[-12:].count("traced") == 4  # two blocks of each of the last two rows
    assert run(tiny_run(), Rounds())["stages"] == []
