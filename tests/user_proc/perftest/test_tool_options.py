"""The command lines: perftest's defaults and bounds, and one sentence for what cannot be."""

import pytest

from user_proc.perftest.tool_errors import WrongOptions
from user_proc.perftest.tool_kinds import TOOLS
from user_proc.perftest.tool_main import main
from user_proc.perftest.tool_options import Options, parse_options


def parse(tool: str, line: str = "") -> Options:
    return parse_options(TOOLS[tool], line.split())


DEFAULTS = {  # size, iterations, tx depth, inline
    "ib_send_lat": (2, 1000, 1, 236),
    "ib_send_bw": (65536, 1000, 128, 0),
    "ib_write_lat": (2, 1000, 1, 220),
    "ib_write_bw": (65536, 5000, 128, 0),
    "ib_read_lat": (2, 1000, 1, 0),
    "ib_read_bw": (65536, 1000, 128, 0),
    "ib_atomic_lat": (8, 1000, 1, 0),
}


@pytest.mark.parametrize("tool", DEFAULTS)
def test_defaults_are_those_of_perftest(tool: str):
    found = parse(tool)
    assert (found.largest, found.iterations, found.tx_depth, found.inline) == DEFAULTS[tool]
    assert (found.port, found.timeout, found.retries, found.connection) == (18515, 14, 7, "RC")
    assert found.is_server
    assert not parse(tool, "127.0.0.1").is_server


def test_sizes():
    assert parse("ib_send_bw", "-a").sizes == tuple(1 << n for n in range(1, 24))
    assert parse("ib_send_bw", "-a -c UD -m 1024").sizes[-1] == 1024
    assert parse("ib_send_bw", "-c UD").sizes == (4096,)
    assert parse("ib_send_bw", "-s 8M").sizes == (1 << 23,)
    assert parse("ib_send_lat", "-c UD").inline == 188
    assert parse("ib_send_bw", "-c UC -s 8M").sizes == (1 << 23,)


@pytest.mark.parametrize("tool", ["ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw"])
def test_what_needs_no_answer_goes_over_uc(tool: str):
    assert parse(tool, "-c UC").connection == "UC"


@pytest.mark.parametrize(
    ("line", "size", "moderation"),
    [
        ("", 8192, 100),
        ("", 8193, 1),
        ("-a", 8193, 100),
        ("-Q 7", 8193, 7),
        ("-Q 1000", 8193, 128),
        ("-n 20", 64, 20),
        ("-l 4", 64, 4),
    ],
)
def test_how_many_requests_share_a_completion(line: str, size: int, moderation: int):
    assert parse("ib_send_bw", line).moderation_of(size) == moderation


def test_duration_and_peak():
    timed = parse("ib_write_bw", "-D 10")
    assert (timed.margin, timed.wants_peak()) == (2, False)
    assert parse("ib_write_bw").wants_peak()
    assert not parse("ib_write_bw", "-N").wants_peak()
    assert not parse("ib_write_bw", "-n 20001").wants_peak()


def test_json_and_histogram():
    assert parse("ib_send_lat").json_file is None
    assert parse("ib_send_lat", "--out_json").json_file == "perftest_out.json"
    assert parse("ib_send_lat", "--out_json_file=x.json").json_file == "x.json"
    assert parse("ib_send_lat", "-U").histogram


WRONG = {
    "ib_send_lat -R": "-R is not supported: there is no connection manager",
    "ib_send_bw -b": "-b is not supported: one direction is measured",
    "ib_send_lat --rdma_cm 127.0.0.1": "--rdma_cm is not supported",
    "ib_send_lat -C": "no cycle counter",
    "ib_send_lat -s x": "'x' is no number from 1 to 8388608",
    "ib_send_lat -s 9M": "no number from",
    "ib_send_lat -n 4": "no number from 5",
    "ib_send_lat -m 1000": "'1000' is none of 256, 512, 1024, 2048, 4096",
    "ib_write_lat -c UD": "invalid choice",
    "ib_read_lat -c UC": "invalid choice",
    "ib_atomic_lat -c UC": "invalid choice",
    "ib_write_lat -e": "unrecognized arguments: -e",
    "ib_atomic_lat -s 8": "unrecognized arguments: -s",
    "ib_send_lat -t 8": "unrecognized arguments: -t",
    "ib_send_bw -c UD -s 5000": "-s: a datagram has at most 4096 bytes",
    "ib_send_bw -D 10 -f 5": "-f: two margins",
    "ib_send_bw -l 3": "-l: the depth",
    "ib_send_bw --use-srq -q 9 -r 8": "-r: a shared receive queue",
    "ib_send_lat one two": "unrecognized arguments: two",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_option_is_one_sentence_and_exit_code_2(
    line: str, capsys: pytest.CaptureFixture[str]
):
    tool, *rest = line.split()
    with pytest.raises(WrongOptions, match=r"^[^\n]+$") as caught:
        parse_options(TOOLS[tool], rest)
    assert WRONG[line] in str(caught.value)


def test_help_and_version_leave_with_0(capsys: pytest.CaptureFixture[str]):
    assert main("ib_send_lat", ["-h"]) == 0
    assert "never of hardware" in " ".join(capsys.readouterr().out.split())
    assert main("ib_send_lat", ["-V"]) == 0
