"""The kernel client of the verbs: performs a program of verbs by direct calls, and times each step.

It opens the HCA's device like any kernel client and gets the driver's table; a registration there
makes the memory too, as a kernel client has it from the driver. What it made is gone with its file.

Rules: a system thread at PASSIVE_LEVEL, but for the reading of the journal, which is the caller's.
Spec: shared/verb_program.py; channel_interface/verbs_table.py; WDK, IoGetDeviceObjectPointer.
"""

from typing import TYPE_CHECKING, Final

from kernel_proc.channel_interface.command_journal import (
    IOCTL_INTERNAL_READ_JOURNAL,
    CommandJournal,
    CommandRecord,
)
from kernel_proc.channel_interface.verbs_table import VerbAnswer, VerbsTable
from kernel_proc.clients.timed_loop import TimedLoop
from kernel_proc.clients.verbs_connection import ask_driver, opened_verbs
from kernel_proc.hca_abi.command_opcodes import COMMANDS
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared import verb_codes as codes
from shared.clock import now_ns
from shared.journal_layout import JOURNAL_HEAD, JOURNAL_RECORD
from shared.message_codec import MessageError, decode_as, encode
from shared.messages import VerbsRun
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_INVALID_PARAMETER,
    STATUS_NO_SUCH_DEVICE,
)
from shared.verb_codes import HCA_DEVICE, IOCTL_REG_MR
from shared.verb_messages import RegMr
from shared.verb_program import (
    MOST_REGISTERS,
    RUN_RESULT,
    ProgramError,
    VerbStep,
    unpack_program,
)

if TYPE_CHECKING:
    from kernel_proc.io_manager.irp import IoStackLocation, Irp
    from kernel_proc.io_manager.namespace import IoManager

MOST_PASSES: Final = 100_000
MOST_SAMPLES: Final = 1_000_000
#: A kernel client's registration makes the memory: a program may not ask for more than this.
LARGEST_REGION: Final = 264 << 20
_MAKERS: Final = frozenset(
    {
        codes.IOCTL_ALLOC_PD,
        codes.IOCTL_REG_MR,
        codes.IOCTL_CREATE_AH,
        codes.IOCTL_CREATE_CQ,
        codes.IOCTL_CREATE_SRQ,
        codes.IOCTL_CREATE_QP,
        codes.IOCTL_OPEN_XRCD,
        codes.IOCTL_ALLOC_MW,
        codes.IOCTL_ALLOC_DM,
        codes.IOCTL_REG_DM_MR,
    }
)
_ENDERS: Final = frozenset(
    {
        codes.IOCTL_DEALLOC_PD,
        codes.IOCTL_DEREG_MR,
        codes.IOCTL_DESTROY_AH,
        codes.IOCTL_DESTROY_CQ,
        codes.IOCTL_DESTROY_SRQ,
        codes.IOCTL_DESTROY_QP,
        codes.IOCTL_CLOSE_XRCD,
        codes.IOCTL_DEALLOC_MW,
        codes.IOCTL_FREE_DM,
    }
)
#: Every verb but those a kernel client does not have: opening, sharing, notification, rereg_mr.
_CLIENTS_VERBS: Final = frozenset(
    code
    for code, name in codes.VERB_NAMES.items()
    if not name.startswith(("open_context", "export_", "import_", "get_", "rereg_mr"))
)
_SAMPLE: Final = 8
_BREATHE_EVERY: Final = 4  # passes; a verb that waits lets others run anyway


class _StepRefused(Exception):
    """A verb was refused, which ends the run."""

    def __init__(self, step: VerbStep, answer: VerbAnswer) -> None:
        super().__init__(step.name)
        self.result = RUN_RESULT.pack(
            answer.errno, answer.reason, answer.object, answer.detail, step.code
        )


