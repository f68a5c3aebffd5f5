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
from user_proc.run_document import HEADING, load_strict

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
        self._program: list[VerbStep] = []
        self._pages = 1
        self._answer: Mapping[str, Any] | WorkerFailed = {}

    def ask(self, do: str, **values: Any) -> Mapping[str, Any]:
        self.send(do, **values)
        return self.receive()

    def send(self, do: str, **values: Any) -> None:
        try:
            self._answer = getattr(self, f"do_{do}")(**values)
        except WorkerFailed as failed:
            self._answer = failed

    def receive(self) -> Mapping[str, Any]:
        if isinstance(self._answer, WorkerFailed):
            raise self._answer
        return self._answer

    def do_prepare_program(self, **values: Any) -> Mapping[str, Any]:
        if values.get("length", 0) == self._trouble:
            raise WorkerRefused("reg_mr was refused: errno 12")
        self._program = unpack_program(bytes.fromhex(values["program"]))
        request = self._program[0].request([0] * 64)
        self._pages = getattr(request, "length", 4096) // 4096
        self._log.append((values["client"], len(self._program)))
        return {}

    def _step_ns(self) -> int:
        return STEP_NS + PAGE_NS * (self._pages - 1)

    def do_steps(self, window: dict[str, int]) -> Mapping[str, Any]:
        count = window["count"]
        times = {"took_ns": COMMAND_NS, "asked_ns": ASKED_NS, "device_ns": DEVICE_NS}
        commands = [
            {"names": ["NOP"], **{name: [time] * count for name, time in times.items()}}
            for _ in self._program
        ]
        return {"samples": [[self._step_ns()] * count for _ in self._program], "commands": commands}

    def do_block(
        self, index: int, which: str, counted: bool, window: dict[str, int]
    ) -> Mapping[str, Any]:
        self._log.append(which)
        sample = ECHO_NS if which == "floor" else STEP_NS * len(self._program)
        count = window["count"]
        used = {"operations": count, "cpu_user_ns": 1_000 * count, "cpu_kernel_ns": 2_000 * count}
        return {
            "samples": [sample] * count,
            "elapsed_ns": sample * count,
            "late_ns": 0,
            "last_late_ns": 0,
            "used": used,
        }

    def do_counters(self) -> Mapping[str, Any]:
        return {"totals": {}, "cost": {}}

    def do_opens(self, count: int) -> Mapping[str, Any]:
        return {"open_ns": [2_000_000] * count}

    def do_release(self) -> Mapping[str, Any]:
        return {}


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


def rows_of(document: Mapping[str, Any], **values: Any) -> list[Mapping[str, Any]]:
    return [row for row in document["rows"] if all(row[name] == values[name] for name in values)]


def test_every_verb_has_a_row_for_each_client_and_model_with_right_figures():
    kernels = Kernels()
    settings = replace(quick_run(), models=("none", "plausible"), processes=(1,), sizes=(4096,))
    document = run(settings, kernels)
    assert document["kind"] == "verbs"
    assert all(row.keys() >= FIELDS for row in document["rows"])
    for model in settings.models:
        for client in ("user", "kernel"):
            rows = rows_of(document, latency_model=model, client=client, bytes=None)
            wanted = every_verb().for_client(client).rows
            assert [row["verb"] for row in rows if row["verb"] != CONTROL_MIX] == wanted
    assert "rereg_mr" not in every_verb().for_client("kernel").rows
    (row,) = rows_of(document, verb="query_qp", client="user", latency_model="plausible")
    assert row["count"] == 15 * settings.passes_per_block
    assert row["blocks"] == 15
    assert (row["p50_us"], row["ops_per_s"]) == (50.0, 20_000.0)
    assert (row["commands"], row["command_us"]) == (["NOP"], 30.0)
    assert (row["asked_us"], row["device_us"], row["boundary_us"]) == (9.0, 10.0, 40.0)
    assert (row["floor"], row["floor_p50_us"], row["ratio"]) == ("echo", 20.0, 2.5)
    assert (row["ratio_of"], row["convention"]) == ("p50_us", "round_trip")
    (row,) = rows_of(document, verb="query_qp", client="kernel", latency_model="none")
    assert row["floor"] == "thread_switch"
    assert kernels.closed == len(kernels.parts)


