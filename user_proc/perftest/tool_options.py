"""The options of the perftest tools, with perftest's letters, defaults and bounds.

Spec: linux-rdma/perftest, perftest_parameters.c and its manual page.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from shared.version import softhca_version
from user_proc.perftest.option_parser import OptionParser, number
from user_proc.perftest.peer_link import DEFAULT_PORT
from user_proc.perftest.tool_errors import WrongOptions
from user_proc.perftest.tool_kinds import ATOMIC, ATOMIC_BYTES, LARGEST_MESSAGE, SEND, WRITE, Tool

DEVICE: Final = "mthca0"
MTUS: Final = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}

_PEAK_LIMIT: Final = 20_000
_LEAST_ITERATIONS: Final = 5
_MOST_ITERATIONS: Final = 10**7  # each leaves a stamp; longer runs have a duration
_CQ_MODERATION: Final = 100
_LARGE: Final = 8192
_JSON_FILE: Final = "perftest_out.json"

_REFUSED: Final = (
    (("-R", "--rdma_cm", "-z", "--comm_rdma_cm", "-T", "--tos"), "there is no connection manager"),
    (("-b", "--bidirectional", "--reversed", "--report-both"), "one direction is measured"),
    (("-g", "--mcg", "-M", "--MGID"), "the tools send to one receiver, not to groups"),
    (("-O", "--dualport", "--report-per-port"), "one port is used at a time; choose it with -i"),
    (("-C", "--report-cycles"), "there is no cycle counter; times are in microseconds"),
    (("-w", "--limit_bw", "-y", "--limit_msgrate"), "the tools measure and do not judge"),
    (("-W", "--report-counters"), "'softhca show port' tells the counters"),
    (("--run_infinitely",), "give a duration with -D"),
    (("--odp", "--use_hugepages", "--mmap"), "the memory is an arena of the kernel"),
    (("--rate_limit", "--burst_size"), "the device has no rate limits"),
    (("--use_cuda", "--use_rocm"), "there is no memory of a graphics processor"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What one run was asked for; `None` and 0 are said where they mean something."""

    tool: Tool
    host: str | None  # None: this is the server
    name: str | None
    port: int
    device: str
    ib_port: int
    connection: str
    sizes: tuple[int, ...]
    iterations: int
    duration: int  # seconds, 0: so many iterations
    margin: int
    qps: int
    tx_depth: int
    rx_depth: int
    moderation: int | None  # None: by the size
    post_list: int
    mtu: int | None  # None: the port's
    gid_index: int | None
    inline: int
    events: bool
    timeout: int
    retries: int
    service_level: int
    outstanding: int | None  # None: what the device takes
    atomic: str
    use_srq: bool
    gigabits: bool
    peak: bool
    histogram: bool
    unsorted: bool
    output: str | None
    json_file: str | None

    @property
    def is_server(self) -> bool:
        """Tell which side this is."""
        return self.host is None

    @property
    def largest(self) -> int:
        """Bytes of the largest message."""
        return max(self.sizes)

    def moderation_of(self, size: int) -> int:
        """Give how many requests of a size share one completion."""
        if self.post_list > 1:
            return self.post_list
        wanted = self.moderation
        if wanted is None:
            small = size <= _LARGE or self.connection == "UD" or self.events or len(self.sizes) > 1
            wanted = _CQ_MODERATION if small else 1
        most = self.tx_depth if self.duration else min(self.tx_depth, self.iterations)
        return max(1, min(wanted, most))

    def wants_peak(self) -> bool:
        """Tell whether the best window is looked for."""
        return self.peak and not self.duration and self.iterations * self.qps <= _PEAK_LIMIT

    def symmetric(self) -> dict[str, object]:
        """Give what both sides must have been told alike, by the option that says it."""
        return {
            "-c": self.connection,
            "-s": list(self.sizes),
            "-n": self.iterations,
            "-D": self.duration,
            "-f": self.margin,
            "-q": self.qps,
            "-m": self.mtu,
            "-A": self.atomic,
            "--use-srq": self.use_srq,
        }


def parse_options(tool: Tool, arguments: Sequence[str]) -> Options:
    """Read a tool's command line; WrongOptions says in one sentence what is wrong."""
    given = _parser(tool).parse_args(arguments)
    connection = given.connection
    inline = tool.inline(connection) if given.inline is None else given.inline
    margin = given.duration // 4 if given.margin is None else given.margin
    if given.duration and margin * 2 >= given.duration:
        raise WrongOptions("-f: two margins must leave something of the duration (-D)")
    if given.post_list > given.tx_depth or given.iterations % given.post_list:
        raise WrongOptions("-l: the depth (-t) must have room for it, and -n be a multiple of it")
    if given.use_srq and given.rx_depth < given.qps:
        raise WrongOptions("-r: a shared receive queue must have a receive for each queue pair")
    return Options(
        tool=tool,
        host=given.host,
        name=given.name,
        port=given.port,
        device=given.device,
        ib_port=given.ib_port,
        connection=connection,
        sizes=_sizes(tool, given),
        iterations=given.iterations,
        duration=given.duration,
        margin=margin,
        qps=given.qps,
        tx_depth=given.tx_depth,
        rx_depth=given.rx_depth,
        moderation=given.moderation,
        post_list=given.post_list,
        mtu=given.mtu,
        gid_index=given.gid_index,
        inline=inline,
        events=given.events,
        timeout=given.timeout,
        retries=given.retries,
        service_level=given.service_level,
        outstanding=given.outstanding,
        atomic=given.atomic,
        use_srq=given.use_srq,
        gigabits=given.gigabits,
        peak=given.peak,
        histogram=given.histogram or given.unsorted,
        unsorted=given.unsorted,
        output=given.output,
        json_file=given.json_file if given.json or given.json_file != _JSON_FILE else None,
    )


