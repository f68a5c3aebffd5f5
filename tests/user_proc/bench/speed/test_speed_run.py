"""The data path's benchmark with ends that answer by arithmetic: rows, figures, views."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from user_proc.bench.csv_view import rows_as_csv
from user_proc.bench.progress_view import NoProgress
from user_proc.bench.speed.speed_answers import answers_of
from user_proc.bench.speed.speed_blocks import PayloadWrong
from user_proc.bench.speed.speed_kernels import SpeedRound, kernel_options
from user_proc.bench.speed.speed_rows import (
    DISPATCH,
    EVENT,
    KERNEL,
    LOADED,
    OPS,
    SpeedSpec,
    allowed,
)
from user_proc.bench.speed.speed_run import SpeedRun
from user_proc.bench.speed.speed_settings import SpeedSettings, full_run, quick_run, tiny_run
from user_proc.bench.speed.speed_table import CSV_COLUMNS, render
from user_proc.run_document import HEADING, load_strict

FIELDS = {
    "op", "transport", "bytes", "qps", "depth", "processes", "mode", "load", "count", "blocks",
    "p50_us", "p99_us", "bw_gib_s", "msg_per_s", "spin", "floor", "floor_p50_us", "ratio",
    "convention", "client", "irql",
}  # fmt: skip
MESSAGE_NS, FLOOR_NS, LOADED_TIMES = 20_000, 5_000, 3
HELD_NS = 1_000_000
SHORT = replace(quick_run(), most_operations=100, blocks_per_round=2)


class ArithmeticEnd:
    """A message takes 20 us, a floor 5, under load three times that; payloads arrive as sent."""

    def __init__(self, kernel: "Arithmetic") -> None:
        self._kernel = kernel
        self._op = ""
        self._answers: list[Mapping[str, Any]] = []

    def ask(self, do: str, **values: Any) -> Mapping[str, Any]:
        self.send(do, **values)
        return self.receive()

    def send(self, do: str, **values: Any) -> None:
        answer = getattr(self, f"do_{do}", lambda **_: {})(**values)
        self._answers.append(answer)

    def receive(self) -> Mapping[str, Any]:
        return self._answers.pop(0)

    def do_make_words(self) -> Mapping[str, Any]:
        return {"path": "/nowhere", "spin": 7}

    def do_prepare(self, row: dict[str, Any], ends: int = 1) -> Mapping[str, Any]:
        self._op = row["op"]
        self._is_held = SpeedSpec(**row).is_held
        return {"addresses": [{}] * ends}

    def do_fill(self, seed: int) -> Mapping[str, Any]:
        return {"word": 0}

    def do_block(self, count: int, active: bool, begin_ns: int = 0) -> Mapping[str, Any]:
        self._kernel.messages = count
        if active:
            self._kernel.log.append("row")
        if not self._is_held:
            return self._timed(MESSAGE_NS, count)
        return self._timed(2 * MESSAGE_NS + HELD_NS if active else HELD_NS, count)

    def do_kernel_block(self, row: dict[str, Any], count: int) -> Mapping[str, Any]:
        self._kernel.log.append("kernel")
        samples = [MESSAGE_NS] * count if row["op"] == "post_to_poll" else []
        return {"samples": samples, "elapsed_ns": MESSAGE_NS * count}

    def do_floor(self, name: str, count: int, **others: Any) -> Mapping[str, Any]:
        if others.get("active", True):
            self._kernel.log.append("floor")
        return self._timed(FLOOR_NS, count)

    def _timed(self, each_ns: int, count: int) -> Mapping[str, Any]:
        each_ns *= LOADED_TIMES if self._kernel.is_loaded else 1
        return {
            "samples": [each_ns] * count, "begin_ns": 0, "end_ns": each_ns * count, "cpu_ns": 0,
        }  # fmt: skip

    def do_sums(self) -> Mapping[str, Any]:
        came = 2 if self._op == self._kernel.broken else 1
        end = {"sent": 1, "came": came, "word": self._kernel.messages}
        return {"ends": [end, end] if self._op == "post_to_poll" else [end]}


class Arithmetic:
    """Opens rounds, and remembers what was done."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.log: list[str] = []
        self.messages = 0
        self.is_loaded = False
        self.opened = self.closed = 0
        self.workers: Sequence[ArithmeticEnd] = ()

    @contextmanager
    def __call__(self, settings: SpeedSettings) -> Iterator[SpeedRound]:
        self.opened += 1
        self.workers = [ArithmeticEnd(self) for _ in range(settings.processes)]
        try:
            yield self
        finally:
            self.closed += 1

    def load(self) -> None:
        self.is_loaded = True

    def unload(self) -> int:
        self.is_loaded = False
        return 4_000


