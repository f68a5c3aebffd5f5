"""A user process of the data path's benchmark: `python -P -m user_proc.bench.speed.speed_worker`.

It is one end of a transfer, or the relay of a floor. What the other end must know goes through the
benchmark; words and regions are mapped by their places.

Rules: nothing is printed or parsed while something is timed; the collector is frozen and off.
"""

import contextlib
import functools
import gc
import os
import resource
import select
import sys
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final

from shared.clock import now_ns
from user_proc.bench.row_plan import FloorSpec
from user_proc.bench.speed import asleep_loops, ping_pong_loops, speed_floors, stream_loops
from user_proc.bench.speed.kernel_transfer import take_kernel_block
from user_proc.bench.speed.shared_places import (
    WORD_CREDIT,
    WORD_STOP,
    MappedPlace,
    make_words,
    map_words,
)
from user_proc.bench.speed.speed_rows import COPY, ECHO, EVENT, RELAY, SpeedSpec
from user_proc.bench.speed.speed_waiting import SpeedFailed
from user_proc.bench.speed.transfer_end import TransferEnd
from user_proc.bench.timed_loops import Window, wait_until
from user_proc.bench.worker_operations import EchoSocket
from user_proc.bench.worker_service import serve_worker
from user_proc.verbs.device import Context
from user_proc.verbs.pyverbs_error import PyverbsError

DEVICE: Final = "mthca0"
_FIRST_ECHOES: Final = 100
Command = Callable[..., dict[str, Any]]


def _foreseen(command: Command) -> Command:
    """Turn a refusal of a verb into an answer."""

    @functools.wraps(command)
    def carried_out(**values: Any) -> dict[str, Any]:
        try:
            return command(**values)
        except PyverbsError as error:
            raise SpeedFailed(str(error)) from error

    return carried_out


