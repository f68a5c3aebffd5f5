"""The command lines: perftest's defaults and bounds, and one sentence for what cannot be."""

import pytest

from user_proc.perftest.option_parser import OptionParser
from user_proc.perftest.option_table import parser_of
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


def test_depths_are_cut_to_the_messages_there_are():
    assert (parse("ib_send_bw", "-n 20").tx_depth, parse("ib_send_bw", "-n 20").rx_depth) == (
        20,
        20,
    )
    assert parse("ib_send_bw", "-n 20 --use-srq -q 4").rx_depth == 80
    assert parse("ib_send_bw", "-n 20 -D 4").tx_depth == 128


def test_who_sends_and_who_receives():
    for line, sends, receives in (
        ("", False, True), ("127.0.0.1", True, False), ("-b", True, True), ("-b host", True, True),
    ):  # fmt: skip
        found = parse("ib_send_bw", line)
        assert (found.is_sender, found.is_receiver) == (sends, receives), line
    assert not parse("ib_write_bw").is_receiver
    assert parse("ib_write_bw", "--write_with_imm").is_receiver
    assert parse("ib_send_lat", "127.0.0.1").is_receiver


#: Every option of perftest's manual page, with a value where it takes one.
PERFTEST = [
    option
    for line in (
        "-a -A=FETCH_AND_ADD -b -c=RC -C -d=mthca0 -D=10 -e -X=0 -f=1 -F -g -M=ff:: -h -H -U -i=1",
        "-I=64 -l=1 -L=1 -m=256 -n=5 -N -o=1 -O -p=1 -q=1 -Q=1 -r=1 -R -z -s=1 -S=1 -t=1 -T=1",
        "-u=1 -V -w=1 -y=1 -W -x=0 --report_gbits --report-both --reversed --report-per-port",
        "--out_json --out_json_file=x --output=bandwidth --cpu_util --use-srq --run_infinitely",
        "--latency_gap=1 --perform_warm_up --recv_post_list=1 --write_with_imm --send_with_imm",
        "--no_lock --use_old_post_send --mr_per_qp --pkey_index=0 --retry_count=7 --dlid=1",
        "--tclass=1 --flow_label=1 --ipv6 --ipv6-addr --bind_source_ip=x --odp --use_hugepages",
        "--mmap=x --mmap-offset=1 --cqe_poll=1 --disable_dynamic_polling --disable_pcie_relaxed",
        "--data_validation --payload_file_path=x --rate_limit=1 --rate_units=g --burst_size=1",
        "--typical_pkt_size=1 --pin_cores=1 --numa_node=1 --disable_numa --wait_destroy=1",
        "--dont_xchg_versions --force-link=IB",
    )
    for option in line.split()
]


def is_known(parser: OptionParser, option: str) -> bool:
    """Tell whether a tool takes an option, or says why it does not."""
    try:
        parser.parse_args(option.split("="))
    except WrongOptions as wrong:
        return "unrecognized" not in str(wrong)
    except SystemExit:  # -h and -V
        return True
    return True


def test_every_option_of_perftest_is_known():
    parsers = [parser_of(tool) for tool in TOOLS.values()]
    unknown = [
        option for option in PERFTEST if not any(is_known(parser, option) for parser in parsers)
    ]
    print(f"{len(PERFTEST)} options")
    assert unknown == []


def test_json_and_histogram():
    assert parse("ib_send_lat").json_file is None
    assert parse("ib_send_lat", "--out_json").json_file == "perftest_out.json"
    assert parse("ib_send_lat", "--out_json_file=x.json").json_file == "x.json"
    assert parse("ib_send_lat", "-U").histogram


WRONG = {
    "ib_send_lat -R": "-R is not supported: there is no connection manager",
    "ib_send_bw -b -c UD": "-b: over UD what finds no receive is lost",
    "ib_write_bw -b --write_with_imm -c UC": "-b: over UC",
    "ib_send_bw --report-both": "--report-both: there is one direction",
    "ib_send_lat -b": "unrecognized arguments: -b",
    "ib_send_lat --cpu_util": "--cpu_util: needs a duration",
    "ib_write_bw --perform_warm_up --write_with_imm": "--perform_warm_up: with immediate data",
    "ib_write_bw -w 0": "'0' is no number above 0",
    "ib_write_bw -y nan": "'nan' is no number above 0",
    "ib_write_lat --send_with_imm": "unrecognized arguments: --send_with_imm",
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
