"""The command interface: HCR, GO, one executing lane, completion by status or by event.

In polling mode GO stays until the command is done. In event mode GO falls when the command is
accepted; up to 64 are accepted, one executes, first come first served. A command takes effect when
its modelled time is over. Commands of event mode may come through the command doorbell instead.

Spec: docs/command-interface.md; Linux drivers/infiniband/hw/mthca/mthca_cmd.c.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import Final

from kernel_proc.hca.command import Command, CommandNotYet, CommandRefused
from kernel_proc.hca.commands import (
    memory_commands,
    port_commands,
    qp_commands,
    queue_commands,
    system_commands,
)
from kernel_proc.hca.hca_tables import FirmwareState, HcaTables
from kernel_proc.hca.latency_model import LatencyModel
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.contexts import MAP_ICM_MOST_ENTRIES, WRITE_MTT_MOST_ENTRIES
from shared.live_words import publish_fence, words32, words64

Handler = Callable[[HcaTables, Command], None]

_HANDLERS: Final[dict[int, tuple[Handler, FirmwareState]]] = {
    **system_commands.HANDLERS,
    **memory_commands.HANDLERS,
    **queue_commands.HANDLERS,
    **qp_commands.HANDLERS,
    **port_commands.HANDLERS,
}
_ENTRIES: Final = {
    op.WRITE_MTT: WRITE_MTT_MOST_ENTRIES,
    op.MAP_ICM: MAP_ICM_MOST_ENTRIES,
    op.MAP_ICM_AUX: MAP_ICM_MOST_ENTRIES,
    op.MAP_FA: MAP_ICM_MOST_ENTRIES,
}
_MOST_OUTSTANDING: Final = 1 << reg.COMMANDS_OUTSTANDING_LOG2
_CONTROL: Final = reg.HCR_CONTROL_OFFSET // 4
_POSTED: Final = reg.COMMANDS_POSTED_OFFSET // 8
_TAKEN: Final = reg.COMMANDS_TAKEN_OFFSET // 8
_WORD_MASK: Final = (1 << 64) - 1
_SWAPPED: Final = sys.byteorder == "little"
_DWORD: Final = 4
_TIMES: Final = {
    opcode: reg.COMMAND_TIMES_OFFSET // 8 + number * reg.COMMAND_TIMES_WORDS
    for number, opcode in enumerate(op.COMMANDS)
}


def _swap(value: int) -> int:
    return int.from_bytes(value.to_bytes(_DWORD, "little"), "big") if _SWAPPED else value


_GO: Final = _swap(reg.HCR_GO_BIT)


class _Account:
    """Times of one opcode: how many, what was asked, what it took."""

    __slots__ = ("achieved_ns", "asked_ns", "count", "failed")

    def __init__(self) -> None:
        self.count = 0
        self.failed = 0
        self.asked_ns = 0
        self.achieved_ns = 0


class CommandInterface:
    """The HCR's page, the commands accepted, and those whose event is not out yet."""

    def __init__(self, tables: HcaTables, registers: memoryview, model: LatencyModel) -> None:
        self._tables: Final = tables
        self._registers: Final = registers
        self._words: Final = words32(registers)
        self._live: Final = words64(registers)
        self._taken = self._live[_TAKEN] = self._live[_POSTED]
        self._model: Final = model
        self._lane: Final[deque[Command]] = deque()
        self._polled: Command | None = None
        self._due_ns = 0
        self._free_ns = 0
        self.held = 0  # times a command waited for a copy to end
        self._events: Final[deque[tuple[int, Command]]] = deque()
        self._accounts: Final[dict[int, _Account]] = {}
        #: Called before a command takes effect: whoever feeds the device brings it up to date.
        self.before_command: Callable[[], None] | None = None

    def run_once(self) -> bool:
        """Accept, execute or complete what there is; False if nothing was due."""
        busy = False
        if self._live[_POSTED] != self._taken:
            busy = self._accept_posted()
        if self._words[_CONTROL] & _GO and self._polled is None:
            busy |= self._accept()
        if not (self._lane or self._events):
            return busy
        now = self._tables.clock_ns()
        if self._lane and now >= self._due_ns:
            busy |= self._execute(now)
        while self._events and now >= self._events[0][0]:
            self._tell(self._events.popleft()[1])
            busy = True
        return busy

    def next_deadline_ns(self) -> int | None:
        """Return when the next command or event is due."""
        times = [self._due_ns] if self._lane else []
        if self._events:
            times.append(self._events[0][0])
        return min(times, default=None)

    def _accept(self) -> bool:
        if len(self._lane) + len(self._events) >= _MOST_OUTSTANDING:
            return False  # GO stays: the kernel waits for its turn
        control = _swap(self._words[_CONTROL])
        event = bool(control & reg.HCR_E_BIT)
        command = Command(
            self._tables.memory,
            reg.HCR_PARAMETERS.unpack_from(self._registers, reg.HCR_OFFSET),
            control,
            event,
        )
        if event:
            self._words[_CONTROL] = _swap(control & ~reg.HCR_GO_BIT)
        else:
            self._polled = command
        self._enter_lane(command)
        return True

    def _accept_posted(self) -> bool:
        """Accept what was posted through the doorbell, as much as there is room for."""
        room = _MOST_OUTSTANDING - len(self._lane) - len(self._events)
        posted = (self._live[_POSTED] - self._taken) & _WORD_MASK
        count = min(posted, room, reg.COMMAND_RING_ENTRIES)
        for position in range(self._taken, self._taken + count):
            place = position % reg.COMMAND_RING_ENTRIES * reg.COMMAND_RING_STRIDE
            *parameters, control = reg.COMMAND_RING_ENTRY.unpack_from(
                self._registers, reg.COMMAND_RING_OFFSET + place
            )
            self._enter_lane(Command(self._tables.memory, tuple(parameters), control, True))
        self._taken = self._live[_TAKEN] = (self._taken + count) & _WORD_MASK
        return count > 0

    def _enter_lane(self, command: Command) -> None:
        self._lane.append(command)
        if len(self._lane) == 1:
            self._start(command, max(self._tables.clock_ns(), self._free_ns))

    def _start(self, command: Command, start_ns: int) -> None:
        entries = min(command.modifier, _ENTRIES.get(command.opcode, 0))
        command.start_ns = start_ns
        command.asked_ns = self._model.service_ns(command.opcode, entries)
        self._due_ns = self._free_ns = start_ns + command.asked_ns

    def lengthen(self, command: Command, more_ns: int) -> None:
        """Have the command that was started last take more time."""
        command.asked_ns += more_ns
        self._due_ns = self._free_ns = self._due_ns + more_ns

    def _execute(self, now: int) -> bool:
        """Let the next command take effect; False if what it names is in use by a copy."""
        if self.before_command is not None:
            self.before_command()
        command = self._lane[0]
        try:
            command.status = self._perform(command)
        except CommandNotYet:
            self.held += 1
            return False
        self._lane.popleft()
        account = self._accounts.setdefault(command.opcode, _Account())
        account.count += 1
        account.failed += command.status != op.CMD_STAT_OK
        account.asked_ns += command.asked_ns
        account.achieved_ns += max(0, now - command.start_ns)
        self._publish(command.opcode, account)
        if command.event:
            after = self._events[-1][0] if self._events else 0
            self._events.append((max(after, now + self._model.event_overhead_ns()), command))
        else:
            self._answer(command)
        if self._lane:
            self._start(self._lane[0], self._free_ns)
        return True

    def _publish(self, opcode: int, account: _Account) -> None:
        """Let the kernel see the times of an opcode."""
        first = _TIMES.get(opcode)
        if first is not None:
            self._live[first] = account.count
            self._live[first + 1] = account.asked_ns
            self._live[first + 2] = account.achieved_ns

    def _perform(self, command: Command) -> int:
        handler = _HANDLERS.get(command.opcode)
        if handler is None:
            return op.CMD_STAT_BAD_OP
        routine, least = handler
        if self._tables.firmware < least:
            return op.CMD_STAT_BAD_SYS_STATE
        try:
            routine(self._tables, command)
        except CommandRefused as refusal:
            return refusal.status
        return op.CMD_STAT_OK

    def _answer(self, command: Command) -> None:
        """Put the result of a polled command into the HCR; GO falls last."""
        self._polled = None
        out = reg.HCR_OUT_PARAM_OFFSET
        self._registers[out : out + 8] = command.result.to_bytes(8, "big")
        publish_fence()
        control = _swap(self._words[_CONTROL]) & ~(reg.HCR_GO_BIT | 0xFF << reg.HCR_STATUS_SHIFT)
        self._words[_CONTROL] = _swap(control | command.status << reg.HCR_STATUS_SHIFT)

    def _tell(self, command: Command) -> None:
        self._tables.events.command_done(command.token, command.status, command.result)

    def inspect(self) -> dict[str, object]:
        """Return what is outstanding, and asked and achieved times by opcode."""
        return {
            "latency_model": self._model.name,
            "executing": len(self._lane),
            "events_due": len(self._events),
            "held": self.held,
            "commands": {
                _name(opcode): {
                    "count": account.count,
                    "failed": account.failed,
                    "asked_ns": account.asked_ns,
                    "achieved_ns": account.achieved_ns,
                }
                for opcode, account in self._accounts.items()
            },
        }


def _name(opcode: int) -> str:
    kind = op.COMMANDS.get(opcode)
    return kind.name if kind is not None else f"{opcode:#05x}"
