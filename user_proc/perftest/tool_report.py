"""What a tool prints and writes: banner, frame, addresses, table, JSON.

Columns and keys are perftest's. What was not measured is a dash in the table, and left out of the
JSON.

Spec: linux-rdma/perftest, perftest_parameters.h (headers and formats).
"""

import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from user_proc.perftest.address import Address
from user_proc.perftest.bandwidth_loops import BATCH
from user_proc.perftest.endpoint import Endpoint
from user_proc.perftest.option_parser import EMULATOR
from user_proc.perftest.result_figures import Bandwidth, Latency, TimedLatency
from user_proc.perftest.tool_errors import ToolFailed
from user_proc.perftest.tool_kinds import ATOMIC
from user_proc.perftest.tool_options import Options

_RULE: Final = "-" * 87
_STARS: Final = "*" * 36
_LATENCY_HEADER: Final = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
    "    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
)
_LATENCY_WIDTHS: Final = (15, 13, 19, 15, 16, 23, 7)
_TIMED_HEADER: Final = " #bytes        #iterations       t_avg[usec]    tps average"
_SMALL_GIGABITS: Final = 0.1
_CPU_HEADER: Final = "    CPU_Util[%]"
_LABEL: Final = 16
_SECOND_LABEL: Final = 15

Result = Latency | TimedLatency | Bandwidth


