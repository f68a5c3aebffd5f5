"""The sizes of one run of a perftest tool, between two sides that are connected.

Before each size both sides have their patterns ready; after it the side that received compares,
and tells the other.

Rules: main thread.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from shared.clock import now_ns
from user_proc.perftest.bandwidth_loops import (
    BandwidthReceiver,
    BandwidthRun,
    BandwidthSender,
    both_ways,
)
from user_proc.perftest.cpu_time import CpuTime
from user_proc.perftest.data_check import CLIENT, SERVER, find_fault, prepare
from user_proc.perftest.endpoint import Endpoint
from user_proc.perftest.latency_loops import (
    AtomicGame,
    Game,
    ReadGame,
    SendGame,
    WriteGame,
    play,
    play_for,
)
from user_proc.perftest.measured_window import Window
from user_proc.perftest.meeting import agree_on_data
from user_proc.perftest.peer_link import PeerLink, field
from user_proc.perftest.result_figures import (
    Bandwidth,
    TimedLatency,
    latency_of,
    peak_of,
    rate_of,
    samples_of,
)
from user_proc.perftest.tool_errors import ToolFailed
from user_proc.perftest.tool_kinds import ATOMIC, READ, SEND, WRITE
from user_proc.perftest.tool_options import Options
from user_proc.perftest.tool_report import Report

_OPCODES: Final = {SEND: "SEND", WRITE: "RDMA_WRITE", READ: "RDMA_READ"}


class Measurement:
    """One run on one side."""

    def __init__(
        self, options: Options, endpoint: Endpoint, link: PeerLink, report: Report
    ) -> None:
        self._options: Final = options
        self._endpoint: Final = endpoint
        self._link: Final = link
        self._report: Final = report
        self._shortfall = ""
        self._side, self._other = (SERVER, CLIENT) if options.is_server else (CLIENT, SERVER)

    def run(self) -> None:
        """Measure every size."""
        measure = self._latency() if self._options.tool.is_latency else self._bandwidth()
        self._report.header()
        for size in self._options.sizes:
            prepare(self._endpoint, self._side, size)
            self._link.meet(ready=size)
            self._begin = now_ns()  # nothing is under way until both have said that they go
            self._link.meet(go=size)
            if measure is not None:
                measure(size)
            self._link.meet(done=size)
            agree_on_data(self._link, self._fault(size))
        self._report.end()
        if self._shortfall:
            raise ToolFailed(self._shortfall)

    def _fault(self, size: int) -> str:
        """Look at what has arrived here, if anything should have."""
        tool, is_server = self._options.tool, self._options.is_server
        if tool.operation == ATOMIC:
            return ""  # each was looked at
        receives = not is_server if tool.operation == READ else is_server
        if not receives and not tool.is_ping_pong and not self._options.bidirectional:
            return ""
        last_counts = tool.is_latency and tool.operation == WRITE and not self._options.with_imm
        return find_fault(self._endpoint, self._other, size, spared=int(last_counts))

    def _window(self) -> Window | None:
        options = self._options
        if not options.duration:
            return None
        return Window(now_ns(), options.duration, options.margin)

    def _cpu_time(self) -> CpuTime | None:
        return CpuTime() if self._options.cpu_util else None

    # Latency

    def _latency(self) -> Callable[[int], None] | None:
        """Give what measures a size; None where this side has nothing to do."""
        if self._options.is_server and not self._options.tool.is_ping_pong:
            return self._await_the_sender if self._options.duration else None
        game = self._game()
        return lambda size: self._measure_latency(game, size)

    def _game(self) -> Game:
        endpoint, link = self._endpoint, self._link
        operation = self._options.tool.operation
        if operation == ATOMIC:
            return AtomicGame(endpoint, link, self._options.atomic)
        if self._options.takes_receives:
            return SendGame(endpoint, link, self._opcode())
        return ReadGame(endpoint, link) if operation == READ else WriteGame(endpoint, link)

    def _opcode(self) -> str:
        imm = "_WITH_IMM" if self._options.with_imm else ""
        return _OPCODES[self._options.tool.operation] + imm

    def _measure_latency(self, game: Game, size: int) -> None:
        options, first = self._options, not self._options.is_server
        halve = options.tool.is_ping_pong
        game.start(size)
        window, cpu = self._window(), self._cpu_time()
        if window is None:
            samples = samples_of(play(game, first, options.iterations), halve)
            self._report.samples(samples)
            self._report.row(latency_of(size, samples))
            return
        count = play_for(game, self._link, first, window)
        if not count:
            raise ToolFailed("nothing was completed between the margins: take a longer duration")
        average = window.length / count / 1000 / (2 if halve else 1)
        rate = rate_of(count, window.length)
        used = None if cpu is None else cpu.utilization()
        self._report.row(TimedLatency(size, count, average, rate, used))

    # Bandwidth

    def _bandwidth(self) -> Callable[[int], None] | None:
        """Give what measures a size; None where this side has nothing to do."""
        options, endpoint, link = self._options, self._endpoint, self._link
        if not options.is_sender and not options.is_receiver:
            return self._await_the_sender if options.duration else None
        opcode = self._opcode()
        sender = BandwidthSender(endpoint, link, options, opcode) if options.is_sender else None
        receiver = BandwidthReceiver(endpoint, link) if options.is_receiver else None
        return lambda size: self._measure_bandwidth(size, sender, receiver)

    def _await_the_sender(self, size: int) -> None:
        self._link.receive()

    def _measure_bandwidth(
        self, size: int, sender: BandwidthSender | None, receiver: BandwidthReceiver | None
    ) -> None:
        options, link = self._options, self._link
        if options.warm_up and sender is not None:
            number = options.tx_depth // options.post_list * options.post_list
            sender.run(size, BandwidthRun(None, False, self._begin), number)
        window, cpu = self._window(), self._cpu_time()
        run = BandwidthRun(window, options.wants_peak() and sender is not None, self._begin)
        total = None if window else options.iterations * options.qps
        if receiver is None and sender is not None:
            sender.run(size, run, options.iterations)
            if window and options.bidirectional:
                link.receive()  # how many the other side has sent
        elif sender is None and receiver is not None:
            receiver.run(run, total)
        elif sender is not None and receiver is not None:
            taken = BandwidthRun(None, False, self._begin)
            receiver.start(taken, total)
            sender.start(size, run, options.iterations)
            both_ways(sender, receiver, run, taken, link)
        self._tell_bandwidth(_bandwidth_of(size, run, cpu))

    def _tell_bandwidth(self, mine: Bandwidth) -> None:
        """Print a row; of both directions the sum, or each."""
        options = self._options
        rows = [mine]
        if options.bidirectional:
            told = self._link.meet(average=mine.average, peak=mine.peak)
            peak = None if told.get("peak") is None else field(told, "peak", float)
            theirs = replace(mine, peak=peak, average=field(told, "average", float))
            rows = [mine, theirs] if options.report_both else [mine.with_other(theirs)]
        for one in rows:
            self._report.row(one)
            self._judge(one)

    def _judge(self, row: Bandwidth) -> None:
        """Keep in mind what is below the limits that were given."""
        options = self._options
        bandwidth, rate = row.rate(row.average, options.gigabits), row.average / 1e6
        for option, found, least in (
            ("-w", bandwidth, options.least_bandwidth),
            ("-y", rate, options.least_rate),
        ):
            if least is not None and found < least and not self._shortfall:
                self._shortfall = f"{found:.6g} is below the limit of {option}, {least:.10g}"


def _bandwidth_of(size: int, run: BandwidthRun, cpu: CpuTime | None) -> Bandwidth:
    used = None if cpu is None else cpu.utilization()
    if run.window is not None:
        count = run.window.count
        return Bandwidth(size, count, None, rate_of(count, run.window.length), used)
    peak = peak_of(run.posts, run.completed) if run.keep_posts else None
    return Bandwidth(size, run.count, peak, rate_of(run.count, run.last - run.begin), used)
