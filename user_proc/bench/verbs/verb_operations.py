"""How a benchmark's user process performs programs of verbs: itself, or by the kernel client.

Rules: one thread. Only a verb's request, its call and the reading of its answer are timed.
"""

import contextlib
import ctypes
import mmap
import os
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from shared.clock import now_ns
from shared.ioctl_codes import BENCHMARK_DEVICE, IOCTL_COMMAND_JOURNAL, IOCTL_VERBS_RUN
from shared.journal_layout import JOURNAL_HEAD, JOURNAL_RECORD, JournalRecord, unpack_journal
from shared.message_codec import decode, encode
from shared.messages import VerbsRun
from shared.verb_codes import HCA_DEVICE, VERB_NAMES, VERB_OUTPUT_LENGTH, VERB_RESULT
from shared.verb_program import MOST_REGISTERS, RUN_RESULT, VerbStep, pack_program
from user_proc.bench.timed_loops import Window, empty_samples
from user_proc.errors import SofthcaError
from user_proc.verbs.reasons import reason_text

if TYPE_CHECKING:
    from user_proc.process import UserProcess

_JOURNAL_RECORDS: Final = 4096
_RESULT_WORDS: Final = RUN_RESULT.size // 8


class VerbFailed(SofthcaError):
    """A verb of a program was refused; the benchmark cannot go on."""

    def __init__(self, verb: str, number: int, reason: int, about: int, detail: int) -> None:
        words = reason_text(reason, about, detail)
        super().__init__(f"{verb} was refused: errno {number}, {os.strerror(number)}: {words}")
        self.errno = number


@dataclass(frozen=True, slots=True)
class Passes:
    """A sample for each step of each pass, one pass after the other."""

    samples: "array[int]"
    steps: int

    @property
    def count(self) -> int:
        """Return how many passes there are."""
        return len(self.samples) // self.steps


class StepCommands(NamedTuple):
    """The commands of one step: the usual ones, and times of each pass, all commands together.

    `took_ns` is what the driver waited, `asked_ns` what the latency model asked, `device_ns` what
    it was in execution in the HCA.
    """

    names: list[str]
    took_ns: list[int]
    asked_ns: list[int]
    device_ns: list[int]


class Region:
    """Memory to be registered: of an arena, or any other of this process."""

    def __init__(self, process: "UserProcess", kind: str, length: int) -> None:
        self._held = contextlib.ExitStack()
        if kind == "arena":
            buffer = process.allocate(length, page_aligned=True)
            self._held.callback(buffer.release)
            self.address = buffer.address
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mapping = mmap.mmap(-1, length, flags=flags)
        self._held.callback(mapping.close)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    def close(self) -> None:
        """Give it back; nothing is registered any more."""
        self._held.close()


class UserVerbs:
    """An opening of the HCA's device by this process, and the registers of a program."""

    def __init__(self, process: "UserProcess") -> None:
        self._doorbells = process.open_doorbells()
        self._device = process.open_device(HCA_DEVICE)
        self._output = bytearray(VERB_OUTPUT_LENGTH)
        self.registers = [0] * MOST_REGISTERS

    def do(self, step: VerbStep) -> None:
        """Perform one step by an IOCTL; raise VerbFailed if it is refused."""
        output, registers = self._output, self.registers
        request = step.request(registers)
        data = None if request is None else encode(request)
        length = self._device.device_io_control(step.code, data, output)
        number, reason, about, detail = VERB_RESULT.unpack_from(output)
        if number:
            raise VerbFailed(step.name, number, reason, about, detail)
        if length > VERB_RESULT.size:
            step.keep(decode(output[VERB_RESULT.size : length]), registers)

    def run(self, steps: Sequence[VerbStep]) -> None:
        """Perform a program once."""
        do = self.do
        for step in steps:
            do(step)

    def take(self, steps: Sequence[VerbStep], window: Window) -> Passes:
        """Time each step of so many passes; at least one, then no more when the time is up."""
        for _ in range(window.warmup):
            self.run(steps)
        samples = empty_samples(window.count * len(steps))
        do, now = self.do, now_ns
        until_ns = now() + window.limit_ns
        index = 0
        for number in range(window.count):
            if number and now() >= until_ns:
                del samples[index:]
                break
            for step in steps:
                begin = now()
                do(step)
                samples[index] = now() - begin
                index += 1
        return Passes(samples, len(steps))

    def close(self) -> None:
        """Close the device: the driver frees what was left."""
        self._device.close()
        self._doorbells.close()


