"""Taking blocks of a row and of its floor from the processes of a round.

Rules: a pair's ends do the same number of messages, and what each has sent must be what the other
has got, compared by checksum once a block.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shared.clock import now_ns
from user_proc.bench.speed.asleep_loops import half_round_trips
from user_proc.bench.speed.speed_rows import COPY, ECHO, RELAY, SpeedSpec
from user_proc.bench.worker_group import Worker, WorkerGroup
from user_proc.bench.worker_link import WorkerFailed

_GATHERING_NS: Final = 3_000_000
_ONE_WAY: Final = ("post_to_poll", "send_bw", "write_bw", "msg_rate")  # towards the passive end
_SEED_STEP: Final = 1_000


class PayloadWrong(WorkerFailed):
    """What came is not what was sent."""


@dataclass(frozen=True, slots=True)
class SpeedBlock:
    """What a block gave: samples, if messages were timed one by one, and the time of all."""

    samples: "array[int]"
    messages: int
    elapsed_ns: int
    cpu_ns: int = 0


class Transfer:
    """The processes of a row: pairs of an active and a passive end, or one that is both."""

    def __init__(self, spec: SpeedSpec, workers: Sequence[Worker]) -> None:
        self._spec = spec
        self._alone = spec.processes == 1
        self._active = workers[:1] if self._alone else workers[: spec.processes : 2]
        self._passive = () if self._alone else workers[1 : spec.processes : 2]
        self._all = WorkerGroup([*self._active, *self._passive])
        self._users = workers[:2]
        self._relay = workers[-1]
        self._seed = 0

    def prepare(self) -> None:
        """Make and connect the ends."""
        self._seed = 0
        row = self._spec.as_dict()
        if self._alone:
            self._active[0].ask("prepare", row=row, ends=2)
            self._active[0].ask("connect_alone")
            return
        answers = self._all.ask_all("prepare", row=row)
        addresses = [answer["addresses"][0] for answer in answers]
        pairs = len(self._active)
        for place in range(pairs):
            self._active[place].ask("connect", peer=addresses[pairs + place])
            self._passive[place].ask("connect", peer=addresses[place])

    def release(self) -> None:
        """Destroy the ends."""
        self._all.ask_all("release")

    # Rows

    def block(self, messages: int) -> SpeedBlock:
        """Take a block of so many messages of each pair, and check what came."""
        self._seed += _SEED_STEP
        words = self._fill()
        begin_ns = now_ns() + _GATHERING_NS * len(self._active) if self._spec.pairs > 1 else 0
        for worker in self._passive:
            worker.send("block", count=messages, active=False)
        for worker in self._active:
            worker.send("block", count=messages, active=True, begin_ns=begin_ns)
        answers = [worker.receive() for worker in (*self._active, *self._passive)]
        active = answers[: len(self._active)]
        self._check(words, messages)
        samples = array("Q")
        for place, answer in enumerate(active):
            timed = answer["samples"]
            if self._spec.is_held:
                timed = half_round_trips(timed, answers[len(active) + place]["samples"])
            samples.extend(timed)
        return SpeedBlock(
            samples,
            messages * len(self._active),
            max(answer["end_ns"] for answer in answers)
            - min(answer["begin_ns"] for answer in active),
            sum(answer["cpu_ns"] for answer in answers),
        )

    def _fill(self) -> list[int]:
        """Write payloads that differ from end to end; return the words of atomics."""
        workers = (*self._active, *self._passive)
        for place, worker in enumerate(workers):
            worker.send("fill", seed=self._seed + 2 * place)
        return [worker.receive()["word"] for worker in workers]

    def _check(self, words: Sequence[int], messages: int) -> None:
        answers = self._all.ask_all("sums")
        pairs = len(self._active)
        for place in range(pairs):
            if self._alone:
                active, passive = answers[0]["ends"]
                word = words[0]
            else:
                (active,), (passive,) = answers[place]["ends"], answers[pairs + place]["ends"]
                word = words[pairs + place]
            self._compare(active, passive, word + messages)

    def _compare(self, active: Mapping[str, Any], passive: Mapping[str, Any], word: int) -> None:
        op = self._spec.op
        if op == "atomic_lat":
            right = passive["word"] == word & ((1 << 64) - 1)
        elif op in ("read_lat", "read_bw"):
            right = active["came"] == passive["sent"]
        else:
            right = passive["came"] == active["sent"]
            if op not in _ONE_WAY:
                right = right and active["came"] == passive["sent"]
        if not right:
            raise PayloadWrong(f"{self._spec.label()}: what came is not what was sent")

    # Floors

    def floor_block(self, count: int) -> SpeedBlock:
        """Take a block of the row's floor."""
        name = self._spec.floor.name
        if name == COPY:
            answers = WorkerGroup(self._active).ask_all("floor", name=name, count=count)
        elif name == ECHO:
            answers = [self._active[0].ask("floor", name=name, count=count)]
        else:
            answers = [self._relayed_block(name, count)]
        samples = array("Q")
        for answer in answers:
            samples.extend(answer["samples"])
        begin = min(answer["begin_ns"] for answer in answers)
        elapsed = max(answer["end_ns"] for answer in answers) - begin
        return SpeedBlock(samples, len(samples), elapsed)

    def _relayed_block(self, name: str, count: int) -> Mapping[str, Any]:
        """Have the relay run, and words go through it."""
        user, other = self._users
        first = RELAYED.take(count)
        user.ask("stop_relay", stop=False)
        self._relay.send("relay", there_and_back=name != RELAY, first=first)
        if name == RELAY:
            other.send("floor", name=name, count=count, active=False, first=first)
        answer = user.ask("floor", name=name, count=count, first=first)
        if name == RELAY:
            other.receive()
        user.ask("stop_relay", stop=True)
        self._relay.receive()
        return answer


class _Numbers:
    """Words that have not gone through a relay before."""

    def __init__(self) -> None:
        self._next = 1

    def take(self, count: int) -> int:
        """Return the first of so many new ones."""
        first = self._next
        self._next += count
        return first


RELAYED: Final = _Numbers()
