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