def _sizes(tool: Tool, given: argparse.Namespace) -> tuple[int, ...]:
    largest = LARGEST_MESSAGE
    if given.connection == "UD":
        largest = given.mtu or max(MTUS)
    if given.all:
        return tuple(1 << power for power in range(1, largest.bit_length()))
    if given.size is None:
        return (min(tool.size, largest),)
    if given.size > largest:
        raise WrongOptions(f"-s: a datagram has at most {largest} bytes, one packet")
    return (given.size,)


def _parser(tool: Tool) -> OptionParser:
    kind = "latency" if tool.is_latency else "bandwidth"
    parser = OptionParser(tool.name, f"The {kind} of {tool.operation.replace('_', ' ')}.")
    add = parser.add_argument
    parser.set_defaults(
        all=False, size=None, events=False, connection="RC", inline=0, qps=1,
        tx_depth=tool.tx_depth, rx_depth=512, moderation=None, post_list=1,
        gigabits=False, peak=False, histogram=False,
        unsorted=False, outstanding=None, atomic="FETCH_AND_ADD", use_srq=False,
    )  # fmt: skip
    add("-p", "--port", type=number(1, 65535), default=DEFAULT_PORT, help="TCP port of the meeting")
    add("-d", "--ib-dev", dest="device", default=DEVICE, help=f"device ({DEVICE})")
    add("-i", "--ib-port", dest="ib_port", type=number(1, 255), default=1, help="its port (1)")
    kinds = {SEND: ("RC", "UC", "UD"), WRITE: ("RC", "UC")}.get(tool.operation, ("RC",))
    add("-c", "--connection", choices=kinds, help="transport (RC)")
    add("-n", "--iters", dest="iterations", type=number(_LEAST_ITERATIONS, _MOST_ITERATIONS),
        default=tool.iterations, help=f"messages of a queue pair ({tool.iterations})")  # fmt: skip
    add("-D", "--duration", type=number(1, 10**6), default=0, help="run so many seconds instead")
    add("-f", "--margin", type=number(0, 10**6), default=None, help="seconds at both ends left out")
    add("-m", "--mtu", type=mtu, default=None, help="256 to 4096 (the port's)")
    add("-x", "--gid-index", type=number(0, 127), default=None, help="send with a GRH")
    add("-S", "--sl", dest="service_level", type=number(0, 15), default=0, help="service level")
    add(
        "-u", "--qp-timeout", dest="timeout", type=number(0, 31), default=14, help="4 us * 2^n (14)"
    )
    add("--retry_count", dest="retries", type=number(0, 7), default=7, help="retries (7)")
    add("-F", "--CPU-freq", action="store_true", help="accepted; the frequency is never judged")
    add("-V", "--version", action="version", version=f"softhca {softhca_version()}")
    add("--out_json", dest="json", action="store_true", help=f"write {_JSON_FILE}")
    add("--out_json_file", dest="json_file", default=_JSON_FILE, metavar="FILE", help="write FILE")
    add("--output", choices=("latency",) if tool.is_latency else ("bandwidth", "message_rate"),
        help="print this number alone")  # fmt: skip
    _add_by_operation(tool, add)
    (_add_latency if tool.is_latency else _add_bandwidth)(add)
    for spellings, reason in _REFUSED:
        parser.refuse(spellings, reason)
    return parser


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
    if tool.operation != WRITE:
        add("-e", "--events", action="store_true", help="sleep until a completion comes")
    if tool.operation == SEND:
        add("-r", "--rx-depth", type=number(1, 16384), help="receives ready (512)")
        add("--use-srq", action="store_true", help="receive by a shared receive queue")
    if tool.fetches:
        add("-o", "--outs", dest="outstanding", type=number(1, 255), help="under way at a time")


def _add_latency(add: Any) -> None:
    add("-H", "--report-histogram", dest="histogram", action="store_true", help="all, sorted")
    add("-U", "--report-unsorted", dest="unsorted", action="store_true", help="all, in order")


def _add_bandwidth(add: Any) -> None:
    add("-t", "--tx-depth", type=number(1, 16384), help="requests under way (128)")
    add("-q", "--qp", dest="qps", type=number(1, 1024), help="queue pairs (1)")
    add("-Q", "--cq-mod", dest="moderation", type=number(1, 16384), help="requests a completion")
    add("-l", "--post_list", type=number(1, 1024), help="requests of one post (1)")
    add("-N", "--noPeak", dest="peak", action="store_false", default=True, help="no best window")
    add("--report_gbits", dest="gigabits", action="store_true", help="Gb/s instead of MiB/s")


def mtu(text: str) -> int:
    """Convert a text to a path MTU."""
    if text.isascii() and text.isdigit() and int(text) in MTUS:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(map(str, MTUS))}")
