"""Rows and JSON as perftest's readers expect them."""

import json
from pathlib import Path

import pytest

from user_proc.perftest.result_figures import Bandwidth, Latency, TimedLatency
from user_proc.perftest.tool_errors import ToolFailed
from user_proc.perftest.tool_kinds import TOOLS
from user_proc.perftest.tool_options import parse_options
from user_proc.perftest.tool_report import Report, Result

LATENCY = Latency(2, 1000, 1, 9, 2, 3, 0.5, 7, 8)
LATENCY_KEYS = ["t_min", "t_max", "t_typical", "t_avg", "t_stdev"]
LATENCY_KEYS += ["percentile_99", "percentile_99.9"]
FAST = Bandwidth(1 << 20, 10, 200.0, 100.0)


def row(tool: str, line: str, result: Result, file: Path) -> tuple[str, dict[str, float]]:
    """Give the test's name and the results of the JSON."""
    options = parse_options(TOOLS[tool], [*line.split(), "--out_json_file", str(file)])
    Report(options).row(result)
    document = json.loads(file.read_text())
    return document["test_info"]["test"], document["results"]


@pytest.mark.parametrize(
    ("tool", "line", "result", "title", "keys"),
    [
        ("ib_send_lat", "", LATENCY, "Send_Latency_Test", LATENCY_KEYS),
        ("ib_atomic_lat", "", LATENCY, "Atomic_FETCH_AND_ADD_Latency_Test", LATENCY_KEYS),
        (
            "ib_read_lat", "-D 2", TimedLatency(2, 10, 3, 5), "RDMA_Read_Latency_Test",
            ["t_avg", "tps_average"],
        ),
        (
            "ib_write_bw", "", FAST, "RDMA_Write_BW_Test",
            ["BW_peak", "BW_average", "MsgRate"],
        ),
    ],
)  # fmt: skip
def test_the_table_has_the_figures_of_the_json(
    tool: str, line: str, result: Result, title: str, keys: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    name, found = row(tool, line, result, tmp_path / "out.json")
    assert name == title
    assert sorted(found) == sorted(["MsgSize", "n_iterations", *keys])
    printed = [float(word) for word in capsys.readouterr().out.split()]
    assert printed == [found[key] for key in ("MsgSize", "n_iterations", *keys)]


def test_the_columns_stand_below_their_heads(capsys: pytest.CaptureFixture[str]):
    for tool, line, result in (
        ("ib_send_lat", "", LATENCY),
        ("ib_write_bw", "", FAST),
        ("ib_write_bw", "--report_gbits", FAST),
    ):
        report = Report(parse_options(TOOLS[tool], line.split()))
        report.header()
        report.row(result)
        _, head, below = capsys.readouterr().out.splitlines()
        starts = [at for at in range(1, len(below)) if below[at - 1] == " " != below[at]]
        names = [at for at in range(1, len(head)) if head[at - 1] == " " != head[at]]
        slack = 3 if line else 1  # a unit is shorter in Gb/sec; one blank stays between columns
        begins = [min(names, key=lambda name, at=at: abs(name - at)) for at in starts]
        assert all(abs(at - name) <= slack for at, name in zip(starts, begins, strict=True)), below


def test_how_busy_the_machine_was_is_the_last_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for tool, result in (
        ("ib_write_bw", Bandwidth(64, 10, None, 100.0, 87.654)),
        ("ib_write_lat", TimedLatency(2, 10, 3, 5, 87.654)),
    ):
        report = Report(parse_options(TOOLS[tool], ["-D", "2", "--cpu_util"]))
        report.header()
        assert capsys.readouterr().out.rstrip().endswith("CPU_Util[%]")
        assert row(tool, "-D 2 --cpu_util", result, tmp_path / "o")[1]["CPU_util"] == 87.65
        assert capsys.readouterr().out.split()[-1] == "87.65"


def test_both_directions_together():
    other = Bandwidth(1 << 20, 10, 50.0, 30.0)
    assert FAST.with_other(other) == Bandwidth(1 << 20, 10, 250.0, 130.0)
    assert FAST.with_other(Bandwidth(1 << 20, 10, None, 30.0)).peak is None


@pytest.mark.parametrize(
    ("tool", "line", "title"),
    [
        ("ib_send_bw", "--send_with_imm", "Send_imm_BW_Test"),
        ("ib_write_lat", "--write_with_imm", "RDMA_Write_imm_Latency_Test"),
        ("ib_read_bw", "-b -l 2", "RDMA_Read_Bidirectional_Post_List_BW_Test"),
    ],
)
def test_the_title_says_what_is_done(tool: str, line: str, title: str, tmp_path: Path):
    result = LATENCY if tool.endswith("lat") else FAST
    assert row(tool, line, result, tmp_path / "o")[0] == title


def test_units_and_what_was_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    _, found = row("ib_read_bw", "--report_gbits", FAST, tmp_path / "o")
    assert (found["BW_peak"], found["BW_average"]) == (1.68, 0.84)
    capsys.readouterr()
    _, found = row("ib_read_bw", "-N", Bandwidth(1 << 20, 10, None, 100.0), tmp_path / "o")
    assert "BW_peak" not in found
    assert capsys.readouterr().out.split()[2:4] == ["-", "100.00"]


def test_a_bare_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert row("ib_read_bw", "--output message_rate", FAST, tmp_path / "o")[1] == {
        "msgRate_avg": 0.0001
    }
    assert capsys.readouterr().out == "0.000100\n"


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    with pytest.raises(ToolFailed, match="cannot write"):
        row("ib_read_bw", "", FAST, tmp_path / "missing" / "o")
