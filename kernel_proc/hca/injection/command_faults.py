"""Commands that fail, are late, or whose completion never comes.

Spec: docs/command-interface.md (How a command ends badly).
"""

from collections.abc import Callable

from kernel_proc.faults.overrides import Overrides
from kernel_proc.hca.command import Command
from kernel_proc.hca.injection.injection import Injection
from kernel_proc.hca_abi.fault_words import opcode_of, status_of


class CommandInjection(Injection):
    """Of the commands of one opcode, or of all."""

    def takes(self, command: Command) -> bool:
        """Count a command that fits; True if it is struck."""
        opcode = opcode_of(self.active.fault)
        return opcode in (None, command.opcode) and self.active.strikes()


class CommandFails(CommandInjection):
    """It ends with a status and has changed nothing."""

    def install(self, overrides: Overrides) -> None:
        """Refuse before the command's routine is asked."""
        status = status_of(self.active.fault)

        def make(perform: Callable[[Command], int]) -> Callable[[Command], int]:
            return lambda command: status if self.takes(command) else perform(command)

        overrides.replace(self.device.commands, "_perform", make)


class CommandLate(CommandInjection):
    """It takes effect, and ends, later; those behind it wait as for any long command."""

    def install(self, overrides: Overrides) -> None:
        """Have the lane count the command as so much longer."""
        commands = self.device.commands

        def make(start: Callable[[Command, int], None]) -> Callable[[Command, int], None]:
            def start_late(command: Command, start_ns: int) -> None:
                start(command, start_ns)
                if self.takes(command):
                    commands.lengthen(command, self.active.fault.time_ns)

            return start_late

        overrides.replace(commands, "_start", make)


class CompletionLost(CommandInjection):
    """It takes effect, and nobody is told: no event comes, or GO stays."""

    def install(self, overrides: Overrides) -> None:
        """Tell nothing."""

        def make(tell: Callable[[Command], None]) -> Callable[[Command], None]:
            def tell_or_not(command: Command) -> None:
                if not self.takes(command):
                    tell(command)

            return tell_or_not

        for way in ("_tell", "_answer"):
            overrides.replace(self.device.commands, way, make)
