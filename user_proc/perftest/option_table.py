"""Which options each perftest tool has: letters, bounds, help; and those it refuses, with why.

Spec: linux-rdma/perftest, perftest_parameters.c and its manual page.
"""

import argparse
from typing import Any, Final

from shared.version import softhca_version
from user_proc.perftest.option_parser import OptionParser, number, positive
from user_proc.perftest.peer_link import DEFAULT_PORT
from user_proc.perftest.tool_kinds import ATOMIC, ATOMIC_BYTES, LARGEST_MESSAGE, SEND, WRITE, Tool

DEVICE: Final = "mthca0"
MTUS: Final = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
JSON_FILE: Final = "perftest_out.json"

_LEAST_ITERATIONS: Final = 5
_MOST_ITERATIONS: Final = 10**7  # each leaves a stamp; longer runs have a duration

_REFUSED: Final = (
    (("-R", "--rdma_cm", "-z", "--comm_rdma_cm", "-T", "--tos"), "there is no connection manager"),
    (("--reversed",), "the client sends; start the two sides the other way round"),
    (("-g", "--mcg", "-M", "--MGID"), "the tools send to one receiver, not to groups"),
    (("-O", "--dualport", "--report-per-port"), "one port is used at a time; choose it with -i"),
    (("-C", "--report-cycles"), "there is no cycle counter; times are in microseconds"),
    (("-W", "--report-counters"), "'softhca show port' tells the counters"),
    (("--run_infinitely",), "give a duration with -D"),
    (
        ("--odp", "--use_hugepages", "--mmap", "--mmap-offset", "--payload_file_path"),
        "the memory is an arena of the kernel",
    ),
    (("--mr_per_qp",), "all queue pairs have one memory region"),
    (
        ("--rate_limit", "--rate_units", "--burst_size", "--typical_pkt_size"),
        "the device has no rate limits",
    ),
    (("--latency_gap",), "an iteration begins when the one before it has ended"),
    (("--recv_post_list",), "receives are posted one at a time"),
    (("--cqe_poll", "--disable_dynamic_polling"), "the loop decides how many it polls at a time"),
    (("--no_lock", "--force-link", "--disable_pcie_relaxed"), "the device has no such mode"),
    (("--use_old_post_send",), "the old post is what is used"),
    (
        ("--ipv6", "--ipv6-addr", "--bind_source_ip"),
        "the two sides meet on 127.0.0.1; choose a GID with -x",
    ),
    (
        ("--pin_cores", "--numa_node", "--disable_numa"),
        "start the tool by taskset or numactl instead",
    ),
    (("--wait_destroy", "--dont_xchg_versions"), "the tools do not do what it changes"),
    (("--use_cuda", "--use_rocm"), "there is no memory of a graphics processor"),
)


def parser_of(tool: Tool) -> OptionParser:
    """Make the parser of a tool's command line."""
    kind = "latency" if tool.is_latency else "bandwidth"
    parser = OptionParser(tool.name, f"The {kind} of {tool.operation.replace('_', ' ')}.")
    parser.set_defaults(
        all=False, size=None, events=False, vector=0, connection="RC", inline=0, qps=1,
        tx_depth=tool.tx_depth, rx_depth=512, moderation=None, post_list=1, with_imm=False,
        gigabits=False, peak=False, histogram=False, bidirectional=False, report_both=False,
        unsorted=False, outstanding=None, atomic="FETCH_AND_ADD", use_srq=False, warm_up=False,
        least_bandwidth=None, least_rate=None,
    )  # fmt: skip
    add = parser.add_argument
    _add_run(tool, add)
    _add_path(add)
    _add_output(tool, add)
    _add_by_operation(tool, add)
    (_add_latency if tool.is_latency else _add_bandwidth)(tool, add)
    for spellings, reason in _REFUSED:
        parser.refuse(spellings, reason)
    return parser


def _add_run(tool: Tool, add: Any) -> None:
    add("-p", "--port", type=number(1, 65535), default=DEFAULT_PORT, help="TCP port of the meeting")
    add("-d", "--ib-dev", dest="device", default=DEVICE, help=f"device ({DEVICE})")
    kinds = {SEND: ("RC", "UC", "UD"), WRITE: ("RC", "UC")}.get(tool.operation, ("RC",))
    add("-c", "--connection", choices=kinds, help="transport (RC)")
    add("-n", "--iters", dest="iterations", type=number(_LEAST_ITERATIONS, _MOST_ITERATIONS),
        default=tool.iterations, help=f"messages of a queue pair ({tool.iterations})")  # fmt: skip
    add("-D", "--duration", type=number(1, 10**6), default=0, help="run so many seconds instead")
    add("-f", "--margin", type=number(0, 10**6), default=None, help="seconds at both ends left out")
    add("-F", "--CPU-freq", action="store_true", help="accepted; the frequency is never judged")
    add("--data_validation", action="store_true", help="accepted; the data are always checked")