def test_a_slow_model_is_measured_once_and_little():
    kernels = Kernels()
    settings = replace(full_run(), models=("prm-ceiling", "none"), processes=(), sizes=())
    document = run(settings, kernels)
    (slow,) = rows_of(document, verb="alloc_pd", client="user", latency_model="prm-ceiling")
    (fast,) = rows_of(document, verb="alloc_pd", client="user", latency_model="none")
    assert slow["count"] == settings.slow_passes
    assert slow["p99_us"] is None
    assert fast["count"] == 15 * settings.passes_per_block
    assert fast["p99_us"] == 50.0
    assert [part for part in kernels.parts if part[0] == "prm-ceiling"] == [
        ("prm-ceiling", "contiguous", 1)
    ]


def test_under_a_slow_model_alone_there_is_no_mix():
    document = run(replace(tiny_run(), models=("prm-ceiling",)), Kernels())
    assert document["settings"]["not_measured"] == [
        "registrations and the control mix: not under prm-ceiling"
    ]
    assert {row["latency_model"] for row in document["rows"]} == {"prm-ceiling"}
    assert not rows_of(document, verb=CONTROL_MIX)
    assert printed(document, 100)


def test_registrations_have_size_layout_and_memory():
    kernels = Kernels()
    settings = replace(tiny_run(), sizes=(4096, 1 << 20, 4 << 20), processes=())
    document = run(settings, kernels)
    assert ("none", "scattered", 1) in kernels.parts
    for layout in ("contiguous", "scattered"):
        for memory, most in (("arena", 3), ("private", 3), ("kernel", 2)):
            for verb in ("reg_mr", "dereg_mr"):
                rows = rows_of(document, verb=verb, layout=layout, memory=memory)
                assert [row["bytes"] for row in rows] == list(settings.sizes)[:most]
                client = "kernel" if memory == "kernel" else "user"
                assert {row["client"] for row in rows} == {client}
    (answer,) = [one for one in document["answers"] if "registering" in one["question"]]
    figures = answer["figures"]["scattered arena"]
    assert figures["per_page_us"] == pytest.approx(0.1)
    assert "0.100 us for each page more" in answer["answer"]


def test_what_cannot_be_registered_is_said_and_the_run_goes_on():
    settings = replace(tiny_run(), sizes=(4096, 1 << 20, 1 << 30), processes=(1,))
    document = run(settings, Kernels(trouble=1 << 20), room=1 << 30)
    assert document["settings"]["not_measured"] == [
        "1073741824 B: not enough free memory",
        *(
            f"1048576 B, {memory}, {layout}: reg_mr was refused: errno 12"
            for layout in ("contiguous", "scattered")
            for memory in ("arena", "private")
        ),
    ]
    assert {row["bytes"] for row in rows_of(document, memory="arena")} == {4096}
    assert rows_of(document, verb=CONTROL_MIX)


def test_the_mix_is_compared_by_rates_at_the_same_number_of_processes():
    kernels = Kernels()
    settings = replace(tiny_run(), processes=(8, 1), sizes=())
    document = run(settings, kernels)
    one, eight = rows_of(document, verb=CONTROL_MIX)
    verbs = len(control_mix().steps)
    assert (one["processes"], eight["processes"]) == (1, 8)
    assert one["verbs_per_operation"] == verbs == 12
    assert one["ops_per_s"] == pytest.approx(1e9 / STEP_NS)
    assert one["ratio"] == pytest.approx(ECHO_NS / STEP_NS)
    assert eight["ops_per_s"] == pytest.approx(8 * one["ops_per_s"])
    assert eight["ratio"] == pytest.approx(one["ratio"])
    assert one["ratio_of"] == "ops_per_s"
    assert one["commands"] == eight["commands"] == ["NOP"] * verbs
    assert one["asked_us"] == pytest.approx(verbs * ASKED_NS / 1000)
    assert eight["cpu_user_us"] == 1.0
    assert kernels.parts[-1] == ("none", "contiguous", 8)
    assert [floor["processes"] for floor in document["floors"] if floor["name"] == "echo"] == [1, 8]


def test_which_of_floor_and_row_comes_first_alternates():
    kernels = Kernels()
    run(replace(tiny_run(), processes=(1,), sizes=(), blocks_per_round=4), kernels)
    start = kernels.log.index(("user", len(control_mix().steps)))
    warm_up, blocks = kernels.log[start + 1 : start + 3], kernels.log[start + 3 :]
    assert warm_up == ["row", "floor"]
    assert blocks == ["floor", "row", "row", "floor"] * 2


