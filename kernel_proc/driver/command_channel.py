"""Commands to the HCA: posted through its one register, awaited by polling or by event.

Polling mode serves the bring-up: one command at a time, the go bit looked at between two delays.
In event mode up to `max_commands` are outstanding; each has a slot and a token, whose generation
advances before every use, so that the late completion of a command given up completes no other.
Mailboxes of a command given up stay out of the pool until its completion comes after all.
An interrupt may be lost: whoever waits for long has the event queues looked at now and then.

When the HCA is dead every waiting command ends with EIO. Commands that take something back
(TEARDOWN) then succeed without being sent, as nothing is left to be taken back; all others fail.

Rules: `execute` and `run` at <= APC_LEVEL in a thread, which waits in kernel mode: its end does
not break a command off. `complete` and `fail` at <= DISPATCH_LEVEL.
Spec: Linux mthca_cmd.c; WinOFED hw/mthca/kernel/mthca_cmd.c; docs/command-interface.md.
"""

import errno
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from kernel_proc.channel_interface.command_journal import CommandRecord
from kernel_proc.driver.command_register import Command, CommandRegister
from kernel_proc.driver.command_slots import CommandSlot, CommandSlots
from kernel_proc.driver.command_times import CommandTimes
from kernel_proc.driver.mailboxes import Mailboxes
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import registers as reg
from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.semaphore import Semaphore
from shared.nt_status import STATUS_TIMEOUT
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.device_link import DeviceLink
    from kernel_proc.memory.kernel_memory import KernelMemory
    from kernel_proc.scheduling.kthread import KThread
    from kernel_proc.scheduling.processor import Processor

_S: Final = 1_000_000_000
COMMAND_TIMEOUT_NS: Final = 60 * _S  # of every class: firmware may be starved by doorbells
_LOOK_NS: Final = _S // 4  # after which a waiting command has the event queues looked at
_JOURNAL_LENGTH: Final = 4096

TEARDOWN: Final = frozenset(
    {
        op.HW2SW_MPT,
        op.HW2SW_EQ,
        op.HW2SW_CQ,
        op.HW2SW_SRQ,
        op.TOERR_QPEE,
        op.ERR2RST_QPEE,
        op.UNMAP_ICM,
        op.UNMAP_ICM_AUX,
        op.UNMAP_FA,
        op.CLOSE_IB,
        op.CLOSE_HCA,
        op.DISABLE_LAM,
    }
)


class CommandResult(NamedTuple):
    """What a command returned; `out_param` is its immediate output."""

    status: int
    out_param: int
    outbox: bytes