class SpeedWorker:
    """A context of the HCA, and the end of the row being measured."""

    def __init__(self, name: str) -> None:
        self._held = contextlib.ExitStack()
        try:
            self._context = Context(name=DEVICE, kernel=name)
        except PyverbsError as error:
            raise SpeedFailed(f"kernel {name}: {error}") from error
        self._held.callback(self._context.close)
        session = self._context.session()
        self._doorbells = session.doorbells
        self._echo = EchoSocket(session.process)
        self._held.callback(self._echo.close)
        self._echo.take(FloorSpec("echo", 64), Window(_FIRST_ECHOES))
        self._words = memoryview(bytearray(0))
        self._ends: list[TransferEnd] = []
        self._places: list[MappedPlace] = []

    def commands(self) -> Mapping[str, Command]:
        """Return the commands by name."""
        commands: list[Command] = [
            self.make_words, self.map_words, self.prepare, self.connect, self.connect_alone,
            self.fill, self.block, self.kernel_block, self.sums, self.floor, self.relay,
            self.stop_relay, self.release,
        ]  # fmt: skip
        return {command.__name__: _foreseen(command) for command in commands}

    # Being set up

    def make_words(self) -> dict[str, Any]:
        """Make the page of words the processes of a run share; say where it is."""
        descriptor, path = make_words()
        self._held.callback(os.close, descriptor)
        return {"path": path, "spin": self._doorbells.spin_hint}

    def map_words(self, path: str) -> dict[str, Any]:
        """Map the page of words."""
        self._words = map_words(path)
        return {}

    def prepare(self, row: dict[str, Any], ends: int = 1) -> dict[str, Any]:
        """Make one end of a row's transfers, or both; say what the other one must know."""
        self.release()
        spec = SpeedSpec(**row)
        for _ in range(ends):
            self._ends.append(TransferEnd(self._context, spec))
        gc.collect()
        gc.freeze()
        gc.disable()
        return {"addresses": [end.address() for end in self._ends]}

    def connect(self, peer: dict[str, Any]) -> dict[str, Any]:
        """Connect this end with another process's, and map its region for the floor."""
        (end,) = self._ends
        end.connect(peer)
        self._places.append(MappedPlace(peer["path"], peer["offset"], 2 * end.half))
        return {}

    def connect_alone(self) -> dict[str, Any]:
        """Connect the two ends of this process."""
        first, second = self._ends
        first.connect(second.address())
        second.connect(first.address())
        return {}

    def release(self) -> dict[str, Any]:
        """Destroy the ends."""
        while self._places:
            self._places.pop().close()
        while self._ends:
            self._ends.pop().close()
        return {}

    def close(self) -> None:
        """Leave the kernel, which need not be alive."""
        with contextlib.suppress(PyverbsError):
            self._held.close()

    # Being measured

    def fill(self, seed: int) -> dict[str, Any]:
        """Write the payload of the next block; say what its atomics begin with."""
        self._words[WORD_CREDIT] = 0
        for place, end in enumerate(self._ends):
            end.fill(seed + place)
        return {"word": self._ends[-1].word()}

    def block(self, count: int, active: bool, begin_ns: int = 0) -> dict[str, Any]:
        """Do so many messages as the active or the passive end.

        A passive end's samples are how long it held each message, if it did.
        """
        end = self._ends[0]
        used = _cpu_ns()
        if begin_ns:
            wait_until(begin_ns)
        begin = now_ns()
        samples = self._active(end, count) if active else self._passive(end, count)
        ended = now_ns()
        return {
            "samples": samples.tolist(),
            "begin_ns": begin,
            "end_ns": ended,
            "cpu_ns": _cpu_ns() - used,
        }

    def kernel_block(self, row: dict[str, Any], count: int) -> dict[str, Any]:
        """Have the kernel's client do so many messages between ends of its own."""
        process = self._context.session().process
        return take_kernel_block(process, SpeedSpec(**row), count, self._doorbells.spin_hint)

    def _active(self, end: TransferEnd, count: int) -> "array[int]":
        op, spin = end.spec.op, self._doorbells.spin_hint
        if not end.spec.is_latency:
            stream_loops.stream_out(end, count, self._words)
            return array("Q")
        if end.spec.mode == EVENT:
            return _active_asleep(end, count)
        if op == "send_lat":
            return ping_pong_loops.ping_with_sends(end, count)
        if op == "write_lat":
            return ping_pong_loops.ping_with_writes(end, count, spin)
        return ping_pong_loops.complete_one_by_one(end, count)

    def _passive(self, end: TransferEnd, count: int) -> "array[int]":
        op = end.spec.op
        if op in ("send_bw", "msg_rate"):
            stream_loops.stream_in(end, count, self._words)
        elif end.spec.is_held:
            return asleep_loops.pong_with_sends(end, count)
        elif op == "send_lat":
            ping_pong_loops.pong_with_sends(end, count)
        elif op == "write_lat":
            ping_pong_loops.pong_with_writes(end, count, self._doorbells.spin_hint)
        return array("Q")

    def sums(self) -> dict[str, Any]:
        """Return the checksums of what each end has sent and got, and its atomics' word."""
        return {"ends": [{**end.sums(), "word": end.word()} for end in self._ends]}

    # Floors

    def floor(self, name: str, count: int, active: bool = True, first: int = 0) -> dict[str, Any]:
        """Take a block of a floor, or answer one as the other user."""
        spin = self._doorbells.spin_hint
        begin = now_ns()
        if not active:
            speed_floors.answer_relay(self._words, first, count, spin)
            return {}
        if name == COPY:
            samples = self._copies(count)
        elif name == ECHO:
            (end, *_) = self._ends
            echo = self._echo.operation(os.urandom(end.spec.floor.payload))
            samples = array("Q", [one // 2 for one in asleep_loops.one_by_one(echo, count)])
        else:
            ways = 2 if name == RELAY else 1
            samples = speed_floors.ask_relay(self._words, first, count, spin, ways=ways)
        return {"samples": samples.tolist(), "begin_ns": begin, "end_ns": now_ns()}

    def _copies(self, count: int) -> "array[int]":
        """Copy between the regions of this end and of its peer, the way the row's data goes."""
        (end,), (place,) = self._ends, self._places
        length = end.spec.bytes
        if end.spec.op == "read_bw":
            return speed_floors.copies(place.address, end.target, length, count)
        return speed_floors.copies(end.source, place.address + end.half, length, count)

    def relay(self, there_and_back: bool, first: int) -> dict[str, Any]:
        """Be the relay until told to stop by the word for it."""
        spin = self._doorbells.spin_hint
        speed_floors.relay(self._words, first, spin, _input_ended, there_and_back=there_and_back)
        return {}

    def stop_relay(self, stop: bool) -> dict[str, Any]:
        """Have the relay stop, or let it run the next time."""
        self._words[WORD_STOP] = int(stop)
        return {}


def _active_asleep(end: TransferEnd, count: int) -> "array[int]":
    """Do so many messages, each when everybody sleeps."""
    if end.spec.is_held:
        return asleep_loops.ping_with_sends(end, count)
    return asleep_loops.complete_one_by_one(end, count)


def _input_ended() -> bool:
    """Tell whether the benchmark is gone: no command comes before this one is answered."""
    return bool(select.select([0], [], [], 0)[0])


def _cpu_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round((used.ru_utime + used.ru_stime) * 1e9)


def main(arguments: list[str]) -> int:
    """Serve the data path's benchmark at the kernel of that name."""
    return serve_worker(SpeedWorker, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