def _add_path(add: Any) -> None:
    add("-i", "--ib-port", dest="ib_port", type=number(1, 255), default=1, help="port (1)")
    add("-m", "--mtu", type=mtu, default=None, help="256 to 4096 (the port's)")
    add("-S", "--sl", dest="service_level", type=number(0, 15), default=0, help="service level")
    add("--dlid", type=number(0, 65535), default=None, help="destination LID (what is told)")
    add("--pkey_index", type=number(0, 65535), default=0, help="index of the P_Key (0)")
    add("-x", "--gid-index", type=number(0, 127), default=None, help="send with a GRH")
    add("-L", "--hop_limit", type=number(0, 255), default=64, help="of a GRH (64)")
    add("--tclass", dest="traffic_class", type=number(0, 255), default=0, help="of a GRH (0)")
    add("--flow_label", type=number(0, (1 << 20) - 1), default=0, help="of a GRH (0)")
    add("-u", "--qp-timeout", dest="timeout", type=number(0, 31), default=14,
        help="4 us * 2^n (14)")  # fmt: skip
    add("--retry_count", dest="retries", type=number(0, 7), default=7, help="retries (7)")


def _add_output(tool: Tool, add: Any) -> None:
    add("-V", "--version", action="version", version=f"softhca {softhca_version()}")
    add("--out_json", dest="json", action="store_true", help=f"write {JSON_FILE}")
    add("--out_json_file", dest="json_file", default=None, metavar="FILE", help="write FILE")
    add("--output", choices=("latency",) if tool.is_latency else ("bandwidth", "message_rate"),
        help="print this number alone")  # fmt: skip
    add("--cpu_util", action="store_true", help="with -D: how busy all processors were")


def _add_by_operation(tool: Tool, add: Any) -> None:
    if tool.operation != ATOMIC:
        sizes = number(1, LARGEST_MESSAGE)
        add("-s", "--size", type=sizes, default=None, help=f"bytes of a message ({tool.size})")
        add("-a", "--all", action="store_true", help="sizes 2, 4, ... 2^23 (UD: the MTU)")
    else:
        add("-A", "--atomic_type", dest="atomic", choices=("FETCH_AND_ADD", "CMP_AND_SWAP"),
            help=f"which, of {ATOMIC_BYTES} bytes")  # fmt: skip
    if tool.operation in (SEND, WRITE):
        add("-I", "--inline_size", dest="inline", type=number(0, 4096), default=None,
            help="messages up to this size are copied by the post")  # fmt: skip
        word = "send" if tool.operation == SEND else "write"
        add(f"--{word}_with_imm", dest="with_imm", action="store_true", help="with immediate data")
        add("-r", "--rx-depth", type=number(1, 16384), help="receives ready (512)")
    if tool.operation != WRITE:
        add("-e", "--events", action="store_true", help="sleep until a completion comes")
        add("-X", "--vector", type=number(0, 1023), help="completion vector of the events (0)")
    if tool.operation == SEND:
        add("--use-srq", action="store_true", help="receive by a shared receive queue")
    if tool.fetches:
        add("-o", "--outs", dest="outstanding", type=number(1, 255), help="under way at a time")


def _add_latency(tool: Tool, add: Any) -> None:
    add("-H", "--report-histogram", dest="histogram", action="store_true", help="all, sorted")
    add("-U", "--report-unsorted", dest="unsorted", action="store_true", help="all, in order")


def _add_bandwidth(tool: Tool, add: Any) -> None:
    add("-t", "--tx-depth", type=number(1, 16384), help="requests under way (128)")
    add("-q", "--qp", dest="qps", type=number(1, 1024), help="queue pairs (1)")
    add("-Q", "--cq-mod", dest="moderation", type=number(1, 16384), help="requests a completion")
    add("-l", "--post_list", type=number(1, 1024), help="requests of one post (1)")
    add("-b", "--bidirectional", action="store_true", help="both directions at once")
    add("--report-both", action="store_true", help="with -b: a row for each direction")
    add("-N", "--noPeak", dest="peak", action="store_false", default=True, help="no best window")
    add("--report_gbits", dest="gigabits", action="store_true", help="Gb/s instead of MiB/s")
    add("-w", "--limit_bw", dest="least_bandwidth", type=positive, help="fail below, in its unit")
    add("-y", "--limit_msgrate", dest="least_rate", type=positive, help="fail below, in Mpps")
    if tool.operation != SEND:
        add("--perform_warm_up", dest="warm_up", action="store_true",
            help="a queue full of messages first, which do not count")  # fmt: skip


def mtu(text: str) -> int:
    """Convert a text to a path MTU."""
    if text.isascii() and text.isdigit() and int(text) in MTUS:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(map(str, MTUS))}")