class CommandChannel:
    """The command interface of one life of the HCA."""

    def __init__(self, processor: "Processor", link: "DeviceLink", memory: "KernelMemory") -> None:
        self.processor = processor
        self._register = CommandRegister(processor, link, self._require_alive)
        self._polling = Semaphore(processor, 1, 1)
        self._slots: CommandSlots | None = None
        self.mailboxes = Mailboxes(memory)
        self.dead = False
        self.on_fatal: Callable[[str], object] | None = None
        self.look_for_events: Callable[[], object] | None = None
        where = slice(reg.CATASTROPHIC_OFFSET, reg.CATASTROPHIC_OFFSET + 8 * reg.CATASTROPHIC_WORDS)
        self._error = link.registers[where]
        self.executed: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.verb_of: dict[KThread, int] = {}
        self.journal: deque[CommandRecord] = deque(maxlen=_JOURNAL_LENGTH)
        self._times = CommandTimes(link.registers)

    # Verbs

    def run(
        self,
        opcode: int,
        *,
        modifier: int = 0,
        opmod: int = 0,
        inbox: bytes | None = None,
        outbox_length: int = 0,
        in_param: int = 0,
        timeout_ns: int = COMMAND_TIMEOUT_NS,
    ) -> CommandResult:
        """Do `execute`, and refuse unless the command's status is OK."""
        result = self.execute(
            opcode,
            modifier=modifier,
            opmod=opmod,
            inbox=inbox,
            outbox_length=outbox_length,
            in_param=in_param,
            timeout_ns=timeout_ns,
        )
        if result.status != op.CMD_STAT_OK:
            code = op.STATUS_ERRNO.get(result.status, errno.EINVAL)
            detail = opcode << 8 | result.status
            raise VerbRefused(code, VerbReason.COMMAND_FAILED, 0, detail)
        return result

    def execute(
        self,
        opcode: int,
        *,
        modifier: int = 0,
        opmod: int = 0,
        inbox: bytes | None = None,
        outbox_length: int = 0,
        in_param: int = 0,
        timeout_ns: int = COMMAND_TIMEOUT_NS,
    ) -> CommandResult:
        """Have the HCA execute a command and return its result, whatever its status.

        EIO when the HCA is dead, EBUSY when it does not answer in time, EAGAIN when it does not
        take the command, ENOMEM without a mailbox.
        """
        self.processor.require_irql(APC_LEVEL, "an HCA command")
        if self.dead:
            return self._on_dead_device(opcode)
        command = Command(opcode, modifier, opmod, in_param, timeout_ns)
        try:
            if inbox is not None:
                command.inbox = self.mailboxes.take(inbox)
                command.in_param = command.inbox.bus_address
            if outbox_length:
                command.outbox = self.mailboxes.take()
                command.out_param = command.outbox.bus_address
            started_ns = self.processor.clock.now_ns()
            if self._slots is None:
                self._poll(command)
            else:
                self._await_event(command, self._slots)
            self._note(command, started_ns)
            outbox = command.outbox
            data = bytes(outbox.view[:outbox_length]) if outbox is not None else b""
            return CommandResult(command.status, command.out_param, data)
        finally:
            for mailbox in command.mailboxes():
                self.mailboxes.give(mailbox)

    def _on_dead_device(self, opcode: int) -> CommandResult:
        if opcode not in TEARDOWN:
            raise VerbRefused(errno.EIO, VerbReason.DEVICE_FATAL)
        return CommandResult(op.CMD_STAT_OK, 0, b"")

    def _note(self, command: Command, started_ns: int) -> None:
        took_ns = self.processor.clock.now_ns() - started_ns
        thread = self.processor.current_thread
        verb = self.verb_of.get(thread, 0) if thread is not None else 0
        self.executed[command.opcode] += 1
        if command.status != op.CMD_STAT_OK:
            self.failed[command.opcode] += 1
        asked_ns, device_ns = self._times.of_latest(command.opcode)
        self.journal.append(CommandRecord(verb, command.opcode, took_ns, asked_ns, device_ns))

    # Polling mode

    def _poll(self, command: Command) -> None:
        self._polling.wait()
        try:
            self._register.post(command, reg.POLLING_TOKEN, 0)
            if not self._register.wait_for_go(command.timeout_ns):
                self._timed_out(command)
            command.status = self._register.status()
            if command.outbox is None:
                command.out_param = self._register.out_param()
        finally:
            self._polling.release()

    # Event mode

    def use_events(self, log_max_commands: int, ring_entries: int = 0) -> None:
        """Await completions by event from now on; no command is under way.

        `ring_entries`: of the command doorbell, 0 if the HCA has none.
        """
        assert self._polling.wait(0) == 0, "a polled command is under way"  # kept down for good
        self._slots = CommandSlots(self.processor, log_max_commands)
        self._register.ring_entries = ring_entries

    def use_polling(self) -> None:
        """Go back to polling; no command is under way."""
        self._slots = None
        self._register.ring_entries = 0
        self._polling.release()

    def _await_event(self, command: Command, slots: CommandSlots) -> None:
        slot = slots.acquire()
        try:
            self._require_alive()
            slots.begin(slot)
            try:
                self._register.post_with_event(command, slot.token)
            except VerbRefused:
                slot.pending = False
                raise
            self._wait_for_event(command, slot, slots)
        finally:
            slots.release(slot)

    def _wait_for_event(self, command: Command, slot: CommandSlot, slots: CommandSlots) -> None:
        left_ns = command.timeout_ns
        status = slot.done.wait(min(left_ns, _LOOK_NS))
        while status == STATUS_TIMEOUT and slot.pending and left_ns > 0:
            left_ns -= _LOOK_NS
            if self.look_for_events is not None:
                self.look_for_events()
            status = slot.done.wait(max(0, min(left_ns, _LOOK_NS)))
        if status == STATUS_TIMEOUT and slot.pending:
            slot.pending = False
            slots.abandoned[slot.token] = command.mailboxes()
            self._timed_out(command)
        if slot.lost:
            raise VerbRefused(errno.EIO, VerbReason.DEVICE_FATAL)
        command.status = slot.status
        if command.outbox is None:
            command.out_param = slot.out_param

    def complete(self, token: int, status: int, out_param: int) -> bool:
        """Tell of a command-done event; False if no command waits for that token."""
        slots = self._slots
        if slots is None:
            return False
        if slots.complete(token, status, out_param):
            return True
        for mailbox in slots.abandoned.pop(token, ()):
            self.mailboxes.give(mailbox)
        return False

    def fail(self) -> None:
        """The HCA is dead: end every waiting command with EIO."""
        self.dead = True
        if self._slots is not None:
            self._slots.fail()

    def _require_alive(self) -> None:
        if not self.dead and self.on_fatal is not None and any(self._error):
            # Nobody else looks before interrupts are taken.
            self.on_fatal(f"its error buffer holds {self._error.hex()}")
        if self.dead:
            raise VerbRefused(errno.EIO, VerbReason.DEVICE_FATAL)

    def _timed_out(self, command: Command) -> NoReturn:
        # The HCA may still write to the mailboxes: they are not given back with the command.
        command.inbox = command.outbox = None
        raise VerbRefused(errno.EBUSY, VerbReason.COMMAND_TIMEOUT, 0, command.opcode)

    def inspect(self) -> dict[str, Any]:
        """Return what was executed, by name, how long it took, and what is under way."""
        names = {code: kind.name for code, kind in op.COMMANDS.items()}
        return {
            "mode": "polling" if self._slots is None else "event",
            "executed": {names.get(code, hex(code)): n for code, n in self.executed.items()},
            "failed": {names.get(code, hex(code)): n for code, n in self.failed.items()},
            "times": self._times.inspect(),
            "mailboxes": self.mailboxes.allocated,
            **(self._slots.inspect() if self._slots is not None else {}),
        }