def test_a_running_kernel_is_measured_as_it_is():
    kernels = Kernels()
    document = run(replace(tiny_run(), processes=(1,)).at_kernel("mine", "plausible"), kernels)
    assert {part[:2] for part in kernels.parts} == {("plausible", "running")}
    assert {row["latency_model"] for row in document["rows"]} == {"plausible"}
    assert document["settings"]["name"] == "mine"


def test_a_worker_that_is_gone_ends_the_run():
    class GoneWorker(ArithmeticWorker):
        def do_opens(self, count: int) -> Mapping[str, Any]:
            raise WorkerFailed("a user process (pid 1) ended unexpectedly")

    class Gone(Kernels):
        @contextmanager
        def __call__(self, *arguments: Any) -> Iterator[Sequence[ArithmeticWorker]]:
            yield [GoneWorker(self.log, -1)]
            self.closed += 1

    with pytest.raises(WorkerFailed, match="ended unexpectedly"):
        run(tiny_run(), Gone())


def test_answers_need_their_rows():
    assert answers_of([]) == []
    document = run(replace(tiny_run(), processes=(1, 2)), Kernels())
    questions = [answer["question"] for answer in document["answers"]]
    assert questions == [
        "Which share of a verb is the boundary?",
        "What does a verb cost a user beyond a kernel client?",
        "What does registering memory cost?",
        "How does the control mix scale?",
    ]
    boundary, beyond, _, mix = document["answers"]
    verbs = len(every_verb().for_client("user").rows)
    assert boundary["figures"]["none user"]["p50_us"] == 50.0 * verbs
    assert "80 % are not the device's execution" in boundary["answer"]
    assert "40 % were spent outside of them" in boundary["answer"]
    assert beyond["figures"]["none"]["user_us"] == beyond["figures"]["none"]["kernel_us"]
    assert "2 processes together get 2.00 times what one process gets." in mix["answer"]


def test_kernels_have_room_for_what_is_asked():
    options = kernel_options(full_run(), "plausible", "scattered", 1)
    assert options["latency_model"] == "plausible"
    assert options["fragmentation"] == 1
    assert options["arena_bytes_per_process"] >= 1 << 30  # type: ignore[operator]  # a number
    assert kernel_options(quick_run(), "none", "contiguous", 64)["fragmentation"] == 0


# Views


def printed(document: Mapping[str, Any], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(render(document, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_table_says_whose_numbers_these_are_and_shows_every_row(width: int):
    document = run(replace(tiny_run(), processes=(1, 2)), Kernels())
    lines = printed(document, width)
    text = " ".join(" ".join(lines).split())
    assert text.startswith(HEADING)
    for verb in every_verb().rows:
        assert sum(line.lstrip().startswith(verb + " ") for line in lines) == 2 - (
            verb == "rereg_mr"
        )
    for words in ("control mix:", "registration of arena memory", "opening the HCA's device"):
        assert words in text
    (line,) = [line for line in lines if line.lstrip().startswith("rereg_mr")]
    assert line.split()[:2] == ["rereg_mr", "50.0"]
    assert width < 100 or line.split()[-1] == "NOP"


def test_commands_are_counted_and_broken_behind_their_column():
    assert commands_text([]) == "none"
    assert commands_text(["A", "B", "B", "A"]) == "A Bx2 A"
    document = run(replace(tiny_run(), processes=(), sizes=()), Kernels())
    row = rows_of(document, verb="alloc_pd", client="user")[0]
    row["commands"][:] = ["MGID_HASH", "READ_MGM", "WRITE_MGM", "WRITE_MGM"]  # type: ignore[index]
    lines = printed(document, 100)
    place = next(index for index, line in enumerate(lines) if line.startswith("  alloc_pd"))
    column = lines[place].index("MGID_HASH")
    assert lines[place + 1][:column].strip() == ""
    assert lines[place + 1].strip() == "WRITE_MGMx2"


def test_csv_is_a_view_of_the_rows():
    document = run(replace(tiny_run(), processes=(1,)), Kernels())
    lines = list(csv.DictReader(io.StringIO(rows_as_csv(document, CSV_COLUMNS)), strict=True))
    assert len(lines) == len(document["rows"])
    for line, row in zip(lines, document["rows"], strict=True):
        assert float(line["p50_us"]) == row["p50_us"]
        assert line["commands"] == " ".join(row["commands"])
        assert line["bytes"] == ("" if row["bytes"] is None else str(row["bytes"]))