class Report:
    """One side's output."""

    def __init__(self, options: Options) -> None:
        self._options: Final = options
        self._title: Final = _title(options)
        self._facts: list[Fact] = []

    def say(self, text: str) -> None:
        """Print a line at once, unless a bare number is all that is wanted."""
        if self._options.output is None:
            print(text, flush=True)

    def waiting(self) -> None:
        """Say that the server waits."""
        self.say(f"\n{_STARS}\n* Waiting for client to connect... *\n{_STARS}")

    def frame(self, endpoint: Endpoint, kernel: str, is_own: bool) -> None:
        """Print who measures what on what."""
        self._facts = _facts(self._options, endpoint)
        owner = " (started by this server)" if is_own else ""
        self.say(f"{_RULE}\n{' ' * 20}{self._title}")
        for line in _lines(self._facts):
            self.say(line)
        self.say(f" {'Kernel':<16}: {kernel}{owner}")
        self.say(f" {EMULATOR}")
        if self._options.tool.is_latency:
            half = "half the round trip" if self._options.tool.is_ping_pong else "the full time"
            self.say(f" A latency is {half} of one iteration.")
        self.say(_RULE)

    def addresses(self, side: str, address: Address, endpoint: Endpoint) -> None:
        """Print one side's addresses."""
        tool = self._options.tool
        for qpn, psn in address.qps:
            text = f" {side} address: LID {address.lid:#04x} QPN {qpn:#06x} PSN {psn:#06x}"
            if tool.fetches:
                text += f" OUT {endpoint.outstanding:#04x}"
            if tool.is_remote:
                text += f" RKey {address.rkey:#08x} VAddr {address.base:#016x}"
            self.say(text)
        if address.gid and endpoint.gid is not None:
            raw = ipaddress.IPv6Address(address.gid).packed
            self.say(" GID: " + ":".join(f"{byte:02d}" for byte in raw))

    def header(self) -> None:
        """Print the head of the table."""
        options = self._options
        self.say(_RULE)
        if options.tool.is_latency:
            head = _TIMED_HEADER if options.duration else _LATENCY_HEADER
        else:
            unit = "[Gb/sec]" if options.gigabits else "[MiB/sec]"
            head = f" #bytes     #iterations    BW peak{unit}    BW average{unit}   MsgRate[Mpps]"
        self.say(head + (_CPU_HEADER if options.cpu_util else ""))

    def samples(self, samples: Sequence[float]) -> None:
        """Print every sample, as -H and -U ask for."""
        if self._options.histogram:
            ordered = samples if self._options.unsorted else sorted(samples)
            self.say("#, usec")
            for number, value in enumerate(ordered, 1):
                self.say(f"{number}, {value:g}")

    def row(self, result: Result) -> None:
        """Print a row, and write the JSON file if there is one."""
        options = self._options
        text, figures, bare = _row(result, options)
        if options.output is None:
            print(text, flush=True)
        else:
            print(f"{bare[options.output]:f}", flush=True)
            figures = {_BARE_KEYS[options.output]: bare[options.output]}
        if options.json_file is not None:
            info: dict[str, object] = {"test": self._title.replace(" ", "_")}
            info |= {fact.key: fact.value for fact in self._facts if fact.key}
            self._write(options.json_file, {"test_info": info, "results": figures})

    def end(self) -> None:
        """Print the last rule."""
        self.say(_RULE)

    @staticmethod
    def _write(name: str, document: dict[str, object]) -> None:
        try:
            Path(name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ToolFailed(f"cannot write {name}: {error.strerror}") from error


_BARE_KEYS: Final = {
    "bandwidth": "bw_avg",
    "message_rate": "msgRate_avg",
    "latency": "avg_lat",
}


def _title(options: Options) -> str:
    tool = options.tool
    words = [tool.operation + ("_imm" if options.with_imm else "")]
    if tool.operation == ATOMIC:
        words.append(options.atomic)
    if options.bidirectional:
        words.append("Bidirectional")
    if options.post_list > 1:
        words.append("Post List")
    return " ".join([*words, "Latency" if tool.is_latency else "BW", "Test"])


class Fact(NamedTuple):
    """A line of the frame, or with `beside` the right half of one; `key` names it in the JSON."""

    label: str
    value: object
    key: str = ""
    unit: str = ""
    beside: bool = False


def _facts(options: Options, endpoint: Endpoint) -> list[Fact]:
    """Give what the frame tells, in perftest's order."""
    tool = options.tool
    srq = "ON" if options.use_srq else "OFF"
    facts = [
        Fact("Dual-port", "OFF", "Dual_port"),
        Fact("Device", options.device, "Device", beside=True),
        Fact("Number of qps", options.qps, "Number_of_qps"),
        Fact("Transport type", "IB", "Transport_type", beside=True),
        Fact("Connection type", options.connection, "Connection_type"),
        Fact("Using SRQ", srq, "Using_SRQ", beside=True),
        Fact("PCIe relax order", "OFF", "PCIe_relax_order"),
        Fact("Lock-free", "OFF", beside=True),
        Fact("ibv_wr* API", "OFF", "ibv_wr_API"),
        Fact("Using Enhanced Reorder      ", "OFF", beside=True),
        Fact("TX depth", options.tx_depth, "TX_depth"),
    ]
    if options.post_list > 1:
        facts.append(Fact("Post List", options.post_list, "Post_List"))
    if options.is_receiver:
        facts.append(Fact("RX depth", options.rx_depth, "RX_depth"))
    if not tool.is_latency:
        moderation = options.moderation_of(options.largest)
        facts.append(Fact("CQ Moderation", moderation, "CQ_Moderation"))
        facts.append(Fact("CQE Poll Batch", BATCH))
    facts.append(Fact("Mtu", endpoint.mtu, "Mtu", "[B]"))
    facts.append(Fact("Link type", "IB", "Link_type"))
    if options.gid_index is not None:
        facts.append(Fact("GID index", options.gid_index, "GID_index"))
    if tool.fetches:
        facts.append(Fact("Outstand reads", endpoint.outstanding, "Outstand_reads"))
    else:
        facts.append(Fact("Max inline data", options.inline, "Max_inline_data", "[B]"))
    facts.append(Fact("rdma_cm QPs\t ", "OFF", "rdma_cm_QPs"))
    facts.append(Fact("Data ex. method", "Ethernet", "Data_ex_method"))
    return facts


def _lines(facts: Sequence[Fact]) -> list[str]:
    lines: list[str] = []
    for label, value, _, unit, beside in facts:
        if beside:
            lines[-1] += f"\t\t{label:<{_SECOND_LABEL}}: {value}{unit}"
        else:
            width = 0 if "\t" in label else _LABEL
            lines.append(f" {label:<{width}}: {value}{unit}")
    return lines


def _row(result: Result, options: Options) -> tuple[str, dict[str, object], dict[str, float]]:
    """Give the row's text, its JSON, and the bare numbers."""
    figures: dict[str, object] = {"MsgSize": result.size, "n_iterations": result.iterations}
    if isinstance(result, Bandwidth):
        return _bandwidth_row(result, options.gigabits, figures)
    if isinstance(result, TimedLatency):
        figures |= {"t_avg": round(result.average, 2), "tps_average": round(result.per_second, 2)}
        text = f" {result.size:<7}        {result.iterations:<10}        {result.average:<7.2f}"
        text += f"        {result.per_second:<7.2f}" + _cpu(result, figures)
        return text, figures, {"latency": result.average}
    names = {
        "t_min": result.least,
        "t_max": result.most,
        "t_typical": result.typical,
        "t_avg": result.average,
        "t_stdev": result.deviation,
        "percentile_99": result.percentile_99,
        "percentile_99.9": result.percentile_999,
    }
    columns = zip(names.values(), _LATENCY_WIDTHS, strict=True)
    text = "".join(f"{value:<{width}.2f}" for value, width in columns)
    figures |= {name: round(value, 2) for name, value in names.items()}
    head = f" {result.size:<7} {result.iterations:<14}"
    return head + text.rstrip(), figures, {"latency": result.average}


def _bandwidth_row(
    result: Bandwidth, gigabits: bool, figures: dict[str, object]
) -> tuple[str, dict[str, object], dict[str, float]]:
    average = result.rate(result.average, gigabits)
    digits = 6 if gigabits and average < _SMALL_GIGABITS else 2
    peak = "-"
    if result.peak is not None:
        value = result.rate(result.peak, gigabits)
        peak = f"{value:.{digits}f}"
        figures["BW_peak"] = round(value, digits)
    rate = result.average / 1e6
    figures |= {"BW_average": round(average, digits), "MsgRate": round(rate, 6)}
    text = f" {result.size:<7}    {result.iterations:<10}     {peak:<7}             "
    text += f"{average:<7.{digits}f}               {rate:<7.6f}"
    text += _cpu(result, figures)
    return text, figures, {"bandwidth": average, "message_rate": rate}


def _cpu(result: TimedLatency | Bandwidth, figures: dict[str, object]) -> str:
    """Give the column of the processors' use, if that was asked for, and note the figure."""
    if result.cpu is None:
        return ""
    figures["CPU_util"] = round(result.cpu, 2)
    return f"        {result.cpu:<7.2f}"