def run(settings: SpeedSettings, kernel: Arithmetic) -> dict[str, Any]:
    return load_strict(SpeedRun(settings, NoProgress(), kernel).run().as_json())


def some(*rows: SpeedSpec, **values: Any) -> SpeedSettings:
    return replace(tiny_run(), rows=rows, **values)


def test_every_row_has_its_fields_and_figures():
    kernel = Arithmetic()
    document = run(replace(quick_run(), most_operations=100), kernel)
    assert document["kind"] == "speed"
    assert document["settings"]["load_verbs_per_s"] == [4_000]
    assert {row["op"] for row in document["rows"]} == set(OPS)
    for row in document["rows"]:
        assert row.keys() >= FIELDS
        times = LOADED_TIMES if row["load"] == LOADED else 1
        assert row["blocks"] == 15
        pairs = max(1, row["processes"] // 2)
        stream = row["convention"] == "time_per_message"
        assert row["p50_us"] == pytest.approx(20.0 * times / (pairs if stream else 1))
        assert row["floor_p50_us"] == pytest.approx(5.0 * times)
        assert row["ratio"] == pytest.approx(0.25 if row["ratio_of"] == "bw_gib_s" else 4 / pairs)
        assert (row["bw_gib_s"] is None) == (row["msg_per_s"] is None) == (not stream)
        assert row["spin"] == (None if row["mode"] == EVENT else 7)
        assert row["counts"]["payloads_checked"] == 15 * pairs
        if stream:
            assert row["p99_us"] is None
            gibibytes = row["msg_per_s"] * row["bytes"] / (1 << 30)
            assert row["bw_gib_s"] == pytest.approx(gibibytes, rel=1e-3, abs=1e-4)
    assert kernel.opened == kernel.closed == 1


def test_which_of_floor_and_row_comes_first_alternates():
    kernel = Arithmetic()
    run(some(SpeedSpec("send_lat"), blocks_per_round=4), kernel)
    assert kernel.log[:3] == ["row", "row", "floor"]  # warming up
    assert kernel.log[3:] == ["floor", "row", "row", "floor"] * 2


def test_loaded_rows_come_last_in_each_round():
    kernel = Arithmetic()
    rows = (SpeedSpec("send_lat", load=LOADED), SpeedSpec("send_lat"))
    document = run(some(*rows, rounds=3), kernel)
    assert [row["load"] for row in document["rows"]] == ["unloaded", "loaded"]
    assert [row["blocks"] for row in document["rows"]] == [6, 6]
    assert document["settings"]["load_verbs_per_s"] == [4_000] * 3
    assert kernel.opened == 3


def test_the_time_a_message_was_held_is_not_counted():
    held, plain = run(some(SpeedSpec("send_lat", mode=EVENT), SpeedSpec("send_lat")), Arithmetic())[
        "rows"
    ]
    assert held["p50_us"] == plain["p50_us"] == MESSAGE_NS / 1000


def test_events_are_for_messages_whose_completion_is_waited_for():
    rows = [SpeedSpec(op, mode=EVENT) for op in OPS]
    assert {row.op for row in allowed(rows)} == {"send_lat", "read_lat", "atomic_lat"}


@pytest.mark.parametrize("op", ["send_lat", "write_bw", "read_bw", "msg_rate", "post_to_poll"])
def test_a_payload_that_came_wrong_ends_the_run(op: str):
    kernel = Arithmetic(broken=op)
    row = SpeedSpec(op, processes=1 if op == "post_to_poll" else 2)
    with pytest.raises(PayloadWrong, match=f"{op}.*not what was sent"):
        run(some(row), kernel)
    assert kernel.closed == 1


def test_messages_of_a_block_are_whole_chains_on_every_queue_pair():
    kernel = Arithmetic()
    (row,) = run(some(SpeedSpec("msg_rate", qps=3, depth=64)), kernel)["rows"]
    assert row["chain"] == 16
    assert row["count"] % (16 * 3) == 0
    assert kernel.messages % (16 * 3) == 0


@pytest.mark.parametrize(
    ("spec", "floor", "convention"),
    [
        (SpeedSpec("send_lat"), "relay", "half_round_trip"),
        (SpeedSpec("write_lat"), "relay", "half_round_trip"),
        (SpeedSpec("read_lat"), "relay_return", "round_trip"),
        (SpeedSpec("post_to_poll", processes=1), "relay_return", "round_trip"),
        (SpeedSpec("send_lat", mode=EVENT), "echo", "half_round_trip"),
        (SpeedSpec("read_bw", bytes=1 << 20), "copy", "time_per_message"),
        (SpeedSpec("msg_rate", depth=64), "relay", "time_per_message"),
    ],
)
def test_a_row_knows_its_floor_and_what_its_time_is(spec: SpeedSpec, floor: str, convention: str):
    assert (spec.floor.name, spec.convention) == (floor, convention)


def test_the_plans_span_what_is_promised():
    rows = full_run().rows
    assert {row.op for row in rows} == set(OPS)
    assert {min(row.bytes for row in rows), max(row.bytes for row in rows)} == {2, 8 << 20}
    assert all(row.bytes <= 4096 for row in rows if row.transport == "UD")
    assert len(set(rows)) == len(rows)
    assert set(quick_run().rows) <= set(rows)
    assert full_run().blocks == quick_run().blocks == 15
    options = kernel_options(full_run())
    assert options["arena_bytes_per_process"] >= 4 * full_run().largest


# Words and views


def test_answers_are_of_the_rows_that_were_taken():
    assert answers_of([]) == []
    rows = (SpeedSpec("send_lat"), SpeedSpec("send_lat", load=LOADED))
    document = run(some(*rows), Arithmetic())
    message, load = document["answers"]
    assert "takes 20.0 us, 4.00 times a word's way through a relay process" in message["answer"]
    assert "60.0 us instead of 20.0, 3.00 times; its floor 3.00 times" in load["answer"]
    of_kernel = run(SHORT, Arithmetic())["answers"]
    assert len(of_kernel) == 6
    assert "At DISPATCH_LEVEL: 20.0 us from post until polled" in of_kernel[-1]["answer"]
    assert of_kernel[-1]["answer"].endswith("The write takes a user process 20.0 us.")


def test_rows_of_a_kernel_client_are_taken_by_one_process_alone():
    kernel = Arithmetic()
    rows = [
        SpeedSpec(op, depth=depth, processes=0, client=KERNEL, irql=DISPATCH)
        for op, depth in (("post_to_poll", 1), ("msg_rate", 64))
    ]
    document = run(some(*rows), kernel)
    assert [row["client"] for row in document["rows"]] == [KERNEL, KERNEL]
    assert [row["p50_us"] for row in document["rows"]] == [20.0, 20.0]
    assert kernel.log.count("row") == 0
    assert kernel.log.count("kernel") == 2 * (2 + 2)  # warming up, and blocks
    assert "kernel client at DISPATCH_LEVEL" in rows[0].label()
    assert allowed([replace(rows[0], transport="UD"), replace(rows[0], op="send_lat")]) == ()


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_table_says_whose_numbers_these_are_and_shows_every_row(width: int):
    document = run(SHORT, Arithmetic())
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(render(document, width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert " ".join(" ".join(lines).split()).startswith(HEADING)
    ratios = [line for line in lines if line.rstrip().endswith("x") or "x  " in line]
    assert len(ratios) >= len(document["rows"])
    assert any(line.startswith("send_lat RC, event, loaded") for line in lines)


def test_csv_is_a_view_of_the_rows():
    document = run(tiny_run(), Arithmetic())
    lines = list(csv.DictReader(io.StringIO(rows_as_csv(document, CSV_COLUMNS)), strict=True))
    assert [float(line["p50_us"]) for line in lines] == [row["p50_us"] for row in document["rows"]]
    assert {line["bw_gib_s"] == "" for line in lines} == {True, False}
