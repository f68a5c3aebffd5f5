"""What one run of a perftest tool was asked for, and what follows from it.

Spec: linux-rdma/perftest, perftest_parameters.c and its manual page.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from user_proc.perftest.option_table import JSON_FILE, MTUS, parser_of
from user_proc.perftest.tool_errors import WrongOptions
from user_proc.perftest.tool_kinds import LARGEST_MESSAGE, SEND, WRITE, Tool

_PEAK_LIMIT: Final = 20_000
_CQ_MODERATION: Final = 100
_LARGE: Final = 8192


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
    with_imm: bool
    bidirectional: bool
    report_both: bool
    warm_up: bool
    mtu: int | None  # None: the port's
    dlid: int | None  # None: what the other side tells
    pkey_index: int
    gid_index: int | None
    hop_limit: int
    traffic_class: int
    flow_label: int
    inline: int
    events: bool
    vector: int
    timeout: int
    retries: int
    service_level: int
    outstanding: int | None  # None: what the device takes
    atomic: str
    use_srq: bool
    gigabits: bool
    peak: bool
    least_bandwidth: float | None
    least_rate: float | None
    histogram: bool
    unsorted: bool
    cpu_util: bool
    output: str | None
    json_file: str | None

    @property
    def is_server(self) -> bool:
        """Tell which side this is."""
        return self.host is None

    @property
    def takes_receives(self) -> bool:
        """Tell whether each message needs a receive at its destination."""
        return self.tool.operation == SEND or self.with_imm

    @property
    def is_sender(self) -> bool:
        """Tell whether this side posts what is measured, of bandwidth."""
        return not self.is_server or self.bidirectional

    @property
    def is_receiver(self) -> bool:
        """Tell whether this side has receives for the other side's messages."""
        return self.takes_receives and (
            self.is_server or self.bidirectional or self.tool.is_latency
        )

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
        return min(wanted, self.tx_depth)

    def wants_peak(self) -> bool:
        """Tell whether the best window is looked for."""
        return self.peak and not self.duration and self.iterations * self.qps <= _PEAK_LIMIT

    def symmetric(self) -> dict[str, object]:
        """Give what both sides must have been told alike, by the option that says it."""
        imm = "--write_with_imm" if self.tool.operation == WRITE else "--send_with_imm"
        return {
            "-c": self.connection,
            "-s": list(self.sizes),
            "-n": self.iterations,
            "-D": self.duration,
            "-f": self.margin,
            "-q": self.qps,
            "-m": self.mtu,
            "-A": self.atomic,
            "-b": self.bidirectional,
            "--report-both": self.report_both,
            "--use-srq": self.use_srq,
            imm: self.with_imm,
        }


def parse_options(tool: Tool, arguments: Sequence[str]) -> Options:
    """Read a tool's command line; WrongOptions says in one sentence what is wrong."""
    given = parser_of(tool).parse_args(arguments)
    if given.inline is None:
        given.inline = tool.inline(given.connection)
    if given.margin is None:
        given.margin = given.duration // 4
    _require_sense(tool, given)
    if not given.duration:
        given.tx_depth = min(given.tx_depth, given.iterations)
        shared_by = given.qps if given.use_srq else 1
        given.rx_depth = min(given.rx_depth, given.iterations * shared_by)
    given.histogram |= given.unsorted
    if given.json and given.json_file is None:
        given.json_file = JSON_FILE
    values = {**vars(given), "tool": tool, "sizes": _sizes(tool, given)}
    return Options(**{one.name: values[one.name] for one in fields(Options)})


def _require_sense(tool: Tool, given: argparse.Namespace) -> None:
    """Refuse what cannot go together."""
    if given.duration and given.margin * 2 >= given.duration:
        raise WrongOptions("-f: two margins must leave something of the duration (-D)")
    if given.post_list > given.tx_depth or given.iterations % given.post_list:
        raise WrongOptions("-l: the depth (-t) must have room for it, and -n be a multiple of it")
    if given.use_srq and given.rx_depth < given.qps:
        raise WrongOptions("-r: a shared receive queue must have a receive for each queue pair")
    if given.cpu_util and not given.duration:
        raise WrongOptions("--cpu_util: needs a duration (-D)")
    if given.report_both and not given.bidirectional:
        raise WrongOptions("--report-both: there is one direction without -b")
    if given.warm_up and given.with_imm:
        raise WrongOptions("--perform_warm_up: with immediate data every message counts")
    takes_receives = tool.operation == SEND or given.with_imm
    if given.bidirectional and takes_receives and given.connection != "RC":
        raise WrongOptions(
            f"-b: over {given.connection} what finds no receive is lost, so sends go one way"
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
