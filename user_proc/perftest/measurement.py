"""The sizes of one run of a perftest tool, between two sides that are connected.

Before each size both sides have their patterns ready; after it the side that received compares,
and tells the other.

Rules: main thread.
"""

from collections.abc import Callable
from typing import Final

from shared.clock import now_ns
from user_proc.perftest.bandwidth_loops import BandwidthReceiver, BandwidthRun, BandwidthSender
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
from user_proc.perftest.peer_link import PeerLink
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

    def _fault(self, size: int) -> str:
        """Look at what has arrived here, if anything should have."""
        tool, is_server = self._options.tool, self._options.is_server
        if tool.operation == ATOMIC:
            return ""  # each was looked at
        receives = not is_server if tool.operation == READ else is_server
        if not receives and not tool.is_ping_pong:
            return ""
        last_counts = tool.operation == WRITE and tool.is_latency
        return find_fault(self._endpoint, self._other, size, spared=int(last_counts))

    def _window(self) -> Window | None:
        options = self._options
        if not options.duration:
            return None
        return Window(now_ns(), options.duration, options.margin)

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
        games: dict[str, Callable[[Endpoint, PeerLink], Game]]
        games = {SEND: SendGame, WRITE: WriteGame, READ: ReadGame}
        return games[operation](endpoint, link)

    def _measure_latency(self, game: Game, size: int) -> None:
        options, first = self._options, not self._options.is_server
        halve = options.tool.is_ping_pong
        game.start(size)
        window = self._window()
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
        self._report.row(TimedLatency(size, count, average, rate))

    # Bandwidth

    def _bandwidth(self) -> Callable[[int], None] | None:
        """Give what measures a size; None where this side has nothing to do."""
        operation, options = self._options.tool.operation, self._options
        if not options.is_server:
            sender = BandwidthSender(self._endpoint, self._link, options, _OPCODES[operation])
            return lambda size: self._measure_bandwidth(size, sender.run)
        if operation != SEND:
            return self._await_the_sender if options.duration else None
        receiver = BandwidthReceiver(self._endpoint, self._link)
        total = None if options.duration else options.iterations * options.qps
        return lambda size: self._measure_bandwidth(size, lambda _, run: receiver.run(run, total))

    def _await_the_sender(self, size: int) -> None:
        self._link.receive()

    def _measure_bandwidth(self, size: int, measure: Callable[[int, BandwidthRun], None]) -> None:
        options = self._options
        window = self._window()
        keeps = options.wants_peak() and not options.is_server
        run = BandwidthRun(window, keeps, self._begin)
        measure(size, run)
        if window is not None:
            average = rate_of(window.count, window.length)
            self._report.row(Bandwidth(size, window.count, None, average))
            return
        average = rate_of(run.count, run.last - run.begin)
        peak = peak_of(run.posts, run.completed) if keeps else None
        self._report.row(Bandwidth(size, run.count, peak, average))