class VerbsBench:
    """The benchmark device as the verbs need it: runs of the kernel client, and the journal."""

    def __init__(self, process: "UserProcess") -> None:
        self._handle = process.open_device(BENCHMARK_DEVICE)
        self._journal = bytearray(JOURNAL_HEAD.size + _JOURNAL_RECORDS * JOURNAL_RECORD.size)

    def take(self, setup: Sequence[VerbStep], steps: Sequence[VerbStep], window: Window) -> Passes:
        """Have the kernel client perform a program; return its times, or raise VerbFailed."""
        plan = VerbsRun(
            pack_program(setup), pack_program(steps), window.count, window.warmup, window.limit_ns
        )
        answer = empty_samples(_RESULT_WORDS + window.count * len(steps) + 1)
        length = self._handle.device_io_control(IOCTL_VERBS_RUN, encode(plan), answer)
        *refusal, code = RUN_RESULT.unpack_from(answer)
        if code:
            raise VerbFailed(VERB_NAMES[code], *refusal)
        return Passes(answer[_RESULT_WORDS : length // 8 - 1], len(steps))

    def verbs(self) -> int:
        """Return the number of the latest verb of this kernel."""
        verbs, _ = self._read((1 << 64) - 1)
        return verbs

    def commands_after(
        self, before: int, untimed: int, taken: Passes, steps: int
    ) -> list[StepCommands] | None:
        """Return the commands of each step, None if other verbs were among them.

        `untimed` verbs after number `before` came first, then those of the passes.
        """
        verbs, records = self._read(before)
        if verbs - before != untimed + len(taken.samples):
            return None
        first = before + untimed + 1
        # The journal may have forgotten the first ones: what is left begins with a whole pass.
        known = records[0].verb if len(records) == _JOURNAL_RECORDS else first
        skipped = max(0, -(-(known + 1 - first) // steps)) if known > first else 0
        return _by_step(records, first + skipped * steps, steps, taken.count - skipped)

    def _read(self, after: int) -> tuple[int, list[JournalRecord]]:
        length = self._handle.device_io_control(
            IOCTL_COMMAND_JOURNAL, JOURNAL_HEAD.pack(after), self._journal
        )
        return unpack_journal(bytes(self._journal[:length]))

    def close(self) -> None:
        """Close the device."""
        self._handle.close()


def _by_step(
    records: Sequence[JournalRecord], first: int, steps: int, passes: int
) -> list[StepCommands]:
    """Sort the commands of whole passes, the first of which began with verb `first`."""
    by_verb: dict[int, list[JournalRecord]] = {}
    for record in records:
        by_verb.setdefault(record.verb, []).append(record)
    return [
        _step_commands([by_verb.get(first + step + steps * one, []) for one in range(passes)])
        for step in range(steps)
    ]


def _step_commands(passes: Sequence[Sequence[JournalRecord]]) -> StepCommands:
    usual = Counter(tuple(record.name for record in records) for records in passes)
    ((names, _),) = usual.most_common(1) or [((), 0)]
    return StepCommands(
        list(names),
        [sum(record.took_ns for record in records) for records in passes],
        [sum(record.asked_ns for record in records) for records in passes],
        [sum(record.device_ns for record in records) for records in passes],
    )