class ProgramLoop(TimedLoop):
    """A run of a program: a sample for each step of each timed pass, then the time of all."""

    __slots__ = ("_io", "_passes", "_plan", "_program", "_refusal", "_registers", "_setup")

    def __init__(
        self, io: "IoManager", irp: "Irp", plan: VerbsRun, programs: tuple[list[VerbStep], ...]
    ) -> None:
        self._setup, self._program = programs
        super().__init__(io.processor, irp.thread, plan.passes * len(self._program), plan.warmup)
        self._io = io
        self._passes = plan.passes
        self._plan = plan
        self._registers = [0] * MOST_REGISTERS
        self._refusal = b""

    @classmethod
    def planned_by(cls, io: "IoManager", irp: "Irp", location: "IoStackLocation") -> "ProgramLoop":
        """Return the run a request asks for; RaisedStatus for one that cannot be performed."""
        try:
            plan = decode_as(
                VerbsRun, bytes(irp.system_buffer or b"")[: location.input_buffer_length]
            )
            programs = unpack_program(plan.setup), unpack_program(plan.program)
        except (MessageError, ProgramError) as error:
            raise RaisedStatus(STATUS_INVALID_PARAMETER, str(error)) from error
        samples = plan.passes * len(programs[1])
        if (
            not 1 <= plan.passes <= MOST_PASSES
            or plan.warmup > MOST_PASSES
            or not 1 <= samples <= MOST_SAMPLES
            or not _is_modest(*programs)
        ):
            raise RaisedStatus(STATUS_INVALID_PARAMETER, "no program this client performs")
        if location.output_buffer_length < RUN_RESULT.size + (samples + 1) * _SAMPLE:
            raise RaisedStatus(STATUS_BUFFER_TOO_SMALL, "no room for the samples")
        return cls(io, irp, plan, programs)

    def perform(self) -> None:
        """Open the device, perform set-up and passes, and close it."""
        try:
            with opened_verbs(self._io) as table:
                self._perform(table)
        except _StepRefused as refused:
            self._refusal = refused.result

    def answer(self) -> bytes:
        """Return the result of the run; its samples and their time if no verb was refused."""
        return self._refusal or bytes(RUN_RESULT.size) + super().answer()

    def _perform(self, table: VerbsTable) -> None:
        for step in self._setup:
            self._do(table, step)
        for _ in range(self.warmup):
            for step in self._program:
                self._do(table, step)
            self.breathe()
        self._time_passes(table)

    def _time_passes(self, table: VerbsTable) -> None:
        samples, program = self.samples, self._program
        until_ns = now_ns() + self._plan.limit_ns
        index = 0
        for number in range(self._passes):
            if number and now_ns() >= until_ns:
                del samples[index:]
                break
            for step in program:
                samples[index] = self._do(table, step)
                index += 1
            if not number % _BREATHE_EVERY:
                self.breathe()
        self.elapsed_ns = sum(samples)

    def _do(self, table: VerbsTable, step: VerbStep) -> int:
        """Perform one step; return its time. A verb that is refused ends the run."""
        try:
            request = step.request(self._registers)
            if request is not None:
                encode(request)  # what a user's message is checked for, registers are filled in
            begin = now_ns()
            if step.code == IOCTL_REG_MR:
                answer = table.register_memory(request.pd, request.length, request.access)
            else:
                answer = table.call(step.code, request)
            took_ns = now_ns() - begin
            if answer.errno:
                raise _StepRefused(step, answer)
            step.keep(answer.reply, self._registers)
        except (MessageError, ProgramError) as error:
            raise RaisedStatus(STATUS_INVALID_PARAMETER, str(error)) from error
        return took_ns


def _is_modest(setup: list[VerbStep], program: list[VerbStep]) -> bool:
    """Tell whether little is made at a time: no pass leaves objects, no region is too large."""
    made = sum((step.code in _MAKERS) - (step.code in _ENDERS) for step in program)
    steps = (*setup, *program)
    if made > 0 or any(step.code not in _CLIENTS_VERBS for step in steps):
        return False
    requests = [step.request([LARGEST_REGION + 1] * MOST_REGISTERS) for step in steps]
    registered = (request.length for request in requests if isinstance(request, RegMr))
    return sum(registered) <= LARGEST_REGION


def read_command_journal(io: "IoManager", irp: "Irp", location: "IoStackLocation") -> int:
    """Answer which commands the verbs after a number took, as journal_layout says.

    The latest ones if there is no room for all. Return Information.
    """
    room = location.output_buffer_length
    if location.input_buffer_length != JOURNAL_HEAD.size:
        raise RaisedStatus(STATUS_INVALID_PARAMETER, "the number of a verb is due")
    if room < JOURNAL_HEAD.size:
        raise RaisedStatus(STATUS_BUFFER_TOO_SMALL, "no room for the journal")
    device = io.devices.get(HCA_DEVICE)
    if device is None:
        raise RaisedStatus(STATUS_NO_SUCH_DEVICE, "there is no HCA")
    found: list[CommandJournal] = []
    (after,) = JOURNAL_HEAD.unpack(bytes(irp.system_buffer)[: JOURNAL_HEAD.size])
    ask_driver(device, IOCTL_INTERNAL_READ_JOURNAL, after, found)
    journal = found[0]
    fitting = (room - JOURNAL_HEAD.size) // JOURNAL_RECORD.size
    records = journal.records[-fitting:] if fitting else []
    packed = b"".join((JOURNAL_HEAD.pack(journal.verbs), *map(_packed, records)))
    irp.system_buffer[: len(packed)] = packed
    return len(packed)


def _packed(record: CommandRecord) -> bytes:
    kind = COMMANDS.get(record.opcode)
    name = kind.name if kind is not None else f"{record.opcode:#05x}"
    return JOURNAL_RECORD.pack(
        record.verb, name.encode(), record.took_ns, record.asked_ns, record.device_ns
    )
